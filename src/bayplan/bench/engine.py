"""How fast the engine decides, beside a bare NumPy loop in the same run.

A decision is a PodSeen in and a Bind out through `engine.handle`, all default plugins on. Nodes
have 8 GPUs and are 85 % full; one pod ends for each one placed. There are 50 row keys; every pod
has a label of its own; a tenth of the pods have spread or pod affinity, a tenth node affinity or
tolerations, and a tenth of those are pinned to a node by name.

Beside it runs another loop, too, which computes the very scores that the engine does.

The same with devices: nodes publish 8 cards of 80 GiB, and pods ask for some GiB of one card where
they asked for GPUs. That is held against the figure without devices, in the same run.

The garbage collector is frozen after the filling and seldom runs, as in a live scheduler after
its first list.
"""

import gc
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import best_node, fits_on
from bayplan.core.model.devices import Device
from bayplan.core.model.effects import Bind
from bayplan.core.model.events import BindDone, NodeSeen, PodGone, PodSeen, Tick
from bayplan.core.model.nodes import Image, Node, Pool
from bayplan.core.model.pods import AffinityTerm, DeviceAsk, Pod, PodTerms, RowKey, Spread
from bayplan.core.model.selectors import NodeTerm, Requirement, Selector, Taint, Toleration
from bayplan.scheduler.loop import GC_THRESHOLDS

GIB = 1 << 30
GPUS = 8
KEYS = 50
CARD_MIB = 80 << 10
GPU, GPU_MEMORY = "nvidia.com/gpu", "bayplan.dev/gpu-memory-mib"
FULL = 0.85
BATCH = 32  # pods that arrive between two ticks
ROUNDS = 5  # of which medians are taken: one in a few is a tenth slower than its neighbours
ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"
NAMESPACES = 20


def nodes(count: int, cards: bool = False) -> list[Node]:
    """Machines of a few kinds in ten zones; one in twenty is tainted, one in ten dislikes pods."""
    kinds = ("a100", "h100", "l4")
    made = []
    for i in range(count):
        taints: tuple[Taint, ...] = ()
        if i % 20 == 0:
            taints = (Taint("dedicated", "batch", "NoSchedule"),)
        elif i % 10 == 1:
            taints = (Taint("spot", "", "PreferNoSchedule"),)
        made.append(
            Node(
                name=f"node-{i:06d}",
                uid=f"uid-node-{i:06d}",
                labels={
                    HOST: f"node-{i:06d}",
                    ZONE: f"zone-{i % 10}",
                    RACK: f"rack-{i // 16}",
                    "gpu": kinds[i % 3],
                    "generation": str(1 + i % 5),
                },
                allocatable={
                    "pods": 110,
                    "cpu": 128_000,
                    "memory": 1024 * GIB,
                    "ephemeral-storage": 4096 * GIB,
                    **({GPU_MEMORY: GPUS * CARD_MIB} if cards else {GPU: GPUS}),
                },
                pools=(cards_of(i),) if cards else (),
                taints=taints,
                images=(Image((f"registry.example/train:{i % 4}",), 8 * GIB),),
            )
        )
    return made


def cards_of(i: int) -> Pool:
    devices = (Device(f"GPU-{i:06d}-{at}", at, CARD_MIB) for at in range(GPUS))
    return Pool("nvidia", tuple(devices))


