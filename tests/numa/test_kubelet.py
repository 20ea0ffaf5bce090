"""What we refuse is what a kubelet refuses: both scopes, all four policies, small zones."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.core.model import events as on
from bayplan.core.model.numa import Topology, Zone
from bayplan.core.model.pods import ZoneAsk
from bayplan.testing.world import World, pod
from tests.numa.kubelet import Kubelet

EXAMPLES = int(
    os.environ.get("BAYPLAN_EXAMPLES") or (20_000 if os.environ.get("BAYPLAN_PROVE") else 400)
)
NIC, HUGE = "x.io/nic", "hugepages-2Mi"
NAMES = ("cpu", "memory", NIC, HUGE)
PHASES = [
    ("main",),
    ("init", "main"),
    ("sidecar", "main", "main"),
    ("init", "init", "main"),
    ("sidecar", "init", "main", "main"),
]
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
UNITS = {"cpu": 1000, "memory": 1, NIC: 1, HUGE: 1}
Machine = list[tuple[dict[str, int], dict[str, int]]]  # per zone what there is, and what is free


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    names = draw(st.sampled_from((NAMES, NAMES[:2], NAMES[:1], NAMES[:3])))
    zones = []
    for _ in range(draw(st.integers(1, 4))):
        there = {name: draw(st.integers(0, 4)) * UNITS[name] for name in names}
        free = {n: draw(st.integers(0, there[n] // UNITS[n])) * UNITS[n] for n in names}
        zones.append((there, free))
    return zones


@st.composite
def containers(draw: st.DrawFn) -> tuple[ZoneAsk, ...]:
    """In the order in which they start."""
    found = []
    phases: Any = draw(st.sampled_from(PHASES))
    for phase in phases:
        amounts = {name: draw(st.integers(0, 5)) * UNITS[name] for name in NAMES}
        asked = tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
        if asked:
            found.append(ZoneAsk(asked, phase))
    return tuple(found)


class Both:
    """What we say to a pod on a node in the middle of its work, and what its kubelet says."""

    def __init__(self, machine: Machine, policy: Any, scope: Any) -> None:
        self.kubelet = Kubelet([there for there, _ in machine], policy, scope)
        self.kubelet.free = [dict(free) for _, free in machine]
        zones = tuple(
            Zone(f"z{i}", i, tuple(sorted(there.items())), tuple(sorted(free.items())))
            for i, (there, free) in enumerate(machine)
        )
        self.world = World()
        self.world.node("a", gpus=0, allocatable={NIC: 99, HUGE: 99})
        self.world.tell(on.TopologySeen(Topology("a", policy, scope, zones)))

    def take(self, asks: tuple[ZoneAsk, ...]) -> tuple[bool, bool]:
        newcomer = pod("p", aligned=asks, guaranteed=True)
        self.world.see(newcomer)
        return self.world.running() == {"p": "a"}, self.kubelet.admits("p", newcomer.row)


def cpus(count: int, phase: Any = "main", nics: int = 0) -> ZoneAsk:
    more = ((NIC, nics),) if nics else ()
    return ZoneAsk((("cpu", 1000 * count), *more), phase)


def zone(there: int, free: int, nics: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    return {"cpu": 1000 * there, NIC: nics}, {"cpu": 1000 * free, NIC: nics}


@pytest.mark.parametrize(
    ("machine", "policy", "asks", "admits"),
    [
        ([zone(4, 4)], "single-numa-node", (cpus(3, "init"), cpus(3)), True),
        ([zone(4, 4)], "single-numa-node", (cpus(3, "sidecar"), cpus(3)), False),
        # What the init container had must be in whatever the next one gets.
        ([zone(8, 2), zone(8, 8)], "single-numa-node", (cpus(2, "init"), cpus(8)), False),
        ([zone(8, 2), zone(8, 8)], "restricted", (cpus(2, "init"), cpus(8)), False),
        ([zone(8, 2), zone(8, 8)], "single-numa-node", (cpus(2, "init"), cpus(2), cpus(8)), True),
        ([zone(8, 2), zone(8, 8)], "single-numa-node", (cpus(2, "sidecar"), cpus(8)), True),
        ([zone(0, 0), zone(0, 0)], "single-numa-node", (cpus(3),), True),
        ([zone(4, 2), zone(4, 2)], "restricted", (cpus(3),), False),
        ([zone(2, 2), zone(2, 1)], "restricted", (cpus(3),), True),
        ([zone(2, 2, 2), zone(2, 2, 2)], "restricted", (cpus(1, nics=3),), False),
        ([zone(2, 2, 2), zone(2, 2, 2)], "best-effort", (cpus(1, nics=3),), True),
    ],
)
def test_what_a_kubelet_is_known_to_say(
    machine: Machine, policy: str, asks: tuple[ZoneAsk, ...], admits: bool
) -> None:
    assert Both(machine, policy, "container").take(asks) == (admits, admits)


@settings(max_examples=EXAMPLES)
@given(
    machines(),
    containers(),
    st.sampled_from(POLICIES),
    st.sampled_from(("container", "pod")),
)
def test_we_refuse_what_a_kubelet_refuses(
    machine: Machine, asks: tuple[ZoneAsk, ...], policy: str, scope: str
) -> None:
    ours, kubelets = Both(machine, policy, scope).take(asks)

    assert ours == kubelets
