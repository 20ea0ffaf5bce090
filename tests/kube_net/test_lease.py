"""Leader election: taking over, holding on, letting go; on a clock that the tests move."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bayplan.kube.client import Client
from bayplan.kube.clock import Clock, RealClock
from bayplan.kube.credentials import Credentials, find_source
from bayplan.kube.http import HttpTransport
from bayplan.kube.lease import NEVER, Lease, LeaseConfig
from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.rig import connected, write_kubeconfig
from tests.kube_net.stand_in import Json, StandIn, Step, drop, hang, refuse

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class Leases:
    """The one Lease, kept as an API server would: versions, 404, 409."""

    def __init__(self, server: StandIn) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.instead: list[Step] = []  # for the next requests
        self.before_put: Callable[[], None] = lambda: None
        server.otherwise = self._handle

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.instead:
            return await self.instead.pop(0)(request)
        if request.method == "GET":
            found = self.lease
            return await refuse(404)(request) if found is None else web.json_response(found)
        sent = json.loads(await request.read())
        if request.method == "POST":
            assert request.path == PATH
            if self.lease is not None:
                return await refuse(409, "AlreadyExists")(request)
        else:
            self.before_put()
            if self.lease is None:
                return await refuse(404)(request)
            if sent["metadata"]["resourceVersion"] != str(self.version):
                return await refuse(409, "Conflict")(request)
        self.write(sent["spec"], sent["metadata"])
        return web.json_response(self.lease)

    def write(self, spec: Json, metadata: Json | None = None) -> None:
        self.version += 1
        about = {**(metadata or {"name": "bayplan"}), "resourceVersion": str(self.version)}
        self.lease = {"metadata": about, "spec": spec}

    @property
    def spec(self) -> Json:
        assert self.lease is not None
        spec: Json = self.lease["spec"]
        return spec


@pytest.fixture
def leases(server: StandIn) -> Leases:
    return Leases(server)


@asynccontextmanager
async def candidate(
    server: StandIn, clock: Clock, folder: Path, name: str = "me"
) -> AsyncIterator[Lease]:
    async with connected(server.url, clock, folder) as client:
        yield Lease(client, LeaseConfig("kube-system", "bayplan", name))


def held_by(name: str, seconds: int = 15, transitions: int = 4) -> Json:
    return {
        "holderIdentity": name,
        "leaseDurationSeconds": seconds,
        "leaseTransitions": transitions,
        "acquireTime": "2020-01-01T00:00:00.000000Z",
        "renewTime": "2020-01-01T00:00:00.000000Z",  # long ago, and not to be trusted
    }


async def test_a_lease_that_is_not_there_is_made(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    async with candidate(server, clock, tmp_path) as lease:
        assert lease.renewed_at == lease.deadline == NEVER
        await lease.acquire()

        assert leases.spec == {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:16:40.000000Z",
            "renewTime": "2026-01-01T00:16:40.000000Z",
        }
        assert lease.renewed_at == clock.now
        assert lease.deadline == clock.now + 10
        assert lease.last_seen_renewal == NEVER
        assert lease.holder == "me"


async def test_another_holder_is_waited_out_by_our_own_clock(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    leases.write(held_by("other"))
    began = clock.now
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()

        assert 15 <= clock.now - began <= 15 + 4.4
        assert lease.last_seen_renewal == began
        assert all(2 <= pause <= 4.4 for pause in clock.slept)
        assert leases.spec["leaseTransitions"] == 5
        assert leases.spec["acquireTime"] == leases.spec["renewTime"] > "2026"


async def test_each_renewal_that_is_seen_starts_the_wait_anew(
    server: StandIn, leases: Leases, tmp_path: Path
) -> None:
    clock = ManualClock(skips=False)
    leases.write(held_by("other"))
    async with candidate(server, clock, tmp_path) as lease:
        task = asyncio.create_task(lease.acquire())
        for second in range(60):
            if second in (10, 20, 30):
                leases.write({**held_by("other"), "renewTime": f"2020-01-01T00:00:{second}.0Z"})
                changed = clock.now
            clock.advance(1)
            asleep = asyncio.create_task(clock.until_asleep())
            await asyncio.wait([task, asleep], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                asleep.cancel()
                break

        assert task.done()
        assert 15 <= clock.now - changed <= 15 + 2 * 4.4
        assert changed <= lease.last_seen_renewal <= changed + 4.4


async def test_a_lease_that_was_given_up_is_taken_at_once(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    leases.write(held_by("", seconds=1))
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()

        assert clock.slept == []
        assert lease.last_seen_renewal == NEVER
        assert leases.spec["leaseTransitions"] == 5


async def test_a_lease_of_our_name_is_taken_at_once_but_its_last_renewal_is_known(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    """An earlier life of ours may have left requests on their way."""
    leases.write(held_by("me"))
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()

        assert lease.last_seen_renewal == clock.now
        assert leases.spec["leaseTransitions"] == 4
        assert leases.spec["acquireTime"] == "2020-01-01T00:00:00.000000Z"


async def test_of_two_that_find_it_free_one_gets_it(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    leases.write(held_by("", seconds=1))
    writes = iter([lambda: leases.write(held_by("faster"))])
    leases.before_put = lambda: next(writes, lambda: None)()
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()

        assert clock.now - 1000 >= 15  # the faster one was waited out
        assert leases.spec["holderIdentity"] == "me"


async def test_renewing_writes_the_time_and_keeps_what_else_is_there(
    server: StandIn, leases: Leases, tmp_path: Path
) -> None:
    clock = ManualClock(skips=False)
    leases.write(
        held_by("", seconds=1) | {"strategy": "x"}, {"name": "bayplan", "labels": {"a": "b"}}
    )
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        task = asyncio.create_task(lease.keep())
        acquired = leases.spec["acquireTime"]
        await clock.until_asleep()
        for _ in range(10):
            clock.advance(2)
            await clock.until_asleep()

        assert not task.done()
        assert lease.renewed_at == clock.now
        assert leases.spec["acquireTime"] == acquired < leases.spec["renewTime"]
        assert leases.spec["strategy"] == "x"
        assert leases.lease is not None
        assert leases.lease["metadata"]["labels"] == {"a": "b"}
        puts = [seen.method for seen in server.requests]
        assert puts == ["GET", *["PUT"] * 11]  # one request per renewal
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lease.renewed_at != NEVER  # it is still ours to release


async def test_renewed_at_is_the_time_before_the_request(
    server: StandIn, leases: Leases, tmp_path: Path
) -> None:
    clock = ManualClock(skips=False)
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.before_put = lambda: clock.advance(3)
        keeping = asyncio.create_task(lease.keep())
        await clock.until_asleep()
        clock.advance(2)
        sent_at = clock.now
        await clock.until_asleep()
        assert lease.renewed_at == sent_at == clock.now - 3
        keeping.cancel()


@pytest.mark.parametrize("step", [refuse(500), refuse(429), drop()])
async def test_what_is_not_renewed_by_the_deadline_is_lost_then(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path, step: Step
) -> None:
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.instead = [step] * 100
        await lease.keep()

        assert clock.now == 1010
        assert lease.renewed_at == lease.deadline == NEVER


async def test_a_server_that_does_not_answer_does_not_hold_us_over_the_deadline(
    server: StandIn, leases: Leases, tmp_path: Path
) -> None:
    clock = ManualClock(skips=False)
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.instead = [hang()] * 100
        task = asyncio.create_task(lease.keep())
        count = len(server.requests)
        for wait_s, patience_s in ((2, 5), (2, 1)):  # 10 s in all
            await clock.until_asleep()
            clock.advance(wait_s)
            count += 1
            await server.has_seen(count)
            assert not task.done()
            assert lease.renewed_at == 1000
            clock.advance(patience_s)
        await task

        assert clock.now == 1010
        assert lease.renewed_at == NEVER


async def test_a_hiccup_is_no_loss(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.instead = [refuse(500), refuse(503)]
        renewals: list[float] = []

        def renewed() -> None:
            renewals.append(clock.now)
            if len(renewals) == 3:
                leases.lease = None
                leases.instead = [refuse(500)] * 100

        leases.before_put = renewed
        await lease.keep()

        assert renewals[:3] == [1006, 1008, 1010]


async def test_a_lease_that_another_has_taken_is_lost_at_once(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.write(held_by("other"))
        await lease.keep()

        assert clock.now == 1002
        assert lease.renewed_at == NEVER
        assert lease.holder == "other"
        assert lease.last_seen_renewal == 1002
        await lease.release()  # nothing to give up
        assert leases.spec["holderIdentity"] == "other"


async def test_an_answer_that_was_lost_does_not_lose_the_lease(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    """The renewal was stored, but we know the old version only: 409, look, and write again."""
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.write({**leases.spec, "renewTime": "2026-02-02T00:00:00.000000Z"})
        assert await lease._try(5)

        assert [seen.method for seen in server.requests][-3:] == ["PUT", "GET", "PUT"]
        assert lease.last_seen_renewal == NEVER


async def test_release_lets_the_next_one_in_at_once(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    async with (
        candidate(server, clock, tmp_path) as first,
        candidate(server, clock, tmp_path, "next") as second,
    ):
        await first.acquire()
        await first.release()
        assert first.renewed_at == NEVER
        assert leases.spec["holderIdentity"] == ""
        assert leases.spec["leaseDurationSeconds"] == 1
        assert leases.spec["leaseTransitions"] == 0
        await second.acquire()

        assert leases.spec["holderIdentity"] == "next"
        assert leases.spec["leaseDurationSeconds"] == 15
        assert clock.slept == []


async def test_a_release_that_fails_is_no_error(
    server: StandIn, leases: Leases, clock: ManualClock, tmp_path: Path
) -> None:
    async with candidate(server, clock, tmp_path) as lease:
        await lease.acquire()
        leases.instead = [refuse(500)]
        await lease.release()
        assert lease.renewed_at == NEVER


def test_times_that_make_no_sense_are_refused() -> None:
    client: Any = type("C", (), {"clock": ManualClock()})()
    with pytest.raises(ValueError, match="must outlast"):
        Lease(client, LeaseConfig("ns", "x", "me", lease_s=10, renew_deadline_s=10))


async def test_it_runs_in_a_thread_with_a_loop_of_its_own(
    server: StandIn, leases: Leases, tmp_path: Path
) -> None:
    path = write_kubeconfig(tmp_path / "config", server.url)
    held, stop = threading.Event(), threading.Event()
    seen: list[Lease] = []

    async def elect() -> None:
        clock = RealClock()
        transport = HttpTransport(Credentials(find_source(path), clock), clock, connections=2)
        client = Client(transport, clock, random.Random(1))
        lease = Lease(client, LeaseConfig("kube-system", "bayplan", "me", retry_s=0.01))
        seen.append(lease)
        await lease.acquire()
        held.set()
        keeping = asyncio.create_task(lease.keep())
        await asyncio.to_thread(stop.wait)
        keeping.cancel()
        await asyncio.wait([keeping])
        await lease.release()
        await transport.close()

    thread = threading.Thread(target=lambda: asyncio.run(elect()), daemon=True)
    thread.start()
    await asyncio.to_thread(held.wait)
    first = seen[0].renewed_at
    await server.has_seen(len(server.requests) + 3)
    assert seen[0].renewed_at > first  # read from another thread
    stop.set()
    await asyncio.to_thread(thread.join)

    assert leases.spec["holderIdentity"] == ""
