"""What we refuse is what a kubelet refuses: both scopes, all four policies, small zones."""

import os
from typing import Any

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
NIC, NAMES = "x.io/nic", ("cpu", "memory", "x.io/nic")
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
UNITS = {"cpu": 1000, "memory": 1, NIC: 1}


@st.composite
def machines(draw: st.DrawFn) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Per zone what there is, and what of it is free."""
    names = NAMES if draw(st.booleans()) else NAMES[:2]
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
    phases: Any = draw(st.sampled_from([("main",), ("init", "main"), ("sidecar", "main", "main")]))
    for phase in phases:
        amounts = {name: draw(st.integers(0, 5)) * UNITS[name] for name in NAMES}
        asked = tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
        if asked:
            found.append(ZoneAsk(asked, phase))
    return tuple(found)


@settings(max_examples=EXAMPLES)
@given(
    machines(),
    containers(),
    st.sampled_from(POLICIES),
    st.sampled_from(("container", "pod")),
)
def test_we_refuse_what_a_kubelet_refuses(
    machine: list[tuple[dict[str, int], dict[str, int]]],
    asks: tuple[ZoneAsk, ...],
    policy: Any,
    scope: Any,
) -> None:
    kubelet = Kubelet([there for there, _ in machine], policy, scope)
    kubelet.free = [dict(free) for _, free in machine]
    zones = tuple(
        Zone(f"z{i}", i, tuple(sorted(there.items())), tuple(sorted(free.items())))
        for i, (there, free) in enumerate(machine)
    )
    world = World()
    world.node("a", gpus=0, allocatable={NIC: 99})
    world.tell(on.TopologySeen(Topology("a", policy, scope, zones)))
    newcomer = pod("p", aligned=asks, guaranteed=True)

    world.see(newcomer)

    assert (world.running() == {"p": "a"}) == kubelet.admits("p", newcomer.row)
