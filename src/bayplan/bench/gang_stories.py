"""Two stories of gangs on a real control plane, the same for Bayplan and for its rivals.

*Two halves*: two gangs that each need more than half of the GPUs, their pods created in turn while
the scheduler runs, so that each could hold a half and wait for the other for ever. A gang that runs
ends after a while, and then the other can.

*A crowd*: single pods of one GPU keep the nodes nearly full and never stop coming; a gang that
needs three quarters of the GPUs waits for its turn.

There are no kubelets: a pod runs from when the API server shows it bound, and is deleted when it
ends. Times are of one watch, as in `observer`.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from msgspec import Struct

from bayplan.bench.access import access
from bayplan.bench.cluster import GPUS, PODS, Cluster
from bayplan.bench.observer import Change, Watch
from bayplan.bench.rivals import POD_GROUPS, RESERVE_AFTER_S, Rival
from bayplan.bench.throughput import APISERVER_ARGS, BenchError, Progress, Track
from bayplan.testing.controlplane import ControlPlane, ControlPlaneError, Process, Refused

POLL_S = 0.02
Json = dict[str, Any]


class Halves(Struct, frozen=True):
    """Two gangs that each need more than half."""

    nodes: int = 8
    size: int = 40  # of 64 GPUs
    rounds: int = 5
    run_s: float = 2.0
    limit_s: float = 60.0


class Crowd(Struct, frozen=True):
    """One large gang against many small pods."""

    nodes: int = 8
    size: int = 48  # of 64 GPUs
    load: float = 0.9  # of the GPUs, by the small pods alone
    lives_s: tuple[float, ...] = (2.0, 6.0, 4.0, 3.0, 5.0)  # of the small pods, in turn
    warm_s: float = 10.0  # before the gang comes: longer than the longest life
    limit_s: float = 180.0
    reserve_after_s: float = RESERVE_AFTER_S  # of Bayplan, where it has no other configuration

    @property
    def every_s(self) -> float:
        """From one small pod to the next."""
        return sum(self.lives_s) / len(self.lives_s) / (self.load * self.nodes * GPUS)


class Plan(Struct, frozen=True):
    halves: Halves = Halves()
    crowd: Crowd = Crowd()


QUICK = Plan(
    Halves(nodes=2, size=10, rounds=1, limit_s=20.0),
    Crowd(nodes=2, size=12, limit_s=30.0, reserve_after_s=10.0),
)


def run(plan: Plan, rivals: Sequence[Rival], progress: Progress = lambda text: None) -> list[Json]:
    """Both stories, played by each in turn."""
    try:
        with ControlPlane(apiserver_args=APISERVER_ARGS) as plane:
            return [play(plane, plan, rival, progress) for rival in rivals]
    except (ControlPlaneError, ConnectionError) as error:
        raise BenchError(str(error)) from error


def play(
    plane: ControlPlane, plan: Plan, rival: Rival, progress: Progress = lambda text: None
) -> Json:
    """The same on a control plane that runs already."""
    progress(f"{rival.key}: two gangs that each need more than half")
    with staged(plane, rival, plan.halves.nodes) as stage:
        halves = two_halves(stage, plan.halves)
    progress(f"{rival.key}: {told(halves)}; now a large gang in a crowd of small pods")
    with staged(plane, rival, plan.crowd.nodes) as stage:
        crowd = in_a_crowd(stage, plan.crowd)
    progress(f"{rival.key}: {told(crowd)}")
    return {"rival": rival.key, "halves": halves, "crowd": crowd}


def told(found: Json) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items() if key != "rounds")


# ---- the stage


@contextmanager
def staged(plane: ControlPlane, rival: Rival, nodes: int) -> Iterator["Stage"]:
    """Empty nodes, a rival that runs, and a watch of the pods; nothing is left of it at the end."""
    track = Track(plane, lambda text: None)
    track.cluster.clear()
    track.cluster.add_nodes(nodes)
    sight = Sightings(Watch(access(plane.kubeconfig), PODS))
    try:
        running = rival.start(plane)
        try:
            track.until_ready(running)
            yield Stage(plane, rival, track.cluster, sight, running.process)
        finally:
            running.process.stop()
    finally:
        sight.close()
        track.cluster.clear()


class Stage(Struct, frozen=True):
    """What the stories play on."""

    plane: ControlPlane
    rival: Rival
    cluster: Cluster
    sight: "Sightings"
    process: Process  # of the rival

    def check(self) -> None:
        """An error if nobody plays any more."""
        if not self.process.running:
            raise BenchError(f"{self.process.name} ended:\n{self.process.tail()}")
        if self.sight.trouble:
            raise BenchError(self.sight.trouble)

    def pod(self, name: str, marks: Json | None = None) -> Json:
        resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
        spec = {"schedulerName": self.rival.scheduler, "containers": [container]}
        return {"metadata": {"name": name, **(marks or {})}, "spec": spec}

    def end(self, names: Sequence[str]) -> None:
        for name in names:
            self.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    def gang(self, name: str, size: int) -> "Gang":
        self.rival.announce(self.plane, name, size)
        return Gang(self, name, size)


class Gang:
    """A gang on the stage: its pods, and when they were bound."""

    def __init__(self, stage: Stage, name: str, size: int) -> None:
        self._stage, self.name, self._size = stage, name, size
        self.members = [f"{name}-{at:04d}" for at in range(size)]
        self.ended = False

    def pods(self) -> Iterator[Json]:
        marks = self._stage.rival.marks(self.name, self._size)
        return (self._stage.pod(member, marks) for member in self.members)

    def times(self) -> list[float]:
        """When its members were bound, those that are."""
        bound = self._stage.sight.bound
        return sorted(bound[member] for member in self.members if member in bound)

    def ran_at(self) -> float | None:
        """When the last of them was bound, if all are."""
        times = self.times()
        return times[-1] if len(times) == self._size else None

    def in_part_s(self, now: float) -> float:
        """How long some were bound and some were not."""
        times = self.times()
        return (self.ran_at() or now) - times[0] if times else 0.0

    def end(self) -> None:
        """All of it, in whatever state."""
        self.ended = True
        self._stage.end(self.members)
        try:
            self._stage.plane.request("DELETE", f"{POD_GROUPS}/{self.name}")
        except Refused:
            return  # this rival needs none


class Sightings:
    """When pods were bound, by name. A thread follows the watch."""

    def __init__(self, watch: Watch) -> None:
        self.bound: dict[str, float] = {}
        self.trouble = ""
        self._watch = watch
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._watch.close()
        self._thread.join()

    def _follow(self) -> None:
        try:
            for seen, now in self._watch:
                self._hear(seen, now)
        except (OSError, ValueError) as error:
            self.trouble = f"the watch of the pods ended: {error}"

    def _hear(self, seen: Change, now: float) -> None:
        if seen.object.spec.node_name:
            self.bound.setdefault(seen.object.metadata.name, now)


# ---- two halves


def two_halves(stage: Stage, plan: Halves) -> Json:
    """Medians over the rounds; a rival that is stuck once is not asked again."""
    rounds = []
    for number in range(plan.rounds):
        rounds.append(one_round(stage, plan, number))
        if rounds[-1]["both_s"] is None:
            break
    firsts = [done["first_s"] for done in rounds if done["first_s"] is not None]
    boths = [done["both_s"] for done in rounds if done["both_s"] is not None]
    stuck = len(boths) < len(rounds)
    return {
        "first_s": median(firsts) if firsts else None,
        "both_s": None if stuck else median(boths),
        "both_max_s": None if stuck else max(boths),
        "in_part_max_s": max(done["in_part_s"] for done in rounds),
        "rounds": rounds,
    }


def one_round(stage: Stage, plan: Halves, number: int) -> Json:
    gangs = [stage.gang(f"half-{number}-{which}", plan.size) for which in "ab"]
    in_turn = itertools.chain.from_iterable(zip(*(gang.pods() for gang in gangs), strict=True))
    began = time.monotonic()
    stage.cluster.create(PODS, in_turn)
    while (now := time.monotonic()) < began + plan.limit_s:
        stage.check()
        ran = [at for gang in gangs if (at := gang.ran_at()) is not None]
        if len(ran) == len(gangs):
            break
        for gang in gangs:
            at = gang.ran_at()
            if at is not None and now > at + plan.run_s and not gang.ended:
                gang.end()
        time.sleep(POLL_S)
    found = {
        "first_s": min(ran) - began if ran else None,
        "both_s": max(ran) - began if len(ran) == len(gangs) else None,
        "in_part_s": max(gang.in_part_s(now) for gang in gangs),
        "bound": [len(gang.times()) for gang in gangs],
    }
    for gang in gangs:
        if not gang.ended:
            gang.end()
    return found


# ---- a crowd


class Stream:
    """Small pods that come at a steady pace and end some seconds after they were bound."""

    def __init__(self, stage: Stage, plan: Crowd) -> None:
        self._stage, self._every_s = stage, plan.every_s
        self._lives_s = itertools.cycle(plan.lives_s)
        self._began = time.monotonic()
        self.created: dict[str, float] = {}
        self._waiting: deque[tuple[str, float]] = deque()  # with how long it lives
        self._running: list[tuple[float, str]] = []  # with when it ends
        self.late_s: list[float] = []  # by how much pods lived too long, since we were busy

    def turn(self, now: float) -> None:
        """Those whose time has come appear and end."""
        while self._began + len(self.created) * self._every_s <= now:
            name = f"small-{len(self.created):05d}"
            self._stage.plane.request("POST", PODS, self._stage.pod(name))
            self.created[name] = time.monotonic()
            self._waiting.append((name, next(self._lives_s)))
        bound = self._stage.sight.bound
        for _ in range(len(self._waiting)):
            name, lives_s = self._waiting.popleft()
            if name in bound:
                self._running.append((bound[name] + lives_s, name))
            else:
                self._waiting.append((name, lives_s))
        for ends, name in self._running:
            if ends <= now:
                self._stage.end([name])
                self.late_s.append(time.monotonic() - ends)
        self._running = [(ends, name) for ends, name in self._running if ends > now]

    @property
    def holds(self) -> int:
        return len(self._running)

    @property
    def waits(self) -> int:
        return len(self._waiting)

    def waits_s(self, since: float) -> list[float]:
        """How long pods waited that came after that and were bound."""
        bound = self._stage.sight.bound
        return [
            bound[name] - at for name, at in self.created.items() if at >= since and name in bound
        ]


def in_a_crowd(stage: Stage, plan: Crowd) -> Json:
    stream = Stream(stage, plan)
    warm_at = time.monotonic() + plan.warm_s
    while (now := time.monotonic()) < warm_at:
        stream.turn(now)
        time.sleep(POLL_S)
    gang = stage.gang("large", plan.size)
    stage.cluster.create(PODS, gang.pods())
    came = time.monotonic()
    busy: list[float] = []  # share of the GPUs that the small pods hold, at each turn
    while (now := time.monotonic()) < came + plan.limit_s and gang.ran_at() is None:
        stage.check()
        stream.turn(now)
        busy.append(stream.holds / (plan.nodes * GPUS))
        time.sleep(POLL_S)
    ran, waits_s, in_part_s = gang.ran_at(), stream.waits_s(came), gang.in_part_s(now)
    gang.end()
    return {
        "gang_s": None if ran is None else ran - came,
        "gang_in_part_s": in_part_s,
        "small_busy": sum(busy) / len(busy),
        "small_bound": len(waits_s),
        "small_wait_s": median(waits_s) if waits_s else None,
        "small_waiting": stream.waits,
        "small_late_s": sum(stream.late_s) / len(stream.late_s) if stream.late_s else None,
    }
