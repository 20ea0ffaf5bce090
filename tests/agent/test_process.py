"""`bayplan agent` as a process: its health, its memory, and its end."""

import asyncio
import re
import signal
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bayplan.core.model.devices import (
    ASSIGNMENT,
    Assignment,
    Held,
    HeldDevice,
    write_assignment,
)
from tests.agent.kubelet import StandInKubelet
from tests.agent.rig import GPU, NODE, given
from tests.embedded import EmbeddedPlane

MOST_KIB = 60 << 10


class Running:
    """The process, and what it has said until its port was known."""

    def __init__(self, process: Process, port: int) -> None:
        self.process, self.port = process, port

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{self.port}{path}")

    async def until_ready(self) -> None:
        while (await self.get("/readyz"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1])


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@asynccontextmanager
async def agent(
    plane: EmbeddedPlane,
    kubelet: StandInKubelet,
    devices: str = "nvidia=4x16384MiB",
    more: tuple[str, ...] = (),
) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bayplan", "agent", "--node", NODE),
        *("--kubeconfig", str(plane.kubeconfig), "--devices", devices),
        *("--device-plugins", str(kubelet.plugins), "--pod-resources", str(kubelet.pod_resources)),
        *("--listen", "127.0.0.1:0", *more),
        stderr=PIPE,
    )
    assert process.stderr is not None
    while (found := re.search(rb"on port (\d+)", await process.stderr.readline())) is None:
        assert process.returncode is None
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield Running(process, int(found[1]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def test_a_process_that_serves_and_ends(folder: Path) -> None:
    with EmbeddedPlane(folder, controllers=False) as plane:
        kubelet = StandInKubelet(folder)
        await kubelet.start()
        plane.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        async with agent(plane, kubelet) as running:
            await kubelet.has(GPU, **{f"nvidia_{i}": "Healthy" for i in range(4)})
            await running.until_ready()
            _run_pod(plane, "a", given(2))
            assert (await kubelet.admit("a", GPU, 1)).ids == {"nvidia-2"}

            assert (await running.get("/livez"))[0] == 200
            assert "bayplan_agent_allocations_total 1\n" in (await running.get("/metrics"))[1]
            assert running.rss_kib() < MOST_KIB
            running.process.send_signal(signal.SIGTERM)
            assert await running.process.wait() == 0
        assert [path.name for path in kubelet.plugins.iterdir()] == ["kubelet.sock"]
        await kubelet.stop()


async def test_a_process_with_many_cores(folder: Path) -> None:
    core = "aws.amazon.com/neuroncore"
    cores = tuple(HeldDevice(str(i), i, 1) for i in range(60, 64))
    held = Assignment(NODE, (Held("main", core, NODE, cores),))
    with EmbeddedPlane(folder, controllers=False) as plane:
        kubelet = StandInKubelet(folder)
        await kubelet.start()
        plane.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        async with agent(plane, kubelet, "neuron=trn2.48xlarge") as running:
            await kubelet.until(lambda: len(kubelet.devices.get(core, ())) == 64)
            await running.until_ready()
            _run_pod(plane, "a", {ASSIGNMENT: write_assignment(held)})
            assert (await kubelet.admit("a", core, 4)).ids == {"60", "61", "62", "63"}
            assert running.rss_kib() < MOST_KIB
        await kubelet.stop()


async def test_a_process_that_profiles(folder: Path) -> None:
    cards = folder / "cards.yaml"
    cards.write_text("cards: [{index: 0, memoryMib: 16384, gpu: 40, bandwidth: 30}]")
    more = ("--profile-file", str(cards), "--profile-period", "1")
    with EmbeddedPlane(folder, controllers=False) as plane:
        kubelet = StandInKubelet(folder)
        await kubelet.start()
        plane.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        async with agent(plane, kubelet, more=more) as running:
            await running.until_ready()
            while "profiled_total 1\n" not in (await running.get("/metrics"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            node = plane.request("GET", f"/api/v1/nodes/{NODE}")
            assert "'max_gpu_util': 40" in node["metadata"]["annotations"]["ai.centaurus.io/gpu-0"]
            assert running.rss_kib() < MOST_KIB
            running.process.send_signal(signal.SIGTERM)
            assert await running.process.wait() == 0
        await kubelet.stop()


async def test_a_process_that_is_killed_and_comes_back(folder: Path) -> None:
    with EmbeddedPlane(folder, controllers=False) as plane:
        kubelet = StandInKubelet(folder)
        await kubelet.start()
        plane.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        for i in range(2):
            kubelet.devices.clear()
            async with agent(plane, kubelet) as running:
                await kubelet.until(lambda: GPU in kubelet.devices)
                _run_pod(plane, f"p{i}", given(3 - i))
                assert (await kubelet.admit(f"p{i}", GPU, 1)).ids == {f"nvidia-{3 - i}"}
                running.process.kill()
                await running.process.wait()
        await kubelet.stop()


def _run_pod(plane: EmbeddedPlane, name: str, annotations: dict[str, str]) -> None:
    pods = "/api/v1/namespaces/default/pods"
    container = {"name": "main", "image": "i", "resources": {"limits": {GPU: "1"}}}
    pod = {"metadata": {"name": name}, "spec": {"containers": [container]}}
    plane.request("POST", pods, pod)
    about = {"name": name, "annotations": annotations}
    target = {"kind": "Node", "name": NODE}
    plane.request("POST", f"{pods}/{name}/binding", {"metadata": about, "target": target})
