"""As much OpenAPI as kubectl needs: that writes take `fieldValidation`, and nothing of schemas.

With it kubectl leaves checks to the server. It looks for strategic merge patches too, and without a
schema goes by what it knows of built-in kinds itself.
"""

from collections.abc import Iterable

from bayplan.local.kinds import Kind
from bayplan.local.store import Json

_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]
_INFO = {"title": "Kubernetes", "version": "v1.36.3"}
# Version 2, which kubectl asks for when version 3 does not know a kind, and takes in protobuf only:
# a document that names itself and has nothing in it.
OLD = b"\n\x032.0\x12\x15\n\nKubernetes\x12\x07v1.36.3"
OLD_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def index(kinds: Iterable[Kind]) -> Json:
    """/openapi/v3"""
    paths = sorted({_group_path(kind) for kind in kinds})
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def document(path: str, kinds: Iterable[Kind]) -> Json | None:
    """/openapi/v3/apis/GROUP/VERSION; None where there is no such group."""
    ours = [kind for kind in kinds if _group_path(kind) == path]
    if not ours:
        return None
    paths = {}
    for kind in ours:
        space = "/namespaces/{namespace}" if kind.namespaced else ""
        collection = f"/{path}{space}/{kind.plural}"
        paths[collection] = {"post": _operation("post", kind)}
        paths[f"{collection}/{{name}}"] = {
            verb: _operation(verb, kind) for verb in ("put", "patch")
        }
    return {"openapi": "3.0.0", "info": _INFO, "paths": paths, "components": {"schemas": {}}}


def _group_path(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _operation(verb: str, kind: Kind) -> Json:
    about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    return {
        "operationId": f"{verb}{kind.kind}",
        "parameters": _PARAMETERS,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": about,
    }
