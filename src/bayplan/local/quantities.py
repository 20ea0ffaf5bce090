"""Amounts as the API server stores them: `1000m` becomes `"1"`, `1024Mi` becomes `"1Gi"`.

kubectl compares what it is given with what is stored, so the form matters: `cpu: 1` in a file is
not what the API server keeps.
"""

import re
from collections.abc import Iterator
from typing import Any

from bayplan.core.model.quantity import BadQuantity, milli, parse
from bayplan.local import problems
from bayplan.local.store import Json

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_EXPONENT = re.compile(r"[eE][+-]?\d+$")
_FORM_WRONG = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_SUFFIX_WRONG = "unable to parse quantity's suffix"
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


def canonical(text: str) -> str:
    """One way to write each amount, in whole thousandths; the kind of suffix stays, as in Go."""
    text = text.strip()
    amount, power = milli(parse(text)), -3
    if amount == 0:
        return "0"
    if text.endswith("i") and amount % 1000 == 0 and abs(amount) >= 1024 * 1000:
        whole, times = amount // 1000, 0
        while whole % 1024 == 0 and times < len(_BINARY) - 1:
            whole, times = whole // 1024, times + 1
        return f"{whole}{_BINARY[times]}"
    exponent = _EXPONENT.search(text) is not None
    while amount % 1000 == 0 and (exponent or power < max(_DECIMAL)):
        amount, power = amount // 1000, power + 3
    if exponent:
        return f"{amount}e{power}" if power else str(amount)
    return f"{amount}{_DECIMAL[power]}"


def settle(kind: str, object: Json) -> None:
    """Writes every amount of a pod, node or volume the API server's way, in place.

    A `Problem` says that one is none.
    """
    for amounts in _amounts(kind, object):
        for name, amount in amounts.items():
            if isinstance(amount, str | int | float) and not isinstance(amount, bool):
                amounts[name] = _settled(kind, str(amount))


def _settled(kind: str, text: str) -> str:
    try:
        return canonical(text)
    except BadQuantity as error:
        why = _SUFFIX_WRONG if "suffix" in str(error) else _FORM_WRONG
        text = f'{kind} in version "v1" cannot be handled as a {kind}: {why}'
        raise problems.bad_request(text) from None


def _amounts(kind: str, object: Json) -> Iterator[dict[str, Any]]:
    """The maps of amounts in an object; what is no map there is somebody else's mistake."""
    spec, status = _map(object, "spec"), _map(object, "status")
    if kind in ("StatefulSet", "Job"):
        yield from _amounts("Pod", _map(spec, "template"))
    elif kind == "Pod":
        yield _map(spec, "overhead")
        holders = [spec]
        for field in _CONTAINERS:
            holders += [entry for entry in spec.get(field) or () if isinstance(entry, dict)]
        for holder in holders:
            for field in ("requests", "limits"):
                yield _map(_map(holder, "resources"), field)
    elif kind == "Node":
        yield _map(status, "capacity")
        yield _map(status, "allocatable")
    elif kind == "RuntimeClass":
        yield _map(_map(object, "overhead"), "podFixed")
    elif kind in ("PersistentVolume", "PersistentVolumeClaim"):
        yield _map(spec, "capacity")
        yield _map(status, "capacity")
        for field in ("requests", "limits"):
            yield _map(_map(spec, "resources"), field)
    elif kind == "ResourceQuota":
        for part, field in ((spec, "hard"), (status, "hard"), (status, "used")):
            yield _map(part, field)


def _map(holder: Json, field: str) -> Json:
    found = holder.get(field)
    return found if isinstance(found, dict) else {}
