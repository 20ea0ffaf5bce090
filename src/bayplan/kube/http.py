"""The transport over HTTP/1.1: aiohttp, with connections that notice when the other end is gone.

An `HttpTransport` belongs to the event loop that first uses it. A thread with a loop of its own
(leader election) makes a transport of its own; they share nothing.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from bayplan.kube.clock import Clock
from bayplan.kube.credentials import Access
from bayplan.kube.transport import (
    JSON,
    REQUEST_S,
    BeforeSend,
    Fenced,
    Params,
    Response,
    Stream,
    TransportError,
    Unauthorized,
)

T = TypeVar("T")

_ANSWERS, _STREAMS = 0, 1  # two sessions

CONNECTIONS = 64  # bare binds are as fast with 32 as with 128 (docs/decisions/0007)
_CONNECT_S = 10.0
_IDLE_S = 30.0  # the API server closes idle connections after 90 s; a proxy may after 60
_STREAM_BUFFER = 1 << 17  # bytes that may wait to be read; more only costs memory
# A peer that is silent for 15 s is probed every 5 s; it is gone after 3 probes, or when what was
# written is not acknowledged for 30 s.
_SOCKET_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}


async def until(stopped: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Works until the event, or until the work ends or fails by itself."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(stopped.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (working, waiting):
        task.cancel()
    results = await asyncio.gather(working, waiting, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on uvloop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class Gives(Protocol):
    """Says where the server is and what to show it, as `Credentials` does."""

    async def access(self) -> Access: ...

    async def refresh(self, refused: Access) -> Access: ...


class HttpTransport:
    """Requests share `connections`; streams have theirs, so a watch never waits for a bind."""

    def __init__(
        self,
        credentials: Gives,
        clock: Clock,
        connections: int = CONNECTIONS,
        user_agent: str = "bayplan",
    ) -> None:
        self._credentials, self._clock = credentials, clock
        self._connections, self._user_agent = connections, user_agent
        self._sessions: tuple[aiohttp.ClientSession, aiohttp.ClientSession] | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_s: float = REQUEST_S,
        before_send: BeforeSend | None = None,
    ) -> Response:
        data = None
        if body is not None or before_send is not None:
            data = _Body(body or b"", content_type, before_send)
        accepts = "gzip" if method == "GET" else ""
        attempt = _Attempt(method, _target(path, params), accepts, data)
        try:
            async with self._clock.timeout(timeout_s):
                answer = await self._answer(self._session(_ANSWERS), attempt)
                # whatever comes of it, `read` gives the connection back
                return Response(answer.status, answer.headers, await answer.read())
        except _TROUBLES as error:  # written out, because it is on the way of every bind
            raise _told(error, attempt, timeout_s) from error.with_traceback(None)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = REQUEST_S
    ) -> AsyncIterator[Stream]:
        attempt = _Attempt("GET", _target(path, params), "identity")
        with _trouble(attempt, timeout_s):
            async with self._clock.timeout(timeout_s):
                answer = await self._answer(self._session(_STREAMS), attempt)
        try:
            yield Stream(answer.status, answer.headers, _chunks(answer, attempt))
        finally:
            _drop(answer)

    async def close(self) -> None:
        for session in self._sessions or ():
            await session.close()
        self._sessions = None

    async def _answer(
        self, session: aiohttp.ClientSession, attempt: "_Attempt"
    ) -> aiohttp.ClientResponse:
        """The beginning of an answer; after a 401 once more, with fresh credentials."""
        access = await self._credentials.access()
        answer = await _send(session, attempt, access)
        if answer.status != 401:
            return answer
        async with answer:
            await answer.read()
        access = await self._credentials.refresh(access)
        answer = await _send(session, attempt, access)
        if answer.status == 401:
            answer.close()
            raise Unauthorized(
                f"the API server at {access.server} refuses our credentials, fresh ones too"
            )
        return answer

    def _session(self, which: int) -> aiohttp.ClientSession:
        if self._sessions is None:
            self._sessions = (self._open(self._connections), self._open(0))
        return self._sessions[which]

    def _open(self, limit: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limit, keepalive_timeout=_IDLE_S, socket_factory=_socket
            ),
            # the injected clock is the one that measures; below it only connecting is bounded
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": JSON, "User-Agent": self._user_agent},
            read_bufsize=_STREAM_BUFFER,
        )


class _Attempt(Struct):
    """A request on its way."""

    method: str
    target: str
    accepts: str  # the encodings
    body: "_Body | None" = None

    @property
    def sent(self) -> bool:
        return self.body is None or self.body.sent


class _Body(aiohttp.BytesPayload):
    """Asks the fence with a connection in hand, right before it is written.

    aiohttp keeps the headers back to send them with the body, so nothing has been sent by then.
    """

    def __init__(self, body: bytes, content_type: str, before_send: BeforeSend | None) -> None:
        super().__init__(body, content_type=content_type)
        self._before_send = before_send
        self.sent = False

    def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> Coroutine[Any, Any, None]:
        if self._before_send is not None:
            self._before_send()
        self.sent = True
        return super().write_with_length(writer, content_length)


def _send(
    session: aiohttp.ClientSession, attempt: _Attempt, access: Access
) -> Awaitable[aiohttp.ClientResponse]:
    return session.request(
        attempt.method,
        URL(access.server + attempt.target, encoded=True),
        headers=_headers(access.authorization, attempt.accepts),
        data=attempt.body,
        allow_redirects=False,
        ssl=access.ssl if access.ssl is not None else True,
        server_hostname=access.server_name,
        proxy=access.proxy,
    )


def _drop(answer: aiohttp.ClientResponse) -> None:
    """Ends a stream in the middle without TLS's goodbye, which would wait for the other end's."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


