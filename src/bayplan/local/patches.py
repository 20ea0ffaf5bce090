"""The three ways to patch an object: JSON patch, merge patch, and Kubernetes' strategic merge.

A strategic merge knows which lists are sets of things with a name. Those that the kinds of `kinds`
have are in a table; every other list is replaced as a whole, which is what the API server does with
lists that have no merge key.
"""

from typing import Any

from bayplan.local.forms import check_depth
from bayplan.local.problems import Problem
from bayplan.local.requests import LARGEST_BODY, too_large
from bayplan.local.store import Json, decode, encode

# The merge key of a list, by the list's own name and the field that it is in; "" is a list of plain
# values. From the patchMergeKey tags of k8s.io/api's types.
_MERGE_KEYS = {
    ("metadata", "finalizers"): "",
    ("metadata", "ownerReferences"): "uid",
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("spec", "ephemeralContainers"): "name",
    ("spec", "volumes"): "name",
    ("spec", "imagePullSecrets"): "name",
    ("spec", "hostAliases"): "ip",
    ("spec", "topologySpreadConstraints"): "topologyKey",
    ("spec", "schedulingGates"): "name",
    ("spec", "resourceClaims"): "name",
    ("spec", "podCIDRs"): "",
    ("spec", "ports"): "port",  # of a Service
    ("containers", "ports"): "containerPort",
    ("containers", "env"): "name",
    ("containers", "volumeMounts"): "mountPath",
    ("containers", "volumeDevices"): "devicePath",
    ("status", "conditions"): "type",
    ("status", "addresses"): "type",
    ("status", "podIPs"): "ip",
    ("status", "resourceClaimStatuses"): "name",
    ("", "secrets"): "name",  # of a ServiceAccount
}
_RETAINED = "$retainKeys"
_ORDER, _DELETED = "$setElementOrder/", "$deleteFromPrimitiveList/"
_PATCH = "$patch"
_MOST_STEPS = 10_000  # of a JSON patch; the API server's own limit
_LONGEST_INDEX = 9  # digits


class BadPatch(ValueError):
    """A patch that cannot be applied to this object."""


def merge(target: Json, patch: Any) -> Any:
    """RFC 7386."""
    check_depth(patch)
    return _merge(target, patch)


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def strategic(target: Json, patch: Any) -> Any:
    """A strategic merge patch."""
    check_depth(patch)
    return _strategic(target, patch, "")


