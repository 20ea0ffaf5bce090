"""How well trn1 nodes stay whole, beside what Neuron's own extension does.

Random streams in virtual time: pods of 1, 4, 8 and 16 devices come to nodes of 16 (trn1.32xlarge),
stay for a random while and go. As much is offered as keeps `load` of all devices busy. A request
for 8 or 16 that is refused while some node has that many devices free fell victim to the way in
which the others were placed; those are counted. A pod that is refused, for whatever reason, is
dropped: nobody waits. All contenders meet the same pods at the same times.

Whoever refuses more is relieved by that, and has an easier time with the rest. So there is a second
round at equal load: the same pods in the same order, each as soon as fewer than `load` of the
contender's devices are busy.

The contenders, each a profile of the same engine:

    bayplan            the default profile
    devices_alone      only the plugin Devices scores
    behind_extender    kube-scheduler's scores and that of Devices, as an extender tells it: 0 to
                       10, with the weight of our manifests; equals at random
    original           kube-scheduler's scores, equals at random; on the node the lowest indexes
"""

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from bayplan.core.devices import contiguous
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Held
from bayplan.core.model.inventories import pools_of
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import DeviceAsk, Pod, RowKey
from bayplan.core.model.vendors import Vendors
from bayplan.core.model.verdicts import Reason
from bayplan.core.plugins.devices import Devices, pool_of
from bayplan.core.plugins.hooks import Ask, Candidate, Reads, Scorer
from bayplan.core.plugins.registry import installed
from bayplan.core.plugins.resources import FREED
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

GIB = 1 << 30
NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
TYPE = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
DEVICES, CORES = 16, 32  # of a node
LARGE = (8, 16)  # sizes whose refusals are counted
CPU, MEMORY = 7_000, 28 * GIB  # that a pod asks for with each device; a node has 8 cores for it
EXTENDER_WEIGHT = 30  # in deploy/extender; kube-scheduler multiplies 0 to 10 by it and by 10
COMPARED = ("bayplan", "original")
CONTENDERS = ("bayplan", "devices_alone", "behind_extender", "original")
Progress = Callable[[str], None]


class Plan(Struct, frozen=True):
    nodes: int = 64
    arrivals: int = 20_000
    seeds: tuple[int, ...] = tuple(range(10))
    load: float = 0.8  # of all devices, if nobody were refused
    # By size, so that each size above 1 asks for as many devices in all as every other, and the
    # small ones, which break rows, for half as many.
    shares: tuple[tuple[int, int], ...] = ((1, 8), (4, 4), (8, 2), (16, 1))


QUICK = Plan(nodes=32, arrivals=2_000, seeds=(0, 1))


class Arrival(Struct, frozen=True):
    at: float
    size: int
    stays: float


class Tally(Struct):
    """What became of a stream."""

    refused: int = 0  # large ones, while some node had as many devices free
    refused_in_all: int = 0
    busy: float = 0.0  # share of the devices, on average over the arrivals


class LowestIndex:
    """Refuses nodes where no devices that go together are free, and gives the lowest that are."""

    name = "LowestIndex"
    reads = Reads.LOAD

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return np.array([self._first(ask, view.cluster, row) == 0 for row in view.row_numbers])

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return [Reason("node(s) had no free devices side by side", True, FREED)]

    def choose(self, ask: Ask, row: int, cluster: Cluster) -> Sequence[Held]:
        pool, mask = pool_of(cluster, row, "neuron"), self._first(ask, cluster, row)
        assert pool is not None and mask  # noqa: PT018
        return contiguous.held_of(
            ask.row.devices, contiguous.Choice((mask,)), pool, cluster.name(row)
        )

    def _first(self, ask: Ask, cluster: Cluster, row: int) -> int:
        table, (want,) = cluster.pools.ordered["neuron"], ask.row.devices
        layout, free = table.layouts[row], table.free[row]
        assert layout is not None
        windows = contiguous.windows(layout, want.kind, want.amount)
        return next((window for window in windows if window & free == window), 0)


class ToldInTens(Devices):
    """The score of Devices as an extender tells it."""

    name = "ToldInTens"

    def score(self, ask: Ask, view: View) -> Ints | None:
        found = super().score(ask, view)
        return None if found is None else 10 * np.round(found / 9.9).astype(np.int64)

    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer:
        return partial(self.score, ask)


def contenders(rng: random.Random) -> dict[str, Profile]:
    none = (Enabled("*"),)
    known = {**installed(), LowestIndex.name: LowestIndex, ToldInTens.name: ToldInTens}

    def profile(**plugins: PluginSet) -> Profile:
        return Profile(ProfileConfig(plugins=plugins), known)

    ours = (Enabled("Devices"),)
    tens = (Enabled(ToldInTens.name, EXTENDER_WEIGHT),)
    first = (Enabled(LowestIndex.name),)
    original = profile(
        filter=PluginSet(first, ours), score=PluginSet((), ours), choose=PluginSet(first, ours)
    )
    original.picker = at_random(rng)
    behind = profile(
        filter=PluginSet(tens, ours), score=PluginSet(tens, ours), choose=PluginSet(tens, ours)
    )
    behind.picker = at_random(rng)
    alone = profile(score=PluginSet(ours, none))
    return dict(zip(CONTENDERS, (profile(), alone, behind, original), strict=True))


def at_random(rng: random.Random) -> Callable[[Pod, Sequence[Candidate]], int]:
    """kube-scheduler's choice among the best."""

    def pick(_: Pod, candidates: Sequence[Candidate]) -> int:
        best = candidates[0].score
        return rng.randrange(sum(candidate.score == best for candidate in candidates))

    return pick


