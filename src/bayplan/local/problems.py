"""What the API server answers when it will not do what was asked: a Status."""

from collections.abc import Mapping
from typing import Any

from bayplan.local.kinds import Kind
from bayplan.local.store import Json, encode

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
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.retry_after = details, retry_after

    @property
    def status(self) -> Json:
        found: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            found["reason"] = self.reason
        if self.details:
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


def exists(kind: Kind, name: str) -> Problem:
    text = f'{kind.resource} "{name}" already exists'
    return Problem(409, "AlreadyExists", text, _details(kind, name))


def conflict(kind: Kind, name: str, why: str, sub: str = "") -> Problem:
    resource = (
        kind.resource.replace(kind.plural, f"{kind.plural}/{sub}", 1) if sub else kind.resource
    )
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    details = _details(kind, name)
    if sub:
        details["kind"] = f"{kind.plural}/{sub}"
    return Problem(409, "Conflict", text, details)


def modified(kind: Kind, name: str) -> Problem:
    why = (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    return conflict(kind, name, why)


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
    words = ", ".join(map(str, causes))
    listed = f"[{words}]" if len(causes) > 1 else words
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = {
        **({"name": name} if name else {}),
        **({"group": kind.group} if kind.group else {}),
        "kind": kind.kind,
        "causes": [
            {"reason": INVALID_REASONS[cause.sort], "message": cause.text, "field": cause.field}
            for cause in causes
        ],
    }
    return Problem(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details)
