"""Questions to a running scheduler on a real control plane, and gangs that it must refuse.

`gang_no_ms`: 500 nodes whose devices are all held; the members of a gang are created one after the
other; from the moment before the last one's creation is sent until all have their condition.

`throughput_drop`: pods per second while 200 questions a second are asked over HTTP, beside as many
requests a second to /livez: what a request costs anyway is no part of it. The rounds alternate.

`cycle_added_ms_p99`: how much longer a round of the scheduler's loop takes then, from its own
histogram.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

import msgspec
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from bayplan.bench import contenders
from bayplan.bench.asker import Asked
from bayplan.bench.cluster import GPUS, NAMESPACE, PODS
from bayplan.bench.contenders import BAYPLAN_RUN, Running
from bayplan.bench.throughput import APISERVER_ARGS, BenchError, Track
from bayplan.testing.controlplane import ControlPlane, ControlPlaneError, Process

ASKER = "bayplan.bench.asker"
ASKED = "asked.json"
VERDICT = "members fit"  # what the condition of a refused member says
GIVE_UP_S = 60.0
CYCLES = "bayplan_cycle_seconds"
Progress = Callable[[str], None]


class Plan(Struct, frozen=True):
    gang_nodes: int = 500
    gang_size: int = 10
    gangs: int = 20
    nodes: int = 1_000
    pods: int = 3_000
    rounds: int = 5
    per_second: float = 200.0


QUICK = Plan(gang_nodes=50, gangs=3, nodes=200, pods=600, rounds=1)


def run(plan: Plan, progress: Progress) -> dict[str, Any]:
    try:
        with ControlPlane(apiserver_args=APISERVER_ARGS) as plane:
            return {**gangs(plane, plan, progress), **drops(plane, plan, progress)}
    except (ControlPlaneError, ConnectionError) as error:
        raise BenchError(str(error)) from error


# ---- gangs


def gangs(plane: ControlPlane, plan: Plan, progress: Progress) -> dict[str, Any]:
    track = Track(plane, progress)
    track.cluster.clear()
    track.cluster.add_nodes(plan.gang_nodes)
    track.cluster.create(PODS, (holder(at) for at in range(plan.gang_nodes)))
    running = contenders.start_bayplan(plane)
    times = []
    try:
        track.until_ready(running)
        for number in range(plan.gangs):
            times.append(gang_no_ms(plane, plan, number))
            progress(f"gang {number + 1} of {plan.gangs}: refused after {times[-1]:.0f} ms")
    finally:
        running.process.stop()
    track.cluster.clear()
    return {"gang_no_ms": median(times), "gang_no_all_ms": sorted(times)}


def gang_no_ms(plane: ControlPlane, plan: Plan, number: int) -> float:
    name = f"gang-{number}"
    for at in range(plan.gang_size):
        began = time.monotonic()
        plane.request("POST", PODS, member(name, at, plan.gang_size))
    selector = f"{PODS}?labelSelector=gang%3D{name}"
    while time.monotonic() < began + GIVE_UP_S:
        found = plane.request("GET", selector)["items"]
        if len(found) == plan.gang_size and all(map(is_refused, found)):
            last = time.monotonic()
            for pod in found:
                plane.request("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
            return 1e3 * (last - began)
    raise BenchError(f"{name} was not refused within {GIVE_UP_S:g} s")


def is_refused(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(VERDICT in each.get("message", "") for each in conditions)


def holder(at: int) -> dict[str, Any]:
    """A pod that has all devices of a node."""
    return pod(f"holder-{at:05d}", node=f"node-{at:05d}")


def member(gang: str, at: int, size: int) -> dict[str, Any]:
    made = pod(f"{gang}-{at}", scheduler=BAYPLAN_RUN.scheduler)
    annotations = {"bayplan.dev/gang": gang, "bayplan.dev/gang-min": str(size)}
    made["metadata"] |= {"annotations": annotations, "labels": {"gang": gang}}
    return made


def pod(name: str, node: str = "", scheduler: str = "default-scheduler") -> dict[str, Any]:
    resources = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": str(GPUS)}}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    spec: dict[str, Any] = {"schedulerName": scheduler, "containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


# ---- questions beside binds


def drops(plane: ControlPlane, plan: Plan, progress: Progress) -> dict[str, Any]:
    track = Track(plane, progress)
    track.cluster.clear()
    track.cluster.add_nodes(plan.nodes)
    rates: dict[str, list[float]] = {"livez": [], "fits": []}
    cycles: dict[str, Counter[float]] = {"livez": Counter(), "fits": Counter()}
    answered: list[float] = []
    for number in range(1, plan.rounds + 1):
        for what in ("livez", "fits") if number % 2 else ("fits", "livez"):
            rate, asked, rounds = beside(plane, plan, track, what)
            rates[what].append(rate)
            cycles[what] += rounds
            if what == "fits":
                answered += asked.ms
            progress(
                f"round {number} of {plan.rounds}: {rate:,.0f} pods/s beside {what}, "
                f"{asked.ok} of {asked.answers} answers were 200"
            )
    track.cluster.clear()
    if len(answered) < 2:
        raise BenchError("no question was answered while pods were bound")
    p99 = {what: 1e3 * quantile(counts, 0.99) for what, counts in cycles.items()}
    return {
        "cycle_added_ms_p99": p99["fits"] - p99["livez"],
        "cycle_ms_p99_beside_fits": p99["fits"],
        "cycle_ms_p99_beside_livez": p99["livez"],
        "throughput_drop": 1.0 - median(rates["fits"]) / median(rates["livez"]),
        "pods_per_s_beside_fits": median(rates["fits"]),
        "pods_per_s_beside_livez": median(rates["livez"]),
        "fits_http_ms_p99": quantiles(answered, n=100, method="inclusive")[98],
    }


def beside(
    plane: ControlPlane, plan: Plan, track: Track, what: str
) -> tuple[float, Asked, Counter[float]]:
    """Pods per second, what was answered meanwhile, and how long rounds of the loop took. All pods
    wait before the scheduler starts; it binds as soon as it can answer."""
    track.cluster.clear_pods()
    track.cluster.add_pods(BAYPLAN_RUN.scheduler, f"beside-{what}", plan.pods)
    watching = track.observe(plan.pods)
    running = contenders.start_bayplan(plane)
    asker = start_asker(plane, plan, running, what)
    try:
        sight = watching.wait(running.process, plan.pods)
        cycles = rounds_of(running)
    finally:
        asker.stop()
        running.process.stop()
    asked = msgspec.json.decode((plane.directory / ASKED).read_bytes(), type=Asked)
    return plan.pods / (sight.last_bind - sight.first_bind), asked, cycles


def rounds_of(running: Running) -> Counter[float]:
    """Rounds of the loop by their longest time in seconds, as the buckets have it."""
    said = contenders.get(running.port, "/metrics")
    if said is None:
        raise BenchError("the scheduler does not tell its metrics")
    families = text_string_to_metric_families(said)
    (told,) = (family for family in families if family.name == CYCLES)
    found: Counter[float] = Counter()
    before = 0.0
    for sample in told.samples:
        if sample.name.endswith("_bucket"):
            found[float(sample.labels["le"])] = int(sample.value - before)
            before = sample.value
    return found


def quantile(counts: Mapping[float, int], part: float) -> float:
    """Between the edges of its bucket in a straight line."""
    left, low = part * sum(counts.values()), 0.0
    for edge in sorted(counts):
        if left <= counts[edge]:
            return low + (edge - low) * left / counts[edge]
        left, low = left - counts[edge], edge
    raise BenchError("the scheduler counted no rounds")


def start_asker(plane: ControlPlane, plan: Plan, running: Running, what: str) -> Process:
    url, body = f"http://127.0.0.1:{running.port}/livez", []
    if what == "fits":
        url = f"http://127.0.0.1:{running.api}/v1/fits"
        body = [json.dumps({"pod": pod("asked", scheduler=BAYPLAN_RUN.scheduler)})]
    out = plane.directory / ASKED
    out.unlink(missing_ok=True)
    command = [contenders.PYTHON, "-m", ASKER, url, str(plan.per_second), str(out)]
    return Process("asker", [*command, *body], plane.directory / "asker.log")
