"""Containers start with their Neuron devices or cores: the variable, and the files of no others.

The devices are pretended: character devices of another kind in a folder, for which the class's
configuration has the path.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.core.model.devices import ASSIGNMENT, Assignment, Held, HeldDevice, write_assignment
from bayplan.core.model.neuron import annotations_of_neuron
from bayplan.core.model.vendors import NEURON, Vendors
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.gotool import tell
from tests.real.node.bench import PRINT, Agent
from tests.real.node.kubelets import FILES, Kubelet
from tests.real.node.rig import PODS, bind, pod
from tests.real.rig import Scheduler, until

DEVICE, _, CORE = (resource.name for resource in NEURON.resources)
VARIABLES = {DEVICE: "AWS_NEURON_VISIBLE_DEVICES", CORE: "NEURON_RT_VISIBLE_CORES"}
COUNT, CORES = 4, 2
NULL = os.makedev(1, 3)  # a device that every machine has


class Bench:
    """A node, an agent with pretended Neuron devices, and pods that print what they have got."""

    def __init__(self, plane: ControlPlane, kubelet: Kubelet, folder: Path) -> None:
        self.plane, self.kubelet, self.files = plane, kubelet, folder / "dev"
        self.files.mkdir()
        for i in range(COUNT):
            _make_device(self.files / f"neuron{i}")
        path = str(self.files / "neuron{index}")
        config = folder / "config.json"
        devices = {"devices": [msgspec.to_builtins(replace(NEURON, device_path=path))]}
        config.write_bytes(msgspec.json.encode(devices))
        named = ["--devices", f"neuron={COUNT}x{CORES}cores", "--config", str(config)]
        self.agent = Agent(kubelet, plane, folder, named)
        until(lambda: len(kubelet.allocatable(CORE)) == COUNT * CORES)
        until(lambda: len(kubelet.allocatable(DEVICE)) == COUNT)

    def create(self, name: str, resource: str, amount: int) -> None:
        script = f"echo {FILES}=$(ls {self.files}); {PRINT}"
        limits = {"limits": {resource: str(amount)}}
        self.plane.request("POST", PODS, pod(name, script, resources=limits))

    def bind(self, name: str, resource: str, *numbers: int) -> None:
        """As the extender does."""
        self.create(name, resource, len(numbers))
        node = self.kubelet.name
        devices = tuple(HeldDevice(str(number), number, 1) for number in numbers)
        held = (Held("main", resource, node, devices),)
        given = {ASSIGNMENT: write_assignment(Assignment(node, held))}
        bind(self.plane, name, node, given | annotations_of_neuron(held, Vendors(), 1.0))

    def got(self, name: str, resource: str) -> tuple[list[int], str]:
        """The numbers that the container was told, and the files that it has; waits for it."""
        until(lambda: self.kubelet.environment(name))
        found = self.kubelet.environment(name)
        (other,) = set(VARIABLES.values()) - {VARIABLES[resource]}
        assert other not in found
        return list(map(int, found[VARIABLES[resource]].split(","))), found[FILES]

    def annotations(self, name: str) -> dict[str, str]:
        about: dict[str, Any] = self.plane.request("GET", f"{PODS}/{name}")["metadata"]
        return about.get("annotations") or {}

    def is_bound(self, name: str) -> bool:
        return "nodeName" in self.plane.request("GET", f"{PODS}/{name}")["spec"]

    def remove(self, *names: str) -> None:
        """Deletes these pods, and waits until the kubelet is done with them."""
        for name in names:
            self.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=1")
        until(lambda: not set(names) & self._pods())

    def _pods(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.plane.request("GET", PODS)["items"]}


def _make_device(path: Path) -> None:
    """Only root can; without it there is no kubelet either, and a plain file stands for it."""
    if os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o666, NULL)
    else:
        path.touch()


@pytest.fixture(scope="module")
def bench(
    kubelet_of: Callable[[str], AbstractContextManager[Kubelet]], node_plane: ControlPlane
) -> Iterator[Bench]:
    with kubelet_of("neuron") as kubelet, tempfile.TemporaryDirectory() as folder:
        bench = Bench(node_plane, kubelet, Path(folder))
        try:
            yield bench
        finally:
            bench.agent.stop()
            tell(bench.agent.tail())  # pytest shows it when a test has failed


def test_a_container_sees_the_devices_of_its_assignment_and_no_others(
    bench: Bench, say: Callable[[str], None]
) -> None:
    bench.bind("neuron-devices", DEVICE, 2, 3)
    bench.bind("neuron-cores", CORE, 2, 3)

    assert bench.got("neuron-devices", DEVICE) == ([2, 3], "neuron2 neuron3")
    assert bench.got("neuron-cores", CORE) == ([2, 3], "neuron1")
    for name, key in (("neuron-devices", "NEURON_DEVS"), ("neuron-cores", "NEURON_CORES")):
        until(lambda name=name: bench.annotations(name)["NEURON_ALLOCATED"] == "true")  # type: ignore[misc]
        assert bench.annotations(name)[key] == bench.annotations(name)["AWS_NEURON_IDS"] == "2,3"
    bench.remove("neuron-devices", "neuron-cores")
    counts = bench.agent.counts()
    assert counts["bayplan_agent_marked_total"] == counts["bayplan_agent_allocations_total"] == 2
    assert counts["bayplan_agent_swapped_total"] == counts["bayplan_agent_drift_total"] == 0
    say(f"{bench.kubelet.what}: the agent with Neuron devices keeps {bench.agent.rss_mib} MiB")


def test_what_the_scheduler_chooses_is_what_containers_see(bench: Bench, tmp_path: Path) -> None:
    """Nobody binds by hand: `bayplan run` reads the inventory and writes the assignments."""
    with Scheduler(tmp_path, bench.plane.kubeconfig):
        for name, resource, amount in (("neuron-pair", DEVICE, 2), ("neuron-cores", CORE, 3)):
            bench.create(name, resource, amount)
            until(lambda name=name: bench.is_bound(name))  # type: ignore[misc]
        bench.create("neuron-more", DEVICE, 1)  # the kubelet would count two as free

        devices, files = bench.got("neuron-pair", DEVICE)
        assert devices in ([0, 1], [2, 3])
        assert files == " ".join(f"neuron{i}" for i in devices)
        cores, files = bench.got("neuron-cores", CORE)
        assert cores == list(range(cores[0], cores[0] + 3))
        assert not {core // CORES for core in cores} & set(devices)
        assert files == " ".join(f"neuron{i}" for i in sorted({0, 1, 2, 3} - set(devices)))
        assert not bench.is_bound("neuron-more")

        bench.remove("neuron-pair")
        until(lambda: bench.is_bound("neuron-more"))
        (device,), _ = bench.got("neuron-more", DEVICE)
        assert device in devices
    bench.remove("neuron-cores", "neuron-more")
