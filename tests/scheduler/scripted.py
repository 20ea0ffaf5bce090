"""A transport that answers from a script: it stands in for faults that a real server will not
produce on demand. What a real server does is in tests/real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bayplan.kube.transport import JSON, BeforeSend, Params, Response, Stream, TransportError

Answer = Response | TransportError


def ok(status: int = 201, body: object = None) -> Response:
    return Response(status, {}, msgspec.json.encode(body or {}))


def refused(status: int, reason: str = "", retry_after: str = "") -> Response:
    headers = {"retry-after": retry_after} if retry_after else {}
    status_object = {"kind": "Status", "code": status, "reason": reason, "message": reason}
    return Response(status, headers, msgspec.json.encode(status_object))


class Sent(msgspec.Struct):
    method: str
    path: str
    params: dict[str, str]
    body: Any

    @property
    def what(self) -> str:
        return f"{self.method} {self.path.rsplit('/', 1)[-1]}"


class Scripted:
    """`answer` says what each request gets; `hold` keeps requests until `let_go`."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.answer: Callable[[Sent], Answer] = lambda sent: ok()
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_s: float = 30.0,
        before_send: BeforeSend | None = None,
    ) -> Response:
        if before_send is not None:
            before_send()
        sent = Sent(method, path, dict(params or {}), msgspec.json.decode(body or b"null"))
        self.sent.append(sent)
        await self._gate.wait()
        await asyncio.sleep(0)
        answer = self.answer(sent)
        if isinstance(answer, TransportError):
            raise answer
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = 30.0
    ) -> AsyncIterator[Stream]:
        raise AssertionError("the writer does not watch")
        yield

    async def close(self) -> None:
        pass
