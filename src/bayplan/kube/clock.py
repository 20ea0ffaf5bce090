"""Time, as `kube` sees it: every wait goes through a clock that is handed in.

So a test or a simulation decides how long an hour takes. Back-off is here too, because it is a
way of waiting; what to do after it is the caller's business.
"""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol

_TURNS = 6  # of the event loop, from an answer's bytes to the next request's
_SHARED_S = 1.0  # shorter time-outs are pauses, of which few are equally long


class Clock(Protocol):
    def time(self) -> float:
        """Seconds that never go back; their zero means nothing."""

    def wall(self) -> float:
        """Seconds since 1970, for what others read."""

    async def sleep(self, seconds: float) -> None: ...

    async def hold(self, seconds: float) -> None:
        """Everything on this thread rests. What arrives meanwhile is then dealt with in one go, as
        far as it can be, before this returns."""

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Raises TimeoutError in the block when it takes longer."""


class RealClock:
    def __init__(self) -> None:
        self._limits: dict[float, _Limits] = {}  # by length

    time, wall = staticmethod(time.monotonic), staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def hold(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        if seconds is None or seconds < _SHARED_S:
            return asyncio.timeout(seconds)
        limits = self._limits.get(seconds)
        if limits is None or limits.thread != get_ident() or not limits.loop.is_running():
            limits = self._limits[seconds] = _Limits(self._limits, seconds)
        return _Limit(limits)


class _Limits:
    """Time-outs of one length that are under way on one event loop. They end in the order in which
    they began, so one timer does for all of them: one for each would be a tenth of the CPU time of
    a request. When they are over the timer is left alone; it finds that out in its own time.
    A forked process would wait for its parent's timer: it must not run an event loop."""

    def __init__(self, by_length: "dict[float, _Limits]", seconds: float) -> None:
        self._by_length, self._seconds = by_length, seconds
        self.loop, self.thread = asyncio.get_running_loop(), get_ident()  # to ask for it is slow
        self.ends: dict[_Limit, float] = {}  # the oldest first
        self.done = self.loop.create_future()  # awaited, it costs less than a coroutine would
        self.done.set_result(None)
        self._waits = False  # for the timer

    def add(self, limit: "_Limit") -> None:
        at = self.ends[limit] = self.loop.time() + self._seconds
        if not self._waits:
            self._waits = True
            self.loop.call_at(at, self._look)

    def _look(self) -> None:
        """What is late ends; the timer then waits for the next."""
        self._waits = False
        while self.ends:
            limit, at = next(iter(self.ends.items()))
            if at > self.loop.time():
                self._waits = True
                self.loop.call_at(at, self._look)
                return
            del self.ends[limit]
            limit.expire()
        if self._by_length.get(self._seconds) is self:
            del self._by_length[self._seconds]


class _Limit:
    """As `asyncio.timeout` does: it cancels the task, and takes that back when nobody else did.
    Neither end of the block waits for anything, so neither is a coroutine."""

    __slots__ = ("_cancels", "_limits", "_task", "is_late")

    def __init__(self, limits: _Limits) -> None:
        self._limits, self.is_late = limits, False

    def __aenter__(self) -> Any:
        task = asyncio.current_task(self._limits.loop)
        assert task is not None
        self._task, self._cancels = task, task.cancelling()
        self._limits.add(self)
        return self._limits.done

    def expire(self) -> None:
        self.is_late = True
        self._task.cancel()

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self._limits.ends.pop(self, None)
        if (
            self.is_late
            and self._task.uncancel() <= self._cancels
            and isinstance(error, asyncio.CancelledError)
        ):
            raise TimeoutError from error
        return self._limits.done


class Backoff:
    """Pauses that double, with jitter, and start over after a healthy while."""

    # client-go's reflector: 0.8 s doubling to 30 s, up to as much again, forgotten after 2 minutes
    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        first_s: float = 0.8,
        most_s: float = 30.0,
        healthy_s: float = 120.0,
    ) -> None:
        self._clock, self._rng = clock, rng
        self._first_s, self._most_s, self._healthy_s = first_s, most_s, healthy_s
        self._next_s = first_s
        self._since = clock.time()

    async def pause(self, asked_s: float | None = None) -> None:
        """Waits; as long as the server asked for, if it did."""
        if self._clock.time() - self._since > self._healthy_s:
            self._next_s = self._first_s
        own_s, self._next_s = self._next_s, min(self._next_s * 2, self._most_s)
        chance = self._rng.random()
        await self._clock.sleep(own_s * (1 + chance) if asked_s is None else asked_s + chance)
        self._since = self._clock.time()


_: type[Clock] = RealClock
