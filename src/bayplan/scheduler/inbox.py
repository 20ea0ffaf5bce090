"""The one inbox: everything that happens joins it, so events have one order."""

import asyncio
from collections import deque
from contextlib import suppress

from bayplan.core.model.events import Event
from bayplan.kube.clock import Clock


class Inbox:
    """Belongs to one event loop; only its thread may add."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def add(self, event: Event) -> None:
        if not self._events:  # else it is set already
            self._arrived.set()
        self._events.append(event)

    def take(self, limit: int) -> list[Event]:
        """The oldest events, at most `limit`."""
        taken = [self._events.popleft() for _ in range(min(limit, len(self._events)))]
        if not self._events:
            self._arrived.clear()
        return taken

    def wake(self) -> None:
        """Ends a wait, although no event came."""
        self._arrived.set()

    async def wait(self, seconds: float) -> None:
        """Until something is here, and no longer than this."""
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds):
                await self._arrived.wait()

    def __len__(self) -> int:
        return len(self._events)
