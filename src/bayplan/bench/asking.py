"""Questions to a running scheduler on a real control plane, and gangs that it must refuse.

`gang_no_ms`: 500 nodes whose devices are all held; the members of a gang are created one after the
other; from the moment before the last one's creation is sent until all have their condition.

`throughput_drop`: pods per second while 200 questions a second are asked over HTTP, beside as many
requests a second to /livez: what a request costs anyway is no part of it. The rounds alternate.
"""

import json
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import msgspec
from msgspec import Struct

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
    answered: list[float] = []
    for number in range(1, plan.rounds + 1):
        for what in ("livez", "fits") if number % 2 else ("fits", "livez"):
            rate, asked = beside(plane, plan, track, what)
            rates[what].append(rate)
            if what == "fits":
                answered += asked.ms
            progress(
                f"round {number} of {plan.rounds}: {rate:,.0f} pods/s beside {what}, "
                f"{asked.ok} of {asked.answers} answers were 200"
            )
    track.cluster.clear()
    if len(answered) < 2:
        raise BenchError("no question was answered while pods were bound")
    return {
        "throughput_drop": 1.0 - median(rates["fits"]) / median(rates["livez"]),
        "pods_per_s_beside_fits": median(rates["fits"]),
        "pods_per_s_beside_livez": median(rates["livez"]),
        "fits_http_ms_p99": quantiles(answered, n=100, method="inclusive")[98],
    }


def beside(plane: ControlPlane, plan: Plan, track: Track, what: str) -> tuple[float, Asked]:
    """Pods per second, and what was answered meanwhile. All pods wait before the scheduler starts;
    it binds as soon as it can answer."""
    track.cluster.clear_pods()
    track.cluster.add_pods(BAYPLAN_RUN.scheduler, f"beside-{what}", plan.pods)
    watching = track.observe(plan.pods)
    running = contenders.start_bayplan(plane)
    asker = start_asker(plane, plan, running, what)
    try:
        sight = watching.wait(running.process, plan.pods)
    finally:
        asker.stop()
        running.process.stop()
    asked = msgspec.json.decode((plane.directory / ASKED).read_bytes(), type=Asked)
    return plan.pods / (sight.last_bind - sight.first_bind), asked


def start_asker(plane: ControlPlane, plan: Plan, running: Running, what: str) -> Process:
    url, body = f"http://127.0.0.1:{running.port}/livez", []
    if what == "fits":
        url = f"http://127.0.0.1:{running.api}/v1/fits"
        body = [json.dumps({"pod": pod("asked", scheduler=BAYPLAN_RUN.scheduler)})]
    out = plane.directory / ASKED
    out.unlink(missing_ok=True)
    command = [contenders.PYTHON, "-m", ASKER, url, str(plan.per_second), str(out)]
    return Process("asker", [*command, *body], plane.directory / "asker.log")
