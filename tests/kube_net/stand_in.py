"""A stand-in for an API server: it does what a test says, also what no real server can be made to.

Dropped lines, silent peers, expired pages and refused tokens are its purpose. What a real server
does of its own accord is tested against a real one (tests/real).
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]
Json = dict[str, Any]
STOPPING = web.AppKey("stopping", asyncio.Event)


class Seen:
    """A request that came."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method, self.path, self.query = request.method, request.path, dict(request.query)
        self.headers, self.body = request.headers, body
        self.connection = id(request.transport)

    @property
    def is_list(self) -> bool:
        """A read of everything, in pages or as a stream."""
        watches = self.query.get("watch") == "true"
        return self.method == "GET" and (not watches or "sendInitialEvents" in self.query)


class StandIn:
    """Each request takes the next of `steps`; when they have run out, `otherwise`."""

    def __init__(self, secure: ssl.SSLContext | None = None) -> None:
        self.steps: deque[Step] = deque()
        self.otherwise: Step = hang()
        self.requests: list[Seen] = []
        self._secure = secure
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application()
        app[STOPPING] = self._stopping
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._secure)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> "StandIn":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self._secure else 'http'}://127.0.0.1:{self.port}"

    def then(self, *steps: Step) -> None:
        self.steps.extend(steps)

    async def has_seen(self, count: int) -> Seen:
        """The last of so many requests, once they are there."""
        while len(self.requests) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.requests[count - 1]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(Seen(request, await request.read()))
        step = self.steps.popleft() if self.steps else self.otherwise
        self._changed.set()
        return await step(request)


def answer(body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Step:
    async def step(_: web.Request) -> web.StreamResponse:
        return web.json_response(body if body is not None else {}, status=status, headers=headers)

    return step


def refuse(
    code: int,
    reason: str = "",
    message: str = "no",
    headers: Mapping[str, str] | None = None,
    **details: Any,
) -> Step:
    return answer(status(code, reason, message, **details), code, headers)


def hang(until: asyncio.Event | None = None, body: Any = None) -> Step:
    """No answer, or none before `until`."""

    async def step(request: web.Request) -> web.StreamResponse:
        await _wait(request, until)
        return web.json_response(body or {})

    return step


def drop() -> Step:
    """The connection breaks instead of an answer."""

    async def step(request: web.Request) -> web.StreamResponse:
        _abort(request)
        return web.Response()

    return step


def watch(*parts: Json | bytes, end: str = "close", until: asyncio.Event | None = None) -> Step:
    """A watch that brings these events, or bytes; then it is closed, dropped or silent."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for part in parts:
            await response.write(part if isinstance(part, bytes) else line(part))
        if until is not None or end == "silent":
            await _wait(request, until)
        if end == "drop":
            _abort(request)
        return response

    return step


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _wait(request: web.Request, until: asyncio.Event | None) -> None:
    """For that, or else until the server is stopped."""
    events = [until] if until else []
    waits = [asyncio.create_task(event.wait()) for event in (*events, request.app[STOPPING])]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


# What travels


def line(event: Json) -> bytes:
    return json.dumps(event).encode() + b"\n"


def thing(name: str, version: int | str, size: Any = 1) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "size": size}


def event(kind: str, name: str, version: int | str, size: Any = 1) -> Json:
    return {"type": kind, "object": thing(name, version, size)}


def bookmark(version: int | str, ends_list: bool = False) -> Json:
    metadata: Json = {"resourceVersion": str(version)}
    if ends_list:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": "Thing", "metadata": metadata}}


def status(code: int, reason: str = "", message: str = "no", **details: Any) -> Json:
    return {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def error_event(code: int, reason: str = "") -> Json:
    return {"type": "ERROR", "object": status(code, reason)}


def page(*things: Json, version: int | str, next: str = "") -> Json:
    metadata = {"resourceVersion": str(version), **({"continue": next} if next else {})}
    return {"metadata": metadata, "items": list(things)}
