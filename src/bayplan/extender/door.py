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
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from bayplan.extender.tls import Tls
from bayplan.web.server import BadAddress, split

log = logging.getLogger(__name__)

_DRAIN_S = 5.0  # for the answers under way at the end; a pod is given 30 s to stop
_WARN_S = 60.0


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
        self.limits, self.tls = limits, tls
        self.connections: set[Connection] = set()
        self.handshakes: set[asyncio.Task[None]] = set()
        self._by_protocol: dict[object, Connection] = {}
        self._warned_at = float("-inf")

    async def open(
        self, address: str, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> int:
        """Gives the port, for an address that leaves the choice (`:0`)."""
        host, port = split(address)
        self._loop = asyncio.get_running_loop()
        self._server = web.Server(
            handle,
            access_log=None,
            logger=_aiohttp_log,
            keepalive_timeout=self.limits.idle_s,
            lingering_time=self.limits.timeout_s,
            auto_decompress=False,  # a small body may be a large one in disguise
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=_DRAIN_S)
        await self._runner.setup()
        try:
            self._listening = await self._loop.create_server(lambda: Connection(self), host, port)
        except OSError as error:
            await self._runner.cleanup()
            raise BadAddress(f"cannot listen on {address}: {error.strerror}") from error
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._listening.close()
        for handshake in self.handshakes:
            handshake.cancel()
        await asyncio.gather(*self.handshakes, return_exceptions=True)
        await self._runner.cleanup()

    def of(self, request: web.BaseRequest) -> "Connection | None":
        """Who asks; None when they have left already."""
        return self._by_protocol.get(request.protocol)

    def admit(self, newcomer: "Connection") -> bool:
        if len(self.connections) >= self.limits.connections:
            idle = (one for one in self.connections if one.idle_since is not None)
            leaver = min(idle, key=lambda one: one.idle_since or 0.0, default=None)
            if leaver is None:
                self._warn()
                return False
            leaver.cut()
        self.connections.add(newcomer)
        return True

    def welcome(self, connection: "Connection") -> web.RequestHandler:
        """The part of aiohttp that speaks with this client from now on."""
        protocol = self._server()
        self._by_protocol[protocol] = connection
        return protocol

    def forget(self, connection: "Connection", protocol: web.RequestHandler | None) -> None:
        self.connections.discard(connection)
        self._by_protocol.pop(protocol, None)

    def _warn(self) -> None:
        if self._loop.time() - self._warned_at >= _WARN_S:
            self._warned_at = self._loop.time()
            log.warning(
                "all %d connections are at work; a client was refused", len(self.connections)
            )


class Connection(asyncio.Protocol):
    """One client. The server says what it is at by `arrived`, `leaving` and `idle`."""

    def __init__(self, door: Door) -> None:
        self._door, self._loop = door, asyncio.get_running_loop()
        self.idle_since: float | None = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._protocol: web.RequestHandler | None = None
        self._early = bytearray()  # what came together with the end of the handshake
        self._arriving = False
        self._ahead = False  # the client began its next request before it had its answer
        self._deadline: asyncio.TimerHandle | None = None

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
            self.idle_since = self._loop.time()

    def cut(self) -> None:
        """Ends it at once; aiohttp hears of it as of a client that left."""
        self._stop()
        self._door.forget(self, self._protocol)
        if self._transport is not None:
            self._transport.abort()

    # what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._door.admit(self):
            self._transport.abort()
        elif self._door.tls is None:
            self._begin(self._transport)
        else:
            self._transport.pause_reading()
            task = self._loop.create_task(self._secure(self._transport, self._door.tls))
            self._door.handshakes.add(task)
            task.add_done_callback(self._door.handshakes.discard)

    def data_received(self, data: bytes) -> None:
        if self._protocol is None:
            self._early += data
            return
        if self.idle_since is not None:
            self._arrive()
        elif not self._arriving:
            self._ahead = True
        self._protocol.data_received(data)

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._door.forget(self, self._protocol)
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    # and the rest

    async def _secure(self, transport: asyncio.Transport, tls: Tls) -> None:
        """asyncio's own TLS servers take any number of handshakes at once. These are counted."""
        secure = None
        try:
            secure = await self._loop.start_tls(
                transport,
                self,
                tls.context(),
                server_side=True,
                ssl_handshake_timeout=self._door.limits.timeout_s,
            )
        except OSError as error:  # TLS errors too
            log.debug("a client failed at its TLS handshake: %s", error)
        finally:
            if secure is None or secure.is_closing():  # it may be gone by the time that we hear
                self.cut()
            else:
                self._transport = secure
                self._begin(secure)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._protocol = self._door.welcome(self)
        self._protocol.connection_made(transport)
        if self._early:
            self.data_received(bytes(self._early))
            self._early.clear()

    def _arrive(self) -> None:
        self._arriving, self._ahead, self.idle_since = True, False, None
        self._hurry()

    def _hurry(self) -> None:
        self._stop()
        self._deadline = self._loop.call_later(self._door.limits.timeout_s, self.cut)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
