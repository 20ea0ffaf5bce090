"""Time, as `kube` sees it: every wait goes through a clock that is handed in.

So a test or a simulation decides how long an hour takes. Back-off is here too, because it is a
way of waiting; what to do after it is the caller's business.
"""

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Seconds that never go back; their zero means nothing."""

    def wall(self) -> float:
        """Seconds since 1970, for what others read."""

    async def sleep(self, seconds: float) -> None: ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Raises TimeoutError in the block when it takes longer."""


class RealClock:
    def time(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)


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
