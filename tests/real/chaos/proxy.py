"""Plain HTTP in front of the API server: passes everything on, but for what a test has it spoil.

A real server cannot be made to close a watch now, to be busy for one request, or to send half an
object. Between a scheduler and a real server all of that can be had, one request at a time. The
proxy adds TLS and the token, and it writes down what was asked.
"""

import asyncio
import re
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import aiohttp
from aiohttp import web
from aiohttp.connector import Connection

from bayplan.testing.controlplane import ControlPlane
from tests.real.chaos.waiting import eventually

T = TypeVar("T")
_PLURAL = re.compile(r"/(api|apis/[^/]+)/[^/]+/[a-z]+")  # the path of all objects of a kind
_NOT_PASSED_ON = frozenset({"host", "authorization", "accept-encoding", "content-length"})


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    at: float  # monotonic clock

    @property
    def watches(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_list(self) -> bool:
        """A read of everything of a kind, in pages or as a stream."""
        if self.watches:
            return "sendInitialEvents" in self.query
        return (
            self.method == "GET" and self.path.count("/") in (3, 4) and "/leases" not in self.path
        )

    @property
    def binds(self) -> bool:
        return self.method == "POST" and self.path.endswith("/binding")


Which = Callable[[Asked], bool]
Line = Callable[[bytes], bytes | None]  # another line for a watch's line, or none


class Action:
    """What becomes of a request."""


@dataclass(frozen=True)
class Answer(Action):
    """The server is not asked; this is the answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


@dataclass(frozen=True)
class Drop(Action):
    """The connection breaks: before the server hears of it, or when it has answered."""

    carried_out: bool = False


@dataclass(frozen=True)
class Hold(Action):
    """It waits before it is passed on; see `Proxy.hold`."""

    until: asyncio.Event


@dataclass(frozen=True)
class Shorten(Action):
    """The server closes the watch by itself, so soon."""

    seconds: int


@dataclass(frozen=True)
class Rewrite(Action):
    """Every line of a watch goes through this."""

    line: Line


@dataclass
class _Rule:
    which: Which
    action: Action
    left: float  # times


@dataclass(frozen=True)
class _Open:
    """A watch on its way."""

    asked: Asked
    task: "asyncio.Task[Any]"
    flows: asyncio.Event
    cut: list[bool]  # how it is to end: whether the connection breaks


class Proxy:
    def __init__(self, plane: ControlPlane, port: int = 0) -> None:
        self._server, self._token, self.port = plane.url, plane.token, port
        self._tls = ssl.create_default_context(cafile=str(plane.ca_file))
        self.asked: list[Asked] = []
        self._rules: list[_Rule] = []
        self._open: list[_Open] = []
        self._loop = asyncio.new_event_loop()
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._stopping is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ---- what a test says

    def rule(self, which: Which, action: Action, times: float = float("inf")) -> Callable[[], None]:
        """For the next so many requests like this; call what it gives to end it earlier."""
        rule = _Rule(which, action, times)
        self._rules.append(rule)

        def end() -> None:
            rule.left = 0

        return end

    def hold(self, which: Which) -> Callable[[], None]:
        """Lets requests like this wait; call what it gives to let them go on."""
        until = asyncio.Event()
        end = self.rule(which, Hold(until))

        def release() -> None:
            end()
            self._loop.call_soon_threadsafe(until.set)

        return release

    def freeze(self, which: Which) -> Callable[[], None]:
        """Open watches like this bring nothing more; call what it gives to let them go on."""
        frozen = [stream for stream in self._open if which(stream.asked)]

        async def each(call: Callable[[asyncio.Event], None]) -> None:
            for stream in frozen:
                call(stream.flows)

        self._call(each(asyncio.Event.clear))
        return lambda: self._call(each(asyncio.Event.set))

    def cut(self, which: Which, broken: bool = False) -> int:
        """Ends open watches, orderly or with a broken connection; how many."""

        async def end() -> int:
            found = [stream for stream in self._open if which(stream.asked)]
            for stream in found:
                stream.cut.append(broken)
                stream.task.cancel()
            return len(found)

        return self._call(end())

    def seen(self, which: Which, since: int = 0) -> int:
        """How many requests like this came, after the first `since` of all."""
        return len(self._like(which, since))

    def wait_for(self, which: Which, since: int = 0, timeout_s: float = 30.0) -> Asked:
        """The first of them."""
        return eventually(lambda: self._like(which, since), "a request", timeout_s)[0]

    def _like(self, which: Which, since: int) -> list[Asked]:
        return [asked for asked in self.asked[since:] if which(asked)]

    def open_watches(self, which: Which) -> int:
        return sum(which(stream.asked) for stream in list(self._open))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # ---- serving

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        limits = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        whole = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=limits, timeout=whole) as self._session:
            site = web.TCPSite(runner, "127.0.0.1", self.port)
            await site.start()
            self.port = runner.addresses[0][1]
            self._started.set()
            await self._stopping.wait()
            for stream in self._open:
                stream.task.cancel()
            await runner.cleanup()
        await asyncio.sleep(0.1)  # aiohttp's own advice: connections close after their session

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body, query = await request.read(), dict(request.query)
        asked = Asked(request.method, request.path, query, body, time.monotonic())
        self.asked.append(asked)
        lines: list[Line] = []
        carried_out = False
        for rule in self._rules:  # also those that come while it is held
            if rule.left <= 0 or not rule.which(asked):
                continue
            rule.left -= 1
            match rule.action:
                case Answer(status, headers, body):
                    headers = {"Content-Type": "application/json"} | headers
                    return web.Response(status=status, headers=headers, body=body)
                case Drop(carried_out=False):
                    _break(request)
                case Drop(carried_out=True):
                    carried_out = True
                case Hold(until):
                    await until.wait()
                case Shorten(seconds):
                    asked.query["timeoutSeconds"] = str(seconds)
                case Rewrite(line):
                    lines.append(line)
        return await self._pass_on(request, asked, lines, carried_out)

    async def _pass_on(
        self, request: web.Request, asked: Asked, lines: list[Line], break_after: bool
    ) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_PASSED_ON}
        headers |= {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "identity"}
        try:
            async with self._session.request(
                asked.method,
                f"{self._server}{asked.path}",
                params=asked.query,
                headers=headers,
                data=asked.body or None,
            ) as answer:
                if asked.watches and answer.status == 200:
                    return await self._stream(request, asked, answer, lines)
                body = await answer.read()
                if break_after:
                    _break(request)
                kind = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
                if "Retry-After" in answer.headers:
                    kind["Retry-After"] = answer.headers["Retry-After"]
                return web.Response(status=answer.status, headers=kind, body=body)
        except aiohttp.ClientError:
            _break(request)

    async def _stream(
        self, request: web.Request, asked: Asked, answer: aiohttp.ClientResponse, lines: list[Line]
    ) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        stream = _Open(asked, task, asyncio.Event(), [])
        stream.flows.set()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._open.append(stream)
        try:
            await response.prepare(request)
            begun = b""
            async for chunk in answer.content.iter_any():
                *whole, begun = (begun + chunk).split(b"\n")
                await stream.flows.wait()
                sent = [got for one in whole if (got := _rewritten(one, lines)) is not None]
                if sent:
                    await response.write(b"".join(one + b"\n" for one in sent))
        except asyncio.CancelledError:
            if not stream.cut:
                raise  # the scheduler is gone, or we stop
            task.uncancel()
            if stream.cut[0]:
                _break(request)
        finally:
            self._open.remove(stream)
            _abort(answer.connection)
        await response.write_eof()
        return response


def _rewritten(line: bytes | None, rewrites: list[Line]) -> bytes | None:
    for rewrite in rewrites:
        if line is not None:
            line = rewrite(line)
    return line


def _abort(connection: Connection | None) -> None:
    """Ends it at once; an orderly end of TLS would outlive the event loop."""
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _break(request: web.Request) -> NoReturn:
    if request.transport is not None:
        request.transport.abort()
    raise web.HTTPBadGateway


# ---- requests that tests speak of


def watch_of(*plurals: str) -> Which:
    """Watches of these kinds; without any, of all."""
    return lambda asked: asked.watches and (not plurals or asked.path.endswith(plurals))


def bind_of(pod: str) -> Which:
    return lambda asked: asked.binds and asked.path.endswith(f"/pods/{pod}/binding")


def read_of(pod: str) -> Which:
    return lambda asked: asked.method == "GET" and asked.path.endswith(f"/pods/{pod}")


def any_list(asked: Asked) -> bool:
    return asked.is_list
