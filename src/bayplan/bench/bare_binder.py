"""A scheduler without a decision: what Python, aiohttp and this API server allow at best.

It lists nodes and pods, follows the pods, binds each to the next node in turn, and writes the same
event as Bayplan. Binds go before events, over 64 connections. There is no filter, no score, no
fence, no retry, no metric; anything but a success ends it.

    python -m bayplan.bench.bare_binder KUBECONFIG SCHEDULER_NAME
"""

import asyncio
import gc
import itertools
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from bayplan.bench.access import access

CONNECTIONS = 64  # as many as Bayplan has
GC_THRESHOLDS = (100_000, 20, 100)  # as Bayplan


class _Metadata(Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Spec(Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""
    scheduler_name: str = ""


class _Object(Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = _Spec()


class _List(Struct, gc=False):
    metadata: _Metadata
    items: list[_Object] | None


class _Change(Struct, gc=False):
    type: str
    object: _Object


_decode_list = msgspec.json.Decoder(_List).decode
_decode_change = msgspec.json.Decoder(_Change).decode
_encode = msgspec.json.Encoder().encode


class BareBinder:
    def __init__(
        self, url: str, name: str, answers: aiohttp.ClientSession, streams: aiohttp.ClientSession
    ) -> None:
        self._url, self._name, self._answers, self._streams = url, name, answers, streams
        self._instance = f"{name}-{socket.gethostname()}"
        self._waiting: set[str] = set()  # uids, until the watch says that they are bound
        self._binds: deque[_Metadata] = deque()
        self._events: deque[tuple[_Metadata, str]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()

    async def run(self) -> None:
        """Until something goes wrong."""
        nodes = await self._list("/api/v1/nodes")
        self._nodes = itertools.cycle([node.metadata.name for node in nodes.items or ()])
        pods = await self._list("/api/v1/pods")
        for pod in pods.items or ():
            self._see(pod)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(pods.metadata.resource_version))
            for _ in range(CONNECTIONS):
                group.create_task(self._work())
            sys.stdout.write("ready\n")
            sys.stdout.flush()

    async def _list(self, path: str) -> _List:
        async with self._answers.get(self._at(path)) as answer:
            return _decode_list(await answer.read())

    def _at(self, path: str) -> URL:
        return URL(self._url + path, encoded=True)

    async def _follow(self, version: str) -> None:
        """A watch that the server closes is taken up where it ended."""
        while True:
            path = f"/api/v1/pods?watch=true&timeoutSeconds=7200&resourceVersion={version}"
            async with self._streams.get(self._at(path)) as answer:
                async for line in _lines(answer.content.iter_any()):
                    change = _decode_change(line)
                    version = change.object.metadata.resource_version
                    if change.type == "DELETED":
                        self._waiting.discard(change.object.metadata.uid)
                    else:
                        self._see(change.object)

    def _see(self, pod: _Object) -> None:
        if pod.spec.node_name:
            self._waiting.discard(pod.metadata.uid)
        elif pod.spec.scheduler_name == self._name and pod.metadata.uid not in self._waiting:
            self._waiting.add(pod.metadata.uid)
            self._binds.append(pod.metadata)
            self._call()

    def _call(self) -> None:
        if self._idle:
            self._idle.popleft().set_result(None)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._binds:
                await self._bind(self._binds.popleft())
            elif self._events:
                await self._tell(*self._events.popleft())
            else:
                future = loop.create_future()
                self._idle.append(future)
                await future

    async def _bind(self, pod: _Metadata) -> None:
        node = next(self._nodes)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding?timeout=5s"
        body = _encode(
            {
                "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
                "target": {"name": node, "kind": "Node", "apiVersion": "v1"},
                "kind": "Binding",
                "apiVersion": "v1",
            }
        )
        await self._post(path, body)
        self._events.append((pod, node))
        self._call()

    async def _tell(self, pod: _Metadata, node: str) -> None:
        now = time.time()
        at = datetime.fromtimestamp(now, UTC)
        body = _encode(
            {
                "metadata": {
                    "name": f"{pod.name}.{int(now * 1e9):x}",
                    "namespace": pod.namespace,
                },
                "eventTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "reportingController": self._name,
                "reportingInstance": self._instance,
                "action": "Binding",
                "reason": "Scheduled",
                "type": "Normal",
                "regarding": {
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "uid": pod.uid,
                    "kind": "Pod",
                    "apiVersion": "v1",
                },
                "note": f"Successfully assigned {pod.namespace}/{pod.name} to {node}",
                "kind": "Event",
                "apiVersion": "events.k8s.io/v1",
            }
        )
        await self._post(f"/apis/events.k8s.io/v1/namespaces/{pod.namespace}/events", body)

    async def _post(self, path: str, body: bytes) -> None:
        async with self._answers.post(self._at(path), data=body) as answer:
            said = await answer.read()
            if answer.status != 201:
                raise ConnectionError(f"{path}: {answer.status}: {said[:200]!r}")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    begun = b""
    async for chunk in chunks:
        *lines, begun = (begun + chunk).split(b"\n")
        for line in lines:
            yield line


async def main(kubeconfig: str, name: str) -> None:
    where = access(kubeconfig)
    tls = where.tls()

    def session(limit: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "Authorization": where.authorization,
                "Accept": "application/json",
                "Content-Type": "application/json",
            },
            read_bufsize=1 << 20,
        )

    async with session(CONNECTIONS) as answers, session(0) as streams:
        await BareBinder(where.url, name, answers, streams).run()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed, as Bayplan."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    run(main(sys.argv[1], sys.argv[2]))
