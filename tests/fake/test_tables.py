"""Lists of the embedded API: tables of odd objects, pages, selectors. The messages are
kube-apiserver 1.36.3's.
"""

import json
from typing import Any

import pytest

from bayplan.kube.clock import RealClock
from bayplan.local.api import Api
from bayplan.local.kinds import BUILT_IN, Kind
from bayplan.local.requests import Answer, Request
from bayplan.local.tables import table

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
CORE, MAPS = "/api/v1/namespaces/default", "/api/v1/namespaces/default/configmaps"
STATUS = {"containerStatuses": [{"restartCount": "x"}]}
EVENT = {"metadata": {"name": "x"}, "involvedObject": {"namespace": "default"}}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WRONG: list[tuple[str, dict[str, Any]]] = [  # where, what
    (MAPS, {"data": 5}),
    (MAPS, {"data": {"a": 5}}),
    (MAPS, {"binaryData": ["a"]}),
    (f"{CORE}/events", {**EVENT, "lastTimestamp": "yesterday"}),
    (f"{CORE}/events", {**EVENT, "lastTimestamp": "2026-01-01"}),
    (f"{CORE}/events", {**EVENT, "firstTimestamp": 7}),
    (f"{CORE}/events", {**EVENT, "eventTime": "2026-01-01T00:00:00Z"}),
    (f"{CORE}/events", {**EVENT, "series": {"count": "x"}}),
    (f"{CORE}/events", {**EVENT, "count": "x"}),
    (f"{CORE}/services", {"spec": {"ports": ["a"]}}),
    (f"{CORE}/services", {"spec": {"ports": [{"port": "80"}]}}),
    (f"{CORE}/endpoints", {"subsets": ["a"]}),
    (f"{CORE}/pods", {"spec": {"containers": [{"name": "c", "image": "i"}]}, "status": STATUS}),
    ("/api/v1/persistentvolumes", {"spec": {"capacity": 5}}),
    (f"{RBAC}/clusterrolebindings", {"subjects": 5}),
    ("/apis/storage.k8s.io/v1/csinodes", {"spec": {"drivers": 5}}),
]
COLUMNS = [
    {"name": "When", "type": "date", "jsonPath": ".spec.when"},
    {"name": "N", "type": "integer", "jsonPath": ".spec.n"},
    {"name": "B", "type": "boolean", "jsonPath": ".spec.b"},
    {"name": "S", "type": "string", "jsonPath": ".spec.s"},
    {"name": "F", "type": "number", "jsonPath": ".spec.f"},
]
KNOWN = 'only "metadata.name", "metadata.namespace"'
NO_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"


@pytest.fixture
def api() -> Api:
    return Api(RealClock())


def post(api: Api, path: str, name: str, **value: Any) -> Answer:
    body = json.dumps({**value, "metadata": {"name": name}}).encode()
    return api.handle(Request("POST", path, body=body))


def get(api: Api, path: str, **params: str) -> tuple[int, Any]:
    params = {key.strip("_"): value for key, value in params.items()}
    answer = api.handle(Request("GET", path, params))
    value = json.loads(answer.body)
    if answer.status >= 400:
        return answer.status, value["message"]
    return 200, [item["metadata"]["name"] for item in value["items"]]


