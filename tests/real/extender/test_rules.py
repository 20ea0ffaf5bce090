"""The judge itself: it sees what is wrong, and lets pass what is right."""

from dataclasses import replace

import pytest

from tests.real.apicheck import Change
from tests.real.extender import rules
from tests.real.extender.rules import INF1, INF2, TRN1, NeuronPod, Node

NODES = {kind: Node(kind, kind, {}) for kind in (INF1, INF2, TRN1)}


def pod(name: str, kind: str, *ids: int, asked: int | None = None) -> NeuronPod:
    """On the node of its kind with these devices, or waiting without any."""
    return NeuronPod(
        uid=name,
        name=f"test/{name}",
        version=1,
        node=kind if ids else "",
        ended=False,
        terminating=False,
        requests={},
        selector={rules.TYPE: kind},
        tolerates=frozenset(),
        waits_because="",
        asked=len(ids) if asked is None else asked,
        told=ids or None,
        assigned=ids or None,
        assigned_on=kind if ids else "",
        own=name,
    )


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        (INF1, (11, 12, 13, 14, 15)),
        (INF2, (4, 5, 6)),
        (TRN1, (7,)),
        (TRN1, (4, 5, 6, 7)),
        (TRN1, (8, 9, 10, 11, 12, 13, 14, 15)),
    ],
)
def test_legal_devices_pass(kind: str, ids: tuple[int, ...]) -> None:
    assert list(rules.odd([pod("a", kind, *ids)], NODES)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        pod("gap", INF1, 1, 3),
        pod("around-the-end", INF1, 15, 0),
        pod("beyond", INF2, 11, 12),
        pod("half-rows", TRN1, 2, 3, 4, 5),
        pod("middle-rows", TRN1, *range(4, 12)),
        pod("fewer", INF1, 1, 2, asked=3),
        replace(pod("other", INF1, 1, 2), assigned=(2, 3)),
        replace(pod("nothing-told", INF1, 1), told=None),
        replace(pod("elsewhere", INF1, 1), assigned_on=INF2),
        replace(pod("wiped", INF1, 1), own=""),
    ],
    ids=lambda wrong: str(wrong.name),
)
def test_what_breaks_a_rule_is_seen(wrong: NeuronPod) -> None:
    assert len(list(rules.odd([wrong], NODES))) == 1


def test_a_device_of_two_pods_is_seen_even_when_one_of_them_is_gone_in_the_end() -> None:
    first, second = pod("first", INF1, 1, 2), pod("second", INF1, 2, 3)
    one_after_the_other = [Change(first), Change(first, gone=True), Change(second)]

    assert list(rules.shared(one_after_the_other)) == []
    assert len(list(rules.shared([Change(first), Change(second), Change(first, gone=True)]))) == 1


def test_only_a_legal_window_counts_as_room() -> None:
    taken = [pod("a", TRN1, 0), pod("b", TRN1, 4), pod("c", TRN1, 8)]
    row, half = pod("row", TRN1, asked=4), pod("half", TRN1, asked=8)

    assert len(list(rules.waiting_that_fit([*taken, row, half], NODES.values()))) == 1
    assert list(rules.waiting_that_fit([*taken, pod("d", TRN1, 12), row], NODES.values())) == []


def test_maps_say_what_is_in_use() -> None:
    held = [pod("a", INF2, 1)]
    devices = ",".join("true" if i == 1 else "false" for i in range(12))
    cores = ",".join("true" if i in (2, 3) else "false" for i in range(24))
    true = Node(INF2, INF2, {rules.USE: devices, rules.CORE_USE: cores})
    false = Node(INF2, INF2, {rules.USE: devices.replace("true", "false"), rules.CORE_USE: cores})

    assert list(rules.wrong_maps(held, [true])) == []
    assert len(list(rules.wrong_maps(held, [false]))) == 1
    assert len(list(rules.wrong_maps(held, [NODES[INF2]]))) == 2
