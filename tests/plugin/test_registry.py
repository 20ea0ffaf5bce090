"""Every plugin of the registry through the checker, and the checker on plugins with faults."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from bayplan.core.engine.engine import Engine
from bayplan.core.model.events import (
    ClaimSeen,
    DeviceClassSeen,
    Event,
    KubeletRefused,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    StorageClassSeen,
    TopologySeen,
    VolumeSeen,
)
from bayplan.core.model.nodes import Image
from bayplan.core.model.numa import Policy, Topology, Zone
from bayplan.core.model.pods import AffinityTerm, HostPort, Pod, RowKey, Spread, ZoneAsk
from bayplan.core.model.selectors import NodeTerm, Requirement, Selector, Taint, Toleration
from bayplan.core.model.verdicts import Reason
from bayplan.core.model.volumes import ONE_POD, Claim, StorageClass, Volume
from bayplan.core.plugins.hooks import Ask, Reads, Refuser, Scorer
from bayplan.core.plugins.registry import BUILT_IN
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View
from bayplan.testing import check_plugin
from bayplan.testing.checker import PluginFault
from bayplan.testing.world import HOSTNAME, node, pod, terms

ZONE = "zone"
WEB = Selector((Requirement("app", "In", ("web",)),))
ROW_PLUGINS = [
    plugin for plugin in BUILT_IN.values() if hasattr(plugin, "refuse") or hasattr(plugin, "score")
]


@pytest.fixture
def cluster() -> Cluster:
    """Nodes of all kinds with pods of all kinds, and a vacant row among them."""
    engine = Engine()
    engine.handle(NamespaceSeen("default", {"env": "prod"}), 0)
    for i in range(12):
        taints = ((), (Taint("t", "", "NoSchedule"),), (Taint("p", "", "PreferNoSchedule"),))[i % 3]
        made = node(
            f"n{i}",
            gpus=i % 4 * 2,
            labels={"size": str(i), **(in_zone(i) if i % 4 else {})},
            taints=taints,
            unschedulable=i == 5,
            images=(Image(("app:1",), (i + 1) * 100 << 20),) if i % 2 else (),
            allocatable={"cpu": 0} if i == 11 else {},
        )
        engine.handle(NodeSeen(made), 0)
    for i, each in enumerate(newcomers() * 3):
        bound = pod(
            f"placed-{i}",
            cpu=1000 * i,
            node=f"n{i % 9}",
            labels=each.labels,
            terms=each.terms,
            ports=each.row.ports,
        )
        engine.handle(PodSeen(bound), 0)
    for event in storage():
        engine.handle(event, 0)
    engine.handle(PodSeen(pod("uses", node="n1", claims=("default/single",))), 0)
    engine.handle(KubeletRefused("n2", ("cpu", "pods")), 0)
    engine.handle(DeviceClassSeen("gpu", "nvidia.com/gpu"), 0)
    for event in zones():
        engine.handle(event, 0)
    engine.cluster.remove_node("n7")
    return engine.cluster


def storage() -> list[Event]:
    in_zone = (NodeTerm((Requirement(ZONE, "In", ("z1",)),)),)
    claims = (
        Claim("default", "near", "1", "zoned", completed=True),
        Claim("default", "single", "2", "any", completed=True, access_modes=(ONE_POD,)),
        Claim("default", "new", "3", storage_class="waits"),
        Claim("default", "chosen", "4", storage_class="waits", selected_node="n3"),
    )
    zones = (("topology.kubernetes.io/zone", ("z1",)),)
    return [
        StorageClassSeen(StorageClass("waits", True, "csi.example", in_zone)),
        VolumeSeen(Volume("zoned", in_zone, zones)),
        VolumeSeen(Volume("any")),
        *map(ClaimSeen, claims),
    ]


def zones() -> list[Event]:
    """Of every third node, each with another policy; of one they cannot be read."""
    policies: tuple[Policy, ...] = ("single-numa-node", "restricted", "best-effort", "none")
    amounts = (("cpu", 2000), ("memory", 1 << 30))
    both = tuple(Zone(f"z{i}", i, amounts, amounts) for i in range(2))
    told = [Topology(f"n{3 * i}", each, "pod", both) for i, each in enumerate(policies)]
    return [TopologySeen(each) for each in (*told, Topology("n1", unknown="it is nonsense"))]


def in_zone(i: int) -> dict[str, str]:
    return {ZONE: f"z{i % 3}", "topology.kubernetes.io/zone": f"z{i % 3}"}


def newcomers() -> list[Pod]:
    web = {"app": "web"}
    big = Requirement("size", "Gt", ("3",))
    other = AffinityTerm(WEB, ZONE, ("default",))
    return [
        pod("plain", labels=web),
        pod("sized", gpus=2, cpu=1000, memory=1 << 30),
        pod("odd", requests={"odd/one": 1}),
        pod("pinned", required=(NodeTerm(name_in=("n3",), named=("n3",)),)),
        pod("nowhere", required=(NodeTerm(named=()),)),
        pod("named", node_name="n4"),
        pod("choosy", required=(NodeTerm((big,)),), node_selector=((ZONE, "z1"),)),
        pod("likes", preferred=((5, NodeTerm((big,))),), has_preferred=True),
        pod("tolerant", tolerations=(Toleration("", "Exists"),)),
        pod("port", ports=(HostPort("TCP", 80, "0.0.0.0"),)),
        pod("image", images=("app:1",)),
        pod("even", labels=web, terms=terms(spread=(Spread(1, ZONE, True, WEB),))),
        pod("soft", labels=web, terms=terms(spread=(Spread(1, HOSTNAME, False, WEB),))),
        pod("near", labels=web, terms=terms(affinity=(other,))),
        pod("far", labels=web, terms=terms(anti_affinity=(other,))),
        pod("fond", terms=terms(preferred=((10, other), (-3, other)))),
        pod("near", claims=("default/near", "default/new")),
        pod("single", claims=("default/single",)),
        pod("chosen", claims=("default/chosen",)),
        pod("claimless", claims=("default/none",)),
        pod("devices", resource_claims=True),
        pod("aligned", cpu=1000, aligned=(ZoneAsk((("cpu", 1000),)),), guaranteed=True),
        pod("wide", cpu=3000, aligned=(ZoneAsk((("cpu", 3000),)),), guaranteed=True),
    ]


@pytest.mark.parametrize("plugin", ROW_PLUGINS, ids=lambda plugin: plugin.name)
def test_every_plugin_passes_the_checker(plugin: type, cluster: Cluster) -> None:
    check_plugin(plugin(), cluster, newcomers())


class Sound:
    """A plugin without fault, for the faulty ones to differ from."""

    name = "Sound"
    reads = Reads.LOAD

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        codes: Codes = (view.free[3] < 0).astype(np.int64)
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (Reason("overcommitted", True, frozenset()),)

    def score(self, ask: Ask, view: View) -> Ints | None:
        return np.minimum(view.row_numbers, 100)


class LooksAtItsNeighbours(Sound):
    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return np.arange(len(view)) % 2


class CountsCalls(Sound):
    calls = 0

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        self.calls += 1
        return np.full(len(view), self.calls % 2)


class Writes(Sound):
    def refuse(self, ask: Ask, view: View) -> Codes | None:
        view.cluster.free[0, 3] -= 1
        return None


class LooksAtLabels(Sound):
    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return np.full(len(view), int("checked-by" in ask.pod.labels))


class HasNoReason(Sound):
    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return np.full(len(view), 2)


class ScoresTooHigh(Sound):
    def score(self, ask: Ask, view: View) -> Ints | None:
        return np.full(len(view), 101)


class ScoresInBytes(Sound):
    def score(self, ask: Ask, view: View) -> Any:
        return np.full(len(view), 100, dtype=np.int8)


class AnswersTooLittle(Sound):
    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return np.zeros(1, dtype=np.int64)


class RejectsByLabel(Sound):
    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None:
        return Reason("labelled", False, frozenset()) if "checked-by" in ask.pod.labels else None


class RejectsInWords(Sound):
    def reject(self, ask: Ask, cluster: Cluster) -> str:
        return "no"


class BreaksItsWord(Sound):
    def concerns(self, row: RowKey) -> bool:
        return False


class SkipsAndScores(Sound):
    def skips(self, ask: Ask) -> bool:
        return True


class Prepares(Sound):
    def refuser(self, ask: Ask) -> Refuser:
        return partial(self.refuse, ask)

    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer:
        return partial(self.score, ask)


class PreparesAnother(Prepares):
    def refuser(self, ask: Ask) -> Refuser:
        return lambda view: np.ones(len(view), dtype=np.int8)


class PreparesBytes(Prepares):
    def scorer(self, ask: Ask, cluster: Cluster) -> Any:
        return lambda view: np.minimum(view.row_numbers, 100).astype(np.int8)


class PreparesTooLittle(Prepares):
    def refuser(self, ask: Ask) -> Refuser:
        return lambda view: np.zeros(1, dtype=np.int8)


class PreparesForSomeRows(Prepares):
    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer:
        return lambda view: (
            np.minimum(0 if view.rows is None else view.rows, 100)
            + np.zeros(len(view), dtype=np.int64)
        )


class PreparesWhatIsNow(Prepares):
    def refuse(self, ask: Ask, view: View) -> Codes | None:
        codes: Codes = view.free[2] % 2
        return codes

    def refuser(self, ask: Ask) -> Refuser:
        known: dict[int, Codes | None] = {}

        def remembered(view: View) -> Codes | None:
            return known.setdefault(len(view), self.refuse(ask, view))

        return remembered


class WritesToTheView(Prepares):
    def refuser(self, ask: Ask) -> Refuser:
        def refuse(view: View) -> Codes | None:
            codes = self.refuse(ask, view)
            view.free[3] -= 1
            return codes

        return refuse


class DoesNotSay(Sound):
    reads = None  # type: ignore[assignment]


def test_a_sound_plugin_passes(cluster: Cluster) -> None:
    check_plugin(Sound(), cluster, newcomers())
    check_plugin(Prepares(), cluster, newcomers())


@pytest.mark.parametrize(
    ("plugin", "fault"),
    [
        (LooksAtItsNeighbours, "among all rows"),
        (CountsCalls, "another answer the second time"),
        (Writes, "wrote to the cluster"),
        (LooksAtLabels, "depends on labels"),
        (HasNoReason, "a code without a reason"),
        (ScoresTooHigh, "outside 0 to 100"),
        (ScoresInBytes, "scores of int8, not int64"),
        (AnswersTooLittle, "answers for"),
        (DoesNotSay, "does not say what it reads"),
        (RejectsByLabel, "depends on labels"),
        (RejectsInWords, "not a Reason"),
        (BreaksItsWord, "does not concern it"),
        (SkipsAndScores, "says that it skips the pod"),
        (PreparesAnother, "say different things"),
        (PreparesBytes, "prepares scores of int8"),
        (PreparesTooLittle, "prepares what gives 1 answers"),
        (PreparesForSomeRows, "say different things"),
        (PreparesWhatIsNow, "say different things"),
        (WritesToTheView, "writes to the view"),
    ],
)
def test_the_checker_finds_the_fault(plugin: type, fault: str, cluster: Cluster) -> None:
    with pytest.raises(PluginFault, match=fault):
        check_plugin(plugin(), cluster, newcomers())
