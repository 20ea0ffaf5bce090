"""`bayplan extender` as a process, a kube-scheduler that asks it, and Neuron nodes and pods."""

import http.client
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bayplan.testing.controlplane import ControlPlane, Process, free_ports
from tests.real.apicheck import Json
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.session import Session
from tests.real.extender import rules
from tests.real.extender.rules import NEURON, TYPE

CONFIG = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanConfiguration"}
BINDS = "bayplan_extender_binds_total"
CONNECTIONS = 8
TIMEOUT_S = 30.0
# A pod that was refused rests for less long than by default, so that the tests do.
RESTS = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}
RESOURCES = (NEURON, "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore")


def node(name: str, kind: str) -> Json:
    devices = rules.DEVICES[kind]
    room = {
        "cpu": "192",
        "memory": "512Gi",
        "pods": "110",
        NEURON: str(devices),
        "aws.amazon.com/neuroncore": str(devices * rules.CORES[kind]),
    }
    return {
        "metadata": {"name": name, "labels": {TYPE: kind}},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, kind: str, devices: int, scheduler: str = "default-scheduler") -> Json:
    asked = {NEURON: str(devices)}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi", **asked}, "limits": asked},
    }
    return {
        "metadata": {"name": name, "annotations": {rules.OWN: name}},
        "spec": {
            "schedulerName": scheduler,
            "nodeSelector": {TYPE: kind},
            "containers": [container],
        },
    }


class Extender:
    """One replica, on ports of its own unless they are given."""

    def __init__(
        self, plane: ControlPlane, directory: Path, port: int = 0, config: Json | None = None
    ) -> None:
        free, self.health = free_ports(2)
        self.port = port or free
        name = f"extender-{self.health}"
        options = [f"--kubeconfig={plane.kubeconfig}"]
        if config is not None:
            path = directory / f"{name}.json"
            path.write_text(json.dumps(CONFIG | config))
            options.append(f"--config={path}")
        options += [f"--port={self.port}", f"--listen=127.0.0.1:{self.health}"]
        options.append("--api=127.0.0.1:0")
        command = [str(Path(sys.executable).with_name("bayplan")), "extender", *options]
        self.process = Process(name, command, directory / f"{name}.log")

    def wait_until_ready(self) -> "Extender":
        self.process.wait_until(lambda: self.get("/readyz")[0] == 200)
        return self

    def get(self, path: str) -> tuple[int, str]:
        """What it says of itself; status 0: nobody answers."""
        return _http(self.health, "GET", path, None)

    def ask(self, verb: str, body: Any) -> tuple[int, Any]:
        """What it answers to kube-scheduler."""
        status, said = _http(self.port, "POST", f"/{verb}", json.dumps(body))
        return status, json.loads(said) if status == 200 else said

    def bind(self, bound: Json, node: str) -> str:
        """The error, empty when there is none."""
        metadata = bound["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        status, said = self.ask("bind", body)
        assert status == 200, f"bind: {status}: {said}"
        return str(said["Error"])

    def binds(self) -> Counter[str]:
        """How many it answered so far, by result."""
        found: Counter[str] = Counter()
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(BINDS + "{"):
                labels, _, count = line.rpartition(" ")
                found[labels.split('result="')[1].split('"')[0]] += int(float(count))
        return found

    def kill(self) -> None:
        self.process.kill()


StartExtender = Callable[..., Extender]  # the fixture
StartScheduler = Callable[..., Process]  # the fixture


def _http(port: int, method: str, path: str, body: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def scheduler_config(port: int, *names: str, ignores: bool = False) -> Json:
    """A KubeSchedulerConfiguration's part: profiles of these names, and the extender. `ignores`:
    it does not count devices itself."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 30,
        "httpTimeout": "30s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": name, "ignoredByScheduler": ignores} for name in RESOURCES],
    }
    profiles = [{"schedulerName": name} for name in names or ("default-scheduler",)]
    return {"extenders": [extender], "profiles": profiles, **RESTS}


class Fleet:
    """The nodes of a test, and its pods, many of which come and go at once."""

    def __init__(self, plane: ControlPlane, namespace: str, rng: random.Random) -> None:
        self._plane, self._rng = plane, rng
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.names: list[str] = []  # of the pods that there are
        self._made = 0

    def add_nodes(self, counts: dict[str, int]) -> None:
        bodies = [
            node(f"{kind.partition('.')[0]}-{number:03d}", kind)
            for kind, count in counts.items()
            for number in range(count)
        ]
        self._all("POST", [("/api/v1/nodes", body) for body in bodies], 201)

    def add_pods(self, count: int, schedulers: Sequence[str] = ("default-scheduler",)) -> None:
        """Of every instance type and size, at once."""
        bodies = []
        for _ in range(count):
            kind = self._rng.choice(list(rules.SIZES))
            size, name = self._rng.choice(rules.SIZES[kind]), f"pod-{self._made:05d}"
            bodies.append(pod(name, kind, size, self._rng.choice(schedulers)))
            self._made += 1
            self.names.append(name)
        self._all("POST", [(self._path, body) for body in bodies], 201)

    def delete_half(self) -> int:
        """Those that wait go first: else the room that others leave would bring binds for pods
        that are gone a moment later."""
        raws = self._plane.request("GET", self._path)["items"]
        waiting = {raw["metadata"]["name"] for raw in raws if "nodeName" not in raw["spec"]}
        gone = self._rng.sample(self.names, len(self.names) // 2)
        gone.sort(key=lambda name: name not in waiting)
        self.names = [name for name in self.names if name not in set(gone)]
        paths = [f"{self._path}/{name}?gracePeriodSeconds=0" for name in gone]
        self._all("DELETE", [(path, None) for path in paths], 200)
        return len(gone)

    def nodes(self) -> dict[str, rules.Node]:
        raws = self._plane.request("GET", "/api/v1/nodes")["items"]
        return {raw["metadata"]["name"]: rules.read_node(raw) for raw in raws}

    def annotate_nodes(self, falsely: bool) -> None:
        """Takes away what the extender wrote on nodes, or writes that everything is in use."""
        changes = []
        for found in self.nodes().values():
            ours = {key for key in found.annotations if "bayplan.dev" in key or "NEURON" in key}
            said: Json = dict.fromkeys(ours | {rules.USE, rules.CORE_USE})
            if falsely:
                devices = rules.DEVICES[found.kind]
                said[rules.USE] = ",".join(["true"] * devices)
                said[rules.CORE_USE] = ",".join(["true"] * (devices * rules.CORES[found.kind]))
            changes.append((f"/api/v1/nodes/{found.name}", {"metadata": {"annotations": said}}))
        self._all("PATCH", changes, 200)

    def _all(self, method: str, requests: Iterable[tuple[str, Any]], good: int) -> None:
        left = iter(list(requests))

        def work() -> None:
            session = Session(self._plane)
            for path, body in left:
                status, said = session.request(method, path, body)
                assert status == good, f"{method} {path}: {status}: {said}"
            session.close()

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for done in [pool.submit(work) for _ in range(CONNECTIONS)]:
                done.result()


def recorder(plane: ControlPlane) -> Recorder:
    return Recorder(plane, rules.read)
