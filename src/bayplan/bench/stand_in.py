"""A stand-in for an API server with many Neuron nodes: lists, watches, and binds after 5 ms.

It has what an extender needs and nothing else: no TLS, no old versions, no selectors but the phase.
Requests are read and answered by hand, so that it leaves the machine to what is measured.

    python -m bayplan.bench.stand_in PORT NODES MIXED SINGLE SEED

prints `ready` when it listens. Of the waiting pods the first MIXED ask for `neuron.SIZES` in turn,
and SINGLE more for one device.
"""

import asyncio
import re
import sys
import time
from collections import defaultdict
from typing import Any, cast
from urllib.parse import parse_qs

import msgspec

from bayplan.bench import neuron
from bayplan.bench.bare_binder import run
from bayplan.bench.neuron import Json

BIND_S = 0.005
NODES, PODS = "nodes", "pods"
FAILED = "status.phase=Failed"
_PATH = re.compile(
    r"/apis?(?:/[^/]+)?/v[^/]+(?:/namespaces/[^/]+)?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?"
    r"(?:/(?P<sub>[a-z]+))?$"
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_KINDS = {NODES: "Node", PODS: "Pod"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def waiting_name(number: int) -> str:
    return f"waiting-{number:05d}"


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def waiting_pod(number: int, devices: int) -> Json:
    """As the API server would show it."""
    pod = neuron.pod(waiting_name(number), devices)
    pod["metadata"] |= {
        "uid": uid(number),
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    pod["spec"] |= {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    return pod


class World:
    """The objects, and who watches them."""

    def __init__(self, nodes: int, mixed: int, single: int, seed: int) -> None:
        self.version = 1
        self.objects: dict[str, dict[str, Json]] = {NODES: {}, PODS: {}}
        self.watchers: dict[str, set[asyncio.Transport]] = defaultdict(set)
        for number in range(nodes):
            made = neuron.node(number, neuron.mixed(number))
            made["metadata"] |= {"uid": f"node-{number}", "resourceVersion": "1"}
            self.objects[NODES][made["metadata"]["name"]] = made
        taken: dict[int, set[int]] = {row: set() for row in range(nodes)}
        for number, (row, ids) in enumerate(neuron.fillers(nodes, seed)):
            self._add_filler(number, row, ids)
            taken[row] |= set(ids)
        for row, held in taken.items():
            maps = neuron.maps(neuron.mixed(row), held)
            self.objects[NODES][neuron.node_name(row)]["metadata"]["annotations"] = maps
        for number in range(mixed + single):
            self._add(waiting_pod(number, size_of(number) if number < mixed else 1))

    def _add(self, pod: Json) -> None:
        self.objects[PODS][pod["metadata"]["name"]] = pod

    def _add_filler(self, number: int, row: int, ids: list[int]) -> None:
        pod = waiting_pod(number, len(ids))
        pod["metadata"] |= {
            "name": f"filler-{number}",
            "uid": f"filler-{number}",
            "annotations": {
                "AWS_NEURON_IDS": ",".join(map(str, ids)),
                "NEURON_ALLOC_TIME": str(time.time_ns()),
                "NEURON_ALLOCATED": "true",
            },
        }
        pod["spec"]["nodeName"] = neuron.node_name(row)
        pod["status"]["phase"] = "Running"
        self._add(pod)

    def all_of(self, kind: str) -> bytes:
        return _encode(
            {
                "kind": f"{_KINDS.get(kind, '')}List",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(self.version)},
                "items": list(self.objects.get(kind, {}).values()),
            }
        )

    def annotate(self, kind: str, found: Json, annotations: Json) -> None:
        known = found["metadata"].setdefault("annotations", {})
        known.update(annotations)
        self._changed(kind, found)

    def bind(self, pod: Json, binding: Json) -> None:
        pod["spec"]["nodeName"] = binding["target"]["name"]
        self.annotate(PODS, pod, binding["metadata"].get("annotations") or {})

    def _changed(self, kind: str, found: Json) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        line = _encode({"type": "MODIFIED", "object": found})
        chunk = b"%x\r\n%s\n\r\n" % (len(line) + 1, line)
        for transport in self.watchers[kind]:
            transport.write(chunk)


def size_of(number: int) -> int:
    return neuron.SIZES[number % len(neuron.SIZES)]


class Connection(asyncio.Protocol):
    """One client: its requests one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._got = b""
        self._watches = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own has no such base

    def connection_lost(self, error: Exception | None) -> None:
        self._world.watchers[self._watches].discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end]
            length = _LENGTH.search(head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._got) < whole:
                return
            body, self._got = self._got[end + 4 : whole], self._got[whole:]
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            path, _, query = target.partition("?")
            self._handle(method, path, query, body)

    def _handle(self, method: str, path: str, query: str, body: bytes) -> None:
        match = _PATH.match(path)
        if match is None:
            return self._answer(404, b"{}")
        kind, name, sub = match["kind"], match["name"], match["sub"]
        if parse_qs(query).get("fieldSelector") == [FAILED]:
            kind = "failed"  # there are none
        found = self._world.objects.get(kind, {}).get(name or "")
        if method == "GET" and "watch=" in query:
            self._watch(kind, query)
        elif method == "GET" and name is None:
            self._answer(200, self._world.all_of(kind))
        elif method == "POST" and sub == "binding" and found:
            loop = asyncio.get_running_loop()
            loop.call_later(BIND_S, self._bind, found, _decode(body))
        elif method == "POST":
            self._answer(201, body)
        elif found is None:
            self._answer(404, b'{"kind":"Status","code":404,"reason":"NotFound"}')
        else:
            self._get_or_patch(method, kind, found, body)

    def _get_or_patch(self, method: str, kind: str, found: Json, body: bytes) -> None:
        said: Any = _decode(body) if method == "PATCH" else {}
        annotations = said.get("metadata", {}).get("annotations") if isinstance(said, dict) else {}
        if annotations:
            self._world.annotate(kind, found, annotations)
        self._answer(200, _encode(found))

    def _bind(self, pod: Json, binding: Json) -> None:
        if pod["spec"].get("nodeName"):
            return self._answer(409, b'{"kind":"Status","code":409,"reason":"Conflict"}')
        self._world.bind(pod, binding)
        self._answer(201, b'{"kind":"Status","apiVersion":"v1","status":"Success","code":201}')

    def _watch(self, kind: str, query: str) -> None:
        if "sendInitialEvents" in query:
            return self._answer(400, b'{"kind":"Status","code":400,"reason":"BadRequest"}')
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        self._watches = kind
        self._world.watchers[kind].add(self._transport)

    def _answer(self, status: int, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )


async def main(port: int, nodes: int, mixed: int, single: int, seed: int) -> None:
    world = World(nodes, mixed, single, seed)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(world), "127.0.0.1", port
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    run(main(*(int(given) for given in sys.argv[1:6])))
