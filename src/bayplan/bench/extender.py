"""`bayplan bench extender`: how fast it filters, and what it costs kube-scheduler.

The second part is kube-scheduler's pods per second on one real control plane, in turns with our
extender, with one that accepts everything on the same HTTP stack, and with none. All pods of a
round and the extender are there before kube-scheduler starts; the rate counts from the first bind
that the observer sees. What each number means is in docs/benchmarks.md.
"""

import os
import re
import time
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.bench import contenders, extenders, filters, neuron
from bayplan.bench.cluster import NODES, PODS, Cluster
from bayplan.bench.contenders import Running
from bayplan.bench.extenders import Start
from bayplan.bench.machine import Meter, process_cpu_s
from bayplan.bench.throughput import APISERVER_ARGS, BenchError, Progress, Watching
from bayplan.testing.controlplane import ControlPlane, ControlPlaneError, free_ports

READY_S = 60.0
WARM_UP_PODS = 200
_BINDS = re.compile(r'^bayplan_extender_binds_total\{.*result="(\w+)".*\} (\S+)$', re.MULTILINE)
BOUND = "bound"


class Plan(Struct, frozen=True):
    nodes: int = 1_000
    pods: int = 2_000
    rounds: int = 5
    settle_s: float = 2.0
    asking: filters.Plan = filters.Plan()


QUICK = Plan(nodes=300, pods=600, rounds=1, settle_s=1.0, asking=filters.QUICK)


class Contender(Struct, frozen=True):
    key: str
    start: Start | None


class Round(Struct, frozen=True):
    """What kube-scheduler did with one batch of pods."""

    round: int
    contender: str
    pods_per_s: float
    scheduler_cpu_ms_per_pod: float
    extender_cpu_ms_per_pod: float
    binds: dict[str, float]  # by result, where the extender counts them
    observer_cuts: int
    elsewhere_cores: float


NONE = Contender("none", None)
ACCEPT_ALL = Contender("accept_all", extenders.start_accept_all)
BAYPLAN = Contender("bayplan", extenders.start_bayplan)
ALL = (ACCEPT_ALL, BAYPLAN, NONE)


def scheduler_config(port: int) -> dict[str, Any]:
    """For a kube-scheduler that asks an extender on this machine about Neuron pods."""
    return {
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 30,
                "httpTimeout": "30s",
                "nodeCacheCapable": True,
                "managedResources": [
                    {"name": name, "ignoredByScheduler": False} for name in neuron.MANAGED
                ],
            }
        ]
    }


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of `bayplan bench extender`."""
    try:
        found = {"filter_nodes": plan.asking.nodes, **filters.run(plan.asking, progress)}
        with ControlPlane(apiserver_args=APISERVER_ARGS) as plane:
            return found | measure(plane, plan, progress)
    except (ControlPlaneError, OSError) as error:
        raise BenchError(str(error)) from error


def measure(
    plane: ControlPlane, plan: Plan, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """The second part, on a control plane that runs already and has no nodes."""
    cluster = Cluster(plane)
    cluster.clear()
    progress(f"{plan.nodes} nodes: creating them")
    cluster.create(NODES, (neuron.node(number) for number in range(plan.nodes)))
    one_round(plane, cluster, 0, ACCEPT_ALL, min(WARM_UP_PODS, plan.pods))  # not counted
    rounds = []
    for number in range(1, plan.rounds + 1):
        at = number % len(ALL)
        for contender in ALL[at:] + ALL[:at]:
            done = one_round(plane, cluster, number, contender, plan.pods, plan.settle_s)
            progress(
                f"round {number} of {plan.rounds}: kube-scheduler with {contender.key} "
                f"{done.pods_per_s:,.0f}/s; other programs used {done.elsewhere_cores:.2f} cores"
            )
            rounds.append(done)
    cluster.clear()
    return {
        "kubernetes": plane.binaries["kube-scheduler"].version,
        "cores": os.cpu_count(),
        **summary(plan, rounds),
    }


def summary(plan: Plan, rounds: list[Round]) -> dict[str, Any]:
    """Medians over the rounds, and their ratios."""
    found: dict[str, Any] = {"nodes": plan.nodes, "pods": plan.pods}
    for contender in ALL:
        ours = [done for done in rounds if done.contender == contender.key]
        found[f"{contender.key}_pods_per_s"] = median(done.pods_per_s for done in ours)
        found[f"{contender.key}_cpu_ms_per_pod"] = median(
            done.extender_cpu_ms_per_pod for done in ours
        )
    found["throughput_ratio"] = found["bayplan_pods_per_s"] / found["accept_all_pods_per_s"]
    for contender in (BAYPLAN, ACCEPT_ALL):
        over = found[f"{contender.key}_pods_per_s"] / found["none_pods_per_s"]
        found[f"{contender.key}_over_none"] = over
    answered = [done.binds for done in rounds if done.contender == BAYPLAN.key]
    binds = sum(sum(by_result.values()) for by_result in answered)
    bound = sum(by_result.get(BOUND, 0.0) for by_result in answered)
    found["binds"], found["conflict_rate"] = binds, (binds - bound) / binds
    found["rounds"] = [msgspec.to_builtins(done) for done in rounds]
    return found


def one_round(
    plane: ControlPlane,
    cluster: Cluster,
    number: int,
    contender: Contender,
    pods: int,
    settle_s: float = 0.0,
) -> Round:
    """A batch of pods that waits, an extender that is ready, and a kube-scheduler that starts."""
    cluster.clear_pods()
    prefix = f"{contender.key.replace('_', '-')}-{number}"
    sizes = neuron.SIZES
    cluster.create(
        PODS, (neuron.pod(f"{prefix}-{i:05d}", sizes[i % len(sizes)]) for i in range(pods))
    )
    (port,) = free_ports(1)
    running = contender.start(plane.kubeconfig, port) if contender.start else None
    scheduler = None
    try:
        if running is not None:
            running.process.wait_until(running.is_ready, READY_S)
            contenders.rest(running.process)
        time.sleep(settle_s)
        watching = Watching(plane, f"observer-{prefix}-{pods}", pods)
        idle_cpu_s = process_cpu_s(running.process.pid) if running else 0.0
        meter = Meter()
        scheduler = plane.start_kube_scheduler(scheduler_config(port) if running else None)
        sight = watching.wait(scheduler, pods, neuron.DEVICES[neuron.TRN1])
        elsewhere_cores = meter.elsewhere_cores()
        contenders.rest(scheduler)
        cpu_s = process_cpu_s(running.process.pid) - idle_cpu_s if running else 0.0
        return Round(
            round=number,
            contender=contender.key,
            pods_per_s=pods / (sight.last_bind - sight.first_bind),
            scheduler_cpu_ms_per_pod=1e3 * process_cpu_s(scheduler.pid) / pods,
            extender_cpu_ms_per_pod=1e3 * cpu_s / pods,
            binds=binds_of(running) if running and running.port else {},
            observer_cuts=sight.cuts,
            elsewhere_cores=elsewhere_cores,
        )
    finally:
        for process in (scheduler, running.process if running else None):
            if process is not None:
                process.stop()


def binds_of(running: Running) -> dict[str, float]:
    """What the extender answered to binds, by its own metrics."""
    metrics = contenders.get(running.port, "/metrics") or ""
    counted = {result: float(count) for result, count in _BINDS.findall(metrics)}
    if not counted:
        raise BenchError(f"{running.process.name} does not count its binds")
    return counted
