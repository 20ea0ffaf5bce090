"""An agent, a stand-in kubelet and the embedded API in one process, in real time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, structs

from bayplan.agent.inventory import ListedSource, Source
from bayplan.agent.service import Agent, Settings
from bayplan.core.model.devices import (
    ASSIGNMENT,
    IDS,
    Assignment,
    Held,
    HeldDevice,
    read_assignment,
    write_assignment,
)
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import NODES, PODS, Client
from bayplan.kube.clock import RealClock
from bayplan.kube.reflector import Reflector, Watched
from bayplan.kube.transport import MERGE_PATCH
from bayplan.local.api import Api
from bayplan.local.faults import Faults
from bayplan.local.transport import DirectTransport
from tests.agent.kubelet import StandInKubelet

Json = dict[str, Any]
NODE, GPU = "n1", "nvidia.com/gpu"
FOUR = ("nvidia=4x16384MiB",)


class Eyes:
    """What a user sees of pods and nodes, with a way to wait for it."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(is_so)

    def replace(self, items: list[Json], resource_version: str) -> None:
        for item in items:
            self.put(item)

    def put(self, item: Json) -> None:
        self.objects[item["kind"], item["metadata"]["name"]] = item
        self._notify()

    def drop(self, item: Json) -> None:
        self.objects.pop((item["kind"], item["metadata"]["name"]), None)
        self._notify()

    def synced(self) -> None:
        pass

    def bad(self, line: bytes, error: Exception) -> None:
        raise error

    def _notify(self) -> None:
        task = asyncio.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _decoder(kind: str) -> Callable[[Raw], Json]:
    def decode(raw: Raw) -> Json:
        found: Json = msgspec.json.decode(raw)
        return found | {"kind": kind}

    return decode


class Rig:
    def __init__(self, folder: Path, source: Source | None, vendors: Vendors) -> None:
        clock = RealClock()
        self.folder, self.vendors = folder, vendors
        self.api = Api(clock, random.Random(1))
        self.faults = Faults()
        transport = DirectTransport(self.api, clock, self.faults)
        self.client = Client(transport, clock, random.Random(2))
        self.kubelet = StandInKubelet(folder)
        self.settings = Settings(
            NODE,
            self.kubelet.plugins,
            str(self.kubelet.pod_resources),
            discover_s=0.05,
            reconcile_s=0.2,
            poll_s=0.02,
            root=folder / "root",
        )
        self.source = source or ListedSource(FOUR, vendors)
        self.eyes = Eyes()
        self.agent: Agent
        self._agent_task: asyncio.Task[Any] | None = None

    async def start_agent(self, **changes: Any) -> None:
        settings = structs.replace(self.settings, **changes)
        self.agent = Agent(settings, self.source, self.vendors, self.client)
        self._agent_task = asyncio.create_task(self.agent.run(), name="agent")

    async def stop_agent(self) -> None:
        if self._agent_task is not None:
            self._agent_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._agent_task
            self._agent_task = None

    @asynccontextmanager
    async def another_agent(self) -> AsyncIterator[None]:
        """Beside the first, on the same node; `agent` is this one for the time."""
        first = self.agent, self._agent_task
        await self.start_agent()
        try:
            yield
        finally:
            await self.stop_agent()
            self.agent, self._agent_task = first

    async def ask(self, method: str, path: str, body: Any = None) -> Json:
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        sent = None if body is None else json.dumps(body).encode()
        answer = await self.client.request(method, path, body=sent, content_type=kind)
        found: Json = json.loads(answer)
        return found

    async def add_pod(
        self, name: str, gpus: int = 1, containers: tuple[str, ...] = ("main",)
    ) -> None:
        listed = [
            {"name": each, "image": "i", "resources": {"limits": {GPU: str(gpus)}}}
            for each in containers
        ]
        pod = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": listed}}
        await self.ask("POST", PODS.path("default"), pod)

    async def bind(self, name: str, annotations: dict[str, str] | None = None) -> None:
        await self.ask(
            "POST",
            PODS.path("default", name, "binding"),
            {
                "metadata": {"name": name, "annotations": annotations or {}},
                "target": {"kind": "Node", "name": NODE},
            },
        )

    async def run_pod(self, name: str, *ids: int, **others: str) -> None:
        """A pod that was given these devices."""
        await self.add_pod(name, len(ids))
        await self.bind(name, given(*ids) | others)

    async def delete(self, name: str) -> None:
        await self.ask("DELETE", f"{PODS.path('default', name)}", {"gracePeriodSeconds": 0})

    def annotations(self, name: str, kind: str = "Pod") -> dict[str, str]:
        found = self.eyes.objects.get((kind, name), {}).get("metadata", {})
        annotations: dict[str, str] = found.get("annotations") or {}
        return annotations

    async def until_given(self, **pods: str) -> None:
        """Until both annotations of each pod name these devices; pods' names have _ for -."""
        for name, ids in pods.items():
            await self.eyes.until(partial(self._shows, name.replace("_", "-"), ids))

    def _shows(self, name: str, ids: str) -> bool:
        return self.shown(name) == ids

    def shown(self, name: str, container: str = "main") -> str | None:
        """The devices that both annotations agree on."""
        found = self.annotations(name)
        assignment = read_assignment(found.get(ASSIGNMENT, ""))
        for held in assignment.held if isinstance(assignment, Assignment) else ():
            if (held.container, held.resource) == (container, GPU):
                ids = ",".join(device.id.removeprefix("nvidia-") for device in held.devices)
                plain = found.get(f"{IDS}/{container}", "").replace("nvidia-", "")
                return ids if plain == ids else None
        return None

    async def until(self, is_so: Callable[[], bool]) -> None:
        """For counters, which tell nobody that they change."""
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    folder: Path,
    source: Source | None = None,
    vendors: Vendors | None = None,
    node: bool = True,
    labels: dict[str, str] | None = None,
) -> AsyncIterator[Rig]:
    rig = Rig(folder, source, vendors or Vendors())
    if node:
        await rig.ask("POST", NODES.path(), {"metadata": {"name": NODE, "labels": labels or {}}})
    watching = [
        asyncio.create_task(
            Reflector(rig.client, Watched(what.path(), _decoder(kind)), rig.eyes).run()
        )
        for what, kind in ((PODS, "Pod"), (NODES, "Node"))
    ]
    await rig.kubelet.start()
    await rig.start_agent()
    try:
        yield rig
    finally:
        await rig.stop_agent()
        await rig.kubelet.stop()
        for task in watching:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def entry(*ids: int, container: str = "main", pool: str = NODE) -> Held:
    devices = tuple(HeldDevice(f"nvidia-{id}", id, 1) for id in ids)
    return Held(container, GPU, pool, devices)


def given(*ids: int, node: str = NODE, more: tuple[Held, ...] = ()) -> dict[str, str]:
    return {
        ASSIGNMENT: write_assignment(Assignment(node, (entry(*ids, pool=node), *more))),
        f"{IDS}/main": ",".join(f"nvidia-{id}" for id in ids),
    }
