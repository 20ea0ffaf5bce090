"""A real kubelet that pretends two NUMA zones admits what we place.

Its cpus are not there, so containers do not start; whether the kubelet admits a pod comes before.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.core.model.fingerprint import fingerprint
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.node import Node
from bayplan.testing.nodefiles import Pretended
from bayplan.testing.nodeparts import Parts
from tests.numa.definition import defined, is_served, path
from tests.real.node.rig import PODS
from tests.real.rig import Scheduler, until

Json = dict[str, Any]
CPUS, RESERVED = 4, 0  # per zone; the first cpu is the machine's
UNALIGNED = "TopologyAffinityError"


def pod(name: str, cpus: int) -> Json:
    own = {"cpu": str(cpus), "memory": "16Mi"}
    main = {"name": "main", "image": "localhost/pause:1", "imagePullPolicy": "Never"}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "bayplan",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{**main, "resources": {"requests": own, "limits": own}}],
        },
    }


class Exporter:
    """Publishes what the kubelet has written down about its cpus, with the pods' fingerprint."""

    def __init__(self, plane: ControlPlane, node: Node) -> None:
        self.plane, self.node = plane, node

    def publish(self) -> None:
        state = json.loads((self.node.directory / "kubelet" / "cpu_manager_state").read_text())
        there = {each["metadata"]["uid"]: each["metadata"] for each in self._pods()}
        # Of pods that are gone, the kubelet frees them before it admits the next one.
        given = {uid: own for uid, own in (state.get("entries") or {}).items() if uid in there}
        held = [cpus_of(cpus) for own in given.values() for cpus in own.values()]
        taken = {RESERVED, *(cpu for cpus in held for cpu in cpus)}
        zones = []
        for zone in range(2):
            every = [cpu for cpu in range(zone * CPUS, zone * CPUS + CPUS) if cpu != RESERVED]
            free = [cpu for cpu in every if cpu not in taken]
            zones.append(self._zone(zone, len(every), len(free)))
        signed = fingerprint((there[uid]["namespace"], there[uid]["name"]) for uid in given)
        attributes = {
            "topologyManagerPolicy": "single-numa-node",
            "topologyManagerScope": "container",
            "nodeTopologyPodsFingerprint": signed,
        }
        body = {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": self.node.name},
            "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
            "zones": zones,
        }
        known = [item["metadata"]["name"] for item in self.plane.request("GET", path())["items"]]
        if self.node.name in known:
            self.plane.request("PATCH", f"{path()}/{self.node.name}", body)
        else:
            self.plane.request("POST", path(), body)

    def _zone(self, number: int, there: int, free: int) -> Json:
        cpu = {"capacity": str(CPUS), "allocatable": str(there), "available": str(free)}
        memory = dict.fromkeys(("capacity", "allocatable", "available"), "4Gi")
        resources = [{"name": "cpu", **cpu}, {"name": "memory", **memory}]
        return {"name": f"node-{number}", "type": "Node", "resources": resources}

    def _pods(self) -> list[Json]:
        found: list[Json] = self.plane.request("GET", PODS)["items"]
        return [each for each in found if each["status"].get("phase") != "Failed"]


def cpus_of(text: str) -> list[int]:
    """Of a list such as 1-3,5."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return [cpu for low, _, high in ends for cpu in range(int(low), int(high or low) + 1)]


def unaligned(plane: ControlPlane) -> list[str]:
    items = plane.request("GET", PODS)["items"]
    return [p["metadata"]["name"] for p in items if p["status"].get("reason") == UNALIGNED]


def placed(plane: ControlPlane) -> dict[str, str]:
    """Pods that are bound, and when the kubelet has seen them; empty if it has not."""
    items = plane.request("GET", PODS)["items"]
    return {
        p["metadata"]["name"]: p["status"].get("startTime", "")
        for p in items
        if p["spec"].get("nodeName")
    }


def play(plane: ControlPlane, exporter: Exporter | None) -> int:
    """Pods of all sizes come in bursts, some end, and news come late. How many were placed."""
    rng, seen = random.Random(1), set[str]()
    for burst in range(8):
        for number in range(rng.randint(1, 3)):
            plane.request("POST", PODS, pod(f"p{burst}-{number}", rng.choice((1, 1, 2, 2, 3))))
        time.sleep(1.2)  # time for decisions; what waits then waits for news
        until(lambda: all(placed(plane).values()))
        seen |= placed(plane).keys()
        if exporter is not None and rng.random() < 0.7:
            exporter.publish()
        for name in sorted(placed(plane)):
            if name not in unaligned(plane) and rng.random() < 0.3:
                plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    return len(seen)


@pytest.mark.timeout(240, func_only=True)
def test_a_kubelet_with_two_zones_admits_what_we_place(
    node_plane: ControlPlane,
    parts: Parts | None,
    no_kubelet: str | None,
    say: Callable[[str], None],
    tmp_path: Path,
) -> None:
    if parts is None:
        pytest.skip(f"no kubelet can run here: {no_kubelet}")
    node_plane.wipe()
    zones = Pretended((CPUS, CPUS))
    with Node(node_plane, "zones", parts, zones) as node, defined(node_plane):
        until(lambda: is_served(node_plane, "v1alpha2"))
        exporter = Exporter(node_plane, node)
        exporter.publish()
        with Scheduler(tmp_path, node_plane.kubeconfig):
            came = play(node_plane, exporter)
            assert unaligned(node_plane) == []
        node_plane.request("DELETE", f"{PODS}?gracePeriodSeconds=0")
        off = {"disabled": [{"name": "NodeResourceTopologyMatch"}]}
        config = {
            "profiles": [{"schedulerName": "bayplan", "plugins": {"filter": off, "score": off}}]
        }
        with Scheduler(tmp_path, node_plane.kubeconfig, config=config):
            others = play(node_plane, None)
            refused = len(unaligned(node_plane))
        said = f"none of {came} pods refused; where nobody looks at zones, {refused} of {others}"
        say(f"a kubelet with two zones: {said}")
        assert came > 5
        assert refused > 0
    node_plane.wipe()
