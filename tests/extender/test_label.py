"""The label by which the Service finds the leader: one pod carries it, and that is the one."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bayplan.extender.label import LABEL, Itself, LeaderLabel, selector
from bayplan.extender.service import Extender
from bayplan.kube.client import PODS, Client
from bayplan.kube.transport import Response, TransportError
from bayplan.local.api import Api
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration, LeaderElection
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.service import Options
from tests.extender.decisions import Interposed, Send, pod
from tests.scheduler.scripted import refused

Json = dict[str, Any]
OWN = {"app": "bayplan-extender", "pod-template-hash": "1"}


class Replica:
    """A pod, and the part of the process in it that writes the label."""

    def __init__(self, world: "World", name: str) -> None:
        self.name, self.fence = name, Fence(world.clock)
        self.transport = Interposed(DirectTransport(world.api, world.clock))
        client = Client(self.transport, world.clock, random.Random(0))
        self.label = LeaderLabel(client, Itself("default", name), self.fence)
        self.task = asyncio.create_task(self.label.run())

    def lose(self) -> None:
        self.fence.deadline = lambda: 0.0
        self.fence.term = lambda: 1


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.api = Api(self.clock, random.Random(1))
        self.user = Client(DirectTransport(self.api, self.clock), self.clock, random.Random(2))
        self.replicas: list[Replica] = []

    async def add(self, name: str, **labels: str) -> None:
        made = pod(name, metadata={"labels": OWN | labels})
        await self.user.request("POST", PODS.path("default"), body=msgspec.json.encode(made))

    async def replica(self, name: str, **labels: str) -> Replica:
        await self.add(name, **labels)
        self.replicas.append(Replica(self, name))
        return self.replicas[-1]

    def labelled(self) -> set[str]:
        return {
            each["metadata"]["name"]
            for each in self.api.store.values("pods")
            if LABEL in (each["metadata"].get("labels") or {})
        }

    async def settle(self, seconds: float = 1.0) -> set[str]:
        await self.clock.sleep(seconds)
        return self.labelled()


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World()
        try:
            await story(world)
        finally:
            for replica in world.replicas:
                assert not replica.task.done()
                replica.task.cancel()

    run(whole())


LED = {LABEL: "true"}


def test_the_leader_has_it_and_whoever_stops_leading_has_it_no_more() -> None:
    async def story(world: World) -> None:
        a, b = await world.replica("a"), await world.replica("b")
        assert await world.settle() == set()
        a.label.turn(True)
        assert await world.settle() == {"a"}
        a.label.turn(False)
        assert await world.settle() == set()
        b.label.turn(True)
        b.label.turn(False)
        b.label.turn(True)
        assert await world.settle() == {"b"}
        (stored,) = [v for v in world.api.store.values("pods") if v["metadata"]["name"] == "b"]
        assert stored["metadata"]["labels"] == OWN | LED

    play(story)


def test_it_is_taken_from_those_like_itself_and_from_nobody_else() -> None:
    async def story(world: World) -> None:
        await world.add("killed", **LED)
        await world.add("of-an-older-version", **LED, **{"pod-template-hash": "0"})
        await world.add("another-program", **LED, app="other")
        a = await world.replica("a")
        a.label.turn(True)
        assert await world.settle() == {"a", "another-program"}

    play(story)


def test_a_container_that_starts_again_without_the_lease_removes_its_own() -> None:
    async def story(world: World) -> None:
        await world.replica("a", **LED)
        assert await world.settle() == set()

    play(story)


def test_a_pod_that_is_gone_is_left_alone() -> None:
    async def story(world: World) -> None:
        a = await world.replica("a")
        await world.clock.sleep(1)
        await world.user.request(
            "DELETE", PODS.path("default", "a"), params={"gracePeriodSeconds": "0"}
        )
        a.label.turn(False)
        assert await world.settle() == set()
        patches = [path for method, path in a.transport.sent if method == "PATCH"]
        assert len(patches) == 2  # one at the start; not again and again

    play(story)


@pytest.mark.parametrize("trouble", [403, 409, 500, "broken"])
def test_trouble_is_tried_again(trouble: int | str) -> None:
    async def story(world: World) -> None:
        failures = 6

        async def between(method: str, path: str, send: Send) -> Response:
            nonlocal failures
            failures -= 1
            if failures < 0:
                return await send()
            if trouble == "broken":
                raise TransportError("it broke", sent=True)
            assert isinstance(trouble, int)
            return refused(trouble)

        await world.add("old", **LED)
        a = await world.replica("a")
        a.transport.between = between
        a.label.turn(True)
        assert await world.settle(60) == {"a"}
        assert failures < 0

    play(story)


def test_whoever_lost_the_lease_neither_takes_the_label_nor_takes_it_away() -> None:
    """The old leader is slow: its list shows the new leader with the label, and it has lost."""

    async def story(world: World) -> None:
        await world.add("killed", **LED)
        a, b = await world.replica("a"), await world.replica("b")
        await world.clock.sleep(1)
        listing, go = asyncio.Event(), asyncio.Event()

        async def slowly(method: str, path: str, send: Send) -> Response:
            if method == "GET":
                listing.set()
                await go.wait()
            return await send()

        a.transport.between = slowly
        a.label.turn(True)
        await listing.wait()
        a.lose()
        b.label.turn(True)
        assert await world.settle() == {"b"}  # it was taken from a
        go.set()
        assert await world.settle() == {"b"}
        a.label.turn(False)
        assert await world.settle(20) == {"b"}

    play(story)


def test_whoever_must_not_write_does_not_put_it_on() -> None:
    async def story(world: World) -> None:
        a = await world.replica("a")
        a.lose()
        a.label.turn(True)
        assert await world.settle() == set()
        a.fence.deadline = lambda: 1e9
        assert await world.settle(10) == {"a"}

    play(story)


def test_the_selector_names_what_all_replicas_share() -> None:
    labels = OWN | LED | {"component": "extender", "controller-revision-hash": "x"}
    assert selector(labels) == f"{LABEL}=true,app=bayplan-extender,component=extender"
    assert selector({}) == f"{LABEL}=true"


# ---- in the extender


class Process:
    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv("POD_NAME", name)
        monkeypatch.setenv("POD_NAMESPACE", "default")
        self.transport = Interposed(DirectTransport(world.api, world.clock))
        client = Client(self.transport, world.clock, random.Random(name))
        election = LeaderElection(leader_elect=True, resource_name="bayplan-extender")
        config = Configuration(leader_election=election, check_live_every=0)
        self.service = Extender(config, Options(), client)
        lease = self.service.lease(client)
        elector = self.service.elector()
        self.tasks = [
            asyncio.create_task(self.service.run()),
            asyncio.create_task(elector.run(lease)),
        ]

    @property
    def leads(self) -> bool:
        return self.service.loop.leads and self.service.fence.is_open

    async def cut_off(self) -> None:
        async def nothing(method: str, path: str, send: Send) -> Response:
            raise TransportError("cut off", sent=False)

        self.transport.between = nothing


def test_the_label_follows_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        for name in "ab":
            await world.add(name)
        processes = {name: Process(world, monkeypatch, name) for name in "ab"}
        try:
            for _ in range(3):
                await world.clock.sleep(60)
                (leader,) = [name for name, each in processes.items() if each.leads]
                assert world.labelled() == {leader}
                await processes[leader].cut_off()
                await world.clock.sleep(60)
                (other,) = [name for name, each in processes.items() if each.leads]
                assert other != leader
                assert world.labelled() == {other}
                processes[leader].transport.between = None
        finally:
            tasks = [task for each in processes.values() for task in each.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    play(story)
