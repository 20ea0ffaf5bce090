"""Structs as protocol buffers: as much of the encoding as the messages of kubelets and V-IPU need.

A field's number is its place in the struct, from 1. There are strings, integers, booleans,
messages, tuples of those, and maps from string to string. What is not known is skipped, and what
has its default is not written, as in proto3. The protobuf library would do the same for 3 MiB of
memory and generated code that is bound to its version; the tests hold this to what it says.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct

T = TypeVar("T", bound=Struct)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10  # bytes
_MASK = (1 << 64) - 1


class BadMessage(ValueError):
    """Bytes that are not the message that they should be."""


class Pair(Struct, frozen=True):
    """An entry of a map."""

    key: str = ""
    value: str = ""


def encode(message: Struct) -> bytes:
    out = bytearray()
    for number, name in enumerate(message.__struct_fields__, 1):
        for item in _written(getattr(message, name)):
            if isinstance(item, int):  # a bool is one
                out += _varint(number << 3 | _VARINT) + _varint(item & _MASK)
            else:
                body = item.encode() if isinstance(item, str) else encode(item)
                out += _varint(number << 3 | _BYTES) + _varint(len(body)) + body
    return bytes(out)


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    def decode(data: bytes) -> T:
        found: T = _decode(kind, data)
        return found

    return decode


def _written(value: Any) -> tuple[Any, ...]:
    if isinstance(value, dict):
        return tuple(Pair(key, each) for key, each in value.items())
    if isinstance(value, tuple):
        return value
    return (value,) if value is not None and value not in ("", 0) else ()


def _decode(kind: type[Struct], data: bytes) -> Any:
    shapes = _shapes(kind)
    values: dict[str, Any] = {}
    for number, raw in _fields(data):
        if number > len(shapes):
            continue
        name, many, item = shapes[number - 1]
        value = _value(item, raw)
        if many is tuple:
            values.setdefault(name, []).append(value)
        elif many is dict:
            values.setdefault(name, {})[value.key] = value.value
        else:
            values[name] = value
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})


@cache
def _shapes(kind: type[Struct]) -> list[tuple[str, type | None, type]]:
    """By number: the field's name, whether it is a tuple or a dict, and what is in it."""
    found: list[tuple[str, type | None, type]] = []
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        many = get_origin(hints[name])
        if many is tuple:
            found.append((name, tuple, get_args(hints[name])[0]))
        elif many is dict:
            found.append((name, dict, Pair))
        else:  # `Message | None` is a message that may be missing
            found.append((name, None, next(iter(get_args(hints[name])), hints[name])))
    return found


def _value(item: type, raw: int | bytes) -> Any:
    if isinstance(raw, int) != (item in (int, bool)):
        raise BadMessage(f"a field should be of type {item.__name__}")
    if isinstance(raw, int):
        signed = raw - (1 << 64) if raw >> 63 else raw
        return bool(raw) if item is bool else signed
    if item is str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise BadMessage("a string is not UTF-8") from None
    return _decode(item, raw)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers with their content; fixed-width ones are nowhere used, and skipped."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, sort = tag >> 3, tag & 7
        if number < 1:
            raise BadMessage("a field without a number")
        if sort == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if sort == _BYTES:
            size, at = _read_varint(data, at)
        elif sort in (_FIXED32, _FIXED64):
            size = 4 if sort == _FIXED32 else 8
        else:
            raise BadMessage(f"a field of unknown wire type {sort}")
        if at + size > len(data):
            raise BadMessage("a field is cut off")
        if sort == _BYTES:
            yield number, data[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        if at + shift >= len(data):
            break
        byte = data[at + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value & _MASK, at + shift + 1
    raise BadMessage("a number is cut off")
