"""The embedded API over HTTP, for kubectl and other programs. No TLS, no users, one machine."""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from bayplan.kube.clock import Clock
from bayplan.local import problems, protobuf, reviews
from bayplan.local.api import Api
from bayplan.local.faults import Broken, Faults
from bayplan.local.problems import Problem
from bayplan.local.requests import JSON, LARGEST_BODY, Answer, Request, refusal, too_large
from bayplan.local.store import encode

HOST = "127.0.0.1"
LONGEST_LINE = 64 << 10  # bytes of a path with its selectors, or of a header


class Server:
    def __init__(self, api: Api, clock: Clock, faults: Faults | None = None) -> None:
        self._api, self._clock, self._faults = api, clock, faults or Faults()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[int]:
        """Serves inside the block; gives the port."""
        app = web.Application(client_max_size=LARGEST_BODY + 1)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=0.1,
            handler_cancellation=True,  # a watch ends with its reader
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, port).start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            request = await _read(http)
            review = reviews.reviewed(request.method, request.path, request.body)
            if review is not None:
                return _answered(Answer(201, review))
            if self._api.is_watch(request):
                return await self._watch(http, request)
            return _answered(await self._faults.answer(request, self._api, self._clock))
        except Problem as problem:
            return _answered(refusal(problem))
        except Broken:
            _hang_up(http)
            raise

    async def _watch(self, http: web.Request, request: Request) -> web.StreamResponse:
        refused = await self._faults.before_stream(request, self._clock)
        if refused is not None:
            return _answered(refused)
        try:
            watch, first = self._api.watch(request)
        except Problem as problem:
            return _answered(refusal(problem))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        lines = self._faults.lines(request, watch.lines(first, self._clock), self._clock)
        try:
            await response.prepare(http)
            async for some in lines:
                await response.write(b"".join(some))
            await response.write_eof()
        except ConnectionResetError:
            return response
        finally:
            await lines.aclose()
        return response


async def _read(http: web.Request) -> Request:
    """The request, in JSON whatever it came in."""
    try:
        body = await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large() from None
    except (web.RequestPayloadError, ConnectionError, zlib.error) as error:
        raise problems.bad_request(f"the body of the request cannot be read: {error}") from None
    sort = http.headers.get("Content-Type", "")
    if sort.startswith(protobuf.MEDIA_TYPE):
        body, sort = encode(protobuf.decoded(body)), JSON
    accept = http.headers.get("Accept", "")
    return Request(http.method, http.path, dict(http.query), body, sort, accept)


def _answered(answer: Answer) -> web.Response:
    headers = {"Content-Type": answer.content_type, **answer.headers}
    return web.Response(body=answer.body, status=answer.status, headers=headers)


def _hang_up(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.close()
