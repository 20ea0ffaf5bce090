"""`bayplan agent` as a process on a node, and pods that are bound there as the scheduler would."""

import sys
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.error import URLError

from bayplan.core.model.devices import (
    ASSIGNMENT,
    IDS,
    Assignment,
    Held,
    HeldDevice,
    read_assignment,
    write_assignment,
)
from bayplan.testing.controlplane import ControlPlane, Process, free_ports
from tests.real.node.kubelets import Kubelet
from tests.real.node.rig import PODS, bind, pod, status
from tests.real.rig import until

GPU = "nvidia.com/gpu"
MEMORY = "bayplan.dev/gpu-memory-mib"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
COUNT, MEMORY_MIB = 8, 16_384
DEVICES = [f"nvidia-{index}" for index in range(COUNT)]
PRINT = "env; echo END=1"


class Agent:
    """Started and stopped as often as wanted; what its processes counted is added up."""

    def __init__(
        self, kubelet: Kubelet, plane: ControlPlane, directory: Path, devices: list[str]
    ) -> None:
        """`devices`: the arguments that name them."""
        (self._port,) = free_ports(1)
        self._log = directory / "agent.log"
        self._counted: Counter[str] = Counter()
        self._command = [sys.executable, "-m", "bayplan", "agent", "--node", kubelet.name]
        self._command += ["--kubeconfig", str(plane.kubeconfig)]
        self._command += devices
        self._command += ["--device-plugins", str(kubelet.device_plugins)]
        self._command += ["--pod-resources", str(kubelet.pod_resources)]
        self._command += ["--listen", f"127.0.0.1:{self._port}"]
        self._process = self._start()

    def start(self) -> None:
        self._process = self._start()

    def stop(self, kill: bool = False) -> None:
        self._counted += self._counts()
        self._process.kill() if kill else self._process.stop()

    def counts(self) -> Counter[str]:
        """Of all its processes, by the name of the metric."""
        return self._counted + self._counts()

    def is_ready(self) -> bool:
        return self._get("/readyz") is not None

    @property
    def rss_mib(self) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10

    def tail(self) -> str:
        return self._process.tail()

    def _start(self) -> Process:
        process = Process("bayplan agent", self._command, self._log)
        process.wait_until(self.is_ready)
        return process

    def _counts(self) -> Counter[str]:
        lines = (self._get("/metrics") or "").splitlines()
        pairs = (line.split() for line in lines if not line.startswith("#"))
        return Counter({name: int(float(value)) for name, value in pairs})

    def _get(self, path: str) -> str | None:
        try:
            url = f"http://127.0.0.1:{self._port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                said: bytes = answer.read()
                return said.decode()
        except (URLError, OSError):
            return None


