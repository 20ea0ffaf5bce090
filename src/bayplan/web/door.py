"""Who may come in, and for how long: connections, before and around what aiohttp does with them.

aiohttp gives a client all the time that it wants for a TLS handshake, for its headers and for
taking its answer, and takes as many clients as there are. Here each of these has an end. Nothing
here knows what is asked or answered.

A connection is idle from the start until the first byte of a request, and again after each answer:

    idle ──first byte──> arriving ──last byte──> at work ──answer──> leaving ──taken──> idle

Arriving and leaving may take `timeout_s` each. When the house is full, the client that was idle
for longest has to go; when nobody is idle, the newcomer. (The beginning of a second request that
came in one piece with the end of the first is not noticed: that client counts as idle.)
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from bayplan.web.server import BadAddress, split
from bayplan.web.tls import Tls

log = logging.getLogger(__name__)

_DRAIN_S = 5.0  # for the answers under way at the end; a pod is given 30 s to stop
_LINGER_S = 1.0  # for a refused client to read why before it is cut off
_WARN_S = 60.0
_AGAIN_S = 1.0  # after a failed accept, as in asyncio


class Limits(Struct, frozen=True):
    max_body: int = 32 << 20  # bytes; four times as much for all requests together
    timeout_s: float = 10.0  # for a handshake, for a whole request, and for taking an answer
    idle_s: float = 180.0  # Go's clients leave after 90 s, and should be first: no request is lost
    connections: int = 512


class _NoNoise(logging.Filter):
    """What a client gets wrong in HTTP is answered with 400, and needs no traceback here."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_aiohttp_log = log.getChild("aiohttp")
_aiohttp_log.addFilter(_NoNoise())


class Door:
    """The listening side of a server, and the connections that came in by it."""

    def __init__(self, limits: Limits, tls: Tls | None = None) -> None:
        self.limits, self._tls = limits, tls
        self._connections: set[Connection] = set()
        self._by_protocol: dict[object, Connection] = {}
        self._welcomes: set[asyncio.Task[None]] = set()
        self._warned_at = float("-inf")
        self._again: asyncio.TimerHandle | None = None

    async def open(
        self, address: str, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> int:
        """Gives the port, for an address that leaves the choice (`:0`)."""
        self._loop = asyncio.get_running_loop()
        try:
            self._listener = _listener(*split(address))
        except OSError as error:
            raise BadAddress(f"cannot listen on {address}: {error.strerror}") from error
        self._server = web.Server(
            handle,
            access_log=None,
            logger=_aiohttp_log,
            keepalive_timeout=self.limits.idle_s,
            lingering_time=_LINGER_S,
            auto_decompress=False,  # a small body may be a large one in disguise
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_DRAIN_S)
        await self._runner.setup()
        self._listen()
        return int(self._listener.getsockname()[1])

    async def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._welcomes:
            task.cancel()
        await asyncio.gather(*self._welcomes, return_exceptions=True)
        await self._runner.cleanup()

    def of(self, request: web.BaseRequest) -> "Connection | None":
        """Who asks; None when they have left already."""
        return self._by_protocol.get(request.protocol)

    def hand_on(self, connection: "Connection") -> web.RequestHandler:
        """The part of aiohttp that speaks with this client from now on."""
        protocol = self._server()
        self._by_protocol[protocol] = connection
        return protocol

    def forget(self, connection: "Connection", protocol: web.RequestHandler | None) -> None:
        self._connections.discard(connection)
        self._by_protocol.pop(protocol, None)

    def _accept(self) -> None:
        """By hand, because asyncio's own servers take any number of TLS handshakes at once."""
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no file descriptors are left, most likely
            log.warning("cannot accept a connection: %s", error.strerror)
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(_AGAIN_S, self._listen)
            return
        client.setblocking(False)
        if self._has_room():
            self._welcome(Connection(self), client)
        else:
            client.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _welcome(self, connection: "Connection", client: socket.socket) -> None:
        self._connections.add(connection)
        task = self._loop.create_task(self._connect(connection, client))
        connection.welcome = task
        self._welcomes.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._welcomes.discard(task)
            if not connection.is_made:  # it may have been cancelled before it began
                self.forget(connection, None)
                client.close()

        task.add_done_callback(ended)

    async def _connect(self, connection: "Connection", client: socket.socket) -> None:
        secure = self._tls.context() if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=secure,
                ssl_handshake_timeout=self.limits.timeout_s if secure else None,
            )
        except OSError as error:  # TLS errors too
            log.debug("a client failed at its TLS handshake: %s", error)

    def _has_room(self) -> bool:
        if len(self._connections) < self.limits.connections:
            return True
        idle = (one for one in self._connections if one.idle_since is not None)
        leaver = min(idle, key=lambda one: one.idle_since or 0.0, default=None)
        if leaver is not None:
            leaver.cut()
        elif monotonic() - self._warned_at >= _WARN_S:
            self._warned_at = monotonic()
            log.warning(
                "all %d connections are at work; clients are refused", self.limits.connections
            )
        return leaver is not None


