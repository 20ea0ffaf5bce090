"""What the API server answers when it will not do what was asked: a Status."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayplan.local.kinds import Kind
from bayplan.local.store import Json, Key, encode

INVALID_REASONS = {  # what a cause is called
    "Required": "FieldValueRequired",
    "Invalid": "FieldValueInvalid",
    "Duplicate": "FieldValueDuplicate",
    "Unsupported": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "TooLong": "FieldValueTooLong",
}


class Problem(Exception):
    """A Status that says no."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.retry_after = details, retry_after
        self.metadata = metadata or {}

    @property
    def status(self) -> Json:
        found: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(self.metadata),
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            found["reason"] = self.reason
        if self.details is not None:
            found["details"] = dict(self.details)
        return {**found, "code": self.code}

    @property
    def body(self) -> bytes:
        return encode(self.status) + b"\n"


def _details(kind: Kind, name: str, **more: object) -> Json:
    named = {"name": name} if name else {}
    group = {"group": kind.group} if kind.group else {}
    return {**named, **group, "kind": kind.plural, **more}


def not_found(kind: Kind, name: str) -> Problem:
    return Problem(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def no_path() -> Problem:
    """The server has nothing at this path."""
    return Problem(404, "NotFound", "the server could not find the requested resource", {})


class NoGroup(Problem):
    """The one refusal that is no Status."""

    @property
    def body(self) -> bytes:
        return b"404 page not found\n"


def no_group() -> Problem:
    """The server has nothing of this group and version."""
    return NoGroup(404, "NotFound", "404 page not found")


def exists(kind: Kind, name: str) -> Problem:
    text = f'{kind.resource} "{name}" already exists'
    return Problem(409, "AlreadyExists", text, _details(kind, name))


def not_allowed(
    kind: Kind, name: str, why: str, causes: Sequence[Mapping[str, str]] = ()
) -> Problem:
    text = f'{kind.resource} "{name}" is forbidden: {why}'
    more = {"causes": list(causes)} if causes else {}
    return Problem(403, "Forbidden", text, _details(kind, name, **more))


def conflict(kind: Kind, name: str, why: str, sub: str = "", what: str = "") -> Problem:
    """`what` is what the message calls the resource, where it is not its plural."""
    called = what or (f"{kind.plural}/{sub}" if sub else kind.plural)
    resource = f"{called}.{kind.group}" if kind.group else called
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Problem(409, "Conflict", text, {**_details(kind, name), "kind": called})


def stale(kind: Kind, key: Key, what: str, wanted: str, found: str) -> Problem:
    """A write names an object that is not the one that is there."""
    stored = "minions" if kind.built_in == "Node" else kind.resource if kind.custom else kind.plural
    path = "/".join(filter(None, ("/registry", stored, *key)))
    why = (
        f"StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {what} in precondition: {wanted}, {what} in "
        f"object meta: {found}"
    )
    return conflict(kind, key[1], why)


def modified(kind: Kind, name: str) -> Problem:
    why = (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    return conflict(kind, name, why)


def no_revision(kind: Kind, name: str) -> Problem:
    """An update must say what it has seen."""
    cause = Cause(
        "Invalid",
        "metadata.resourceVersion",
        "Invalid value: 0: must be specified for an update",
    )
    problem = invalid(kind, name, [cause])
    text = f'{kind.resource} "{name}" is invalid: {cause}'
    details = {**(problem.details or {}), "kind": kind.plural}
    return Problem(problem.code, problem.reason, text, details)


def bad_request(text: str) -> Problem:
    return Problem(400, "BadRequest", text)


def unsupported(text: str) -> Problem:
    """Ours alone: what a real API server can do and this one cannot."""
    return Problem(501, "NotImplemented", text)


def expired(text: str) -> Problem:
    return Problem(410, "Expired", text)


def bad_method() -> Problem:
    text = "the server does not allow this method on the requested resource"
    return Problem(405, "MethodNotAllowed", text, {})


def bad_media_type(supported: str) -> Problem:
    text = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{supported}"
    )
    return Problem(415, "UnsupportedMediaType", text)


class Cause:
    """One thing that is wrong with one field."""

    def __init__(self, sort: str, field: str, text: str) -> None:
        self.sort, self.field, self.text = sort, field, text

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def required(field: str, text: str = "") -> Cause:
    return Cause("Required", field, f"Required value: {text}" if text else "Required value")


def wrong(field: str, value: object, text: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else encode(value).decode()
    return Cause("Invalid", field, f"Invalid value: {shown}: {text}")


def forbidden(field: str, text: str) -> Cause:
    return Cause("Forbidden", field, f"Forbidden: {text}")


def invalid(kind: Kind, name: str, causes: list[Cause]) -> Problem:
    """422, with every cause."""
    group = "" if kind.built_in == "Event" else kind.group  # events are checked as v1 has them
    return _invalid(kind.kind, group, name, causes)


def invalid_options(causes: list[Cause], options: str = "ListOptions") -> Problem:
    """Of a list or a watch, if nothing else is said."""
    return _invalid(options, "meta.k8s.io", "", causes)


def invalid_scale(name: str, causes: list[Cause]) -> Problem:
    return _invalid("Scale", "autoscaling", name, causes)


def not_one_of(field: str, value: object, *supported: str) -> Cause:
    known = ", ".join(f'"{each}"' for each in supported)
    text = f"Unsupported value: {encode(value).decode()}: supported values: {known}"
    return Cause("Unsupported", field, text)


def _invalid(kind: str, group: str, name: str, causes: list[Cause]) -> Problem:
    words = ", ".join(map(str, causes))
    listed = f"[{words}]" if len(causes) > 1 else words
    qualified = f"{kind}.{group}" if group else kind
    details = {
        **({"name": name} if name else {}),
        **({"group": group} if group else {}),
        "kind": kind,
        "causes": [
            {"reason": INVALID_REASONS[cause.sort], "message": cause.text, "field": cause.field}
            for cause in causes
        ],
    }
    return Problem(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details)
