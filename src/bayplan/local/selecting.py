"""Which objects a list or a watch is about: a namespace, a label selector, a field selector."""

import re
from typing import Any

from msgspec import Struct

from bayplan.core.model.selectors import Requirement, base10, is_label_key, is_label_value
from bayplan.local.kinds import Kind
from bayplan.local.problems import bad_request
from bayplan.local.store import Json, Stored

_EVENT_FIELDS = ("reason", "type", "reportingComponent", "source")
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_FIELDS: dict[str, tuple[str, ...]] = {  # beyond metadata.name and metadata.namespace
    "Pod": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    "Node": ("spec.unschedulable",),
    "Namespace": ("status.phase",),
    "Secret": ("type",),
    "ResourceSlice": ("spec.nodeName", "spec.driver"),
}
_ABSENT = {"spec.hostNetwork": "false", "spec.unschedulable": "false"}
_SET = re.compile(r"(?P<key>[^\s!=<>(),]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_PLAIN = re.compile(r"(?P<key>[^\s!=<>(),]+)\s*(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s!=<>(),]*)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s!=<>(),]+)")
_FIELD_TERM = re.compile(r"(?:\\.|[^,\\]|\\\Z)+", re.DOTALL)  # a backslash protects a comma
_FIELD_PARTS = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(?P<after>.?)|(?P<bare>[,=])", re.DOTALL)
_COMMAS = re.compile(r",(?![^()]*\))")


class FieldTerm(Struct, frozen=True):
    path: tuple[str, ...]
    equal: bool
    value: str


class Chosen(Struct, frozen=True):
    """The objects that a request is about."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    def has(self, stored: Stored) -> bool:
        metadata = stored.value["metadata"]
        if self.namespace and metadata.get("namespace", "") != self.namespace:
            return False
        if self.labels:
            labels = metadata.get("labels") or {}
            if not all(requirement.matches(labels) for requirement in self.labels):
                return False
        return all(
            (field_of(stored.value, term.path) == term.value) == term.equal for term in self.fields
        )


def field_of(value: Json, path: tuple[str, ...]) -> str:
    found: Any = value
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    if found is None:
        return _ABSENT.get(".".join(path), "")
    return str(found).lower() if isinstance(found, bool) else str(found)


def chosen(kind: Kind, namespace: str, labels: str, fields: str) -> Chosen:
    return Chosen(namespace, _labels(labels), _field_terms(kind, fields))


def _labels(text: str) -> tuple[Requirement, ...]:
    parts = [part.strip() for part in _COMMAS.split(text)] if text.strip() else []
    return tuple(_requirement(part, text) for part in parts)


def _requirement(part: str, whole: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = sorted({value.strip() for value in found["values"].split(",")})
        op = "In" if found["op"] == "in" else "NotIn"
        made = Requirement(found["key"], op, tuple(values))
    elif found := _PLAIN.fullmatch(part):
        ops = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
        made = Requirement(found["key"], ops[found["op"]], (found["value"],))
    elif found := _EXISTS.fullmatch(part):
        made = Requirement(found["key"], "DoesNotExist" if found["no"] else "Exists")
    else:
        raise bad_request(f"unable to parse requirement: {part!r} in label selector {whole!r}")
    if not is_label_key(made.key) or not all(map(is_label_value, made.values)):
        raise bad_request(f"unable to parse requirement: {part!r} in label selector {whole!r}")
    if made.op in ("Gt", "Lt") and base10(made.values[0]) is None:
        why = "for 'Gt', 'Lt' operators, the value must be an integer"
        raise bad_request(
            f'unable to parse requirement: values[0]: Invalid value: "{made.values[0]}": {why}'
        )
    return made


def _field_terms(kind: Kind, text: str) -> tuple[FieldTerm, ...]:
    terms = []
    for part in _FIELD_TERM.findall(text):
        found = _FIELD_PARTS.fullmatch(part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        value = _ESCAPED.sub(_unescaped, found[3])
        terms.append(FieldTerm(_field_path(kind, found[1]), found[2] != "!=", value))
    return tuple(terms)


def _unescaped(found: re.Match[str]) -> str:
    if found["bare"]:
        code = ord(found["bare"])
        raise bad_request(f"invalid field selector: unescaped character in value: {code}")
    if found["after"] not in ("\\", ",", "="):
        raise bad_request(f"invalid field selector: invalid escape sequence: {found[0]}")
    return found["after"]


def _field_path(kind: Kind, name: str) -> tuple[str, ...]:
    """Where a field stands in the stored object."""
    plain = not kind.custom and kind.kind not in ("Event", "Service", *_FIELDS)
    if name == "metadata.name" or (name == "metadata.namespace" and (kind.namespaced or plain)):
        return tuple(name.split("."))
    if plain:
        known = 'only "metadata.name", "metadata.namespace"'
        raise bad_request(f'"{name}" is not a known field selector: {known}')
    if kind.built_in == "Event":
        prefix, _, rest = name.partition(".")
        if prefix == ("regarding" if kind.group else "involvedObject") and rest in _INVOLVED:
            return ("involvedObject", rest)
        renamed = "reportingComponent" if name == "reportingController" else name
        if renamed in _EVENT_FIELDS:
            return ("source", "component") if renamed == "source" else (renamed,)
    elif name in _FIELDS.get("" if kind.custom else kind.kind, ()):
        return tuple(name.split("."))
    raise bad_request(f"field label not supported: {name}")
