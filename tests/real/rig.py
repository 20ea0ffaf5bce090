"""Objects for a real API server, and `bayplan run` as a process beside it."""

import json
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

from bayplan.testing.controlplane import Process, free_ports
from tests.embedded import Plane

Json = dict[str, Any]
LATE_S = 30.0


def node(name: str, gpus: int = 8, labels: Mapping[str, str] | None = None) -> Json:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name: str, gpus: int = 1, scheduler: str = "bayplan", **spec: Any) -> Json:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"nvidia.com/gpu": str(gpus)} if gpus else {},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"name": name}},
        "spec": {"schedulerName": scheduler, "containers": [container], **spec},
    }


class Cluster:
    """One namespace of a control plane, with the few requests that tests make."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def add_node(self, *args: Any, **extra: Any) -> None:
        self.plane.request("POST", "/api/v1/nodes", node(*args, **extra))

    def add_pod(self, *args: Any, **extra: Any) -> Json:
        made: Json = self.plane.request("POST", self._pods, pod(*args, **extra))
        return made

    def delete_pod(self, name: str) -> None:
        self.plane.request("DELETE", f"{self._pods}/{name}?gracePeriodSeconds=0")

    def patch_node(self, name: str, patch: Json) -> None:
        self.plane.request("PATCH", f"/api/v1/nodes/{name}", patch)

    def patch_pod(self, name: str, patch: Json, sub: str = "") -> None:
        self.plane.request("PATCH", f"{self._pods}/{name}{sub}", patch)

    def pod(self, name: str) -> Json:
        found: Json = self.plane.request("GET", f"{self._pods}/{name}")
        return found

    def node_of(self, name: str) -> str:
        return str(self.pod(name)["spec"].get("nodeName", ""))

    def places(self) -> dict[str, str]:
        """Pod name: node, of the pods that are bound."""
        items = self.plane.request("GET", self._pods)["items"]
        return {
            p["metadata"]["name"]: p["spec"]["nodeName"] for p in items if "nodeName" in p["spec"]
        }

    def condition(self, name: str) -> Json:
        """The pod's PodScheduled condition."""
        conditions = self.pod(name)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled"), {})

    def events(self, name: str) -> list[Json]:
        """What was said of the pod, oldest first."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        items: list[Json] = self.plane.request("GET", path)["items"]
        ours = [item for item in items if item["regarding"]["name"] == name]
        return sorted(ours, key=lambda item: item["eventTime"])

    def reasons(self, name: str) -> list[str]:
        return [event["reason"] for event in self.events(name)]


class Scheduler:
    """`bayplan run` in a process of its own."""

    def __init__(
        self,
        directory: Path,
        kubeconfig: Path,
        *args: str,
        config: Json | None = None,
        wait: bool = True,
    ) -> None:
        self.port, self.api_port = free_ports(2)
        name = f"bayplan-{self.port}"
        options = ["--kubeconfig", str(kubeconfig), *args]
        if config is not None:
            path = directory / f"{name}.json"
            head = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanConfiguration"}
            path.write_text(json.dumps({**head, **config}))
            options += ["--config", str(path)]
        options += ["--listen", f"127.0.0.1:{self.port}", "--api", f"127.0.0.1:{self.api_port}"]
        command = [sys.executable, "-m", "bayplan", "run", *options]
        self.process = Process(name, command, directory / f"{name}.log")
        if wait:
            self.process.wait_until(self.is_ready)

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.running:
            self.process.stop(20.0)

    def is_ready(self) -> bool:
        return self.get("/readyz") is not None

    def get(self, path: str, port: int = 0) -> str | None:
        """The body of a good answer, or None."""
        try:
            url = f"http://127.0.0.1:{port or self.port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                said: bytes = answer.read()
                return said.decode()
        except (URLError, OSError):
            return None

    def metrics(self) -> dict[str, float]:
        """By name with labels, as it stands in the text."""
        lines = (self.get("/metrics") or "").splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def said(self, words: str) -> bool:
        return words in self.process.log.read_text()


def until(true: Callable[[], object], late_s: float = LATE_S) -> None:
    """Waits for what a watch would tell; the last look is after the time is over."""
    deadline = time.monotonic() + late_s
    while not true():
        assert time.monotonic() < deadline, f"not so after {late_s} s"
        time.sleep(0.02)
