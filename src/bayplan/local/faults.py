"""Faults on request: what networks and overloaded API servers do to those who use them.

Chances are per request or per batch of watch events, drawn from a seeded generator, so that a run
can be repeated. Where no chance is set nothing is drawn and nothing waits.
"""

import random
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from msgspec import Struct

from bayplan.kube.clock import Clock
from bayplan.local.api import Api
from bayplan.local.problems import Problem, expired
from bayplan.local.requests import Answer, Request, refusal

_SERVER_ERROR = (500, "InternalError", "Internal error occurred: a fault was asked for")
_BUSY = (
    429,
    "TooManyRequests",
    "the server has received too many requests and has asked us to try again later",
)
_MODIFIED = (
    409,
    "Conflict",
    "Operation cannot be fulfilled: the object has been modified (a fault was asked for)",
)
_FOREVER_S = 1e9


class Broken(Exception):
    """The connection broke."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent  # whether the request was carried out, or may have been


class Chances(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How likely each fault is, from 0 to 1; `latency` and `lateness` are at most, in seconds."""

    latency: float = 0.0
    conflict: float = 0.0  # 409 to a write, which is not carried out
    busy: float = 0.0  # 429, with a second to wait
    error: float = 0.0  # 500, not carried out
    lost_answer: float = 0.0  # carried out, and the connection breaks
    refused: float = 0.0  # the connection breaks before anything is sent
    hang: float = 0.0  # carried out, and no answer ever
    expired_watch: float = 0.0  # 410 when a watch begins
    broken_watch: float = 0.0  # a watch ends in the middle of things
    dropped_events: float = 0.0  # a batch of events is lost, and the watch with it ends
    repeated_events: float = 0.0  # a batch of events comes twice
    late_events: float = 0.0  # a batch of events comes up to `lateness` seconds later
    lateness: float = 5.0


class BadChances(ValueError):
    """Chances that cannot be read."""


def chances(text: str) -> Chances:
    """`busy=0.1,latency=0.5`, as on a command line."""
    names = [field.encode_name for field in msgspec.structs.fields(Chances)]
    given: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name not in names:
            raise BadChances(f"there is no fault {name!r}; there are {', '.join(names)}")
        try:
            given[name] = float(value)
        except ValueError:
            raise BadChances(f"{part!r}: {value!r} is not a number") from None
        most = 3600.0 if name in ("latency", "lateness") else 1.0
        if not 0.0 <= given[name] <= most:
            raise BadChances(f"{part!r}: it should be from 0 to {most:g}")
    return msgspec.convert(given, Chances)


class Faults:
    def __init__(self, chances: Chances | None = None, rng: random.Random | None = None) -> None:
        self.chances = chances or Chances()
        self._rng = rng or random.Random(0)
        self.met: dict[str, int] = {}  # how often each fault was met

    async def answer(self, request: Request, api: Api, clock: Clock) -> Answer:
        chances = self.chances
        if chances.latency:
            await clock.sleep(self._rng.random() * chances.latency)
        if self._meets("refused", chances.refused):
            raise Broken("the connection was refused", sent=False)
        if request.method != "GET" and self._meets("conflict", chances.conflict):
            return refusal(Problem(*_MODIFIED))
        if self._meets("busy", chances.busy):
            return refusal(Problem(*_BUSY, None, 1))
        if self._meets("error", chances.error):
            return refusal(Problem(*_SERVER_ERROR))
        answer = api.handle(request)
        if self._meets("lost_answer", chances.lost_answer):
            raise Broken("the connection broke", sent=True)
        if self._meets("hang", chances.hang):
            await clock.sleep(_FOREVER_S)
        return answer

    async def before_stream(self, request: Request, clock: Clock) -> Answer | None:
        """What a watch gets instead of events."""
        chances = self.chances
        if chances.latency:
            await clock.sleep(self._rng.random() * chances.latency)
        if self._meets("refused", chances.refused):
            raise Broken("the connection was refused", sent=False)
        if self._meets("busy", chances.busy):
            return refusal(Problem(*_BUSY, None, 1))
        if request.params.get("resourceVersion") and self._meets(
            "expired_watch", chances.expired_watch
        ):
            return refusal(expired("too old resource version (a fault was asked for)"))
        return None

    async def lines(
        self, request: Request, lines: AsyncIterator[list[bytes]], clock: Clock
    ) -> AsyncGenerator[list[bytes], None]:
        chances = self.chances
        async for some in lines:
            if self._meets("broken_watch", chances.broken_watch):
                cut = self._rng.randrange(len(some) + 1)
                yield some[:cut]
                raise Broken("the watch broke", sent=True)
            if self._meets("dropped_events", chances.dropped_events):
                raise Broken("the watch broke and what it carried is lost", sent=True)
            if self._meets("late_events", chances.late_events):
                await clock.sleep(self._rng.random() * chances.lateness)
            yield some
            if self._meets("repeated_events", chances.repeated_events):
                yield some

    def _meets(self, name: str, chance: float) -> bool:
        if not chance or self._rng.random() >= chance:
            return False
        self.met[name] = self.met.get(name, 0) + 1
        return True
