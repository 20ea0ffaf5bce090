"""Pods per second on one real control plane: kube-scheduler, Bayplan, and a loop that only binds.

All pods of a round are there before its contender starts. Rates count from the first bind that the
observer sees, so a contender's start and its first list are no part of them. What each number
means is in docs/benchmarks.md.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.bench import contenders
from bayplan.bench.cluster import GPUS, NAMESPACE, Cluster
from bayplan.bench.contenders import BARE_LOOP, BAYPLAN_RUN, KUBE_SCHEDULER, Contender, Running
from bayplan.bench.machine import Meter, process_cpu_s
from bayplan.bench.observer import Sight
from bayplan.testing.controlplane import ControlPlane, ControlPlaneError, Process, RequestKind

POLL_S = 0.1
READY_S = 60.0
WARM_UP_PODS = 500
# Deleting 10,000 pods one after the other would take most of the time.
APISERVER_ARGS = ("--delete-collection-workers=8",)
OBSERVER = "bayplan.bench.observer"
_NOT_COUNTED = frozenset({"WATCH", "CONNECT"})

Progress = Callable[[str], None]


class BenchError(RuntimeError):
    """The benchmark cannot give figures: why."""


class Size(Struct, frozen=True):
    nodes: int
    pods: int

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.pods} pods"


class Plan(Struct, frozen=True):
    sizes: tuple[Size, ...] = (Size(1_000, 3_000), Size(5_000, 10_000))
    rounds: int = 5
    steady_per_s: float = 200.0
    steady_s: float = 20.0
    steady_rounds: int = 3  # at most; a round of 20 s has 4,000 pods in it
    settle_s: float = 2.0  # after thousands of pods were created


QUICK = Plan(sizes=(Size(200, 600),), rounds=1, steady_s=5.0)


class Round(Struct, frozen=True):
    """What one contender did with one batch of pods."""

    round: int
    contender: str
    pods_per_s: float
    events_pods_per_s: float
    cpu_ms_per_pod: float
    requests_per_pod: float
    rss_mib: float
    start_to_first_bind_s: float
    start_to_last_bind_s: float
    events: int  # that were stored; a contender may drop some
    events_by_last_bind: int  # of them, those that were stored while pods were still bound
    observer_cpu_ms_per_pod: float
    observer_cuts: int  # how often the API server closed one of its watches
    elsewhere_cores: float  # what other programs on the machine used meanwhile


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of `bayplan bench throughput`."""
    try:
        with ControlPlane(apiserver_args=APISERVER_ARGS) as plane:
            return measure(plane, plan, progress)
    except (ControlPlaneError, ConnectionError) as error:
        raise BenchError(str(error)) from error


