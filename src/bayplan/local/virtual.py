"""Virtual time: an event loop that never waits, because its clock jumps to whatever comes next.

What runs on it runs as fast as it can: an hour takes as long as the work in it. It serves what
waits by the loop's own clock; threads and sockets would never get their turn.
"""

import asyncio
import math
import selectors
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from bayplan.kube.clock import Clock

T = TypeVar("T")
EPOCH = 1_767_225_600.0  # the first second of 2026


class Stuck(RuntimeError):
    """Everybody waits for somebody else, and no time that passes would change it."""


class _Selector(selectors.DefaultSelector):
    """Waiting is moving the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is left that could happen")
        if timeout > 0:
            self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    @property
    def _clock_resolution(self) -> float:
        """asyncio wakes sleepers up to so much too early. On a clock that stands still while
        anybody is awake, they look at it, sleep for the rest, and are woken too early for ever."""
        return math.ulp(self._virtual.now)

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        pass


class VirtualClock:
    """The time of the virtual loop that runs."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return EPOCH + self.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def hold(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


_: type[Clock] = VirtualClock