def _strategic(target: Any, patch: Any, within: str) -> Any:
    """`within` is the field that the object stands in."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(_PATCH)
    rest = {key: value for key, value in patch.items() if key != _PATCH}
    if directive == "replace":
        return rest
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise BadPatch(f"Unknown patch type: {directive}")
    result = dict(target) if isinstance(target, dict) else {}
    before = dict(result)
    kept = rest.pop(_RETAINED, None)
    if isinstance(kept, list):
        result = {key: value for key, value in result.items() if key in kept}
    orders: dict[str, list[Any]] = {}
    for key, value in rest.items():
        if key.startswith(_ORDER):
            orders[key.removeprefix(_ORDER)] = _list(value, key)
        elif key.startswith(_DELETED):
            name, gone = key.removeprefix(_DELETED), _list(value, key)
            found = _list(result.get(name) or [], name)
            result[name] = [entry for entry in found if entry not in gone]
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(result.get(key), value, within, key)
        else:
            result[key] = _strategic(result.get(key), value, key)
    for name, order in orders.items():
        if isinstance(result.get(name), list):
            old = _list(before.get(name) or [], name)
            result[name] = _ordered(result[name], order, old, _merge_key(within, name))
    return result


def _merge_key(within: str, name: str) -> str | None:
    """None: the list is one value."""
    within = "containers" if within in ("initContainers", "ephemeralContainers") else within
    return _MERGE_KEYS.get((within, name))


def _merge_list(target: Any, patch: list[Any], within: str, name: str) -> list[Any]:
    key = _merge_key(within, name)
    current = list(target) if isinstance(target, list) else []
    if key is None:
        return [_strategic(None, entry, name) for entry in patch]
    old = list(current)
    if not key:
        current += [entry for entry in patch if entry not in current]
        return _ordered(current, patch, old, key)
    if len({isinstance(entry, dict) for entry in current + patch}) > 1:
        text = f"list element types are not identical: {encode([current, patch]).decode()}"
        raise Problem(500, "", text)
    if any(isinstance(entry, dict) and entry.get(_PATCH) == "replace" for entry in patch):
        return [entry for entry in patch if entry.get(_PATCH) != "replace"]
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise BadPatch(f"map: {entry} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(current) if old.get(key) == entry[key]), None)
        if entry.get(_PATCH) == "delete":
            if at is not None:
                del current[at]
        elif at is None:
            current.append(_strategic(None, entry, name))
        else:
            current[at] = _strategic(current[at], entry, name)
    return _ordered(current, patch, old, key)


def _ordered(entries: list[Any], order: list[Any], old: list[Any], key: str | None) -> list[Any]:
    """Those that the patch names in its order; the others where they stood, relative to `old`."""

    def name(entry: Any) -> Any:
        return entry.get(key) if key and isinstance(entry, dict) else entry

    named, places = [name(entry) for entry in order], [name(entry) for entry in old]
    first = [entry for entry in entries if name(entry) in named]
    first.sort(key=lambda entry: named.index(name(entry)))
    others = [entry for entry in entries if name(entry) not in named]
    result = []
    while first and others:
        left, right = name(others[0]), name(first[0])
        before = left in places and right in places and places.index(left) < places.index(right)
        result.append((others if before else first).pop(0))
    return [*result, *others, *first]


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadPatch(f"{key} should be a list")
    return value


# ---- RFC 6902


def json_patch(target: Json, steps: Any) -> Json:
    if not isinstance(steps, list):
        raise BadPatch("a JSON patch is a list of operations")
    if len(steps) > _MOST_STEPS:
        text = (
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{_MOST_STEPS}, got {len(steps)}"
        )
        raise Problem(413, "RequestEntityTooLarge", text)
    check_depth(steps)
    whole: dict[str, Any] = {"": target}
    copied = 0  # bytes
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("path"), str):
            raise BadPatch("each operation of a JSON patch has an op and a path")
        copied += _one_step(whole, step)
        if copied > LARGEST_BODY:
            raise BadPatch(f"the copies are larger than {LARGEST_BODY} bytes")
    found: Json = whole[""]
    check_depth(found)
    if len(encode(found)) > LARGEST_BODY:
        raise too_large()
    return found


def _one_step(whole: Json, step: Json) -> int:
    """How many bytes it copied."""
    op, path = step.get("op"), step["path"]
    if op == "add":
        _add(whole, path, step.get("value"))
    elif op == "remove":
        _remove(whole, path)
    elif op == "replace":
        _replace(whole, path, step.get("value"))
    elif op == "test":
        if not _same(_find_or_null(whole, path), step.get("value")):
            raise BadPatch(f"testing value {path} failed")
    elif op in ("move", "copy"):
        source = step.get("from")
        if not isinstance(source, str):
            raise BadPatch(f"{op} needs a from")
        if op == "copy":
            value = _find_or_null(whole, source)
            check_depth(value)
            raw = encode(value)
            _add(whole, path, decode(raw))
            return len(raw)
        _add(whole, path, _remove(whole, source))
    else:
        raise BadPatch(f"unknown operation {op!r}")
    return 0


def _same(one: Any, other: Any) -> bool:
    """As JSON has it, where neither true nor 1.0 is 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _parts(path: str) -> list[str]:
    """From the root, which is called "" here."""
    if path and not path.startswith("/"):
        raise BadPatch(f"the path {path!r} does not begin with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]


def _holder(whole: Json, path: str) -> tuple[Any, str]:
    *above, last = _parts(path)
    found: Any = whole
    for part in above:
        found = _child(found, part, path)
    return found, last


def _find_or_null(whole: Json, path: str) -> Any:
    """What an object does not have counts as null; what a list does not have is an error."""
    holder, last = _holder(whole, path)
    return holder.get(last) if isinstance(holder, dict) else _child(holder, last, path)


def _child(holder: Any, part: str, path: str) -> Any:
    if isinstance(holder, dict) and part in holder:
        return holder[part]
    if isinstance(holder, list) and _is_index(part) and int(part) < len(holder):
        return holder[int(part)]
    raise BadPatch(f"there is nothing at {path}")


def _is_index(part: str) -> bool:
    return part.isdecimal() and len(part) <= _LONGEST_INDEX


def _add(whole: Json, path: str, value: Any) -> None:
    holder, last = _holder(whole, path)
    if isinstance(holder, dict) and path:
        holder[last] = value
    elif isinstance(holder, list) and (last == "-" or _is_index(last)):
        at = len(holder) if last == "-" else int(last)
        if at > len(holder):
            raise BadPatch(f"{path} is beyond the end of its list")
        holder.insert(at, value)
    else:
        raise BadPatch(f"nothing can be added at {path}")


def _replace(whole: Json, path: str, value: Any) -> None:
    holder, last = _holder(whole, path)
    if isinstance(holder, dict):
        holder[last] = value
    else:
        _child(holder, last, path)
        holder[int(last)] = value


def _remove(whole: Json, path: str) -> Any:
    """What was there."""
    holder, last = _holder(whole, path)
    value = _child(holder, last, path)
    if not path:
        raise BadPatch("the whole object cannot be removed")
    del holder[last if isinstance(holder, dict) else int(last)]
    return value
