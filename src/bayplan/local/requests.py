"""A request and its answer: what a body and its parameters say, and what is refused of them
before anything is looked up.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from bayplan.local import problems, shapes
from bayplan.local.kinds import Kind
from bayplan.local.objects import Deletion, deletion_of
from bayplan.local.paths import Target
from bayplan.local.problems import Problem
from bayplan.local.store import Json, decode, encode

LARGEST_BODY = 3 << 20  # bytes; the API server's own limit
JSON = "application/json"
_YAML = ("application/yaml", "application/apply-patch+yaml")
_MEDIA_TYPES = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
CUSTOM_PATCHES = (
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
)
PATCHES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
}


class Request(Struct, frozen=True):
    method: str
    path: str
    params: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    content_type: str = JSON


def body_of(kinds: list[Kind], about: Target, request: Request, kind: str = "") -> Json:
    """The object that a request carries; `kind` is what it must be, where the path is another's."""
    value = decoded(request)
    if not isinstance(value, dict):
        raise problems.bad_request(
            f"the object provided is unrecognized (must be of type {about.kind.kind}): "
            "couldn't get version/kind; json parse error"
        )
    wanted, version = kind or about.kind.kind, about.kind.api_version
    if about.kind.custom and not (value.get("kind") and value.get("apiVersion")):
        raise problems.bad_request("Object 'Kind' or 'apiVersion' is missing")
    given = value.get("kind") or wanted
    given_version = value.get("apiVersion") or version
    if given != wanted or (not kind and given_version != version):
        raise _wrong_kind(kinds, about, wanted, given, given_version)
    metadata = value.get("metadata")
    if metadata is None:
        metadata = value["metadata"] = {}
    if not isinstance(metadata, dict):
        raise problems.bad_request(
            f'{wanted} in version "{given_version}" cannot be handled as a {wanted}: '
            "json: cannot unmarshal into Go struct field .metadata"
        )
    return value


def _wrong_kind(kinds: list[Kind], about: Target, wanted: str, given: Any, version: Any) -> Problem:
    kind = about.kind
    if kind.custom:
        return problems.bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({kind.api_version})"
        )
    last = str(version).rpartition("/")[2]
    why = (
        f'no kind "{given}" is registered for version "{version}" in scheme '
        '"pkg/runtime/scheme.go:111"'
    )
    if any((known.api_version, known.kind) == (version, given) for known in kinds):
        inner = (kind.group or "core").partition(".")[0]
        why = f"converting ({last}.{given}) to ({inner}.{wanted}): unknown conversion"
    return problems.bad_request(
        f'{given} in version "{last}" cannot be handled as a {wanted}: {why}'
    )


def must_be_of(about: Target, metadata: Json) -> None:
    """The namespace that the path says, also when the object says none."""
    if not about.kind.namespaced:
        metadata.pop("namespace", None)
    elif (metadata.get("namespace") or about.namespace) != about.namespace:
        raise problems.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    else:
        metadata["namespace"] = about.namespace


def must_stay(about: Target, value: Json) -> None:
    """A patch does not make another kind of it."""
    for field, wanted in (("kind", about.kind.kind), ("apiVersion", about.kind.api_version)):
        given = value.get(field)
        if given and given != wanted:
            text = f' "" is invalid: patch: Invalid value: {field} is {given}, not {wanted}'
            raise Problem(422, "Invalid", text)


def must_be_named(about: Target, metadata: Json) -> None:
    """As the path says."""
    name = metadata.get("name")
    if not name:
        raise problems.bad_request(
            f"the name of the object ({about.name} based on URL) was undeterminable: "
            "name must be provided"
        )
    if name != about.name:
        raise problems.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({about.name})"
        )


def refusal(problem: Problem) -> Answer:
    headers = {"Retry-After": str(problem.retry_after)} if problem.retry_after else {}
    sort = JSON if not isinstance(problem, problems.NoGroup) else "text/plain; charset=utf-8"
    return Answer(problem.code, problem.body, headers, sort)


def too_large() -> Problem:
    text = f"Request entity too large: limit is {LARGEST_BODY}"
    return Problem(413, "RequestEntityTooLarge", text)


def decoded(request: Request) -> Any:
    if len(request.body) > LARGEST_BODY:
        raise too_large()
    sort = request.content_type.partition(";")[0].strip()
    try:
        if sort in _YAML:
            return decode(encode(yaml.safe_load(request.body)))  # as JSON has it, or not at all
        if sort in (JSON, "", *PATCHES):
            return msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise problems.bad_request(f"the body of the request is not {sort}: {error}") from None
    raise problems.bad_media_type(_MEDIA_TYPES)


def deletion(request: Request) -> Deletion:
    options: Any = decoded(request) if request.body.strip() else {}
    if not isinstance(options, dict):
        raise problems.bad_request("the options of a delete are an object")
    shapes.check_options(options)
    if not request.body.strip():  # a body's options are all that count
        options = {"gracePeriodSeconds": number(request.params, "gracePeriodSeconds")}
    return deletion_of(options)


def is_dry(request: Request) -> bool:
    return request.params.get("dryRun") == "All"


def number(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise problems.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def is_true(text: str) -> bool:
    return text.lower() in ("true", "1")
