"""Patches and bodies that a careful client would not send: they get the API server's answers.

What is quoted here is what kube-apiserver 1.36.3 said.
"""

import json
from typing import Any

import pytest

from bayplan.kube.clock import RealClock
from bayplan.local import checks, forms
from bayplan.local.api import Api
from bayplan.local.forms import DEEPEST
from bayplan.local.kinds import NODE, POD
from bayplan.local.problems import Problem
from bayplan.local.requests import LARGEST_BODY, Request

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
ABOUT = {"name": "a", "labels": {"l": "1"}, "finalizers": ["a.b/c"]}
KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


class Asked:
    """An API with a ConfigMap and a pod, both called `a`."""

    def __init__(self) -> None:
        self.api = Api(RealClock())
        self.ask("POST", MAPS, {"metadata": ABOUT, "data": {"a": "1"}})
        containers = [{"name": "c", "image": "i"}]
        self.ask("POST", PODS, {"metadata": {"name": "a"}, "spec": {"containers": containers}})

    def ask(self, method: str, path: str, body: Any, sort: str = "json") -> tuple[int, Any]:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        answer = self.api.handle(
            Request(method, path, body=raw, content_type=f"application/{sort}")
        )
        return answer.status, json.loads(answer.body)

    def patch(self, *steps: Any) -> tuple[int, Any]:
        return self.ask("PATCH", f"{MAPS}/a", steps, "json-patch+json")

    def merge(self, path: str, patch: Any) -> tuple[int, Any]:
        return self.ask("PATCH", path, patch, "strategic-merge-patch+json")


def test_a_copy_is_a_thing_of_its_own() -> None:
    status, after = Asked().patch(
        {"op": "copy", "from": "/metadata/labels", "path": "/metadata/annotations"},
        {"op": "replace", "path": "/metadata/labels/l", "value": "2"},
    )

    assert status == 200
    assert after["metadata"]["labels"] == {"l": "2"}
    assert after["metadata"]["annotations"] == {"l": "1"}


def test_a_copy_into_itself_ends() -> None:
    status, after = Asked().patch(
        {"op": "add", "path": "/z", "value": {"y": {}}},
        {"op": "copy", "from": "/z", "path": "/z/y/x"},
        {"op": "test", "path": "/z", "value": {"y": {"x": {"y": {}}}}},
        {"op": "remove", "path": "/z"},
    )

    assert (status, after["data"]) == (200, {"a": "1"})


@pytest.mark.parametrize(
    ("step", "data"),
    [
        ({"op": "replace", "path": "/data/b", "value": "2"}, {"a": "1", "b": "2"}),
        ({"op": "test", "path": "/data/b", "value": None}, {"a": "1"}),
        ({"op": "test", "path": "/data/b"}, {"a": "1"}),
        ({"op": "copy", "from": "/data/b", "path": "/data/c"}, {"a": "1", "c": ""}),
        ({"op": "replace", "path": "/data/a"}, {"a": ""}),
        ({"op": "add", "path": "/data/b"}, {"a": "1", "b": ""}),
    ],
)
def test_a_member_that_is_missing_counts_as_null(step: Any, data: Any) -> None:
    status, after = Asked().patch(step)

    assert (status, after.get("data")) == (200, data)


@pytest.mark.parametrize(
    "step",
    [
        {"op": "remove", "path": ""},
        {"op": "remove", "path": "/data/b"},
        {"op": "add", "path": "", "value": {}},
        {"op": "replace", "path": "/b/c", "value": "2"},
        {"op": "replace", "path": "/data/a/b", "value": "2"},
        {"op": "replace", "path": "/metadata/finalizers/9", "value": "a.b/c"},
        {"op": "replace", "path": "/metadata/finalizers/-", "value": "a.b/c"},
        {"op": "test", "path": "/b/c", "value": None},
        {"op": "test", "path": "/metadata/finalizers/9", "value": None},
        {"op": "test", "path": "/data/a", "value": None},
        {"op": "move", "from": "/data/b", "path": "/data/c"},
        {"op": "move", "from": "/data", "path": "/data/b"},
        {"op": "add", "path": "/metadata/finalizers/" + "9" * 5000, "value": "a.b/c"},
        {"op": "remove", "path": "/metadata/finalizers/" + "9" * 5000},
    ],
)
def test_what_cannot_be_done_is_refused(step: Any) -> None:
    status, said = Asked().patch(step)

    assert (status, said["reason"]) == (422, "Invalid")


