"""A Transport that calls the embedded API in the same process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bayplan.kube.clock import Clock
from bayplan.kube.transport import (
    JSON,
    REQUEST_S,
    BeforeSend,
    Params,
    Response,
    Stream,
    Transport,
    TransportError,
)
from bayplan.local.api import Api
from bayplan.local.faults import Broken, Faults
from bayplan.local.problems import Problem
from bayplan.local.requests import Answer, Request, refusal


class DirectTransport:
    def __init__(self, api: Api, clock: Clock, faults: Faults | None = None) -> None:
        self._api, self._clock, self._faults = api, clock, faults or Faults()

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
        if before_send is not None:
            before_send()
        request = Request(method, path, params or {}, body or b"", content_type)
        try:
            async with self._clock.timeout(timeout_s):
                answer = await self._faults.answer(request, self._api, self._clock)
        except TimeoutError:
            text = f"{method} {path}: no answer within {timeout_s:.0f} s"
            raise TransportError(text, sent=True) from None
        except Broken as broken:
            raise TransportError(f"{method} {path}: {broken}", sent=broken.sent) from None
        return _response(answer)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = REQUEST_S
    ) -> AsyncIterator[Stream]:
        request = Request("GET", path, params or {})
        try:
            async with self._clock.timeout(timeout_s):
                refused = await self._faults.before_stream(request, self._clock)
        except TimeoutError:
            raise TransportError(f"GET {path}: no answer within {timeout_s:.0f} s", True) from None
        except Broken as broken:
            raise TransportError(f"GET {path}: {broken}", sent=broken.sent) from None
        if refused is None:
            try:
                watch, first = self._api.watch(request)
            except Problem as problem:
                refused = refusal(problem)
        if refused is not None:
            yield Stream(refused.status, _headers(refused), _once(refused.body))
            return
        lines = self._faults.lines(request, watch.lines(first, self._clock), self._clock)
        try:
            yield Stream(200, {"content-type": JSON}, _chunks(lines, path))
        finally:
            await lines.aclose()

    async def close(self) -> None:
        pass


def _response(answer: Answer) -> Response:
    return Response(answer.status, _headers(answer), answer.body)


def _headers(answer: Answer) -> dict[str, str]:
    named = {name.lower(): value for name, value in answer.headers.items()}
    return {"content-type": answer.content_type, **named}


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _chunks(lines: AsyncIterator[list[bytes]], path: str) -> AsyncIterator[bytes]:
    try:
        async for some in lines:
            yield b"".join(some)
    except Broken as broken:
        raise TransportError(f"GET {path}: {broken}", sent=True) from None


_: type[Transport] = DirectTransport
