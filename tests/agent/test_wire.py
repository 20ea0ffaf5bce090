"""Our encoding against the protobuf library's, with the kubelet's messages as .proto files."""

import sys
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from bayplan.agent import wire
from bayplan.protobuf import BadMessage, decoder, encode

HERE = Path(__file__).parent
SAME: dict[type[Struct], str] = {  # ours: theirs
    wire.Empty: "deviceplugin.Empty",
    wire.Options: "deviceplugin.DevicePluginOptions",
    wire.Registration: "deviceplugin.RegisterRequest",
    wire.DeviceList: "deviceplugin.ListAndWatchResponse",
    wire.Wishes: "deviceplugin.PreferredAllocationRequest",
    wire.IdsPerContainer: "deviceplugin.PreferredAllocationResponse",
    wire.AllocatedPerContainer: "deviceplugin.AllocateResponse",
    wire.Pods: "podresources.ListPodResourcesResponse",
}


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type; integers are of the smallest type that is used, int32."""
    if get_origin(kind) is tuple:
        return st.lists(messages(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
    if get_origin(kind) is UnionType:
        return st.none() | messages(get_args(kind)[0])
    if kind in (int, bool, str):
        return {
            int: st.integers(-(2**31), 2**31 - 1),
            bool: st.booleans(),
            str: st.text(max_size=200),
        }[kind]
    return st.builds(kind, **{name: messages(t) for name, t in get_type_hints(kind).items()})


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The protobuf library's classes, made from the .proto files."""
    folder = tmp_path_factory.mktemp("protobuf")
    names = ["deviceplugin", "podresources"]
    protoc = import_module("grpc_tools.protoc")
    files = [str(HERE / f"{name}.proto") for name in names]
    assert protoc.main(["protoc", f"-I{HERE}", f"--python_out={folder}", *files]) == 0
    sys.path.insert(0, str(folder))
    try:
        modules = {name: import_module(f"{name}_pb2") for name in names}
    finally:
        sys.path.remove(str(folder))

    def find(path: str) -> Any:
        module, _, name = path.partition(".")
        return getattr(modules[module], name)

    return find


def plain(message: Any) -> Any:
    """A message of either kind as lists and texts, without the names of its fields."""
    if isinstance(message, Struct):
        return [plain(getattr(message, name)) for name in message.__struct_fields__]
    if hasattr(message, "DESCRIPTOR"):
        return [
            plain(getattr(message, field.name))
            if field.message_type is None or _repeated(field) or message.HasField(field.name)
            else plain_default(field)
            for field in message.DESCRIPTOR.fields
        ]
    if hasattr(message, "items"):
        return dict(message.items())
    if isinstance(message, tuple) or hasattr(message, "append"):
        return [plain(each) for each in message]
    return message


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def plain_default(field: Any) -> Any:
    return None if field.message_type.name == "TopologyInfo" else [False, False]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", SAME, ids=lambda kind: kind.__name__)
def test_the_protobuf_library_reads_what_we_write_and_the_reverse(
    kind: type[Struct], theirs: Any, data: st.DataObject
) -> None:
    message = data.draw(messages(kind))
    other = theirs(SAME[kind])

    read = other.FromString(encode(message))
    assert plain(read) == plain(message)
    assert plain(decoder(kind)(read.SerializeToString())) == plain(message)


def test_a_known_message_byte_by_byte() -> None:
    message = wire.Registration("v1beta1", "a.sock", "x/y", wire.Options(False, True))

    assert encode(message) == b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03x/y\x22\x02\x10\x01"


def test_what_is_not_known_is_skipped() -> None:
    later = b"\x0a\x01a" + b"\x28\x07" + b"\x35abcd" + b"\x39abcdefgh" + b"\x42\x01x"

    assert decoder(wire.Device)(later) == wire.Device("a")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a",  # a length is missing
        b"\x0a\x05ab",  # too short
        b"\x0a\x01\xff",  # not UTF-8
        b"\x08\x01",  # a number where a text should be
        b"\x0b",  # a group
        b"\x00\x01",  # a field without a number
        b"\xff" * 11,  # a number without end
    ],
)
def test_bad_bytes_are_told(raw: bytes) -> None:
    with pytest.raises(BadMessage):
        decoder(wire.Device)(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_told(raw: bytes) -> None:
    for kind in SAME:
        try:
            decoder(kind)(raw)
        except BadMessage:
            continue
