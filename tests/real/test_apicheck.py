"""The checker notices: each planted wrong is named, and a right history passes."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.real.apicheck import (
    Change,
    Json,
    Pod,
    bound_more_than_once,
    last_of,
    not_as_listed,
    read_node,
    read_pod,
    too_full,
    violations,
    waiting_that_fit,
    waiting_without_a_word,
)


def node(name: str, gpus: int = 8, **spec: Any) -> Json:
    room = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": str(gpus), "pods": "3"}
    labels = {"zone": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": room},
    }


def pod(name: str, on: str = "", gpus: int = 1, version: int = 1, **more: Any) -> Pod:
    """`more`: uid, cpu, memory, phase, deleting, and any field of the spec."""
    metadata = {
        "uid": more.pop("uid", name),
        "name": name,
        "namespace": "test",
        "resourceVersion": str(version),
    }
    if more.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    requests = {
        "nvidia.com/gpu": str(gpus),
        "cpu": more.pop("cpu", "500m"),
        "memory": more.pop("memory", "1Gi"),
    }
    status: Json = {"phase": more.pop("phase", "Pending")}
    if not on and not more.pop("silent", False):
        said = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
        status["conditions"] = [said]
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}], **more}
    if on:
        spec["nodeName"] = on
    return read_pod({"metadata": metadata, "spec": spec, "status": status})


def history(*pods: Pod) -> list[Change]:
    return [Change(pod) for pod in pods]


A, B = read_node(node("a")), read_node(node("b"))


def test_a_right_history_passes() -> None:
    events = history(
        pod("one", gpus=8),
        pod("two", gpus=8),
        pod("one", "a", 8, version=2),
        pod("three", gpus=8),
        pod("two", "b", 8, version=3),
        pod("one", "a", 8, version=4, deleting=True),
    )
    events.append(Change(pod("one", "a", 8, version=5, deleting=True), gone=True))
    events += history(pod("three", "a", 8, version=6), pod("four", gpus=8, version=7))

    assert violations(events, list(last_of(events).values()), [A, B]) == []


def test_a_pod_that_moves_is_noticed() -> None:
    moved = history(pod("one"), pod("one", "a"), pod("one", "b"))
    assert list(bound_more_than_once(moved)) == ["pod test/one was on a, and then on b"]

    lost = history(pod("one", "a"), pod("one"))
    assert list(bound_more_than_once(lost)) == ["pod test/one was on a, and then on no node"]

    again = history(pod("one", "a"), pod("one", "b", uid="another"))
    assert list(bound_more_than_once(again)) == []


@pytest.mark.parametrize(
    ("second", "resource"),
    [
        (pod("two", "a", gpus=5), "9 nvidia.com/gpu of 8"),
        (pod("two", "a", gpus=0, cpu="3501m"), "4.001 cpu of 4"),
        (pod("two", "a", gpus=0, memory="7169Mi"), "8.59098e+09 memory of 8.58993e+09"),
    ],
)
def test_a_node_over_its_capacity_is_noticed(second: Pod, resource: str) -> None:
    found = list(too_full(history(pod("one", "a", gpus=4), second), [A]))
    assert found == [f"with pod test/two, at version 1, node a holds {resource}"]


def test_too_many_pods_are_noticed() -> None:
    four = history(*(pod(str(n), "a", gpus=0) for n in range(4)))
    assert list(too_full(four, [A])) == ["with pod test/3, at version 1, node a holds 4 pods of 3"]


def test_a_node_that_was_too_full_only_for_a_moment_is_noticed() -> None:
    events = history(pod("one", "a", 8), pod("two", "a", 8))
    events.append(Change(pod("one", "a", 8), gone=True))

    assert len(list(too_full(events, [A]))) == 1
    assert list(waiting_that_fit(last_of(events).values(), [A])) == []


@pytest.mark.parametrize("state", [{"deleting": True}, {"phase": "Running"}])
def test_a_pod_holds_its_room_until_it_is_gone(state: dict[str, Any]) -> None:
    events = history(pod("one", "a", 8), pod("one", "a", 8, **state), pod("two", "a", 8))
    assert len(list(too_full(events, [A]))) == 1


def test_a_pod_that_ended_holds_nothing() -> None:
    events = history(pod("one", "a", 8), pod("one", "a", 8, phase="Failed"), pod("two", "a", 8))
    assert list(too_full(events, [A])) == []


def test_a_pod_on_a_node_that_never_was_is_noticed() -> None:
    found = list(too_full(history(pod("one", "c")), [A]))
    assert found == ["pod test/one is on c, which does not exist"]


def fits(waiting: Pod, nodes: Iterable[Json], *others: Pod) -> bool:
    return bool(list(waiting_that_fit([*others, waiting], [read_node(raw) for raw in nodes])))


def test_a_waiting_pod_that_fits_is_noticed() -> None:
    assert list(waiting_that_fit([pod("one"), pod("two", "a", 8)], [A, B])) == [
        "pod test/one waits and would fit on b"
    ]


def test_a_waiting_pod_that_does_not_fit_is_no_wrong() -> None:
    taint = {"key": "only", "value": "x", "effect": "NoSchedule"}
    tolerated = {"key": "only", "value": "x", "operator": "Equal", "effect": "NoSchedule"}

    assert not fits(pod("one", gpus=8), [node("a")], pod("two", "a", 1))
    assert not fits(pod("one", nodeSelector={"zone": "b"}), [node("a")])
    assert fits(pod("one", nodeSelector={"zone": "a"}), [node("a")])
    assert not fits(pod("one"), [node("a", unschedulable=True)])
    assert not fits(pod("one"), [node("a", taints=[taint])])
    assert fits(pod("one", tolerations=[tolerated]), [node("a", taints=[taint])])
    assert fits(pod("one"), [node("a", taints=[taint | {"effect": "PreferNoSchedule"}])])
    assert not fits(pod("one", deleting=True), [node("a")])


def test_a_pod_that_waits_in_silence_is_noticed() -> None:
    silent = pod("one", gpus=16, silent=True)
    assert list(waiting_without_a_word([silent])) == [
        "pod test/one waits, and no condition says why"
    ]


def test_a_history_with_a_hole_is_noticed() -> None:
    events = history(pod("one"), pod("one", "a", version=2))

    assert list(not_as_listed(events, [pod("one", "a", version=2)])) == []
    assert len(list(not_as_listed(events, [pod("one", "a", version=3)]))) == 1
    assert len(list(not_as_listed(events, []))) == 1
    assert len(list(not_as_listed([], [pod("one")]))) == 1


def test_what_the_checker_cannot_judge_is_an_error() -> None:
    with pytest.raises(ValueError, match="has affinity, which the checker does not know"):
        pod("one", affinity={"podAffinity": {}})
    with pytest.raises(ValueError, match="'1e3' is a quantity"):
        pod("one", cpu="1e3")
