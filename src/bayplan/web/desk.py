"""Behind the door: one request's way from its first byte to its answer, but for what is answered.

Bodies are read here, since they are what a client can make large: one has a largest size, and all
that are under way together have one too. Nothing here knows what is asked.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiohttp import web

from bayplan.web.door import Door

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

    async def body(self, request: web.BaseRequest) -> "Body":
        """The whole of it, as a context."""
        body = await self._read(request)
        connection = self._door.of(request)
        if connection is None:
            self.let_go(body)
            raise ConnectionResetError
        connection.arrived()
        return Body(self, body)

    def let_go(self, body: bytes) -> None:
        self._held -= len(body)

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
            while not request.content.at_eof():
                chunk = await request.content.readany()
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


class Body:
    """What a client sent. It counts as held inside the block."""

    def __init__(self, desk: Desk, content: bytes) -> None:
        self._desk, self._content = desk, content

    def __enter__(self) -> bytes:
        return self._content

    def __exit__(self, *_: object) -> None:
        self._desk.let_go(self._content)
