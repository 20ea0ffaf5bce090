"""The memory of Bayplan while 20,000 pods come at once, and whether it grows with each batch.

The process is stopped (SIGSTOP) while a batch is created, so that all of it meets the scheduler at
once, however slow the API server is. Then it goes on, binds them, and comes to rest; then they are
deleted and the next batch comes. All batches meet the same process.
"""

import os
import re
import signal
import time
from typing import Any

from msgspec import Struct

from bayplan.bench import contenders
from bayplan.bench.contenders import BAYPLAN_RUN, Running
from bayplan.bench.throughput import APISERVER_ARGS, BenchError, Progress, Track
from bayplan.testing.controlplane import ControlPlane, ControlPlaneError

POLL_S = 1.0  # a scrape costs the process some milliseconds
BATCH_S = 600.0
_QUEUED = re.compile(r"^bayplan_(?:queued_writes\{.*\}|assumed_pods) (\S+)$", re.MULTILINE)
_PODS = re.compile(r"^bayplan_pods (\S+)$", re.MULTILINE)


class Plan(Struct, frozen=True):
    nodes: int = 3_000  # with 8 GPUs each: room for one batch
    pods: int = 20_000
    batches: int = 3


QUICK = Plan(nodes=300, pods=2_000)


class Batch(Struct, frozen=True):
    peak_mib: float  # the highest since the start
    bound_mib: float  # with all of them bound, and nothing left to write
    deleted_mib: float


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of `bayplan bench memory`."""
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
    track.cluster.clear()
    progress(f"{plan.nodes} nodes: creating them")
    track.cluster.add_nodes(plan.nodes)
    running = BAYPLAN_RUN.start(plane)
    try:
        track.until_ready(running)
        idle_mib = contenders.rss_mib(running.process)
        batches = []
        for number in range(1, plan.batches + 1):
            progress(f"batch {number} of {plan.batches}: {plan.pods} pods")
            batch = one_batch(track, running, f"batch-{number}", plan.pods)
            progress(
                f"batch {number}: peak {batch.peak_mib:.1f} MiB, all bound {batch.bound_mib:.1f}, "
                f"deleted {batch.deleted_mib:.1f}"
            )
            batches.append(batch)
    finally:
        running.process.stop()
    track.cluster.clear()
    return {"memory": summary(plan, idle_mib, batches)}


def summary(plan: Plan, idle_mib: float, batches: list[Batch]) -> dict[str, Any]:
    first = batches[0]
    return {
        "nodes": plan.nodes,
        "pods": plan.pods,
        "idle_mib": idle_mib,
        "peak_mib": [batch.peak_mib for batch in batches],
        "bound_mib": [batch.bound_mib for batch in batches],
        "deleted_mib": [batch.deleted_mib for batch in batches],
        "peak_over_bound": first.peak_mib / first.bound_mib,
        "peak_growth": [batch.peak_mib / first.peak_mib - 1.0 for batch in batches[1:]],
    }


def one_batch(track: Track, running: Running, prefix: str, pods: int) -> Batch:
    process = running.process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        track.cluster.add_pods(BAYPLAN_RUN.scheduler, prefix, pods)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    _until(running, pods)
    peak_mib, bound_mib = contenders.peak_mib(process), contenders.rss_mib(process)
    track.cluster.clear_pods()
    _until(running, 0)
    return Batch(peak_mib, bound_mib, contenders.rss_mib(process))


def _until(running: Running, pods: int) -> None:
    """Until so many pods are on nodes, nothing waits to be written, and the process rests."""
    deadline = time.monotonic() + BATCH_S
    while not _has(contenders.get(running.port, "/metrics") or "", pods):
        process = running.process
        if not process.running or time.monotonic() > deadline:
            raise BenchError(f"{process.name} did not bind {pods} pods:\n{process.tail()}")
        time.sleep(POLL_S)
    contenders.rest(running.process)


def _has(metrics: str, pods: int) -> bool:
    on_nodes, queued = _PODS.search(metrics), _QUEUED.findall(metrics)
    return on_nodes is not None and float(on_nodes[1]) == pods and not any(map(float, queued))
