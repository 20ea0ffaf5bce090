"""What every object has: names, times, uids, generations, deletion, finalizers."""

import random
import re
import uuid
from datetime import UTC, datetime

from bayplan.core.model.selectors import is_label_key, is_label_value
from bayplan.local.kinds import Kind
from bayplan.local.problems import Cause, forbidden, required, wrong
from bayplan.local.store import Json

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DNS_LABEL = re.compile(_LABEL)
_PATH_NAME = re.compile(r"(?!\.\.?$)[^/%]+")
CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: no vowels, nothing look-alike
_LONGEST_GENERATED = 63 - 5
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
    "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
NAME_LABEL = "kubernetes.io/metadata.name"  # of every namespace
_MOST_ANNOTATION_BYTES = 256 << 10
_END = 253_402_300_799.0  # of the year 9999; a pod may be given more time than that
_ROLES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def timestamp(wall: float) -> str:
    return datetime.fromtimestamp(min(wall, _END), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(timestamp: str) -> float:
    """The other way round."""
    return datetime.fromisoformat(timestamp).timestamp()


def check_finalizers(was: Json, metadata: Json) -> list[Cause]:
    """What is being deleted gets no new ones."""
    before, after = was.get("finalizers") or [], metadata.get("finalizers") or []
    new = [name for name in after if name not in before]
    if not new or not was.get("deletionTimestamp"):
        return []
    shown = ", ".join(f'"{name}"' for name in new)
    rule = "no new finalizers can be added if the object is being deleted, found new finalizers"
    return [forbidden("metadata.finalizers", f"{rule} []string{{{shown}}}")]


def stamp_new(metadata: Json, wall: float, rng: random.Random) -> None:
    """What the API server gives a new object."""
    prefix = metadata.get("generateName")
    if prefix and not metadata.get("name"):
        tail = "".join(rng.choices(CHARACTERS, k=5))
        metadata["name"] = f"{prefix[:_LONGEST_GENERATED]}{tail}"
    metadata["uid"] = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    metadata["creationTimestamp"] = timestamp(wall)
    for given in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
        metadata.pop(given, None)


def check(kind: Kind, metadata: Json) -> list[Cause]:
    """What is wrong with an object's metadata."""
    name = metadata.get("name")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    causes = []
    if kind.built_in in _ROLES:
        fits, rule = _PATH_NAME.fullmatch(name) is not None, "may not contain '/' or '%'"
    elif kind.built_in in ("Namespace", "Service", "StatefulSet"):
        fits, rule = _DNS_LABEL.fullmatch(name) is not None and len(name) <= 63, _LABEL_RULE
    else:
        fits, rule = _SUBDOMAIN.fullmatch(name) is not None and len(name) <= 253, _SUBDOMAIN_RULE
    if not fits:
        causes.append(wrong("metadata.name", name, rule))
    for key, value in _pairs(metadata, "labels").items():
        if not is_label_key(key):
            causes.append(wrong("metadata.labels", key, _KEY_RULE))
        if not is_label_value(value):
            causes.append(wrong("metadata.labels", value, _VALUE_RULE))
    annotations = _pairs(metadata, "annotations")
    causes += [
        wrong("metadata.annotations", key, _KEY_RULE)
        for key in annotations
        if not is_label_key(key.lower())
    ]
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > _MOST_ANNOTATION_BYTES:
        text = f"Too long: may not be more than {_MOST_ANNOTATION_BYTES} bytes"
        causes.append(Cause("TooLong", "metadata.annotations", text))
    return causes


def check_label(field: str, name: str) -> list[Cause]:
    """Of a name that becomes a part of a host's name."""
    fits = _DNS_LABEL.fullmatch(name) is not None and len(name) <= 63
    return [] if fits else [wrong(field, name, _LABEL_RULE)]


def check_key(field: str, key: str) -> list[Cause]:
    """Of a qualified name, such as a taint's or a scheduling gate's."""
    causes = [] if key else [wrong(field, key, "name part must be non-empty")]
    return causes if is_label_key(key) else [*causes, wrong(field, key, _KEY_RULE)]


def _pairs(metadata: Json, field: str) -> Json:
    found = metadata.get(field)
    return found if isinstance(found, dict) else {}