def token(api: Api, path: str) -> str:
    answer = api.handle(Request("GET", path, {"limit": "1"}))
    return str(json.loads(answer.body)["metadata"]["continue"])


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_field_of_the_wrong_type_is_refused(api: Api, path: str, value: dict[str, Any]) -> None:
    answer = post(api, path, "x", **value)
    assert (answer.status, json.loads(answer.body)["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.resource)
def test_a_row_that_cannot_be_made_fails_alone(api: Api, kind: Kind) -> None:
    """Whatever stands in the fields that columns read."""
    fields = ("spec", "status", "data", "involvedObject", "series", "subsets", "subjects")
    about = {"name": "odd", "creationTimestamp": "2026-01-01T00:00:00Z"}
    head = {"kind": kind.kind, "apiVersion": kind.api_version}
    for wrong in (5, "x", ["a"], {"drivers": 5, "ports": ["a"], "containerStatuses": ["a"]}):
        value = {**head, "metadata": dict(about), **dict.fromkeys(fields, wrong)}
        odd = api.store.put("odd", ("", "odd"), value)
        made = table(kind, [odd], {}, 1_767_225_600.0, {})
        (row,) = made["rows"]
        assert "odd" in row["cells"]
        assert len(row["cells"]) == len(made["columnDefinitions"])


def test_a_custom_column_leaves_out_what_has_not_its_type(api: Api) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
        "additionalPrinterColumns": COLUMNS,
    }
    names = {"plural": "xs", "kind": "X"}
    spec = {"group": "g.io", "scope": "Namespaced", "names": names, "versions": [version]}
    assert post(api, definitions, "xs.g.io", spec=spec).status == 201
    for name, given in (
        ("a", {"when": "soon", "n": "x", "b": "x", "s": {"a": [1, True]}, "f": "x"}),
        ("b", {"when": 5, "n": 1.5, "b": 1, "s": True, "f": 1}),
        ("d", {}),
        ("e", {"when": "2026-01-01", "n": "5", "b": "true", "s": 5, "f": "1.5"}),
    ):
        path = "/apis/g.io/v1/namespaces/default/xs"
        assert post(api, path, name, kind="X", apiVersion="g.io/v1", spec=given).status == 201
    answer = api.handle(Request("GET", "/apis/g.io/v1/xs", accept=TABLE))
    assert [row["cells"] for row in json.loads(answer.body)["rows"]] == [
        ["a", "<invalid>", None, None, '{"a":[1,true]}', None],
        ["b", None, 1, None, "true", 1],
        ["d", None, None, None, None, None],
        ["e", "<invalid>", None, None, "5", None],
    ]


def test_a_token_of_another_list_is_only_a_place_to_begin(api: Api) -> None:
    for name in ("b", "c", "d"):
        post(api, MAPS, name)
        post(api, f"{CORE}/secrets", name)
    post(api, "/api/v1/nodes", "a")
    post(api, "/api/v1/nodes", "z")
    begun = token(api, MAPS)

    assert get(api, MAPS, continue_=begun) == (200, ["c", "d"])
    assert get(api, "/api/v1/nodes", continue_=begun) == (200, ["z"])
    assert get(api, f"{CORE}/secrets", continue_=begun) == (200, ["c", "d"])
    assert get(api, MAPS, continue_=begun, fieldSelector="metadata.name!=c") == (200, ["d"])
    assert get(api, "/api/v1/namespaces/kube-system/configmaps", continue_=begun) == (200, [])


def test_a_page_has_no_resource_version_of_its_own(api: Api) -> None:
    post(api, MAPS, "a")
    post(api, MAPS, "b")
    begun = token(api, MAPS)
    why = "specifying resource version is not allowed when using continue"
    assert get(api, MAPS, continue_=begun, resourceVersion="5") == (400, why)
    assert get(api, MAPS, continue_=begun, resourceVersion="x") == (400, why)
    assert get(api, MAPS, continue_=begun, resourceVersion="0") == (200, ["b"])


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 21, "٣", "-1"])
def test_no_number_is_too_long_to_be_refused(api: Api, text: str) -> None:
    wrong = "value out of range" if text[0] == "9" else "invalid syntax"
    why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {wrong}'
    said = f"invalid resource version: resourceVersion: {why}"
    assert get(api, MAPS, resourceVersion=text) == (400, said)
    code, said = get(api, MAPS, continue_=f"1.{text}.default/a")
    assert (code, said[:22]) == (400, "invalid continue token")


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("a>b", f'values[0]: Invalid value: "b": {NO_INTEGER}'),
        ("a>", f'values[0]: Invalid value: "": {NO_INTEGER}'),
        ("a<1.5", f'values[0]: Invalid value: "1.5": {NO_INTEGER}'),
        ("a>99999999999999999999", f'values[0]: Invalid value: "{"9" * 20}": {NO_INTEGER}'),
    ],
)
def test_only_integers_are_compared(api: Api, selector: str, why: str) -> None:
    said = f"unable to parse requirement: {why}"
    assert get(api, MAPS, labelSelector=selector) == (400, said)


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (r"metadata.name=a\,b", []),
        (r"metadata.name!=a\,b", ["a"]),
        (r"metadata.name!=a\=b,metadata.name!=\\", ["a"]),
        ("metadata.name=a,,metadata.name=a,", ["a"]),
        ("metadata.name=a\\", "invalid field selector: invalid escape sequence: \\"),
        ("metadata.name=a\\x", "invalid field selector: invalid escape sequence: \\x"),
        ("metadata.name=a=b", "invalid field selector: unescaped character in value: 61"),
        ("foo=a", f'"foo" is not a known field selector: {KNOWN}'),
        ("name!a", "invalid selector: 'name!a'; can't understand 'name!a'"),
    ],
)
def test_field_selectors_may_be_escaped(api: Api, selector: str, found: Any) -> None:
    post(api, MAPS, "a")
    code = 200 if isinstance(found, list) else 400
    assert get(api, MAPS, fieldSelector=selector) == (code, found)
