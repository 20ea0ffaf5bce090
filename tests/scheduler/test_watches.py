"""What the watches tell of their troubles: at once, and again while they last, but no flood."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

from bayplan.kube.client import Client
from bayplan.kube.transport import REQUEST_S, Params, Response, Stream, TransportError
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.watches import Watches
from tests.kube_net.manual_clock import ManualClock


class Unreachable:
    async def request(self, method: str, path: str, **rest: object) -> Response:
        raise TransportError("nobody there", sent=False)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = REQUEST_S
    ) -> AsyncIterator[Stream]:
        raise TransportError("nobody there", sent=False)
        yield

    async def close(self) -> None:
        """Nothing is open."""


def test_a_trouble_that_lasts_is_told_every_ten_minutes() -> None:
    told = asyncio.run(first_tellings(5))
    # the sleeps of ten watches move one clock, so up to ten of them lie between two tries
    assert all(600 <= after - before < 1200 for before, after in pairwise(told))


async def first_tellings(count: int) -> list[float]:
    """When the trouble of the pods' watch was told."""
    clock, told, enough = ManualClock(), list[float](), asyncio.Event()

    def hear(words: str) -> None:
        if words == "the watch of pods: nobody there":
            told.append(clock.time())
            if len(told) == count:
                enough.set()

    watches = Watches(
        Client(Unreachable(), clock, random.Random(1)), Inbox(clock), hear, lambda failed: None
    )
    running = asyncio.create_task(watches.run())
    await enough.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return told