def measure(
    plane: ControlPlane, plan: Plan, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """The same on a control plane that runs already and has no nodes."""
    track = Track(plane, progress, plan.settle_s)
    results: list[dict[str, Any]] = []
    steady: dict[str, float] = {}
    for size in plan.sizes:
        progress(f"{size}: creating nodes")
        track.cluster.clear()
        track.cluster.add_nodes(size.nodes)
        track.round(0, BARE_LOOP, min(WARM_UP_PODS, size.pods))  # not counted
        rounds = []
        for number in range(1, plan.rounds + 1):
            for contender in in_turn(number):
                done = track.round(number, contender, size.pods)
                progress(
                    f"{size}, round {number} of {plan.rounds}: {contender.key} "
                    f"{done.pods_per_s:,.0f}/s, with events {done.events_pods_per_s:,.0f}/s; "
                    f"other programs used {done.elsewhere_cores:.2f} cores"
                )
                rounds.append(done)
        results.append(summary(size, rounds))
        if not steady:
            steady = track.steadies(plan, size)
    track.cluster.clear()
    return {
        "kubernetes": plane.binaries["kube-scheduler"].version,
        "cores": os.cpu_count(),
        "uvloop": importlib.util.find_spec("uvloop") is not None,
        "results": results,
        **steady,
    }


def in_turn(number: int) -> Sequence[Contender]:
    """Every contender once; another one begins each round, so that none always follows another."""
    at = (number - 1) % len(contenders.ALL)
    return contenders.ALL[at:] + contenders.ALL[:at]


def summary(size: Size, rounds: list[Round]) -> dict[str, Any]:
    """Medians over the rounds, and their ratios."""
    found: dict[str, Any] = {"nodes": size.nodes, "pods": size.pods}
    for contender in contenders.ALL:
        for name in (
            "pods_per_s",
            "events_pods_per_s",
            "cpu_ms_per_pod",
            "requests_per_pod",
            "rss_mib",
        ):
            ours = [getattr(done, name) for done in rounds if done.contender == contender.key]
            found[f"{contender.key}_{name}"] = median(ours)
    for ratio, name in (("", "pods_per_s"), ("_events", "events_pods_per_s")):
        for short, peer in (("kube", KUBE_SCHEDULER), ("bare", BARE_LOOP)):
            theirs = found[f"{peer.key}_{name}"]
            found[f"bayplan{ratio}_over_{short}"] = found[f"bayplan_{name}"] / theirs
    ours, theirs = found["bayplan_cpu_ms_per_pod"], found["bare_loop_cpu_ms_per_pod"]
    found["bayplan_cpu_over_bare"] = ours / theirs
    found["rounds"] = [msgspec.to_builtins(done) for done in rounds]
    return found


class Track:
    """The control plane on which they run, one after the other."""

    def __init__(self, plane: ControlPlane, progress: Progress, settle_s: float = 0.0) -> None:
        self.cluster = Cluster(plane)
        self._plane, self._progress, self._settle_s = plane, progress, settle_s
        self._observers = 0

    def idle_cpu_s(self, contender: Contender) -> float:
        """The CPU time of a start on these nodes, with no pod to bind. It differs from one minute
        to the next as much as that of a batch, so each round has its own."""
        self.cluster.clear_pods()
        running = contender.start(self._plane)
        try:
            self.until_ready(running)
            return process_cpu_s(running.process.pid)
        finally:
            running.process.stop()

    def round(self, number: int, contender: Contender, pods: int) -> Round:
        """A batch of pods that waits, and a contender that starts."""
        idle_cpu_s = self.idle_cpu_s(contender)
        self.cluster.add_pods(contender.scheduler, _prefix(contender, number), pods)
        time.sleep(self._settle_s)
        watching = self.observe(pods)
        before = self._plane.request_counts()
        began, meter = time.monotonic(), Meter()
        running = contender.start(self._plane)
        process = running.process
        try:
            sight = watching.wait(process, pods)
            elsewhere_cores = meter.elsewhere_cores()
            contenders.rest(process)
            cpu_s, rss_mib = process_cpu_s(process.pid), contenders.peak_mib(process)
        finally:
            process.stop()
        requests = counted(self._plane.request_counts()) - counted(before)
        last = max(sight.last_bind, sight.last_event)
        return Round(
            round=number,
            contender=contender.key,
            pods_per_s=pods / (sight.last_bind - sight.first_bind),
            events_pods_per_s=pods / (last - sight.first_bind),
            cpu_ms_per_pod=1e3 * (cpu_s - idle_cpu_s) / pods,
            requests_per_pod=requests / pods,
            rss_mib=rss_mib,
            start_to_first_bind_s=sight.first_bind - began,
            start_to_last_bind_s=sight.last_bind - began,
            events=sight.events,
            events_by_last_bind=sight.events_by_last_bind,
            observer_cpu_ms_per_pod=1e3 * sight.cpu_s / pods,
            observer_cuts=sight.cuts,
            elsewhere_cores=elsewhere_cores,
        )

    def steadies(self, plan: Plan, size: Size) -> dict[str, float]:
        """From a pod's creation to its bind, at a pace that leaves everyone time."""
        pods = min(int(plan.steady_per_s * plan.steady_s), size.nodes * GPUS)
        both = (KUBE_SCHEDULER, BAYPLAN_RUN)
        seen: dict[str, list[tuple[float, float]]] = {contender.key: [] for contender in both}
        for number in range(1, min(plan.rounds, plan.steady_rounds) + 1):
            for contender in both if number % 2 else both[::-1]:
                p50, p99 = self._steady(contender, f"steady-{number}", pods, plan.steady_per_s)
                self._progress(
                    f"{plan.steady_per_s:g} pods/s on {size.nodes} nodes: {contender.key} "
                    f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
                )
                seen[contender.key].append((p50, p99))
        found: dict[str, float] = {"steady_nodes": size.nodes, "steady_pods": pods}
        for key, times in seen.items():
            found[f"steady_{key}_ms_p50"] = median(p50 for p50, _ in times)
            found[f"steady_{key}_ms_p99"] = median(p99 for _, p99 in times)
        return found

    def _steady(
        self, contender: Contender, prefix: str, pods: int, per_second: float
    ) -> tuple[float, float]:
        self.cluster.clear_pods()
        running = contender.start(self._plane)
        try:
            self.until_ready(running)
            watching = self.observe(pods)
            self.cluster.add_pods(contender.scheduler, prefix, pods, per_second)
            waits = watching.wait(running.process, pods).waits_ms
        finally:
            running.process.stop()
        cuts = quantiles(waits, n=100, method="inclusive")
        return cuts[49], cuts[98]

    def observe(self, pods: int) -> "Watching":
        self._observers += 1
        return Watching(self._plane, f"observer-{self._observers}", pods)

    def until_ready(self, running: Running) -> None:
        """Until it has read the cluster and rests."""
        deadline = time.monotonic() + READY_S
        while not running.is_ready():
            process = running.process
            if not process.running or time.monotonic() > deadline:
                raise BenchError(f"{process.name} did not become ready:\n{process.tail()}")
            time.sleep(POLL_S)
        contenders.rest(running.process)


class Watching:
    """An observer at work."""

    def __init__(self, plane: ControlPlane, name: str, pods: int) -> None:
        self._out = plane.directory / f"{name}.json"
        command = [contenders.PYTHON, "-m", OBSERVER, str(plane.kubeconfig), NAMESPACE, str(pods)]
        log = plane.directory / f"{name}.log"
        for old in (self._out, log):  # of an earlier benchmark on the same control plane
            old.unlink(missing_ok=True)
        self._process = Process("observer", [*command, str(self._out)], log)
        self._process.wait_until(lambda: b"watching" in log.read_bytes())

    def wait(self, contender: Process, pods: int, most: int = GPUS) -> Sight:
        """What it saw; an error if not every pod was bound, once, to a node with room for `most`
        pods."""
        try:
            while not self._out.exists():
                for process in (contender, self._process):
                    if not process.running and not self._out.exists():
                        raise BenchError(f"{process.name} ended:\n{process.tail()}")
                time.sleep(POLL_S)
        finally:
            self._process.stop()
        sight = msgspec.json.decode(self._out.read_bytes(), type=Sight)
        if sight.bound < pods or sight.moved or sight.most_on_a_node > most:
            raise BenchError(
                f"{contender.name} bound {sight.bound} of {pods} pods, moved {sight.moved}, and "
                f"put up to {sight.most_on_a_node} on a node:\n{contender.tail()}"
            )
        return sight


def counted(counts: dict[RequestKind, int]) -> int:
    """Reads and writes of pods, bindings and events; watches are not requests per pod."""
    return sum(
        count
        for kind, count in counts.items()
        if kind.resource in ("pods", "events") and kind.verb not in _NOT_COUNTED
    )


def _prefix(contender: Contender, number: int) -> str:
    return f"{contender.key.replace('_', '-')}-{number}"