async def _chunks(answer: aiohttp.ClientResponse, attempt: _Attempt) -> AsyncIterator[bytes]:
    with _trouble(attempt, None):
        async for chunk in answer.content.iter_any():
            yield chunk


_TROUBLES = (aiohttp.ClientError, asyncio.IncompleteReadError, OSError)


@contextmanager
def _trouble(attempt: _Attempt, timeout_s: float | None) -> Iterator[None]:
    """What can happen to a connection, in our words."""
    try:
        yield
    except _TROUBLES as error:
        raise _told(error, attempt, timeout_s) from error.with_traceback(None)


def _told(error: Exception, attempt: _Attempt, timeout_s: float | None) -> Exception:
    """What is raised from the error without its traceback: that holds the answer, which holds the
    error, and all that was read would stay until the collector comes by."""
    if isinstance(error.__cause__, Fenced):  # aiohttp wraps what keeps a body from being written
        return Fenced(str(error.__cause__))
    why = str(error) or type(error).__name__
    if type(error) is TimeoutError and error.errno is None:  # the clock's, not the system's
        why = f"no answer within {timeout_s} s"
    elif isinstance(error, aiohttp.ClientPayloadError):
        why = "the connection broke in the middle of the answer"
    path = attempt.target.partition("?")[0]
    sent = attempt.sent and not isinstance(error, aiohttp.ClientConnectorError)
    return TransportError(f"{attempt.method} {path}: {why}", sent)


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SOCKET_OPTIONS.items():
        option = getattr(socket, name, None)  # each system has some of them
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _target(path: str, params: Params | None) -> str:
    return f"{path}?{_query(tuple(params.items()))}" if params else path


_query = lru_cache(maxsize=64)(urlencode)  # every bind has the same


@lru_cache(maxsize=8)
def _headers(authorization: str, accepts: str) -> CIMultiDict[str]:
    """Of one request: a proxy would get those of the session too."""
    found = {"Authorization": authorization, "Accept-Encoding": accepts}
    return CIMultiDict({name: value for name, value in found.items() if value})