@pytest.mark.parametrize(
    ("held", "tested", "status"),
    [
        (1, 1, 200),
        (1.5, 1.5, 200),
        ({"a": [1], "b": None}, {"b": None, "a": [1]}, 200),
        (1, True, 422),
        (0, False, 422),
        (1, 1.0, 422),
        (1, "1", 422),
        ([1], [True], 422),
        ({"a": 1}, {"a": 1.0}, 422),
        ({"a": None}, {}, 422),
        ([1], [1, 2], 422),
    ],
)
def test_a_test_compares_as_json_has_it(held: Any, tested: Any, status: int) -> None:
    answer = Asked().patch(
        {"op": "add", "path": "/z", "value": held},
        {"op": "test", "path": "/z", "value": tested},
        {"op": "remove", "path": "/z"},
    )

    assert answer[0] == status, answer


def test_copies_of_copies_stay_small() -> None:
    status, said = Asked().patch(
        {"op": "add", "path": "/z", "value": {"y": "x" * 1000}},
        *({"op": "copy", "from": "/z", "path": f"/z/{i}"} for i in range(14)),
        {"op": "remove", "path": "/z"},
    )

    assert (status, said["reason"]) == (422, "Invalid")


def test_a_patch_makes_nothing_that_could_not_be_sent() -> None:
    status, said = Asked().patch(
        {"op": "add", "path": "/data/b", "value": "x" * (LARGEST_BODY * 2 // 3)},
        {"op": "copy", "from": "/data/b", "path": "/data/c"},
    )

    assert (status, said["reason"]) == (413, "RequestEntityTooLarge")


def test_a_patch_has_ten_thousand_steps_at_most() -> None:
    asked, step = Asked(), {"op": "test", "path": "/data/a", "value": "1"}

    assert asked.patch(*[step] * 10_000)[0] == 200
    status, said = asked.patch(*[step] * 10_001)
    assert (status, said["message"]) == (
        413,
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got "
        "10001",
    )


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"containers": [{"$patch": "replace"}, "x"]}},
        {"spec": {"containers": ["x", {"$patch": "replace"}]}},
        {"spec": {"containers": [None]}},
        {"spec": {"containers": [[]]}},
    ],
)
def test_a_list_of_things_takes_no_texts(patch: Any) -> None:
    status, said = Asked().merge(f"{PODS}/a", patch)

    assert (status, said.get("reason")) == (500, None)
    assert said["message"].startswith("list element types are not identical: [[")


def test_nor_does_an_empty_one() -> None:
    status, said = Asked().merge(f"{PODS}/a/status", {"status": {"podIPs": ["x"]}})

    assert (status, said["reason"]) == (400, "BadRequest")


def test_what_is_no_list_loses_no_entries() -> None:
    patch = {"metadata": {"$deleteFromPrimitiveList/labels": ["x"], "labels": {"a": "b"}}}
    asked = Asked()
    asked.merge(f"{PODS}/a", {"metadata": {"labels": {"a": "b"}}})

    assert asked.merge(f"{PODS}/a", patch)[0] == 400


def test_a_null_in_a_map_of_texts_is_the_empty_text() -> None:
    status, made = Asked().ask("POST", MAPS, "metadata: {name: b}\ndata: {q: , r: x}", "yaml")

    assert (status, made["data"]) == (201, {"q": "", "r": "x"})
    pod = {
        "metadata": {"name": "a", "labels": {"l": None}, "annotations": {"m": None}, "uid": None},
        "spec": {"nodeSelector": {"n": None}, "containers": [], "priority": None},
    }
    settled = forms.settle(POD, pod)
    about = {"name": "a", "labels": {"l": ""}, "annotations": {"m": ""}}
    assert (settled["metadata"], settled["spec"]) == (about, {"nodeSelector": {"n": ""}})


