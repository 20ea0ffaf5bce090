"""CustomResourceDefinitions in the embedded API: what is refused, and what is served after each
change. The messages are kube-apiserver 1.36.3's.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from bayplan.kube.clock import RealClock
from bayplan.local.api import Api
from bayplan.local.requests import Answer, Request

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
XS = "/apis/g.io/v1/namespaces/default/xs"
STORED = 'status.storedVersions[0]: Invalid value: "v1": missing from spec.versions; v1 was'
VERSION = {
    "name": "v1",
    "served": True,
    "storage": True,
    "schema": {"openAPIV3Schema": {"type": "object"}},
}
V2 = {**VERSION, "name": "v2", "storage": False}
XS_DEFINITION: dict[str, Any] = {
    "metadata": {"name": "xs.g.io"},
    "spec": {
        "group": "g.io",
        "scope": "Namespaced",
        "names": {"plural": "xs", "kind": "X"},
        "versions": [VERSION],
    },
}


def ask(api: Api, method: str, path: str, body: Any = None, **more: Any) -> Answer:
    raw = b"" if body is None else json.dumps(body).encode()
    return api.handle(Request(method, path, body=raw, **more))


def merge(api: Api, spec: dict[str, Any]) -> Answer:
    sort = "application/merge-patch+json"
    return ask(api, "PATCH", f"{DEFINITIONS}/xs.g.io", {"spec": spec}, content_type=sort)


def named(plural: str, group: str) -> dict[str, Any]:
    names = {"plural": plural, "kind": "X"}
    about = {"name": f"{plural}.{group}"}
    return {"metadata": about, "spec": {**XS_DEFINITION["spec"], "group": group, "names": names}}


def told(answer: Answer) -> tuple[int, str]:
    text: str = json.loads(answer.body)["message"]
    about, mark, why = text.partition(" is invalid: ")
    return answer.status, why if mark else about


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(definition: dict[str, Any]) -> None:
        place: Any = definition
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return change


@pytest.fixture
def api() -> Api:
    return Api(RealClock())


@pytest.mark.parametrize(
    "change",
    [
        changed("spec", "group", to=5),
        changed("spec", "names", "kind", to=5),
        changed("spec", "names", "plural", to=["x"]),
        changed("spec", "names", "shortNames", to="x"),
        changed("spec", "names", to="x"),
        changed("spec", "versions", to=["x"]),
        changed("spec", "versions", 0, "served", to="x"),
        changed("spec", "versions", 0, "additionalPrinterColumns", to=["x"]),
        changed("spec", "versions", 0, "subresources", to="x"),
    ],
)
def test_a_definition_with_a_field_of_the_wrong_type_is_not_stored(
    api: Api, change: Callable[[dict[str, Any]], None]
) -> None:
    definition = deepcopy(XS_DEFINITION)
    change(definition)
    answer = ask(api, "POST", DEFINITIONS, definition)

    assert answer.status == 400
    assert json.loads(ask(api, "GET", DEFINITIONS).body)["items"] == []
    assert ask(api, "GET", "/apis").status == 200


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            changed("metadata", "name", to="y.g.io"),
            'metadata.name: Invalid value: "y.g.io": must be spec.names.plural+"."+spec.group',
        ),
        (
            changed("spec", "group", to=""),
            '[metadata.name: Invalid value: "xs.g.io": must be spec.names.plural+"."+spec.group, '
            "spec.group: Required value]",
        ),
        (
            changed("spec", "names", to={"plural": "xs"}),
            "[spec.names.singular: Required value, spec.names.kind: Required value, "
            "spec.names.listKind: Required value]",
        ),
        (
            changed("spec", "versions", to=[]),
            "[spec.versions: Invalid value: []: must have exactly one version marked as storage "
            "version, status.storedVersions: Invalid value: null: must have at least one stored "
            "version]",
        ),
        (
            changed("spec", "versions", to=[V2]),
            '[spec.versions: Invalid value: [{"Name":"v2","Served":true,"Storage":false,'
            '"Deprecated":false,"DeprecationWarning":null,"Schema":null,"Subresources":null,'
            '"AdditionalPrinterColumns":null,"SelectableFields":null}]: must have exactly one '
            "version marked as storage version, status.storedVersions: Invalid value: null: must "
            "have at least one stored version]",
        ),
        (
            changed("spec", "versions", 0, "schema", to=None),
            "spec.versions[0].schema.openAPIV3Schema: Required value",
        ),
        (
            changed("spec", "versions", 0, "additionalPrinterColumns", to=[{"name": "A"}]),
            "[spec.additionalPrinterColumns[0].type: Required value: must be one of "
            "boolean,date,integer,number,string, "
            "spec.additionalPrinterColumns[0].JSONPath: Required value]",
        ),
        (changed("spec", "scope", to=None), "spec.scope: Required value"),
        (
            changed("spec", "scope", to="Z"),
            'spec.scope: Unsupported value: "Z": supported values: "Cluster", "Namespaced"',
        ),
        (
            changed("spec", "names", "listKind", to="X"),
            'spec.names.listKind: Invalid value: "X": kind and listKind may not be the same',
        ),
    ],
)
def test_a_definition_is_checked_before_it_is_stored(
    api: Api, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    definition = deepcopy(XS_DEFINITION)
    change(definition)

    assert told(ask(api, "POST", DEFINITIONS, definition)) == (422, why)
    assert json.loads(ask(api, "GET", DEFINITIONS).body)["items"] == []


def test_the_api_servers_own_kinds_are_not_redefined(api: Api) -> None:
    for plural, group, why in (
        ("poddisruptionbudgets", "policy", '"policy": should be a domain with at least one dot'),
        ("leases", "coordination.k8s.io", "protected groups must have approval annotation"),
    ):
        code, text = told(ask(api, "POST", DEFINITIONS, named(plural, group)))
        assert (code, why in text) == (422, True), text
    assert ask(api, "POST", DEFINITIONS, named("pods", "")).status == 422

    approved = named("leases", "coordination.k8s.io")
    approved["metadata"]["annotations"] = {"api-approved.kubernetes.io": "yes"}
    lease = {"metadata": {"name": "l", "namespace": "default"}}
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert ask(api, "POST", DEFINITIONS, approved).status == 201
    assert ask(api, "POST", leases, lease).status == 201
    assert ask(api, "DELETE", f"{DEFINITIONS}/leases.coordination.k8s.io").status == 200
    assert ask(api, "GET", f"{leases}/l").status == 200


def test_a_custom_kind_named_event_is_not_our_events(api: Api) -> None:
    definition = named("events", "g.io")
    definition["spec"]["names"]["kind"] = "Event"
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    ask(api, "POST", "/api/v1/namespaces/default/events", event)
    assert ask(api, "POST", DEFINITIONS, definition).status == 201
    assert ask(api, "DELETE", f"{DEFINITIONS}/events.g.io").status == 200
    assert len(json.loads(ask(api, "GET", "/api/v1/events").body)["items"]) == 1


def test_a_replaced_definition_keeps_its_status_and_its_names(api: Api) -> None:
    made = json.loads(ask(api, "POST", DEFINITIONS, XS_DEFINITION).body)
    again = deepcopy(XS_DEFINITION)
    again["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    assert json.loads(ask(api, "PUT", f"{DEFINITIONS}/xs.g.io", again).body) == made

    again["spec"]["versions"].append(V2)
    kept = json.loads(ask(api, "PUT", f"{DEFINITIONS}/xs.g.io", again).body)
    assert kept["metadata"]["generation"] == 2
    assert kept["status"] == made["status"]
    assert kept["spec"]["names"] == {**XS_DEFINITION["spec"]["names"], **made["spec"]["names"]}
    assert ask(api, "GET", "/apis/g.io/v2/xs").status == 200


def test_versions_come_and_go_with_a_patch(api: Api) -> None:
    ask(api, "POST", DEFINITIONS, XS_DEFINITION)
    a = {"apiVersion": "g.io/v1", "kind": "X", "metadata": {"name": "a"}}
    assert ask(api, "POST", XS, a).status == 201
    assert merge(api, {"versions": [VERSION, V2]}).status == 200
    assert json.loads(ask(api, "GET", "/apis/g.io/v2/xs").body)["items"][0]["metadata"]
    assert merge(api, {"versions": [VERSION, {**V2, "served": False}]}).status == 200
    assert ask(api, "GET", "/apis/g.io/v2/xs").status == 404
    code, why = told(merge(api, {"versions": [{**V2, "storage": True}]}))
    assert (code, why.startswith(STORED)) == (422, True), why
    moved = merge(api, {"versions": [{**VERSION, "storage": False}, {**V2, "storage": True}]})
    assert json.loads(moved.body)["status"]["storedVersions"] == ["v1", "v2"]
    assert ask(api, "GET", f"{XS}/a").status == 200


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"group": "h.io"}, 'spec.group: Invalid value: "h.io": field is immutable'),
        ({"names": {"plural": "ys"}}, 'spec.names.plural: Invalid value: "ys": field is immutable'),
        ({"names": {"kind": "Y"}}, 'spec.names.kind: Invalid value: "Y": field is immutable'),
        ({"scope": "Cluster"}, 'spec.scope: Invalid value: "Cluster": field is immutable'),
    ],
)
def test_what_names_the_objects_does_not_change(api: Api, spec: Any, why: str) -> None:
    ask(api, "POST", DEFINITIONS, XS_DEFINITION)
    assert told(merge(api, spec)) == (422, why)


@pytest.mark.parametrize("path", [f"{DEFINITIONS}/xs.g.io", DEFINITIONS])
def test_a_definition_takes_its_objects_along(api: Api, path: str) -> None:
    a = {"apiVersion": "g.io/v1", "kind": "X", "metadata": {"name": "a"}}
    ask(api, "POST", DEFINITIONS, XS_DEFINITION)
    ask(api, "POST", XS, a)
    assert ask(api, "DELETE", path).status == 200
    assert ask(api, "GET", "/apis/g.io/v1/xs").status == 404
    ask(api, "POST", DEFINITIONS, XS_DEFINITION)
    assert json.loads(ask(api, "GET", XS).body)["items"] == []


def test_a_definition_with_a_finalizer_is_served_until_it_is_gone(api: Api) -> None:
    held = {**XS_DEFINITION, "metadata": {"name": "xs.g.io", "finalizers": ["g.io/held"]}}
    ask(api, "POST", DEFINITIONS, held)
    ask(api, "DELETE", f"{DEFINITIONS}/xs.g.io")
    assert ask(api, "GET", XS).status == 200
    sort = "application/merge-patch+json"
    free = {"metadata": {"finalizers": None}}
    assert ask(api, "PATCH", f"{DEFINITIONS}/xs.g.io", free, content_type=sort).status == 200
    assert ask(api, "GET", XS).status == 404


@pytest.mark.parametrize("kind", ["Pod", "Node", "Event", "Namespace", "PersistentVolume"])
def test_a_kind_that_is_called_like_a_built_in_one_is_not_taken_for_it(api: Api, kind: str) -> None:
    definition = deepcopy(XS_DEFINITION)
    definition["spec"]["names"]["kind"] = kind
    assert ask(api, "POST", DEFINITIONS, definition).status == 201
    spec = {"capacity": "much", "taints": 5, "containers": "none", "involvedObject": 1}
    about = {"apiVersion": "g.io/v1", "kind": kind, "metadata": {"name": "a"}}
    made = ask(api, "POST", XS, {**about, "spec": spec})
    assert made.status == 201
    assert json.loads(made.body)["spec"] == spec
    assert json.loads(ask(api, "DELETE", f"{XS}/a").body)["kind"] == "Status"
