"""V-IPU controllers beside a real API server: pretend ones, served over real gRPC by a thread."""

import asyncio
import threading
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

from bayplan.core.model.devices import ASSIGNMENT, Assignment, read_assignment
from bayplan.kube.clock import RealClock
from bayplan.scheduler.steward import HOST, ID, PORT
from bayplan.vipu.controller import Partition
from bayplan.vipu.fake import FakeVipu, one_cluster
from bayplan.vipu.faults import Chances, Faulty
from bayplan.vipu.server import Server
from tests.real.rig import Cluster, Json

IPU = "graphcore.ai/ipu"
LABEL = "vipu-ctrl"
LOCALHOST = "127.0.0.1"
T = TypeVar("T")


class Watched(Faulty):
    """Counts who waits for a partition, and keeps answers back while `answers` is not set."""

    def __init__(self, ipus: int, latency_s: float) -> None:
        chances = Chances(latency_s=(latency_s, latency_s))
        super().__init__(FakeVipu(one_cluster(ipus)), RealClock(), chances)
        self.asked = self.most_asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def create(self, id: str, size: int, **place: Any) -> Partition:
        self.asked += 1
        self.most_asked = max(self.most_asked, self.asked)
        try:
            made = await super().create(id, size, **place)
            await self.answers.wait()
            return made
        finally:
            self.asked -= 1


class Vipu:
    """A controller with head nodes of its own label. Use it as a context."""

    def __init__(self, name: str, ipus: int = 64, latency_s: float = 0.0) -> None:
        self.name, self.port = name, 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._ipus, self._latency_s = ipus, latency_s

    def __enter__(self) -> "Vipu":
        self._thread.start()
        self.controller = self._run(self._make())
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answer()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def start(self) -> None:
        """On the same port each time, with the partitions that it has."""
        self._server = Server(self.controller)
        self.port = self._run(self._server.start(LOCALHOST, self.port))

    def stop(self) -> None:
        self._run(self._server.stop())

    def keep_answers_back(self) -> None:
        self._loop.call_soon_threadsafe(self.controller.answers.clear)

    def answer(self) -> None:
        self._loop.call_soon_threadsafe(self.controller.answers.set)

    def lose(self, id: str) -> None:
        self._loop.call_soon_threadsafe(self.controller.fake.lose, id)

    def partitions(self) -> dict[str, list[str]]:
        """The IPUs of each, by its id."""
        found = self._run(self._partitions())
        return {each.id: [ipu.name for ipu in each.ipus] for each in found}

    @property
    def pool(self) -> str:
        return f"{LOCALHOST}:{self.port}:{LABEL}={self.name}"

    async def _make(self) -> Watched:
        return Watched(self._ipus, self._latency_s)

    async def _partitions(self) -> tuple[Partition, ...]:
        return self.controller.fake.partitions()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


class HeadNodes(Cluster):
    """A namespace, with what its pods have of which controller."""

    def add_heads(self, vipu: Vipu, count: int = 1) -> None:
        for number in range(count):
            self.add_node(f"{vipu.name}-{number}", 0, labels={LABEL: vipu.name})

    def ask(self, name: str, ipus: int, by: str = "limit", owner: str = "") -> None:
        """A pod that asks for so many; its owner is of this kind."""
        made = pod_asking(name, ipus, by)
        if owner:
            it = {"apiVersion": "apps/v1", "kind": owner, "name": name, "uid": str(uuid.uuid4())}
            made["metadata"]["ownerReferences"] = [{**it, "controller": True}]
        self.plane.request("POST", self._pods, made)

    def all(self) -> list[Json]:
        found: list[Json] = self.plane.request("GET", self._pods)["items"]
        return found

    def end(self, name: str) -> None:
        self.patch_pod(name, {"status": {"phase": "Succeeded"}}, "/status")


def pod_asking(name: str, ipus: int, by: str = "limit", **spec: Any) -> Json:
    container: Json = {"name": "main", "image": "registry.example/train:1"}
    metadata: Json = {"name": name}
    if by == "limit":
        container["resources"] = {"limits": {IPU: str(ipus)}}
    else:
        metadata["annotations"] = {IPU: str(ipus)}
    return {
        "metadata": metadata,
        "spec": {"schedulerName": "bayplan", "containers": [container], **spec},
    }


def told(pod: Json) -> tuple[str, str, list[str]]:
    """Of a bound pod: its controller, its partition there, and the IPUs that it was told."""
    noted = pod["metadata"]["annotations"]
    found = read_assignment(noted[ASSIGNMENT])
    assert isinstance(found, Assignment)
    assert found.node == pod["spec"]["nodeName"]
    ids = [device.id for held in found.held for device in held.devices]
    assert noted["ids.bayplan.dev/main"] == ",".join(ids)
    return f"{noted[HOST]}:{noted[PORT]}", noted[ID], ids


def differences(pods: list[Json], vipus: list[Vipu]) -> list[str]:
    """Partitions without a bound pod, bound pods without theirs, and pods told others than that."""
    there = {
        (f"{LOCALHOST}:{vipu.port}", id): ipus
        for vipu in vipus
        for id, ipus in vipu.partitions().items()
    }
    wrong = []
    for pod in pods:
        if not pod["spec"].get("nodeName") or pod["status"].get("phase") == "Succeeded":
            continue
        name = pod["metadata"]["name"]
        site, id, ids = told(pod)
        ipus = there.pop((site, id), None)
        if not id.endswith(f"-{pod['metadata']['uid']}"):
            wrong.append(f"{name} was told the partition {id}")
        if ipus is None:
            wrong.append(f"{name} has no partition")
        elif ipus != ids:
            wrong.append(f"{name} was told {ids} and has {ipus}")
    return wrong + [f"partition {id} of {site} has no pod" for site, id in there]
