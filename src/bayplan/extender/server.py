"""The extender's verbs over HTTP: bytes and status codes here, decisions behind `Verbs`.

kube-scheduler shows its users the `Error` of an answer with status 200, and of any other answer
only the status. So whatever goes wrong with a filter or a bind is told in `Error`. Prioritize and
preempt have no place for it: 400 for a request that makes no sense, 500 for our own mistake.

| trouble                                             | filter | prioritize, preempt | bind  |
|-----------------------------------------------------|--------|---------------------|-------|
| no JSON, wrong types, no pod, an unreadable object  | Error  | 400                 | Error |
| an exception in the verb                            | Error  | 500                 | Error |
| another replica leads                               | 503    | 503                 | Error |

Before a verb is reached: 404 for an unknown path, 405 for another method, 415 for a compressed
body, 413 for one that is too large, 503 for too much at once.

A verb that has begun goes on when its client leaves: half a bind helps nobody. kube-scheduler asks
one question after the other and binds beside them, so a bind waits a moment for a question that is
on its way.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from aiohttp import web
from msgspec import Struct

from bayplan.extender import wire
from bayplan.kube.read import Unreadable
from bayplan.web.desk import Desk, Refused
from bayplan.web.door import Door, Limits
from bayplan.web.server import JSON, TEXT
from bayplan.web.tls import Tls

log = logging.getLogger(__name__)

_GIVES_WAY_S = 0.005  # a bind to questions


class NotLeading(Exception):
    """Another replica decides; this one must not."""

    def __init__(self, words: str = "another replica of the extender leads") -> None:
        super().__init__(words)


class Verbs(Protocol):
    """What an extender can be asked. Each may raise `NotLeading`."""

    async def filter(self, args: wire.FilterArgs) -> wire.FilterResult: ...

    async def prioritize(self, args: wire.ScoreArgs) -> list[wire.HostPriority]: ...

    async def preempt(self, args: wire.PreemptArgs) -> wire.PreemptResult: ...

    async def bind(self, args: wire.BindArgs) -> wire.BindResult: ...


@asynccontextmanager
async def serving(
    address: str, verbs: Verbs, limits: Limits | None = None, tls: Tls | None = None
) -> AsyncIterator[int]:
    """Serves inside the block; gives the port. `BadAddress` when nobody can listen there."""
    door = Door(limits or Limits(), tls)
    port = await door.open(address, _Verbs(verbs, door).handle)
    try:
        yield port
    finally:
        await door.close()


class _Route(Struct, frozen=True, eq=False):
    read: Callable[[bytes], Any]
    act: Callable[[Any], Awaitable[Any]]
    failed: Callable[[str], Any] | None = None  # a result that tells of trouble
    is_question: bool = True  # told by a 503 that another replica leads; goes before binds


class _Verbs:
    def __init__(self, verbs: Verbs, door: Door) -> None:
        self._desk = Desk(door, self._answer, _refusal)
        self.handle = self._desk.handle
        self._questions = 0  # under way
        self._answered = asyncio.Event()  # the last of them
        self._routes = {
            "/filter": _Route(
                wire.filter_args, verbs.filter, lambda words: wire.FilterResult(error=words)
            ),
            "/prioritize": _Route(wire.score_args, verbs.prioritize),
            "/preempt": _Route(wire.preempt_args, verbs.preempt),
            "/bind": _Route(
                wire.bind_args, verbs.bind, lambda words: wire.BindResult(words), is_question=False
            ),
        }

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        route = self._routes.get(request.path)
        if route is None:
            raise Refused(404, f"there are only {', '.join(self._routes)}")
        if request.method != "POST":
            raise Refused(405, f"{request.path} takes a POST")
        self._questions += route.is_question
        try:
            with await self._desk.body(request) as body:
                if not route.is_question:
                    await self._give_way()
                return await self._act(request.path, route, body)
        finally:
            self._questions -= route.is_question
            if not self._questions:
                self._answered.set()

    async def _give_way(self) -> None:
        if self._questions:
            self._answered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GIVES_WAY_S):
                    await self._answered.wait()

    async def _act(self, path: str, route: _Route, body: bytes) -> web.Response:
        try:
            result = wire.encode(await route.act(route.read(body)))
        except NotLeading as error:
            # A connection stays with one replica, so the client has to make another.
            response = _trouble(None if route.is_question else route.failed, str(error), 503)
            response.force_close()
            return response
        except (wire.BadRequest, Unreadable) as error:
            return _trouble(route.failed, str(error), 400)
        except Exception as error:
            log.exception("%s failed", path)
            words = f"{path} failed, see the log: {type(error).__name__}: {error}"
            return _trouble(route.failed, words, 500)
        return _response(result)


def _refusal(refused: Refused) -> web.Response:
    return _response(f"{refused}\n".encode(), refused.status, TEXT)


def _trouble(failed: Callable[[str], Any] | None, words: str, status: int) -> web.Response:
    if failed is None:
        return _response(f"{words}\n".encode(), status, TEXT)
    return _response(wire.encode(failed(words)))


def _response(body: bytes, status: int = 200, content_type: str = JSON) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})
