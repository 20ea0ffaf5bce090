"""Gangs on a real control plane: from the first bind to the last, beside a loop that only binds.

All pods of a round wait before its contender starts, and an observer of its own sees the binds, as
in `throughput`. The loop that only binds meets the same pods and knows nothing of gangs: it says
what this API server allows at best. The rounds alternate.
"""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.bench import contenders
from bayplan.bench.cluster import PODS
from bayplan.bench.contenders import BARE_LOOP, BAYPLAN_RUN, Contender
from bayplan.bench.machine import Meter, process_cpu_s
from bayplan.bench.throughput import APISERVER_ARGS, BenchError, Progress, Track
from bayplan.testing.controlplane import ControlPlane, ControlPlaneError

GANG, GANG_MIN = "bayplan.dev/gang", "bayplan.dev/gang-min"
WARM_UP_GANGS = 50
BOTH = (BAYPLAN_RUN, BARE_LOOP)


class Plan(Struct, frozen=True):
    """The size is that of the peers' figures in docs/benchmarks.md."""

    nodes: int = 1_000
    gangs: int = 300
    size: int = 8
    rounds: int = 3
    settle_s: float = 2.0  # after thousands of pods were created

    @property
    def pods(self) -> int:
        return self.gangs * self.size

    def __str__(self) -> str:
        return f"{self.gangs} gangs of {self.size} on {self.nodes} nodes"


QUICK = Plan(nodes=200, gangs=60, rounds=1)


class Round(Struct, frozen=True):
    """What one contender did with one batch of gangs."""

    round: int
    contender: str
    bind_s: float  # from the first bind that was seen to the last
    start_to_first_bind_s: float
    cpu_s: float  # of the whole process, from its start until it rests
    elsewhere_cores: float  # what other programs on the machine used meanwhile


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The key `live` of `bayplan bench gangs`."""
    try:
        with ControlPlane(apiserver_args=APISERVER_ARGS) as plane:
            return measure(plane, plan, progress)
    except (ControlPlaneError, ConnectionError) as error:
        raise BenchError(str(error)) from error


def measure(
    plane: ControlPlane, plan: Plan, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """The same on a control plane that runs already."""
    track = Track(plane, progress)
    progress(f"{plan}: creating nodes")
    track.cluster.clear()
    track.cluster.add_nodes(plan.nodes)
    warm_up = msgspec.structs.replace(plan, gangs=min(WARM_UP_GANGS, plan.gangs))
    one_round(track, plane, warm_up, 0, BARE_LOOP)  # not counted
    rounds = []
    for number in range(1, plan.rounds + 1):
        for contender in BOTH if number % 2 else BOTH[::-1]:
            done = one_round(track, plane, plan, number, contender)
            progress(
                f"round {number} of {plan.rounds}: {contender.key} bound them in "
                f"{done.bind_s:.2f} s; other programs used {done.elsewhere_cores:.2f} cores"
            )
            rounds.append(done)
    track.cluster.clear()
    return summary(plan, rounds)


def one_round(
    track: Track, plane: ControlPlane, plan: Plan, number: int, contender: Contender
) -> Round:
    """Gangs that wait, and a contender that starts."""
    track.cluster.clear_pods()
    track.cluster.create(PODS, members(plan, contender.scheduler, f"round-{number}"))
    time.sleep(plan.settle_s)
    watching = track.observe(plan.pods)
    began, meter = time.monotonic(), Meter()
    process = contender.start(plane).process
    try:
        sight = watching.wait(process, plan.pods)
        elsewhere_cores = meter.elsewhere_cores()
        contenders.rest(process)
        cpu_s = process_cpu_s(process.pid)
    finally:
        process.stop()
    return Round(
        round=number,
        contender=contender.key,
        bind_s=sight.last_bind - sight.first_bind,
        start_to_first_bind_s=sight.first_bind - began,
        cpu_s=cpu_s,
        elsewhere_cores=elsewhere_cores,
    )


def members(plan: Plan, scheduler: str, prefix: str) -> Iterator[dict[str, Any]]:
    """One gang after the other, as their controllers would create them; a GPU each."""
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    for number in range(plan.gangs):
        gang = f"{prefix}-{number:04d}"
        for at in range(plan.size):
            name = f"{gang}-{at:04d}"
            yield {
                "metadata": {
                    "name": name,
                    "labels": {"app": "train", "index": name},
                    "annotations": {GANG: gang, GANG_MIN: str(plan.size)},
                },
                "spec": {"schedulerName": scheduler, "containers": [container]},
            }


def summary(plan: Plan, rounds: list[Round]) -> dict[str, Any]:
    """Medians over the rounds, and their ratio."""

    ours = [done for done in rounds if done.contender == BAYPLAN_RUN.key]
    bare = [done for done in rounds if done.contender == BARE_LOOP.key]
    bind_s = median(done.bind_s for done in ours)
    bare_bind_s = median(done.bind_s for done in bare)
    return {
        "nodes": plan.nodes,
        "gangs": plan.gangs,
        "size": plan.size,
        "bind_s": bind_s,
        "bare_bind_s": bare_bind_s,
        "bind_over_bare": bind_s / bare_bind_s,
        "start_to_first_bind_s": median(done.start_to_first_bind_s for done in ours),
        "cpu_s": median(done.cpu_s for done in ours),
        "bare_cpu_s": median(done.cpu_s for done in bare),
        "rounds": [msgspec.to_builtins(done) for done in rounds],
    }
