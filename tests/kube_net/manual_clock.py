"""A clock that stands still until a test moves it, or that skips every sleep."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from bayplan.kube.clock import Clock


class ManualClock:
    """With `skips` a sleep takes no time but moves the clock; else it lasts until `advance`."""

    def __init__(self, skips: bool = True) -> None:
        self.now = 1000.0
        self.skips = skips
        self.slept: list[float] = []
        self.holds = 0
        self._asleep = asyncio.Event()
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._timeouts: list[tuple[float, asyncio.Timeout]] = []

    def time(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_767_225_600.0 + self.now  # 2026

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.skips:
            self.advance(seconds)
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        self._asleep.set()
        await woken

    async def hold(self, seconds: float) -> None:
        self.holds += 1
        await asyncio.sleep(0)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return self._timeout(seconds)

    @asynccontextmanager
    async def _timeout(self, seconds: float | None) -> AsyncIterator[object]:
        async with asyncio.timeout(None) as timeout:
            if seconds is None:
                yield timeout
                return
            entry = (self.now + seconds, timeout)
            self._timeouts.append(entry)
            try:
                yield timeout
            finally:
                self._timeouts.remove(entry)

    async def until_asleep(self) -> None:
        """Until something sleeps."""
        while not self._sleepers:
            self._asleep.clear()
            await self._asleep.wait()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for until, woken in self._sleepers:
            if until <= self.now and not woken.done():
                woken.set_result(None)
        self._sleepers = [entry for entry in self._sleepers if not entry[1].done()]
        for until, timeout in self._timeouts:
            if until <= self.now and not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())


_: type[Clock] = ManualClock