class Bench:
    """A node with a kubelet, an agent, and the pods that a test has bound there."""

    def __init__(self, plane: ControlPlane, kubelet: Kubelet, agent: Agent) -> None:
        self.plane, self.kubelet, self.agent = plane, kubelet, agent
        self.asked: dict[str, list[str]] = {}  # by pod: what its Binding said
        self.containers = 0  # that were started
        self.swapped = 0  # of them, those that got other devices than the Binding said

    def wait_until_served(self) -> None:
        """A pod that came before would be refused; a scheduler sees no allocatable devices then."""
        until(lambda: self.kubelet.allocatable(GPU) == set(DEVICES))
        until(self.agent.is_ready)

    def bind_at_once(self, pods: dict[str, list[str]]) -> None:
        """Binds these pods, each with its devices, from as many threads."""
        barrier = threading.Barrier(len(pods))
        errors: list[Exception] = []

        def bound(name: str, ids: list[str]) -> None:
            barrier.wait()
            try:
                bind(self.plane, name, self.kubelet.name, self._annotations(GPU, ids, 1))
            except Exception as error:
                errors.append(error)

        for name, ids in pods.items():
            limits = {GPU: str(len(ids))}
            self.plane.request("POST", PODS, pod(name, PRINT, resources={"limits": limits}))
        threads = [threading.Thread(target=bound, args=each) for each in pods.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        self.asked |= pods

    def create(self, name: str, limits: dict[str, str]) -> None:
        """A pod that a scheduler is to bind."""
        field = {"fieldPath": f"metadata.annotations['{IDS}/main']"}
        env = [{"name": VARIABLE, "valueFrom": {"fieldRef": field}}] if MEMORY in limits else []
        self.plane.request("POST", PODS, pod(name, PRINT, resources={"limits": limits}, env=env))

    def is_bound(self, name: str) -> bool:
        """Notes what the scheduler's Binding said."""
        found = self.plane.request("GET", f"{PODS}/{name}")
        if not found["spec"].get("nodeName"):
            return False
        self.asked.setdefault(name, self.says(name)[0])
        return True

    def bind_memory(self, name: str, mib: int, id: str) -> None:
        """A part of one card. Its container learns which by a fieldRef."""
        field = {"fieldPath": f"metadata.annotations['{IDS}/main']"}
        env = [{"name": VARIABLE, "valueFrom": {"fieldRef": field}}]
        limits = {MEMORY: str(mib)}
        self.plane.request("POST", PODS, pod(name, PRINT, resources={"limits": limits}, env=env))
        bind(self.plane, name, self.kubelet.name, self._annotations(MEMORY, [id], mib))

    def started(self, name: str) -> list[str]:
        """The devices that the container was started with; waits for it."""
        until(lambda: self.kubelet.environment(name))
        return self.kubelet.environment(name)[VARIABLE].split(",")

    def start(self, pods: dict[str, list[str]]) -> None:
        self.bind_at_once(pods)
        for name, ids in pods.items():
            self.containers += 1
            self.swapped += set(self.started(name)) != set(ids)

    def settle(self) -> dict[str, list[str]]:
        """Waits until the API says of each pod what its container got; gives that."""
        got = {name: self.started(name) for name in self.asked}
        for name, ids in got.items():
            until(lambda name=name, ids=ids: self.says(name) == (ids, ",".join(ids)))  # type: ignore[misc]
            assert len(ids) == len(self.asked[name])
        assert len({id for ids in got.values() for id in ids}) == sum(map(len, got.values()))
        return got

    def says(self, name: str) -> tuple[list[str], str]:
        """Of a pod, its assignment of whole devices, and the plain list."""
        annotations = self.plane.request("GET", f"{PODS}/{name}")["metadata"]["annotations"]
        found = read_assignment(annotations[ASSIGNMENT])
        assert isinstance(found, Assignment)
        assert found.node == self.kubelet.name
        ids = [device.id for held in found.held for device in held.devices]
        return ids, annotations[f"{IDS}/main"]

    def remove(self, names: list[str]) -> None:
        """Deletes these pods, and waits until the kubelet is done with them."""
        for name in names:
            self.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=1")
            self.asked.pop(name, None)
        until(lambda: not set(names) & self.pods())

    def pods(self) -> set[str]:
        path = f"{PODS}?fieldSelector=spec.nodeName={self.kubelet.name}"
        return {found["metadata"]["name"] for found in self.plane.request("GET", path)["items"]}

    def runs(self) -> dict[str, tuple[str, int]]:
        """By pod: its container and how often that was started again; waits until all are told."""

        def told() -> bool:
            states = (status(self.plane, name).get("containerStatuses") for name in self.asked)
            return all(state and state[0].get("containerID") for state in states)

        until(told)
        states = {name: status(self.plane, name)["containerStatuses"][0] for name in self.asked}
        return {
            name: (state["containerID"], state["restartCount"]) for name, state in states.items()
        }

    def _annotations(self, resource: str, ids: list[str], amount: int) -> dict[str, str]:
        node = self.kubelet.name
        ordered = sorted(ids, key=DEVICES.index)
        devices = tuple(HeldDevice(id, DEVICES.index(id), amount) for id in ordered)
        assignment = Assignment(node, (Held("main", resource, node, devices),))
        return {ASSIGNMENT: write_assignment(assignment), f"{IDS}/main": ",".join(ordered)}