def stream(plan: Plan, seed: int) -> list[Arrival]:
    """Pods that come and stay at random; the mean of what they stay is 1."""
    rng = random.Random(seed)
    sizes, weights = zip(*plan.shares, strict=True)
    mean = sum(size * weight for size, weight in plan.shares) / sum(weights)
    rate = plan.load * plan.nodes * DEVICES / mean
    at, found = 0.0, []
    for size in rng.choices(sizes, weights, k=plan.arrivals):
        at += rng.expovariate(rate)
        found.append(Arrival(at, size, rng.expovariate(1.0)))
    return found


def node(number: int, vendors: Vendors) -> Node:
    name = f"trn1-{number}"
    amounts = {"pods": 110, "cpu": 128_000, "memory": 512 * GIB, NEURON: DEVICES, CORE: CORES}
    pools = pools_of({}, vendors, TYPE, amounts)
    return Node(name, f"uid-{name}", TYPE, amounts, pools=pools)


def pod(number: int, size: int) -> Pod:
    requests = ((NEURON, size), ("cpu", size * CPU), ("memory", size * MEMORY))
    ask = DeviceAsk("main", NEURON, "neuron", "whole", size, consecutive=True)
    row = RowKey(requests, requests, (size * CPU, size * MEMORY), devices=(ask,))
    name = f"pod-{number}"
    return Pod(name, "default", name, {}, row, scheduler="bayplan")


class Nodes:
    """Nodes behind an engine, and who leaves when."""

    def __init__(self, count: int, profile: Profile) -> None:
        self._engine, vendors = Engine([profile]), Vendors()
        self.free = {f"trn1-{number}": DEVICES for number in range(count)}
        for number in range(count):
            self._engine.handle(on.NodeSeen(node(number, vendors)), 0.0)
        self._leaving: list[tuple[float, str, str, int]] = []

    def pods(self) -> list[Pod]:
        return [resident.pod for resident in self._engine.cluster.pods.values()]

    @property
    def busy(self) -> float:
        return 1 - sum(self.free.values()) / (DEVICES * len(self.free))

    def until(self, now: float) -> None:
        """Whose time has come is gone."""
        while self._leaving and self._leaving[0][0] <= now:
            self._next_goes()

    def until_below(self, load: float) -> float:
        """Pods go until fewer devices are busy; and when that is."""
        now = 0.0
        while self.busy >= load:
            now = self._next_goes()
        return now

    def _next_goes(self) -> float:
        at, uid, name, size = heapq.heappop(self._leaving)
        self.free[name] += size
        self._engine.handle(on.PodGone(uid), at)
        return at

    def place(self, newcomer: Pod, size: int, now: float, end: float) -> bool:
        self._engine.handle(on.PodSeen(newcomer), now)
        (effect,) = self._engine.handle(on.Tick(), now)
        if isinstance(effect, do.Refuse):
            self._engine.handle(on.PodGone(newcomer.uid), now)
            return False
        assert isinstance(effect, do.Bind), effect
        self._engine.handle(on.BindDone(newcomer.uid), now)
        self.free[effect.placement.node] -= size
        heapq.heappush(self._leaving, (end, newcomer.uid, effect.placement.node, size))
        return True


def play(
    plan: Plan, arrivals: Sequence[Arrival], profile: Profile, *, equal_load: bool = False
) -> Tally:
    """A stream through an engine."""
    nodes, tally, now = Nodes(plan.nodes, profile), Tally(), 0.0
    for number, arrival in enumerate(arrivals):
        if equal_load:
            now = max(now, nodes.until_below(plan.load))
        else:
            now = arrival.at
            nodes.until(now)
        size = arrival.size
        if not nodes.place(pod(number, size), size, now, now + arrival.stays):
            tally.refused_in_all += 1
            tally.refused += size in LARGE and max(nodes.free.values()) >= size
        tally.busy += nodes.busy / len(arrivals)
    return tally


def run(plan: Plan, progress: Progress = lambda _: None) -> dict[str, Any]:
    per_seed: list[dict[str, Any]] = []
    for seed in plan.seeds:
        arrivals = stream(plan, seed)
        found: dict[str, Any] = {"seed": seed, "equal_load": {}}
        for name, profile in contenders(random.Random(seed)).items():
            found[name] = figures(play(plan, arrivals, profile))
            if name in COMPARED:
                again = play(plan, arrivals, profile, equal_load=True)
                found["equal_load"][name] = figures(again)
        per_seed.append(found)
        counts = [f"{name} {found[name]['refused']}" for name in found if name in CONTENDERS]
        equal = [f"{name} {found['equal_load'][name]['refused']}" for name in COMPARED]
        progress(f"seed {seed}: {', '.join(counts)}; at equal load {', '.join(equal)}")
    return {
        "nodes": plan.nodes,
        "arrivals": plan.arrivals,
        "load": plan.load,
        **compared(per_seed),
        "equal_load": compared([found["equal_load"] for found in per_seed]),
        "per_seed": per_seed,
    }


def figures(tally: Tally) -> dict[str, Any]:
    return {
        "refused": tally.refused,
        "refused_in_all": tally.refused_in_all,
        "busy": round(tally.busy, 4),
    }


def compared(streams: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summed over the seeds."""
    ours, theirs = (sum(each[name]["refused"] for each in streams) for name in COMPARED)
    ratio = round(ours / theirs, 4) if theirs else None
    return {"refused_ours": ours, "refused_original": theirs, "ratio": ratio}