def _listener(host: str | None, port: int) -> socket.socket:
    if host is None and socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be switched off, or the port taken; we shall see
            return _ready(("", port), socket.AF_INET6, dualstack_ipv6=True)
    places = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)
    family, *_, place = places[0]
    return _ready(place, family)


def _ready(place: Any, family: int, dualstack_ipv6: bool = False) -> socket.socket:
    listener = socket.create_server(
        place[:2], family=family, backlog=128, dualstack_ipv6=dualstack_ipv6
    )
    listener.setblocking(False)
    return listener


class Connection(asyncio.Protocol):
    """One client. The server says what it is at by `arrived`, `leaving` and `idle`."""

    def __init__(self, door: Door) -> None:
        self._door, self._loop = door, asyncio.get_running_loop()
        self.idle_since: float | None = monotonic()  # uvloop's time stands still for 1 ms
        self.welcome: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._protocol: web.RequestHandler | None = None
        self._arriving = False
        self._ahead = False  # the client began its next request before it had its answer
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None  # of this deadline, or of an earlier one

    @property
    def is_made(self) -> bool:
        return self._transport is not None

    # what the server says

    def arrived(self) -> None:
        """The whole request is here."""
        self._arriving = False
        self._stop()

    def leaving(self) -> None:
        """The answer is being sent."""
        self._arriving = False
        self._hurry()

    def idle(self) -> None:
        """The answer is sent."""
        if self._ahead:
            self._arrive()
        else:
            self._stop()
            self.idle_since = monotonic()

    def cut(self) -> None:
        """Ends it at once; aiohttp hears of it as of a client that left."""
        self._end()
        self._door.forget(self, self._protocol)
        if self._transport is not None:
            self._transport.abort()
        elif self.welcome is not None:
            self.welcome.cancel()

    # what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol = self._door.hand_on(self)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            self._arrive()
        elif not self._arriving:
            self._ahead = True
        if self._protocol is not None:
            self._protocol.data_received(data)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._door.forget(self, self._protocol)
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    # and the time that it takes

    def _arrive(self) -> None:
        self._arriving, self._ahead, self.idle_since = True, False, None
        self._hurry()

    def _hurry(self) -> None:
        self._deadline = monotonic() + self._door.limits.timeout_s
        if self._timer is None:
            self._look_again()

    def _stop(self) -> None:
        self._deadline = None

    def _look_again(self) -> None:
        """One timer for many requests: each moves the deadline, and hardly any reaches it."""
        self._timer = None
        if self._deadline is None:
            return
        left_s = self._deadline - monotonic()
        if left_s > 0.0:
            self._timer = self._loop.call_later(left_s, self._look_again)
        else:
            self.cut()

    def _end(self) -> None:
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
