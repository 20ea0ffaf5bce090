"""CustomResourceDefinitions: what is wrong with one, and what the API server writes into it."""

import re
from typing import Any

from bayplan.local import problems, shapes
from bayplan.local.kinds import DEFINITION
from bayplan.local.problems import Cause, required, wrong
from bayplan.local.store import Json

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_PROTECTED = re.compile(r"(.+\.)?(k8s|kubernetes)\.io")  # groups
_APPROVAL = "api-approved.kubernetes.io"
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_FIXED = (("group",), ("names", "plural"), ("names", "kind"), ("scope",))  # below `spec`
_VERSION: Json = {  # as Go prints one
    "Name": "",
    "Served": False,
    "Storage": False,
    "Deprecated": False,
    **dict.fromkeys(("DeprecationWarning", "Schema", "Subresources")),
    **dict.fromkeys(("AdditionalPrinterColumns", "SelectableFields")),
}


def settled(new: Json, old: Json | None, now: str) -> Json:
    """With the names that it does not say and the status of `old`; a `Problem` when it is wrong.

    Nothing has to wait for the API server's controllers: names are accepted at once.
    """
    shapes.check(DEFINITION, new)
    spec = new["spec"] = {**(new.get("spec") or {})}
    names = spec["names"] = {**(spec.get("names") or {})}
    if names.get("kind"):
        names["singular"] = names.get("singular") or names["kind"].lower()
        names["listKind"] = names.get("listKind") or f"{names['kind']}List"
    given = spec.get("versions")
    if given:
        spec["versions"] = [{"served": False, "storage": False, **version} for version in given]
    spec["conversion"] = spec.get("conversion") or {"strategy": "None"}
    before = (old or {}).get("status") or {}
    kept = [version.get("name") for version in given or () if version.get("storage")]
    stored = list(dict.fromkeys([*(before.get("storedVersions") or ()), *kept]))
    causes = _check(new["metadata"], spec, old) + _check_stored(spec, stored)
    if causes:
        raise problems.invalid(DEFINITION, new["metadata"].get("name") or "", causes)
    conditions = before.get("conditions") or [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
        _condition(
            "Established", "InitialNamesAccepted", "the initial names have been accepted", now
        ),
    ]
    new["status"] = {"acceptedNames": names, "conditions": conditions, "storedVersions": stored}
    return new


def _check(metadata: Json, spec: Json, old: Json | None) -> list[Cause]:
    names, group = spec["names"], spec.get("group") or ""
    name, causes = metadata.get("name") or "", []
    if old is None and name != f"{names.get('plural') or ''}.{group}":
        causes.append(wrong("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if not group:
        causes.append(required("spec.group"))
    elif "." not in group:
        causes.append(wrong("spec.group", group, "should be a domain with at least one dot"))
    elif _PROTECTED.fullmatch(group) and _APPROVAL not in (metadata.get("annotations") or {}):
        text = f'protected groups must have approval annotation "{_APPROVAL}", see '
        text += "https://github.com/kubernetes/enhancements/pull/1111"
        causes.append(required(f"metadata.annotations[{_APPROVAL}]", text))
    scope = spec.get("scope") or ""
    if not scope:
        causes.append(required("spec.scope"))
    elif scope not in ("Cluster", "Namespaced"):
        text = f'Unsupported value: "{scope}": supported values: "Cluster", "Namespaced"'
        causes.append(Cause("Unsupported", "spec.scope", text))
    causes += _check_versions(spec.get("versions"))
    causes += _check_names(names)
    if old is not None:
        causes += _check_fixed(spec, old["spec"])
    return causes


def _check_versions(given: list[Json] | None) -> list[Cause]:
    causes, versions = [], given or []
    for at, version in enumerate(versions):
        path = f"spec.versions[{at}]"
        if not _NAME.fullmatch(version.get("name") or ""):
            causes.append(wrong(f"{path}.name", version.get("name") or "", _NAME_RULE))
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            causes.append(required(f"{path}.schema.openAPIV3Schema"))
        for place, column in enumerate(version.get("additionalPrinterColumns") or ()):
            path = f"spec.additionalPrinterColumns[{place}]"
            sort, types = column.get("type"), f"must be one of {','.join(_COLUMN_TYPES)}"
            if not column.get("name"):
                causes.append(required(f"{path}.name"))
            if not sort:
                causes.append(required(f"{path}.type", types))
            elif sort not in _COLUMN_TYPES:
                causes.append(wrong(f"{path}.type", sort, types))
            if not column.get("jsonPath"):
                causes.append(required(f"{path}.JSONPath"))
    fields = ("name", "served", "storage")
    shown = given and [_VERSION | {f.title(): v.get(f) for f in fields} for v in versions]
    if len({version.get("name") for version in versions}) < len(versions):
        causes.append(wrong("spec.versions", shown, "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        text = "must have exactly one version marked as storage version"
        causes.append(wrong("spec.versions", shown, text))
    return causes


def _check_names(names: Json) -> list[Cause]:
    causes = []
    for field in ("plural", "singular", "kind", "listKind"):
        name, path = names.get(field) or "", f"spec.names.{field}"
        mixed = field in ("kind", "listKind")
        if not name:
            causes.append(required(path))
        elif not _NAME.fullmatch(name.lower() if mixed else name):
            may = "may have mixed case, but should otherwise match: " if mixed else ""
            causes.append(wrong(path, name, f"{may}{_NAME_RULE}"))
    for field in ("shortNames", "categories"):
        for at, name in enumerate(names.get(field) or ()):
            if not _NAME.fullmatch(name):
                causes.append(wrong(f"spec.names.{field}[{at}]", name, _NAME_RULE))
    if names.get("kind") and names["kind"] == names.get("listKind"):
        text = "kind and listKind may not be the same"
        causes.append(wrong("spec.names.listKind", names["listKind"], text))
    return causes


def _check_fixed(new: Json, old: Json) -> list[Cause]:
    """What names the objects that there are may not change."""
    return [
        wrong(f"spec.{'.'.join(path)}", _at(new, path) or "", "field is immutable")
        for path in _FIXED
        if _at(new, path) != _at(old, path)
    ]


def _check_stored(spec: Json, stored: list[str]) -> list[Cause]:
    """A version that objects were kept in stays."""
    if not stored:
        return [wrong("status.storedVersions", None, "must have at least one stored version")]
    there = [version.get("name") for version in spec.get("versions") or ()]
    return [
        wrong(
            f"status.storedVersions[{at}]",
            name,
            f"missing from spec.versions; {name} was previously a storage version, and must remain "
            "in spec.versions until a storage migration ensures no data remains persisted in "
            f"{name} and removes {name} from status.storedVersions",
        )
        for at, name in enumerate(stored)
        if name not in there
    ]


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for field in path:
        value = value.get(field)
    return value


def _condition(sort: str, reason: str, message: str, at: str) -> Json:
    return {
        "type": sort,
        "status": "True",
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }
