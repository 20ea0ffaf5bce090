"""Whatever is fed to the readers, they give a value or one `Unreadable` that says where."""

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.model.quantity import LIMIT
from bayplan.kube.defaults import default_pod
from bayplan.kube.manifests import BadFile, load_dump, load_objects, pod_of
from bayplan.kube.read import Reader, Unreadable

Json = dict[str, Any]
SELECTOR = {
    "matchLabels": {"app": "web"},
    "matchExpressions": [{"key": "a", "operator": "In", "values": ["x"]}],
}
TERM = {"topologyKey": "zone", "labelSelector": SELECTOR, "matchLabelKeys": ["app"]}
NODE_TERM = {
    "matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["3"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "prod",
        "labels": {"app": "web"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
                "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
            }
        ],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "volumes": [
            {"image": {"reference": "m"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}},
        ],
        "resourceClaims": [{"name": "gpu"}],
        "resources": {"limits": {"cpu": "4"}},
        "overhead": {"cpu": "10m"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "schedulingGates": [{"name": "g"}],
        "topologySpreadConstraints": [
            {**TERM, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
        ],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [NODE_TERM]},
                PREFERRED: [{"weight": 1, "preference": NODE_TERM}],
            },
            "podAffinity": {REQUIRED: [TERM]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": TERM}]},
        },
    },
    "status": {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
        "containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}],
    },
}
NODE: Json = {
    "metadata": {"name": "n", "labels": {"zone": "z"}},
    "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {"allocatable": {"cpu": "4"}, "images": [{"names": ["a"], "sizeBytes": 1}]},
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["-1", "1e400", "NaN", "9" * 5000, "\ud800", "\x00", 10**400, -(2**63), 0.5])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "name", "spec", "status", "items", "kind"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in inner:
            found += places(child, (*path, key))
    return found


def put(value: Json, path: tuple[Any, ...], new: Any) -> Json:
    changed = deepcopy(value)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return changed


def gives(kind: type, reading: Callable[[], object]) -> None:
    """It is read, or refused in a sentence that names the object."""
    refused = None
    try:
        assert isinstance(reading(), kind)
    except Unreadable as unreadable:
        refused = unreadable
    if refused is not None:
        assert refused.what
        assert refused.why
        assert str(refused).startswith(refused.what)


def test_the_whole_examples_can_be_read() -> None:
    assert Reader().pod(POD).row.requests == (("cpu", 1010),)
    assert Reader().node(NODE).allocatable == {"cpu": 4000}


@given(JSON)
def test_arbitrary_json(value: Any) -> None:
    reader = Reader()
    data = json.dumps(value).encode()
    for source in (data, value) if isinstance(value, dict) else (data,):
        gives(Pod, lambda source=source: reader.pod(source))  # type: ignore[misc]
        gives(Node, lambda source=source: reader.node(source))  # type: ignore[misc]
        gives(tuple, lambda source=source: reader.namespace(source))  # type: ignore[misc]


@given(st.binary(max_size=40))
def test_arbitrary_bytes(data: bytes) -> None:
    gives(Pod, lambda: Reader().pod(data))
    with suppress(BadFile):
        load_dump([data])
    with suppress(BadFile):
        load_objects(data)


@given(st.sampled_from(places(POD)), JSON)
def test_a_pod_with_anything_in_any_place(path: tuple[Any, ...], value: Any) -> None:
    pod = put(POD, path, value)
    gives(Pod, lambda: Reader().pod(pod))
    gives(Pod, lambda: Reader().pod(json.dumps(pod).encode()))
    gives(Pod, lambda: Reader().pod(default_pod(pod_of(pod)), newcomer=True))


@given(st.sampled_from(places(NODE)), JSON)
def test_a_node_with_anything_in_any_place(path: tuple[Any, ...], value: Any) -> None:
    gives(Node, lambda: Reader().node(put(NODE, path, value)))


REQUESTS = ("spec", "containers", 0, "resources", "requests")


@pytest.mark.parametrize(
    ("path", "value", "field", "why"),
    [
        (REQUESTS, {"cpu": "1 core"}, "spec.containers[0].resources.requests[cpu]", "'1 core'"),
        (REQUESTS, {"cpu": "-1"}, "spec.containers[0].resources.requests[cpu]", "it is negative"),
        (REQUESTS, {"cpu": [1]}, "spec.containers[0].resources.requests[cpu]", "not a quantity"),
        (REQUESTS, [], "spec.containers[0].resources.requests", "Expected `object | null`"),
        (("spec", "overhead"), {"x.y/z": ""}, "spec.overhead[x.y/z]", "not a quantity"),
        (
            REQUESTS,
            {f"x.y/z{i}": "1" for i in range(41)},
            "spec.containers",
            "kinds of resources; 40 at most",
        ),
        (("spec", "priority"), 2**31, "spec.priority", "<= 2147483647"),
        (("spec", "priority"), 1.5, "spec.priority", "got `float`"),
        (("spec", "priority"), "high", "spec.priority", "got `str`"),
        (("spec", "containers", 0, "ports", 0, "hostPort"), 2**40, None, "<= 2147483647"),
        (("metadata", "labels", "app"), 1, "metadata.labels[...]", "got `int`"),
        (("metadata", "creationTimestamp"), "today", "metadata.creationTimestamp", "'today'"),
        (("status", "startTime"), "2026-01-01T00:00:00", "status.startTime", "RFC 3339"),
        (("spec", "topologySpreadConstraints", 0, "labelSelector"), {"matchLabels": {"a b": ""}},
         "spec.topologySpreadConstraints[0].labelSelector.matchLabels[a b]", "not a label key"),
    ],
)  # fmt: skip
def test_the_field_is_named(path: tuple[Any, ...], value: Any, field: str | None, why: str) -> None:
    for source in (put(POD, path, value), json.dumps(put(POD, path, value)).encode()):
        with pytest.raises(Unreadable) as caught:
            Reader().pod(source)
        assert caught.value.what == "pod prod/web-0"
        assert field is None or caught.value.field == field
        assert why in caught.value.why
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("quantity", ["-1", "x", "1e", True])
def test_a_broken_allocatable_is_refused(quantity: Any) -> None:
    with pytest.raises(Unreadable, match=r"node n: status\.allocatable\[cpu\]: "):
        Reader().node(put(NODE, ("status", "allocatable", "cpu"), quantity))


@pytest.mark.parametrize("source", [b"", b"null", b"[]", b"{", b"NaN", b'{"metadata":{}}', {}])
def test_what_is_no_object_or_has_no_name(source: bytes | Json) -> None:
    for reading in (Reader().pod, Reader().node, Reader().namespace):
        with pytest.raises(Unreadable):
            reading(source)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have(number: float) -> None:
    with pytest.raises(Unreadable, match="pod prod/web-0"):
        Reader().pod(put(POD, ("spec", "priority"), number))
    with pytest.raises(Unreadable):
        Reader().pod(b'{"metadata":{"name":"p"},"spec":{"priority":NaN}}')


def test_absurd_requests_stay_countable() -> None:
    pod = Reader().pod(put(POD, REQUESTS, {"memory": "1e2000000000", "cpu": "8E"}))
    assert dict(pod.row.requests) == {"memory": LIMIT, "cpu": LIMIT}


def test_unknown_fields_and_nesting_without_end() -> None:
    assert Reader().pod({**POD, "new": {"spec": {"deep": [1]}}}) == Reader().pod(POD)
    with pytest.raises(Unreadable):
        Reader().pod(b'{"metadata":{"name":"p"},"spec":' + b"[" * 100_000)
    circle: Json = {"metadata": {"name": "p"}}
    circle["spec"] = circle
    with pytest.raises(Unreadable):
        Reader().pod(circle)


def test_a_pod_of_a_megabyte() -> None:
    labels = {f"key-{i}": "v" * 40 for i in range(10_000)}
    containers = [{"name": f"c{i}", "env": [{"name": "A" * 90}]} for i in range(5_000)]
    pod = {"metadata": {"name": "p", "labels": labels}, "spec": {"containers": containers}}
    data = json.dumps(pod).encode()
    assert len(data) > 10**6
    assert Reader().pod(data).row.containers == 5_000


def test_duplicate_keys_and_names_are_no_matter() -> None:
    pod = Reader().pod(b'{"metadata":{"name":"a","name":"b","labels":{"x":"1","x":"2"}}}')
    assert (pod.name, pod.labels) == ("b", {"x": "2"})
    twice = put(POD, ("spec", "containers"), POD["spec"]["containers"] * 2)
    assert Reader().pod(twice).row.requests == (("cpu", 2010),)


def test_a_file_nested_too_deeply_is_refused_and_not_the_end_of_the_process() -> None:
    for text in ("[" * 60_000, "{a: " * 60_000, '{"a":' * 60_000):
        with pytest.raises(BadFile, match=r"nested more than 200 deep|not valid"):
            load_objects(text)
