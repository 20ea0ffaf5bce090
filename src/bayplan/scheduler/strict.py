"""Plain values, as YAML gives them, into structs: what does not belong is refused with its path.

msgspec says `$[...]` for the entries of a mapping and knows no nearest word; people who write a
configuration need both. `null` stands for "not given", as in Kubernetes. Types that no
configuration of ours uses are passed through as they are.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from bayplan.core.engine.profile import nearest

T = TypeVar("T")
PARSE = "parse"  # Meta(extra={PARSE: f}): f reads the value, and says what is wrong as ValueError


class Fault(ValueError):
    """What is wrong, and at which path."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}" if path else what)
        self.path = path


def build(value: Any, kind: type[T], path: str) -> T:
    """The value as a `kind`, or Fault."""
    return cast(T, _build(value, inspect.type_info(kind), path))


def _build(value: Any, info: inspect.Type, path: str) -> Any:
    match info:
        case inspect.Metadata(type=inner, extra=extra):
            return _parse(value, extra[PARSE], path) if extra else _build(value, inner, path)
        case inspect.UnionType(types=types):
            some = [inner for inner in types if not isinstance(inner, inspect.NoneType)]
            return _build(value, some[0], path) if value is not None and len(some) == 1 else value
        case inspect.StructType():
            return _struct(value, info, path)
        case inspect.DictType(value_type=inner):
            _must_be(dict, "a mapping", value, path)
            return {_key(key, path): _build(v, inner, f"{path}.{key}") for key, v in value.items()}
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            _must_be(list, "a list", value, path)
            items = [_build(v, inner, f"{path}[{i}]") for i, v in enumerate(value)]
            return items if isinstance(info, inspect.ListType) else tuple(items)
        case inspect.LiteralType(values=words):
            if value not in words:
                hint = nearest(str(value), [str(word) for word in words])
                raise Fault(path, f"no such value as {shown(value)}{hint}")
        case inspect.BoolType():
            _must_be(bool, "true or false", value, path)
        case inspect.StrType(pattern=pattern):
            _must_be(str, "text", value, path)
            if pattern and not re.search(pattern, value):
                raise Fault(path, f"{shown(value)} is not a name that Kubernetes allows here")
        case inspect.IntType(ge=least, le=most):
            _must_be(int, "a whole number", value, path)
            if least is not None and value < least:
                raise Fault(path, f"should be at least {least}, not {value}")
            if most is not None and value > most:
                raise Fault(path, f"should be at most {most}, not {value}")
    return value


def _struct(value: Any, info: inspect.StructType, path: str) -> Any:
    _must_be(dict, "a mapping", value, path)
    fields = {field.encode_name: field for field in info.fields}
    at = f"{path}." if path else ""
    for key in value:
        if key not in fields:
            raise Fault(f"{at}{key}", f"no such field{nearest(str(key), fields)}")
    given = {}
    for name, field in fields.items():
        if value.get(name) is not None:
            given[field.name] = _build(value[name], field.type, f"{at}{name}")
        elif field.required:
            raise Fault(f"{at}{name}", "is missing")
    try:
        return info.cls(**given)
    except ValueError as error:  # of a __post_init__
        raise Fault(path, str(error)) from None


def _parse(value: Any, parse: Callable[[Any], Any], path: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise Fault(path, str(error)) from None


def _key(key: Any, path: str) -> str:
    _must_be(str, "text", key, f"{path}.{key}")
    return str(key)


def _must_be(kind: type, words: str, value: Any, path: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Fault(path, f"should be {words}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value as it stands in the file, or nearly so, if it is short."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= 60 else text[:57] + "…"
