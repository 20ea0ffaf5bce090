"""What is kept of answers about zones is what would be said afresh; and what scores cost."""

import random
import time

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model import events as on
from bayplan.core.model.numa import Topology, Zone
from bayplan.core.model.pods import Pod, RowKey, ZoneAsk
from bayplan.core.plugins import numa
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View
from bayplan.testing.world import node, pod
from tests.numa.clusters import Lone, asking, scores, topology

PLUGIN = numa.NodeResourceTopologyMatch()


def of(number: int, *free: int) -> Topology:
    zones = [Zone(f"z{i}", i, (("cpu", 8000),), (("cpu", f),)) for i, f in enumerate(free)]
    return Topology(f"n{number}", "single-numa-node", "container", tuple(zones))


def aligned(name: str, cpu: int) -> Pod:
    return pod(name, cpu=cpu, aligned=(ZoneAsk((("cpu", cpu),)),), guaranteed=True)


class Side:
    """An engine whose plugin is asked with and without what is kept."""

    def __init__(self, nodes: int) -> None:
        self.engine = Engine()
        self.cluster = self.engine.cluster
        for number in range(nodes):
            self.engine.handle(on.NodeSeen(node(f"n{number}", gpus=0)), 0.0)
            self.engine.handle(on.TopologySeen(of(number, 4000, 8000)), 0.0)

    def check(self, asked: Pod, rows: list[int] | None = None) -> None:
        view = View(self.cluster, None if rows is None else np.array(rows, dtype=np.intp))
        ask = Ask(asked, self.cluster.demand(asked.row))
        kept = PLUGIN.refuse(ask, view)
        every = range(self.cluster.height) if rows is None else rows
        fresh = [numa.refusal(self.cluster, row, asked.row) for row in every]
        assert kept is not None
        assert kept.tolist() == fresh


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_is_what_would_be_said_afresh(seed: int) -> None:
    rng, side = random.Random(seed), Side(6)
    kinds = [aligned(f"ask{cpu}", cpu) for cpu in (2000, 4000, 6000)]
    for made in range(200):
        at = rng.randrange(8)
        newcomer = aligned(f"p{made}", rng.choice((1000, 3000)))
        match rng.randrange(6):
            case 0:
                free = (rng.randrange(9) * 1000, rng.randrange(9) * 1000)
                side.engine.handle(on.TopologySeen(of(at, *free)), 0.0)
            case 1:
                side.engine.handle(on.PodSeen(replace(newcomer, node=f"n{at}")), 0.0)
            case 2 if side.cluster.pods:
                side.engine.handle(on.PodGone(rng.choice(sorted(side.cluster.pods))), 0.0)
            case 3:
                side.engine.handle(on.NodeGone(f"n{at}"), 0.0)
                side.engine.handle(on.TopologyGone(f"n{at}"), 0.0)
            case 4:
                side.engine.handle(on.NodeSeen(node(f"n{at}", gpus=0)), 0.0)
            case 5 if f"n{at}" in side.cluster.rows:
                with side.cluster.trial():
                    side.cluster.place(newcomer, f"n{at}")
                    side.check(rng.choice(kinds))
        rows = [row for row in range(side.cluster.height) if rng.random() < 0.3]
        if side.cluster.zones.topologies:
            side.check(rng.choice(kinds), rng.choice((None, rows)))


def test_a_pod_that_is_refused_again_asks_only_nodes_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side, asked = Side(50), list[int]()
    say = numa.refusal

    def heard(cluster: Cluster, at: int, row: RowKey) -> int:
        asked.append(at)
        return say(cluster, at, row)

    monkeypatch.setattr(numa, "refusal", heard)
    side.engine.handle(on.PodSeen(aligned("p", 9000)), 0.0)
    side.engine.handle(on.Tick(), 0.0)
    assert len(asked) == 50

    side.engine.handle(on.TopologySeen(of(7, 5000, 5000)), 100.0)
    side.engine.handle(on.Tick(), 100.0)

    assert asked[50:] == [side.cluster.rows["n7"]]


def test_kinds_that_nobody_asks_for_are_forgotten() -> None:
    side = Side(2)
    for cpu in range(100):
        side.check(aligned("p", 1000 + cpu))

    assert len(side.cluster.zones.columns) == 64


def test_many_zones_do_not_stall_the_score() -> None:
    zones = [{"cpu": "4/1", "memory": "16Gi/1Gi"}] * 64
    published = topology("a", zones, "BestEffortPodLevel")
    for zone in published["zones"]:
        zone["costs"] = [
            {"name": other["name"], "value": 10 if other is zone else 20}
            for other in published["zones"]
        ]
    start = time.perf_counter()
    found = [
        scores("LeastNUMANodes", [published], asking(cpu=cpu, memory="1Gi"))["a"]
        for cpu in ("1", "2", "7", "9", "65")
    ]

    assert found == [94, 82, 22, 0, 0]
    assert time.perf_counter() - start < 5  # it was half a minute when every set was looked at


def test_what_no_zone_lists_belongs_to_the_node() -> None:
    """As of a kubelet without a memory manager, or without one for cpus."""
    listed = Lone(topology("a", [{"cpu": "4"}] * 2, "SingleNUMANodePodLevel"), {"memory": "64Gi"})
    none = Lone(
        topology("a", [{"cpu": "0"}] * 2, "SingleNUMANodePodLevel"),
        {"cpu": "8", "memory": "64Gi"},
    )
    empty = Lone(topology("a", [], "SingleNUMANodePodLevel"), {"cpu": "8", "memory": "64Gi"})

    assert listed.says(asking(cpu="4", memory="8Gi")) == ""
    assert listed.says(asking(cpu="5", memory="8Gi")) == "cannot align pod"
    assert none.says(asking(cpu="5", memory="8Gi")) == ""
    assert empty.says(asking(cpu="5", memory="8Gi")) == ""


def test_how_many_zones_it_takes_is_a_matter_of_the_capacity() -> None:
    """Of cpus; of memory it is what there is to allocate, as in the kubelet."""
    published = topology("a", [{"cpu": "30", "memory": "100Gi"}] * 2, "RestrictedPodLevel")
    for zone in published["zones"]:
        zone["resources"][0]["capacity"], zone["resources"][1]["capacity"] = "32", "128Gi"
    node_a = Lone(published)

    assert node_a.says(asking(cpu="31", memory="101Gi")) == "cannot align pod"  # 1 zone, and 2
    assert node_a.says(asking(cpu="33", memory="101Gi")) == ""
    assert node_a.says(asking(cpu="31", memory="1Gi")) == "cannot align pod"  # 30 are left in one


def test_memory_and_huge_pages_have_one_width() -> None:
    zone = {"cpu": "30", "memory": "100Gi", "hugepages-1Gi": "10Gi"}
    wide = Lone(topology("a", [zone] * 2, "RestrictedPodLevel"))
    amounts = {"cpu": "31", "memory": "1Gi", "hugepages-1Gi": "11Gi"}

    assert wide.says(asking(**amounts)) == ""
    assert wide.says(asking(**{**amounts, "cpu": "1"})) == "cannot align pod"
