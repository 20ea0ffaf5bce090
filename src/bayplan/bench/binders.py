"""Sixteen binds in flight, always: each connection sends the next as soon as one is answered.

    python -m bayplan.bench.binders PORT NODES FIRST END

binds the stand-in's waiting pods from FIRST to before END. A line `pod node`, both numbers, on its
standard input puts another pod before them. It prints `ready` when it has begun, and at the end of
its input or of its pods what it saw.
"""

import asyncio
import os
import re
import sys
import time
from collections import Counter, deque
from functools import partial
from typing import cast

import msgspec
from msgspec import Struct

from bayplan.bench import neuron
from bayplan.bench.bare_binder import run
from bayplan.bench.cluster import NAMESPACE
from bayplan.bench.stand_in import uid, waiting_name

IN_FLIGHT = 16
SEED = 7  # of the devices that are taken already
ROOM = 5  # free devices of a node that gets single pods
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Binds(Struct, frozen=True):
    """What came of them."""

    answers: dict[str, int]  # by the error, which is empty for a success
    ms: list[float]
    seconds: float
    ran_out: bool


def roomy(nodes: int) -> list[int]:
    """The rows that have room for some more pods of one device."""
    free = Counter({row: neuron.DEVICES[neuron.mixed(row)] for row in range(nodes)})
    for row, ids in neuron.fillers(nodes, SEED):
        free[row] -= len(ids)
    return [row for row in range(nodes) if free[row] >= ROOM]


class Queue:
    """Which pod goes next, and where to."""

    def __init__(self, nodes: int, first: int, end: int) -> None:
        self._rows, self._next, self._end = roomy(nodes), first, end
        self.first: deque[tuple[int, int]] = deque()
        self.is_open = True
        self.ran_out = False

    def take(self) -> tuple[int, int] | None:
        if self.first:
            return self.first.popleft()
        if not self.is_open:
            return None
        if self._next >= self._end:
            self.ran_out = True
            return None
        pod = self._next
        self._next += 1
        return pod, row_of(pod, self._rows)


def row_of(pod: int, rows: list[int]) -> int:
    """Where a pod goes that was not filtered over all nodes."""
    return rows[pod % len(rows)]


def request(pod: int, row: int) -> bytes:
    body = msgspec.json.encode(
        {
            "PodName": waiting_name(pod),
            "PodNamespace": NAMESPACE,
            "PodUID": uid(pod),
            "Node": neuron.node_name(row),
        }
    )
    return post("/bind", body)


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    def __init__(self, queue: Queue, ended: asyncio.Future[None]) -> None:
        self._queue, self._ended = queue, ended
        self._got, self._sent = b"", 0.0
        self.answers: Counter[str] = Counter()
        self.ms: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own has no such base
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(error or ConnectionError("the extender hung up"))

    def _send(self) -> None:
        next_one = self._queue.take()
        if next_one is None:
            if not self._ended.done():
                self._ended.set_result(None)
            return
        self._sent = time.perf_counter()
        self._transport.write(request(*next_one))

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        length = _LENGTH.search(self._got[: end + 2]) if end >= 0 else None
        if length is None or len(self._got) < end + 4 + int(length[1]):
            return
        self.ms.append(1e3 * (time.perf_counter() - self._sent))
        status, body = self._got.split(b" ", 2)[1], self._got[end + 4 :]
        said = msgspec.json.decode(body)["Error"] if status == b"200" else status.decode()
        self.answers[said] += 1
        self._got = b""
        self._send()


def _given(connection: Connection) -> Connection:
    return connection


async def main(port: int, nodes: int, first: int, end: int) -> None:
    loop = asyncio.get_running_loop()
    queue = Queue(nodes, first, end)

    def read() -> None:
        text = os.read(sys.stdin.fileno(), 1 << 16)
        for line in text.decode().splitlines():
            pod, row = line.split()
            queue.first.append((int(pod), int(row)))
        if not text:
            loop.remove_reader(sys.stdin.fileno())
            queue.is_open = False

    loop.add_reader(sys.stdin.fileno(), read)
    began = time.perf_counter()
    over = [loop.create_future() for _ in range(IN_FLIGHT)]
    connections = [Connection(queue, each) for each in over]
    for connection in connections:
        await loop.create_connection(partial(_given, connection), "127.0.0.1", port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*over)
    answers: Counter[str] = Counter()
    for connection in connections:
        answers += connection.answers
    seen = Binds(
        dict(answers),
        [ms for connection in connections for ms in connection.ms],
        time.perf_counter() - began,
        queue.ran_out,
    )
    sys.stdout.write(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    run(main(*(int(given) for given in sys.argv[1:5])))
