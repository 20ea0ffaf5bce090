"""Behind the door: one request's way from its first byte to its answer, but for what is answered.

Bodies are read here, since they are what a client can make large: one has a largest size, and all
that are under way together have one too. Nothing here knows what is asked.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from bayplan.web.door import Connection, Door

_BODIES = 4  # largest bodies in memory at once


class Refused(Exception):
    """A request that is not answered: the status, and why."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status, self.headers = status, headers or {}


class Desk:
    """`answer` may raise `Refused`; `refuse` says it in the form of this desk."""

    def __init__(
        self,
        door: Door,
        answer: Callable[[web.BaseRequest], Awaitable[web.Response]],
        refuse: Callable[[Refused], web.Response],
    ) -> None:
        self._door, self._answer, self._refuse = door, answer, refuse
        self._held = 0  # bytes of all requests under way

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._door.of(request)
        if connection is None:
            return web.Response()  # nobody is there to take it
        try:
            response = await self._answer(request)
        except Refused as refused:  # the body may not have been read, so nothing can follow it
            response = self._refuse(refused)
            response.force_close()
        except OSError:
            return web.Response()  # the client left in the middle of its request, or was cut off
        # Sent here and not by aiohttp, so that the end of it is known.
        connection.leaving()
        with suppress(OSError):  # the client left; aiohttp notices by itself
            await response.prepare(request)
            await response.write_eof()
        connection.idle()
        return response

    @asynccontextmanager
    async def body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The whole body; it counts as held inside the block."""
        body = await self._read(request)
        try:
            self._connection(request).arrived()
            yield body
        finally:
            self._held -= len(body)

    def _connection(self, request: web.BaseRequest) -> Connection:
        connection = self._door.of(request)
        if connection is None:
            raise ConnectionResetError
        return connection

    async def _read(self, request: web.BaseRequest) -> bytes:
        if "Content-Encoding" in request.headers:
            raise Refused(415, "compressed requests are not taken")
        most = self._door.limits.max_body
        if (request.content_length or 0) > most:
            raise Refused(413, f"a request may have {most} bytes")
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # of the answer, nothing is sent yet
        chunks, size = [], 0
        try:
            async for chunk in request.content.iter_any():
                size += len(chunk)
                self._held += len(chunk)
                if size > most:
                    raise Refused(413, f"a request may have {most} bytes")
                if self._held > _BODIES * most:
                    raise Refused(503, "too many large requests at once")
                chunks.append(chunk)
        except web.RequestPayloadError as error:
            self._held -= size
            raise Refused(400, f"the body is not what its headers say: {error}") from None
        except BaseException:
            self._held -= size
            raise
        return b"".join(chunks)