@pytest.mark.parametrize("levels", [DEEPEST, 500, 700])
@pytest.mark.parametrize("nested", [('{"a":', "}"), ("[", "]")])
def test_what_is_nested_too_deeply_is_refused(levels: int, nested: tuple[str, str]) -> None:
    asked, deep = Asked(), nested[0] * levels + "1" + nested[1] * levels
    step = f'[{{"op":"add","path":"/z","value":{deep}}}]'
    answers = [
        asked.ask("POST", MAPS, f'{{"metadata":{{"name":"b"}},"z":{deep}}}'),
        asked.ask("PATCH", f"{MAPS}/a", f'{{"z":{deep}}}', "merge-patch+json"),
        asked.ask("PATCH", f"{MAPS}/a", f'{{"z":{deep}}}', "strategic-merge-patch+json"),
        asked.ask("PATCH", f"{MAPS}/a", step, "json-patch+json"),
    ]

    assert {status for status, _ in answers} == {400}
    assert all("exceeded max depth" in said["message"] for _, said in answers)


def test_copies_do_not_nest_more_deeply_either() -> None:
    half = DEEPEST // 2
    deep = json.loads('{"a":' * half + "{}" + "}" * half)
    status, said = Asked().patch(
        {"op": "add", "path": "/z", "value": deep},
        {"op": "copy", "from": "/z", "path": "/z" + "/a" * half + "/a"},
    )

    assert status == 400
    assert "exceeded max depth" in said["message"]


def test_nesting_that_is_not_deep_is_taken() -> None:
    half = DEEPEST // 2
    body = f'{{"metadata":{{"name":"b"}},"z":{"[" * half + "]" * half}}}'

    assert Asked().ask("POST", MAPS, body)[0] == 201


@pytest.mark.parametrize(
    ("taint", "causes"),
    [
        (
            {"effect": "NoSchedule"},
            {
                "metadata.taints[0].key": [
                    'Invalid value: "": name part must be non-empty',
                    f'Invalid value: "": {KEY_RULE}',
                ]
            },
        ),
        (
            {"key": "A B!", "effect": "NoSchedule"},
            {"metadata.taints[0].key": [f'Invalid value: "A B!": {KEY_RULE}']},
        ),
        ({"key": "a"}, {"metadata.taints[0].effect": ["Required value"]}),
        (
            {"key": "a", "effect": "X"},
            {
                "metadata.taints[0].effect": [
                    'Unsupported value: "X": supported values: "NoSchedule", "PreferNoSchedule", '
                    '"NoExecute"'
                ]
            },
        ),
    ],
)
def test_a_taint_has_a_key_and_an_effect(taint: Any, causes: dict[str, list[str]]) -> None:
    asked = Asked()
    status, said = asked.ask(
        "POST", NODES, {"metadata": {"name": "n"}, "spec": {"taints": [taint]}}
    )

    assert status == 422
    found: dict[str, list[str]] = {}
    for cause in said["details"]["causes"]:
        found.setdefault(cause["field"], []).append(cause["message"])
    assert found == causes
    asked.ask("POST", NODES, {"metadata": {"name": "n"}})
    patch = {"spec": {"taints": [taint]}}
    assert asked.ask("PATCH", f"{NODES}/n", patch, "merge-patch+json")[0] == 422


def test_a_node_does_not_have_less_than_nothing() -> None:
    node = {
        "metadata": {"name": "n"},
        "status": {"capacity": {"cpu": "-2"}, "allocatable": {"memory": "-1Gi", "pods": "0"}},
    }
    status, said = Asked().ask("POST", NODES, node)

    assert (status, said["message"]) == (
        422,
        'Node "n" is invalid: [status.capacity.cpu: Invalid value: "-2": must be greater than or '
        'equal to 0, status.allocatable.memory: Invalid value: "-1Gi": must be greater than or '
        "equal to 0]",
    )
    assert [cause.field for cause in checks.check_update(NODE, node, node)] == [
        "status.capacity.cpu",
        "status.allocatable.memory",
    ]


def test_depth_is_counted_in_levels() -> None:
    deepest: Any = []
    for _ in range(DEEPEST - 1):
        deepest = [deepest]
    forms.check_depth(deepest)

    with pytest.raises(Problem, match="exceeded max depth"):
        forms.check_depth([deepest])
