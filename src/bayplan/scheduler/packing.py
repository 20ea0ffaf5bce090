"""Values whose types are known only at run time: keys of groups, and what plugins remember.

Plain values stay plain; anything else becomes [type, content]. Only values of the core can be
named, and nothing is imported or called by name: a file of somebody else's can do no harm.
"""

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct

CORE = "bayplan.core."


def pack(value: Any) -> Any:
    """The value as JSON can hold it: plain where it is plain, else [type, content]."""
    name = type(value).__name__
    match value:
        case Struct():
            return [_name(value), msgspec.to_builtins(value)]
        case Enum():
            return [_name(value), pack(value.value)]
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else ["float", repr(value)]
        case dict() if name in _MAPS:
            return [name, [[pack(k), pack(v)] for k, v in value.items()]]
        case frozenset() | set() if name in _MANY:
            return [name, sorted((pack(v) for v in value), key=repr)]
        case tuple() | list() | deque() if name in _MANY:
            return [name, [pack(v) for v in value]]
    raise TypeError(f"{name} cannot be written down")


def unpack(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed
    name, content = packed
    if name in _MAPS:
        return _MAPS[name]({unpack(k): unpack(v) for k, v in content})
    if name in _MANY:
        return _MANY[name](unpack(v) for v in content)
    if name == "float":
        return float(content)
    module, _, kind = name.partition(":")
    found = getattr(sys.modules[f"{CORE}{module}"], kind)
    if not isinstance(found, type) or not issubclass(found, Struct | Enum):
        raise TypeError(f"{name} is no value of the core")
    return msgspec.convert(unpack(content) if issubclass(found, Enum) else content, found)


_MAPS: dict[str, Callable[[dict[Any, Any]], dict[Any, Any]]] = {"dict": dict, "Counter": Counter}
_MANY: dict[str, Callable[[Iterable[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}


def _name(value: object) -> str:
    kind = type(value)
    if not kind.__module__.startswith(CORE):
        raise TypeError(f"{kind.__qualname__} is not of the core")
    return f"{kind.__module__.removeprefix(CORE)}:{kind.__qualname__}"
