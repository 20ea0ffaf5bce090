"""What the watches tell of their troubles: at once, and again while they last, but no flood."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

from bayplan.kube.client import Client
from bayplan.kube.transport import REQUEST_S, Params, Response, Stream, TransportError
from bayplan.local.virtual import VirtualClock, run
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
    # the sleeps of all watches move one clock, so some of them lie between two tries
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


class Without(Unreachable):
    """A server that answers every watch of PodGroups like this."""

    def __init__(self, status: int) -> None:
        self.status, self.asked = status, 0

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = REQUEST_S
    ) -> AsyncIterator[Stream]:
        if not path.endswith("podgroups"):
            raise TransportError("nobody there", sent=False)
        self.asked += 1
        yield Stream(self.status, {}, _nothing())


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def followed(server: Without, seconds: float) -> tuple[list[str], list[str]]:
    """What is told of PodGroups, and which of them are waited for."""
    told: list[str] = []
    clock = VirtualClock()
    client = Client(server, clock, random.Random(1))
    watches = Watches(client, Inbox(clock), told.append, lambda failed: None)
    running = asyncio.create_task(watches.run())
    await clock.sleep(seconds)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    groups = [words for words in told if "podgroup" in words]
    return groups, [what for what in watches.unsynced() if "podgroup" in what]


def test_a_kind_that_few_servers_have_is_not_worth_a_word() -> None:
    server = Without(404)
    assert run(followed(server, 3600.0)) == ([], [])
    assert 3 * 3600 / 60 < server.asked < 3 * 3600 / 30 + 3 * 6  # it may come yet


def test_a_role_without_the_kind_is_told_once() -> None:
    told, waited = run(followed(Without(403), 3600.0))
    assert waited == []
    assert sorted(words.partition(":")[0] for words in told) == [
        "going without podgroups.scheduling.k8s.io",
        "going without podgroups.scheduling.sigs.k8s.io",
        "going without podgroups.scheduling.x-k8s.io",
    ]