class Pods:
    """An endless stream of pods of 50 templates, each pod with a label of its own."""

    def __init__(self, seed: int, node_count: int, cards: bool = False) -> None:
        self._cards = cards
        self._rng = random.Random(seed)
        self._nodes = node_count
        self._made = 0
        self._rows = [self._row(i) for i in range(KEYS)]
        self._terms = [self._own_terms(i) for i in range(KEYS)]

    def _row(self, i: int) -> RowKey:
        gpus = 1 if self._cards else (1, 1, 1, 1, 2)[i % 5]
        cpu, memory = gpus * (4000 + 100 * (i % 7)), gpus * (16 + i % 11) * GIB
        requests = (("cpu", cpu), ("memory", memory), (GPU, gpus))
        special: dict[str, Any] = {}
        if self._cards:
            mib = (10, 20, 20, 40, 40)[i % 5] << 10
            requests = ((GPU_MEMORY, mib), ("cpu", cpu), ("memory", memory))
            ask = DeviceAsk("main", GPU_MEMORY, "nvidia", "memory", mib)
            special = {"devices": (ask,)}
        if i % 10 == 3:  # a tenth: affinity on one template in two, tolerations on the other
            if i % 20 == 3:
                gpu = Requirement("gpu", "In", ("a100", "h100"))
                newer = Requirement("generation", "Gt", ("1",))
                liked = (10, NodeTerm((Requirement("generation", "In", ("5",)),)))
                special |= {
                    "required": (NodeTerm((gpu, newer)),),
                    "preferred": (liked,),
                    "has_preferred": True,
                }
            else:
                special |= {"tolerations": (Toleration("dedicated", "Exists"),)}
        return RowKey(
            requests=requests,
            scored=requests,
            scored_placed=(cpu, memory),
            images=(f"registry.example/train:{i % 8}",),
            **special,
        )

    def _own_terms(self, i: int) -> PodTerms | None:
        if i % 10 != 7:
            return None
        space = f"team-{i % NAMESPACES}"
        same = Selector((Requirement("app", "In", (f"app-{i}",)),))
        return (
            PodTerms(space, spread=(Spread(20000, ZONE, True, same),)),
            PodTerms(space, spread=(Spread(3, HOST, False, same), Spread(5, ZONE, False, same))),
            PodTerms(space, anti_affinity=(AffinityTerm(same, HOST, (space,)),)),
            PodTerms(space, preferred=((50, AffinityTerm(same, RACK, (space,))),)),
            PodTerms(space, spread=(Spread(4000, HOST, True, same),)),
        )[i // 10]

    def __next__(self) -> Pod:
        i = self._rng.randrange(KEYS)
        self._made += 1
        row = self._rows[i]
        if i % 10 == 3 and self._rng.random() < 0.1:
            name = f"node-{self._rng.randrange(self._nodes):06d}"
            row = RowKey(
                requests=(("cpu", 100),),
                scored=(("cpu", 100), ("memory", 200 << 20)),
                scored_placed=(100, 200 << 20),
                required=(NodeTerm(name_in=(name,), named=(name,)),),
                tolerations=(Toleration("", "Exists"),),
            )
        return Pod(
            uid=f"00000000-0000-4000-8000-{self._made:012d}",
            namespace=f"team-{i % NAMESPACES}",
            name=f"job-{i}-{self._made:010d}",
            labels={"app": f"app-{i}", "team": f"team-{i % NAMESPACES}", "index": str(self._made)},
            row=row,
            terms=self._terms[i] if row is self._rows[i] else None,
            scheduler="bayplan",
        )

    def __iter__(self) -> "Pods":
        return self


def gpus_of(pod: Pod) -> float:
    requests = dict(pod.row.requests)
    return requests.get(GPU, 0) + requests.get(GPU_MEMORY, 0) / CARD_MIB


def filled(count: int, seed: int = 1, cards: bool = False) -> tuple[Engine, Pods, list[str]]:
    """An engine with `count` nodes, 85 % of the GPUs in use, and the uids of the placed pods."""
    engine = Engine(max_in_flight=1 << 30)
    for node in nodes(count, cards):
        engine.handle(NodeSeen(node), 0.0)
    stream = Pods(seed, count, cards)
    used, wanted, placed = 0.0, FULL * GPUS * count, list[str]()
    while used < wanted:
        batch = [next(stream) for _ in range(256)]
        for pod in batch:
            engine.handle(PodSeen(pod), 0.0)
        for effect in engine.handle(Tick(), 0.0):
            if isinstance(effect, Bind):
                pod = effect.placement.pod
                engine.handle(BindDone(pod.uid), 0.0)
                used += gpus_of(pod)
                placed.append(pod.uid)
    return engine, stream, placed


def decisions(engine: Engine, stream: Pods, placed: list[str], count: int) -> float:
    """Decisions per second over `count` decisions; a random pod ends for each one placed."""
    rng = random.Random(count)
    batches = [[PodSeen(next(stream)) for _ in range(BATCH)] for _ in range(count // BATCH)]
    ends = [rng.random() for _ in range(count)]
    made = 0
    started = time.perf_counter()
    for batch in batches:
        for seen in batch:
            engine.handle(seen, 0.0)
        for effect in engine.handle(Tick(), 0.0):
            if isinstance(effect, Bind):
                uid = effect.placement.pod.uid
                engine.handle(BindDone(uid), 0.0)
                at = int(ends[made] * len(placed))
                made += 1
                engine.handle(PodGone(placed[at]), 0.0)
                placed[at] = uid
    return made / (time.perf_counter() - started)


class BareLoop:
    """Fit and two scores for 50 keys over a change log, and the largest: nothing else.

    It is leaner than what it stands beside: all nodes have one capacity, and its balance looks only
    at the node with the pod, where kube-scheduler's looks at it without the pod too.
    """

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.capacity: NDArray[np.int64] = np.array([110, 128_000, 1024 * GIB, GPUS])
        used = np.outer(rng.integers(0, 8, count), [1, 4300, 20 * GIB, 1])
        self.free = self.capacity - used
        self.needs = [
            np.array([1, 4000 + 100 * i, (16 + i % 11) * GIB, (1, 1, 1, 1, 2)[i % 5]])
            for i in range(KEYS)
        ]
        self.log: NDArray[np.intp] = np.zeros(1 << 22, dtype=np.intp)
        self.head = 0
        self.read = [0] * KEYS
        everything = np.arange(count)
        self.best = [self.verdicts(need, everything) for need in self.needs]

    def verdicts(self, need: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.int64]:
        left = self.free.take(rows, axis=0) - need
        least = np.maximum(left[:, 1:3], 0) * 100 // self.capacity[1:3]
        used = (self.capacity - left)[:, 1:3] / self.capacity[1:3]
        balance = ((1 - np.abs(used[:, 0] - used[:, 1]) / 2) * 100).astype(np.int64)
        total = (least[:, 0] + least[:, 1]) // 2 + balance
        return np.where((left < 0).any(axis=1), -1, total)

    def run(self, count: int) -> float:
        rng = random.Random(count)
        keys = [rng.randrange(KEYS) for _ in range(count)]
        ends = [rng.random() for _ in range(count)]
        placed: list[tuple[int, int]] = []
        made = 0
        started = time.perf_counter()
        for key, end in zip(keys, ends, strict=True):
            need, best = self.needs[key], self.best[key]
            rows = self.log[self.read[key] : self.head]
            best[rows] = self.verdicts(need, rows)
            self.read[key] = self.head
            row = int(best.argmax())
            if best[row] >= 0:
                made += 1
                self.free[row] -= need
                self.log[self.head] = row
                self.head += 1
                placed.append((row, key))
            at = int(end * len(placed))
            gone, other = placed[at]
            placed[at] = placed[-1]
            placed.pop()
            self.free[gone] += self.needs[other]
            self.log[self.head] = gone
            self.head += 1
        return made / (time.perf_counter() - started)


class SameScores(BareLoop):
    """The same loop with the two scores that kube-scheduler and the engine compute: each node has
    its own capacity, and the balance is that with the pod against that without it."""

    def __init__(self, count: int, seed: int) -> None:
        self.capacities: NDArray[np.int64] = np.tile([110, 128_000, 1024 * GIB, GPUS], (count, 1))
        super().__init__(count, seed)

    def verdicts(self, need: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.int64]:
        free = self.free.take(rows, axis=0).T.copy()
        capacity = self.capacities.take(rows, axis=0).T.copy()
        left = free - need[:, np.newaxis]
        room = capacity[1:3]
        least = np.maximum(left[1:3], 0) * 100 // room
        gain = evenness(room - left[1:3], room) - evenness(room - free[1:3], room)
        total = (least[0] + least[1]) // 2 + (gain + 150) // 2
        return np.where((left < 0).any(axis=0), -1, total)


def evenness(used: NDArray[np.int64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """100 for two resources of which equal parts are used."""
    parts = np.minimum(used / room, 1.0)
    found: NDArray[np.int64] = ((1 - np.abs(parts[0] - parts[1]) / 2) * 100).astype(np.int64)
    return found


def unseen_row(i: int, node_count: int) -> RowKey:
    """A row key that nobody has asked about, with node affinity and tolerations."""
    return RowKey(
        requests=(("cpu", 1000 + i), ("memory", 4 * GIB), ("nvidia.com/gpu", 1)),
        scored=(("cpu", 1000 + i), ("memory", 4 * GIB)),
        scored_placed=(1000 + i, 4 * GIB),
        node_selector=((ZONE, f"zone-{i % 10}"),),
        required=(
            NodeTerm(
                (
                    Requirement("gpu", "In", ("a100", "h100")),
                    Requirement("generation", "Gt", ("1",)),
                )
            ),
        ),
        tolerations=(Toleration("dedicated", "Equal", "batch", "NoSchedule"),),
    )


def questions(engine: Engine, count: int, rounds: int) -> dict[str, float]:
    """p99 of `fits` for row keys not seen before, the pod already a value.

    About one node: would it fit? About all: where would it go, scores included.
    """
    verdicts = engine.verdicts["bayplan"]
    same = Selector((Requirement("app", "In", ("app-7",)),))
    soft = PodTerms("team-7", spread=(Spread(3, HOST, False, same), Spread(5, ZONE, False, same)))

    def pod(i: int, terms: PodTerms | None = None) -> Pod:
        labels = {"app": "app-7", "index": str(i)}
        return Pod(f"q-{i}", "team-7", f"q-{i}", labels, unseen_row(i, count), terms)

    def p99(ask: Callable[[Pod], object], pods: list[Pod]) -> float:
        taken = []
        for question in pods:
            started = time.perf_counter()
            ask(question)
            taken.append(time.perf_counter() - started)
        return float(np.quantile(taken, 0.99))

    plain = [pod(i) for i in range(rounds)]
    others = [pod(rounds + i) for i in range(rounds)]
    spread = [pod(2 * rounds + i, soft) for i in range(rounds)]
    return {
        "fits_one_us_p99": 1e6
        * p99(lambda p: fits_on(verdicts, p, f"node-{hash(p.uid) % count:06d}"), plain),
        "fits_all_ms_p99": 1e3 * p99(lambda p: best_node(verdicts, p), others),
        "fits_all_soft_spread_ms_p99": 1e3 * p99(lambda p: best_node(verdicts, p), spread),
    }


def memory_per_pod(low: int = 100_000, high: int = 500_000) -> float:
    """Bytes of resident memory per pod between two numbers of placed pods."""
    count = high // 100
    engine = Engine(max_in_flight=1 << 30)
    for node in nodes(count):
        engine.handle(NodeSeen(node), 0.0)
    stream = Pods(3, count)

    def place(number: int) -> int:
        for i in range(number):
            pod = next(stream)
            bound = Pod(
                pod.uid,
                pod.namespace,
                pod.name,
                pod.labels,
                pod.row,
                pod.terms,
                f"node-{i % count:06d}",
            )
            engine.handle(PodSeen(bound), 0.0)
        gc.collect()
        return rss_bytes()

    before = place(low)
    return (place(high - low) - before) / (high - low)


def rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


Filled = tuple[Engine, Pods, list[str]]


def with_devices(count: int, seed: int, without: Filled, decided: int) -> dict[str, float]:
    """Decisions about GPU memory beside those without devices, in turns."""
    filled_cards = filled(count, seed, cards=True)
    gc.collect()
    gc.freeze()
    decisions(*filled_cards, KEYS * 10)
    rounds = [
        (decisions(*filled_cards, decided), decisions(*without, decided)) for _ in range(ROUNDS)
    ]
    return {
        "nodes": count,
        "decisions_per_s": float(np.median([ours for ours, _ in rounds])),
        "without_per_s": float(np.median([plain for _, plain in rounds])),
        "ratio": float(np.median([ours / plain for ours, plain in rounds])),
    }


def run(
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000),
    progress: Callable[[str], None] = lambda text: None,
    seed: int = 1,
) -> dict[str, Any]:
    """The figures of `bayplan bench engine`."""
    report: dict[str, Any] = {"results": []}
    thresholds = gc.get_threshold()
    progress("memory per pod, from 100,000 to 500,000 pods")
    bytes_per_pod = memory_per_pod()
    for count in sizes:
        progress(f"{count} nodes: filling")
        engine, stream, placed = filled(count, seed)
        progress(f"{count} nodes: deciding")
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        decided = 20_000 if count <= 10_000 else 5_000
        bare, same = BareLoop(count, seed), SameScores(count, seed)
        for loop in (bare, same):
            loop.run(KEYS * 10)
        decisions(engine, stream, placed, KEYS * 10)
        rounds = np.array(
            [
                (decisions(engine, stream, placed, decided), bare.run(decided), same.run(decided))
                for _ in range(ROUNDS)
            ]
        )
        ours, lean, like = np.median(rounds, axis=0).tolist()
        report["results"].append(
            {
                "nodes": count,
                "decisions_per_s": ours,
                "bare_loop_per_s": lean,
                "ratio": float(np.median(rounds[:, 0] / rounds[:, 1])),
                "same_scores_loop_per_s": like,
                "same_scores_ratio": float(np.median(rounds[:, 0] / rounds[:, 2])),
                "bytes_per_pod": bytes_per_pod,
                "rss_mib": rss_bytes() / 2**20,
            }
        )
        if count == 10_000:
            report |= questions(engine, count, 2_000)
            progress(f"{count} nodes: filling cards")
            report["devices"] = with_devices(count, seed, (engine, stream, placed), decided)
        del engine, stream, placed, bare, same
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        gc.collect()
    return report
