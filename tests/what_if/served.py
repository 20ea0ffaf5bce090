"""Questions over HTTP on a small world, in a thread of its own."""

import asyncio
import http.client
import json
import random
import ssl
import threading
from typing import Any

from msgspec import Struct

from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import Client
from bayplan.kube.clock import RealClock
from bayplan.local.api import Api
from bayplan.local.transport import DirectTransport
from bayplan.scheduler.questions import LiveQuestions, table
from bayplan.testing import World
from bayplan.web.api import LIMITS, Access, serving
from bayplan.web.door import Limits
from bayplan.web.server import Answer, text

HOST = "127.0.0.1"
JSON = {"Content-Type": "application/json"}


class Reply(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """Use it as a context."""

    def __init__(self, world: World, access: Access | None = None, limits: Limits = LIMITS) -> None:
        self.world, self._access, self._limits = world, access, limits
        self.is_ready = True
        self.api: Api | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        clock = RealClock()
        self.api = Api(clock)
        client = Client(DirectTransport(self.api, clock), clock, random.Random(1))
        questions = LiveQuestions(self.world.engine, Vendors(), client, lambda: self.is_ready)
        paths = table(questions, {"/v1/check": _hello}, "1.2.3")
        async with serving(f"{HOST}:0", paths, self._access, self._limits) as self.port:
            self._started.set()
            await self._stopped.wait()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Reply:
        connection = (
            http.client.HTTPConnection(HOST, self.port, timeout=30)
            if tls is None
            else http.client.HTTPSConnection(HOST, self.port, timeout=30, context=tls)
        )
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, sent, JSON if headers is None else headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.headers.items()), answer.read())
        finally:
            connection.close()

    def what_if(self, *steps: Any) -> Reply:
        return self.ask("POST", "/v1/what-if", {"steps": steps})


async def _hello() -> Answer:
    return text("hello")
