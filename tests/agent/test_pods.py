"""Whose devices the kubelet is told to take, when it does not say for whom it asks."""

import json
from typing import Any

import msgspec

from bayplan.agent.pods import Pod, PodsHere, Wanted, decode_pod, waiting_for
from bayplan.core.model.devices import ASSIGNMENT, Assignment, Held, HeldDevice, write_assignment
from bayplan.kube.client import Client
from tests.agent.rig import GPU, NODE, entry, given

ALL = frozenset(f"nvidia-{i}" for i in range(4))


def pod(name: str, annotations: dict[str, str], created: str = "", **status: Any) -> Pod:
    content = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            "annotations": {**annotations, "example.com/large": "x" * 1000},
        },
        "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "init"}]},
        "status": status,
    }
    return decode_pod(json.dumps(content).encode())


def wanted(
    size: int, available: frozenset[str] = ALL, must: frozenset[str] = frozenset()
) -> Wanted:
    return Wanted(GPU, size, available, must)


def indexes(ids: frozenset[str] | None) -> list[int] | None:
    return None if ids is None else sorted(int(id[-1]) for id in ids)


def test_the_first_of_the_right_size_whose_devices_are_free() -> None:
    pods = [pod("a", given(0, 1)), pod("b", given(2)), pod("c", given(3))]

    assert indexes(waiting_for(pods, NODE, wanted(1), {})) == [2]
    assert indexes(waiting_for(pods, NODE, wanted(1, ALL - {"nvidia-2"}), {})) == [3]
    assert indexes(waiting_for(pods, NODE, wanted(2), {})) == [0, 1]
    assert waiting_for(pods, NODE, wanted(3), {}) is None
    assert indexes(waiting_for(pods, NODE, wanted(1, must=frozenset({"nvidia-3"})), {})) == [3]
    assert waiting_for(pods, NODE, wanted(1, must=frozenset({"nvidia-1"})), {}) is None


def test_who_has_started_ended_or_leaves_waits_for_nothing() -> None:
    for phase in ("Running", "Succeeded", "Failed"):
        assert waiting_for([pod("a", given(0), phase=phase)], NODE, wanted(1), {}) is None
    settled = {("uid-a", ("main", GPU)): frozenset({"nvidia-1"})}
    assert waiting_for([pod("a", given(0))], NODE, wanted(1), settled) is None
    leaving = {
        "metadata": {
            "uid": "l",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": given(0),
        },
        "spec": {"containers": [{"name": "main"}]},
    }
    assert waiting_for([decode_pod(json.dumps(leaving).encode())], NODE, wanted(1), {}) is None


def test_entries_that_contradict_themselves_are_not_used() -> None:
    half = Held("main", GPU, NODE, (HeldDevice("nvidia-0", 0, 2),))
    for odd in (
        given(0, node="n2"),
        {ASSIGNMENT: write_assignment(Assignment(NODE, (entry(0, pool="n2"),)))},
        {ASSIGNMENT: write_assignment(Assignment(NODE, (entry(0, container="nobody"),)))},
        {ASSIGNMENT: write_assignment(Assignment(NODE, (half,)))},
        {ASSIGNMENT: '{"v": 2, "node": "n1", "held": []}'},
        {ASSIGNMENT: "\ud800"},
    ):
        text = {name: value.encode(errors="replace").decode() for name, value in odd.items()}
        assert waiting_for([pod("a", text)], NODE, wanted(1), {}) is None


def test_each_container_waits_for_its_own() -> None:
    both = Assignment(NODE, (entry(0, container="init"), entry(0, 1)))
    here = pod("a", {ASSIGNMENT: write_assignment(both)})

    assert indexes(waiting_for([here], NODE, wanted(1), {})) == [0]
    got = {("uid-a", ("init", GPU)): frozenset({"nvidia-0"})}
    reused = wanted(2, must=frozenset({"nvidia-0"}))
    assert indexes(waiting_for([here], NODE, reused, got)) == [0, 1]


def test_pods_keep_the_order_in_which_they_came() -> None:
    here = PodsHere(Client(None, None, None), NODE)  # type: ignore[arg-type]
    late, early = pod("late", {}, "2026-01-02"), pod("early", {}, "2026-01-01")
    here.replace([late, early], "1")
    assert [each.key[1] for each in here.all()] == ["early", "late"]
    here.put(pod("third", {}, "2025-01-01"))
    here.put(pod("early", given(0), "2026-01-01"))
    here.replace([*here.all()[::-1], pod("fourth", {})], "2")
    assert [each.key[1] for each in here.all()] == ["early", "late", "third", "fourth"]
    here.drop(late)
    assert [each.key[1] for each in here.all()] == ["early", "third", "fourth"]


def test_of_annotations_only_the_assignment_is_kept() -> None:
    assert len(msgspec.json.encode(pod("a", given(0)))) < 500
    forged = pod("a", {ASSIGNMENT: json.dumps({"v": 2, "more": "x" * 200_000})})
    assert len(msgspec.json.encode(forged)) < 500
    assert forged.is_newer
