"""The paths of questions, and the OpenAPI document that describes them.

What is asked and answered stays bytes here: who answers knows what they mean. The document is made
from the types, so it cannot say anything else than they do.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from bayplan.web.api import Asked, Table
from bayplan.web.desk import Refused
from bayplan.web.server import JSON, Answer, json

WHAT_IF, FITS, OPENAPI = "/v1/what-if", "/v1/fits", "/v1/openapi.json"
EXPLAIN = "/v1/explain/"  # namespace/name
_REF = "#/components/schemas/{name}"
_TROUBLE = {
    "400": "The question makes no sense, or asks for too much.",
    "401": "A token or a certificate is needed.",
    "403": "Asked under a name that is not this machine's.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "503": "The scheduler is not ready, or the question takes too long.",
}


class PodQuestion(Struct, frozen=True):
    """Would a pod that the scheduler knows fit?"""

    pod: str  # namespace/name
    node: str | None
    without: tuple[str, ...]


class Questions(Protocol):
    """What can be asked; JSON in, JSON out. Each may raise `Refused`."""

    async def what_if(self, body: bytes) -> bytes: ...

    async def fits(self, body: bytes) -> bytes:
        """The content of one `fits` step."""

    async def fits_known(self, question: PodQuestion) -> bytes: ...

    async def explain(self, pod: str) -> bytes:
        """Why the pod, namespace/name, waits, and what would help."""


class Types(Struct, frozen=True):
    """What bodies look like."""

    question: type
    fits: type
    answers: Sequence[type]  # the kinds of answer
    explanation: type


def routes(questions: Questions, types: Types, version: str) -> Table:
    document = json(openapi(types, version))

    async def what_if(asked: Asked) -> Answer:
        return Answer(await questions.what_if(asked.body), content_type=JSON)

    async def fits(asked: Asked) -> Answer:
        return Answer(await questions.fits(asked.body), content_type=JSON)

    async def fits_known(asked: Asked) -> Answer:
        return Answer(await questions.fits_known(_known(asked)), content_type=JSON)

    async def explain(asked: Asked) -> Answer:
        space, _, name = asked.rest.partition("/")
        if not space or not name or "/" in name:
            raise Refused(404, f"a pod is {EXPLAIN}namespace/name")
        return Answer(await questions.explain(asked.rest), content_type=JSON)

    async def describe(_: Asked) -> Answer:
        return document

    return {
        WHAT_IF: {"POST": what_if},
        FITS: {"GET": fits_known, "POST": fits},
        EXPLAIN: {"GET": explain},
        OPENAPI: {"GET": describe},
    }


def _known(asked: Asked) -> PodQuestion:
    query = asked.query
    if unknown := [name for name in query if name not in ("pod", "node", "without")]:
        raise Refused(400, f"there is no parameter {unknown[0]}; there are pod, node and without")
    for name in ("pod", "node"):
        given = query.get(name, ())
        if len(given) > 1 or "" in given:
            raise Refused(400, f"{name} should be there once, and not be empty")
    if "pod" not in query:
        raise Refused(400, "the parameter pod is missing: namespace/name of a pod that waits")
    node = query["node"][0] if "node" in query else None
    return PodQuestion(query["pod"][0], node, tuple(query.get("without", ())))


def openapi(types: Types, version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the paths above."""
    every = (types.question, types.fits, types.explanation, *types.answers)
    (question, fits, explanation, *answers), components = msgspec.json.schema_components(
        every, ref_template=_REF
    )
    components["Answers"] = {
        "type": "object",
        "description": "One answer a step, in order, as of a state of the cluster.",
        "properties": {
            "version": {"type": "integer"},
            "answers": {"type": "array", "items": {"anyOf": answers}},
        },
        "required": ["version", "answers"],
    }
    components["Error"] = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bayplan", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": {
            WHAT_IF: {"post": _operation("whatIf", "Steps on one trial; nothing lasts.", question)},
            FITS: {
                "get": _operation("fitsKnown", "Would a pod that waits fit?", None, _PARAMETERS),
                "post": _operation("fits", "Would this pod fit?", fits),
            },
            EXPLAIN + "{namespace}/{pod}": {"get": _explains(explanation)},
            OPENAPI: {"get": _plain("describe", "This document.")},
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _parameter(name: str, words: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "query", "description": words, "schema": schema} | more


_PARAMETERS = (
    _parameter("pod", "namespace/name of a pod that waits.", required=True),
    _parameter("node", "Only there."),
    _parameter(
        "without",
        "If these pods were gone; may be there several times.",
        schema={"type": "array", "items": {"type": "string", "minLength": 1}},
    ),
)


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": schema}}


def _plain(name: str, words: str) -> dict[str, Any]:
    found = {"description": "The document.", "content": _content({"type": "object"})}
    return {"operationId": name, "summary": words, "responses": {"200": found} | _troubles(False)}


def _explains(answer: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
    names = ("namespace", "pod")
    given = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    unknown = {"description": "No such pod is known.", "content": _content(_ref("Error"))}
    found = {"description": "What is to be said of it.", "content": _content(answer)}
    return {
        "operationId": "explain",
        "summary": "Why does a pod wait, and what would help?",
        "parameters": given,
        "responses": {"200": found, "404": unknown} | _troubles(False),
    }


def _operation(
    name: str, words: str, body: dict[str, Any] | None, parameters: Sequence[Any] = ()
) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": name, "summary": words}
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = {"required": True, "content": _content(body)}
    answers = {"description": "The answers.", "content": _content(_ref("Answers"))}
    return found | {"responses": {"200": answers} | _troubles(body is not None)}


def _troubles(has_body: bool) -> dict[str, Any]:
    wanted = [code for code in _TROUBLE if has_body or code not in ("413", "415")]
    error = _content(_ref("Error"))
    return {code: {"description": _TROUBLE[code], "content": error} for code in wanted}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": _REF.format(name=name)}
