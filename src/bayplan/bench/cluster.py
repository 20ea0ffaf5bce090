"""The objects that the cluster benchmarks run on: nodes with 8 GPUs, pods that want one.

Created over many connections at once, and at a steady pace where one is asked for. Times are not
taken here.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import aiohttp
import msgspec
from yarl import URL

from bayplan.bench.access import access
from bayplan.testing.controlplane import ControlPlane, Refused

NAMESPACE = "bench"
GPUS = 8
CREATORS = 32  # connections; more do not make this API server faster
ZONES = 10
ROOM = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
NODES = "/api/v1/nodes"

_encode = msgspec.json.Encoder().encode


def node(number: int) -> bytes:
    name = f"node-{number:05d}"
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{number % ZONES}",
    }
    return _encode(
        {
            "metadata": {"name": name, "labels": labels},
            "status": {
                "capacity": ROOM,
                "allocatable": ROOM,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def pod(name: str, scheduler: str) -> bytes:
    """One GPU, and a label of its own, as the pods of a StatefulSet have."""
    resources = {
        "requests": {"cpu": "1", "memory": "1Gi"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    return _encode(
        {
            "metadata": {"name": name, "labels": {"app": "train", "index": name}},
            "spec": {"schedulerName": scheduler, "containers": [container]},
        }
    )


class Cluster:
    """The namespace `bench` of a control plane, and all nodes of it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._access = access(plane.kubeconfig)
        with suppress(Refused):  # it is there already
            plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def add_nodes(self, count: int) -> None:
        asyncio.run(self._create(NODES, (node(i) for i in range(count))))

    def add_pods(
        self, scheduler: str, prefix: str, count: int, per_second: float | None = None
    ) -> None:
        bodies = (pod(f"{prefix}-{i:05d}", scheduler) for i in range(count))
        asyncio.run(self._create(PODS, bodies, per_second))

    def create(self, path: str, objects: Iterable[object]) -> None:
        """Objects of another kind than the nodes and pods here."""
        asyncio.run(self._create(path, map(_encode, objects)))

    def clear_pods(self) -> None:
        """Every pod and every event, at once."""
        self._clear(PODS)
        self._clear(EVENTS)

    def clear(self) -> None:
        self.clear_pods()
        self._clear(NODES)

    def _clear(self, path: str) -> None:
        while self._plane.request("GET", f"{path}?limit=1")["items"]:
            with suppress(Refused):  # too many for the time of one request: the rest comes next
                self._plane.request("DELETE", f"{path}?gracePeriodSeconds=0")

    async def _create(
        self, path: str, bodies: Iterator[bytes], per_second: float | None = None
    ) -> None:
        url = URL(self._access.url + path)
        headers = {
            "Authorization": self._access.authorization,
            "Content-Type": "application/json",
        }
        connector = aiohttp.TCPConnector(limit=CREATORS, ssl=self._access.tls())
        numbered = enumerate(bodies)
        began = time.monotonic()

        async def work(session: aiohttp.ClientSession) -> None:
            for i, body in numbered:
                if per_second is not None:
                    await asyncio.sleep(max(0.0, began + i / per_second - time.monotonic()))
                async with session.post(url, data=body) as answer:
                    said = await answer.read()
                    if answer.status != 201:
                        raise ConnectionError(f"{path}: {answer.status}: {said[:200]!r}")

        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CREATORS):
                group.create_task(work(session))
