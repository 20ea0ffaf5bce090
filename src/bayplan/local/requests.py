"""A request and its answer: what a body and its parameters say, and what is refused of them
before anything is looked up.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from bayplan.local import forms, problems, shapes
from bayplan.local.kinds import Kind
from bayplan.local.objects import Deletion, deletion_of, is_dry_run
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
_OPTIONS = {
    "POST": "CreateOptions",
    "PUT": "UpdateOptions",
    "PATCH": "PatchOptions",
    "DELETE": "DeleteOptions",
}
_LARGEST = (1 << 63) - 1
_is_number = re.compile(r"[+-]?[0-9]+").fullmatch
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C where it was built
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
            value = _read_yaml(request.body)
        elif sort in (JSON, "", *PATCHES):
            value = msgspec.json.decode(request.body)
        else:
            raise problems.bad_media_type(_MEDIA_TYPES)
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise problems.bad_request(f"the body of the request is not {sort}: {error}") from None
    forms.check_depth(value)
    return value


def _read_yaml(body: bytes) -> Any:
    """As JSON has it, or not at all. An alias could make much of little."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=_Loader)):
        raise ValueError("it has aliases")
    return decode(encode(yaml.load(body, Loader=_Loader)))


def deletion(request: Request) -> Deletion:
    if request.body.strip():  # its options are all that count
        options: Any = decoded(request)
        if not isinstance(options, dict):
            raise problems.bad_request("the options of a delete are an object")
        shapes.check_options(options)
        kind = options.get("kind") or "DeleteOptions"
        if kind != "DeleteOptions":
            raise problems.bad_request(
                f'no kind "{kind}" is registered for version "{options.get("apiVersion", "")}" in '
                'scheme "pkg/runtime/scheme.go:111"'
            )
        return deletion_of(options)
    params = request.params
    return deletion_of(
        {
            "gracePeriodSeconds": number(params, "gracePeriodSeconds"),
            "dryRun": [params["dryRun"]] if params.get("dryRun") else [],
            "propagationPolicy": params.get("propagationPolicy"),
        }
    )


def is_dry(request: Request) -> bool:
    given = request.params.get("dryRun")
    return is_dry_run([given] if given else [], _OPTIONS.get(request.method, "ListOptions"))


def number(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name, "")
    if not text:
        return None
    if not _is_number(text):
        raise problems.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(text) > len(str(_LARGEST)) or not -_LARGEST <= int(text) <= _LARGEST:
        raise problems.bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


def is_true(text: str) -> bool:
    return text.lower() in ("true", "1")
