"""The values and messages against vipu.proto, as the protobuf library reads it."""

import sys
from importlib import import_module, resources
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from bayplan.protobuf import decoder, encode
from bayplan.vipu import controller, wire

SAME: dict[type[Struct], str] = {  # ours: that of the file
    controller.Ipu: "Ipu",
    controller.Agent: "Agent",
    controller.LinkDomain: "LinkDomain",
    controller.Cluster: "Cluster",
    controller.Allocation: "Allocation",
    controller.Partition: "Partition",
    controller.Inventory: "Inventory",
    wire.Empty: "Empty",
    wire.CreatePartition: "CreatePartitionRequest",
    wire.PartitionId: "PartitionRequest",
    wire.PartitionReply: "PartitionReply",
    wire.PartitionList: "PartitionList",
}
CALLS: dict[str, tuple[type[Struct], type[Struct]]] = {  # asked, answered
    wire.CREATE: (wire.CreatePartition, wire.PartitionReply),
    wire.GET: (wire.PartitionId, wire.PartitionReply),
    wire.DELETE: (wire.PartitionId, wire.Empty),
    wire.LIST: (wire.Empty, wire.PartitionList),
    wire.INVENTORY: (wire.Empty, controller.Inventory),
}


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module that protoc makes of the file."""
    folder = tmp_path_factory.mktemp("protobuf")
    protoc = import_module("grpc_tools.protoc")
    with resources.as_file(resources.files("bayplan.vipu") / "vipu.proto") as file:
        arguments = ["protoc", f"-I{file.parent}", f"--python_out={folder}", str(file)]
        assert protoc.main(arguments) == 0
    sys.path.insert(0, str(folder))
    try:
        return import_module("vipu_pb2")
    finally:
        sys.path.remove(str(folder))


def messages(kind: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) is tuple:
        return st.lists(messages(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is UnionType:
        return st.none() | messages(get_args(kind)[0])
    if kind in (int, bool, str):
        numbers = st.integers(-(2**31), 2**31 - 1)
        return {int: numbers, bool: st.booleans(), str: st.text(max_size=20)}[kind]
    return st.builds(kind, **{name: messages(t) for name, t in get_type_hints(kind).items()})


def plain(message: Any) -> Any:
    """A message of either kind as lists and texts, by the names of the file less their `_id`."""
    if isinstance(message, Struct):
        return {name: plain(getattr(message, name)) for name in message.__struct_fields__}
    if hasattr(message, "DESCRIPTOR"):
        return {our_name(field.name): plain_field(message, field) for field in fields(message)}
    if isinstance(message, tuple) or hasattr(message, "append"):
        return [plain(each) for each in message]
    return message


def fields(message: Any) -> Any:
    return message.DESCRIPTOR.fields


def plain_field(message: Any, field: Any) -> Any:
    alone = field.message_type is not None and not field.is_repeated
    missing = alone and not message.HasField(field.name)
    return None if missing else plain(getattr(message, field.name))


def our_name(name: str) -> str:
    return name.removesuffix("_id") if name.endswith("_id") else name.replace("_ids", "s")


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("kind", SAME, ids=lambda kind: kind.__name__)
def test_the_protobuf_library_reads_what_we_write_and_the_reverse(
    kind: type[Struct], theirs: Any, data: st.DataObject
) -> None:
    message = data.draw(messages(kind))
    read = getattr(theirs, SAME[kind]).FromString(encode(message))

    assert plain(read) == plain(message)
    assert decoder(kind)(read.SerializeToString()) == message


def test_every_message_and_every_call_of_the_file_is_here(theirs: Any) -> None:
    assert set(theirs.DESCRIPTOR.message_types_by_name) == set(SAME.values())
    service = theirs.DESCRIPTOR.services_by_name["Vipu"]
    assert service.full_name == wire.SERVICE
    assert {
        call.name: (call.input_type.name, call.output_type.name) for call in service.methods
    } == {name: (SAME[asked], SAME[answered]) for name, (asked, answered) in CALLS.items()}


def test_fields_are_numbered_by_their_places(theirs: Any) -> None:
    for message in theirs.DESCRIPTOR.message_types_by_name.values():
        assert [field.number for field in message.fields] == list(range(1, len(message.fields) + 1))


def test_the_name_of_an_ipu() -> None:
    assert controller.Ipu("ag3", 2).name == "ag3.2"
