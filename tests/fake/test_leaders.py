"""Two replicas and one lease, on virtual time: one leads, the other takes over, no pod twice."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.model.effects import Preempt
from bayplan.kube.client import LEASES, PODS, Client
from bayplan.kube.read import Reader
from bayplan.local.api import Api
from bayplan.local.faults import Chances, Faults
from bayplan.local.kubelets import Kubelets
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration, LeaderElection
from bayplan.scheduler.service import Options, Service
from tests.fake.simulation import Cut, node, pod

Json = dict[str, Any]
LEASE = LEASES.path("kube-system", "bayplan")
# A standby asks every 2 to 4.4 s, and then waits out the 15 s since it last saw the lease renewed.
TAKEOVER_S = 25.0


class Replica:
    def __init__(self, world: "World", number: int) -> None:
        clock, faults = world.clock, Faults(world.chances, random.Random(number))
        self.transport = Cut(DirectTransport(world.api, clock, faults))
        client = Client(self.transport, clock, random.Random(number))
        election = LeaderElection(leader_elect=True)
        self.service = Service(Configuration(leader_election=election), Options(), client)
        self.lease = self.service.lease(client)
        elector = self.service.elector()
        self.tasks = [
            asyncio.create_task(self.service.run(), name=f"replica {number}"),
            asyncio.create_task(elector.run(self.lease), name=f"election {number}"),
        ]

    @property
    def leads(self) -> bool:
        return self.service.loop.leads and self.service.fence.is_open

    async def stop(self) -> None:
        """As SIGTERM does: binds are finished, then the lease is given up."""
        self.service.loop.stop()
        await self.tasks[0]
        self.tasks[1].cancel()
        with suppress(asyncio.CancelledError):
            await self.tasks[1]
        await self.lease.release()


class World:
    def __init__(self, chances: Chances | None = None) -> None:
        self.clock, self.chances = VirtualClock(), chances or Chances()
        self.api = Api(self.clock, random.Random(1))
        self.user = Client(DirectTransport(self.api, self.clock), self.clock, random.Random(2))
        self.replicas: list[Replica] = []
        self.pods = 0

    @asynccontextmanager
    async def living(self, replicas: int = 2) -> AsyncIterator["World"]:
        nodes = [node(f"node-{i}", 8) for i in range(2)]
        kubelets = Kubelets(self.user, nodes, random.Random(3))
        pretending = asyncio.create_task(kubelets.run())
        await kubelets.registered.wait()
        self.replicas = [Replica(self, number) for number in range(replicas)]
        try:
            yield self
        finally:
            every = [task for replica in self.replicas for task in replica.tasks] + [pretending]
            for replica in self.replicas:
                replica.transport.dead = True
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)

    async def add_pod(self) -> str:
        self.pods += 1
        name = f"pod-{self.pods}"
        body = json.dumps(pod(name, 1, 1)).encode()
        await self.user.request("POST", PODS.path("default"), body=body)
        return name

    async def until(self, true: Callable[[], object], seconds: float = TAKEOVER_S) -> float:
        """How long it took."""
        began = self.clock.time()
        while not true():
            assert self.clock.time() - began < seconds, "not so in time"
            await self.clock.sleep(0.1)
        return self.clock.time() - began

    async def until_bound(self, name: str) -> None:
        await self.until(lambda: self.node_of(name), 5.0)

    def node_of(self, name: str) -> str:
        stored = self.api.store.get("pods", ("default", name))
        return str(stored.value["spec"].get("nodeName", "")) if stored else ""

    @property
    def leader(self) -> Replica | None:
        found = [replica for replica in self.replicas if replica.leads]
        assert len(found) < 2, "two replicas lead"
        return found[0] if found else None


def test_one_leads_and_a_healthy_leader_stays() -> None:
    async def story(world: World) -> None:
        await world.until(lambda: world.leader)
        first = world.leader
        for _ in range(60):
            await world.until_bound(await world.add_pod())
            await world.clock.sleep(60)
            assert world.leader is first

    in_world(story)


def test_a_standby_takes_over_at_once_from_one_that_stops() -> None:
    async def story(world: World) -> None:
        await world.until(lambda: world.leader)
        first = world.leader
        assert first is not None
        await first.stop()
        world.replicas.remove(first)
        took_s = await world.until(lambda: world.leader)
        await world.until_bound(await world.add_pod())

        assert took_s < 5.0

    in_world(story)


@pytest.mark.parametrize("away_s", [5.0, 12.0, 20.0, 60.0])
def test_a_leader_that_is_cut_off_writes_nothing_after_its_time(away_s: float) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: world.leader)
        first = world.leader
        assert first is not None
        names = [await world.add_pod() for _ in range(3)]
        first.transport.dead = True
        for _ in range(round(away_s)):
            names.append(await world.add_pod())
            await world.clock.sleep(1)
            assert world.leader in (first, None, *world.replicas)
        first.transport.dead = False
        await world.until(lambda: all(map(world.node_of, names)), 120.0)

    in_world(story)


@pytest.mark.parametrize(("away_s", "deleted"), [(5.0, True), (12.0, False), (40.0, False)])
def test_a_leader_that_is_cut_off_deletes_nobody_after_its_time(
    away_s: float, deleted: bool
) -> None:
    """While its lease lasts, it tries again."""

    async def story(world: World) -> None:
        await world.until(lambda: world.leader)
        first = world.leader
        assert first is not None
        await world.user.request(
            "POST", PODS.path("default"), body=json.dumps(pod("victim", 1, None)).encode()
        )
        await world.until_bound("victim")
        victim = Reader().pod(await world.user.request("GET", PODS.path("default", "victim")))
        preemptor = replace(victim, name="preemptor", uid="uid-preemptor", node="")
        first.transport.dead = True
        first.service.writer.preempt(Preempt(preemptor, victim.node, (victim,)))
        await world.clock.sleep(away_s)
        first.transport.dead = False
        await world.clock.sleep(90.0)

        assert (world.api.store.get("pods", ("default", "victim")) is None) == deleted
        assert first.service.writer.queued["put off"] == 0

    in_world(story)


def test_whoever_leads_among_three_with_faults_every_pod_is_bound_once() -> None:
    async def story(world: World) -> None:
        names = []
        rng = random.Random(5)
        for _ in range(40):
            names.append(await world.add_pod())
            await world.clock.sleep(rng.random() * 10)
            if rng.random() < 0.3:
                replica = rng.choice(world.replicas)
                replica.transport.dead = not replica.transport.dead
            _ = world.leader  # never two
        for replica in world.replicas:
            replica.transport.dead = False
        await world.until(lambda: all(map(world.node_of, names)), 300.0)
        bound = [
            change.last.value["metadata"]["name"]
            for change in world.api.store.log("pods").changes
            if change.before is not None
            and change.after is not None
            and not change.before.value["spec"].get("nodeName")
            and change.after.value["spec"].get("nodeName")
        ]

        assert sorted(bound) == sorted(names)

    chances = Chances(latency=1.0, lost_answer=0.1, busy=0.1, error=0.1, broken_watch=0.1)
    in_world(story, chances, replicas=3)


def in_world(
    story: Callable[[World], Awaitable[None]], chances: Chances | None = None, replicas: int = 2
) -> None:
    async def whole() -> None:
        async with World(chances).living(replicas) as world:
            await story(world)

    run(whole())
