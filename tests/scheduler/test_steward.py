"""The steward on virtual time: in which order things happen, and what controllers can do wrong."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Held, HeldDevice
from bayplan.core.model.effects import Placement
from bayplan.kube.transport import Fenced
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.steward import HOST, ID, PORT, Prepared, Site, Steward, places_of, prefix_of
from bayplan.scheduler.volumes import NotReady
from bayplan.testing import world
from bayplan.vipu.controller import (
    Agent,
    Allocation,
    Cluster,
    Inventory,
    Ipu,
    LinkDomain,
    Partition,
)
from bayplan.vipu.fake import FakeVipu, one_cluster
from bayplan.vipu.faults import Chances, Faulty

ESTATE = "vipu:8090:cluster"
PREFIX = prefix_of("test")


class Rig:
    def __init__(self, inventory: Inventory | None = None, chances: Chances | None = None) -> None:
        self.clock = VirtualClock()
        self.fake = FakeVipu(inventory or one_cluster(16))
        self.controller = Faulty(self.fake, self.clock, chances, random.Random(0))
        self.inbox, self.fence = Inbox(self.clock), Fence(self.clock)
        self.site = Site("vipu", 8090, world.VIPU, self.controller)
        self.steward = Steward([self.site], world.VENDORS, self.inbox, self.fence, self.clock)
        self.ready = True
        self.task: asyncio.Task[None] | None = None

    async def start(self, name: Callable[[], Awaitable[str]] | None = None) -> None:
        async def plain() -> str:
            return "test"

        self.task = asyncio.create_task(self.steward.run(name or plain, lambda: self.ready))
        await self.clock.sleep(1.0)

    def heard(self) -> list[on.Event]:
        return self.inbox.take(1000)

    async def prepare(self, name: str, size: int = 4, estate: str = ESTATE) -> Prepared:
        return await self.steward.prepare(placement(name, size, estate), self.fence.check)

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.steward.close(1.0)


def placement(name: str, size: int, estate: str = ESTATE) -> Placement:
    pod = world.pod(name, devices=world.asks(ipus=size))
    devices = tuple(HeldDevice(f"ag1.{i}", i, 1) for i in range(size))
    return Placement(pod, "head-1", (Held("main", world.IPUS, estate, devices),))


def play(test: Callable[[Rig], Awaitable[None]], **facts: Any) -> None:
    async def story() -> None:
        rig = Rig(**facts)
        await rig.start()
        await test(rig)
        await rig.stop()

    run(story())


def id_of(name: str) -> str:
    return f"{PREFIX}uid-{name}"


def test_a_pod_is_told_what_it_really_has_and_where() -> None:
    async def test(rig: Rig) -> None:
        rig.fake.create("other", 4)
        found = await rig.prepare("a")

        assert found.notes == {HOST: "vipu", PORT: "8090", ID: id_of("a")}
        (held,) = found.placement.held
        assert [device.id for device in held.devices] == [f"ag2.{i}" for i in range(4)]
        (made,) = [each for each in rig.heard() if isinstance(each, on.PartitionMade)]
        assert made == on.PartitionMade("uid-a", (held,))

    play(test)


def test_what_is_to_go_goes_before_what_is_made() -> None:
    async def test(rig: Rig) -> None:
        rig.controller.chances = Chances(latency_s=(2.0, 2.0))
        rig.fake.create(id_of("old"), 16)
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("old")))

        await rig.prepare("new", 16)

        assert [each.id for each in rig.fake.partitions()] == [id_of("new")]

    play(test)


def test_one_partition_is_made_and_deleted_in_turn() -> None:
    async def test(rig: Rig) -> None:
        rig.controller.chances = Chances(latency_s=(2.0, 2.0))
        making = asyncio.create_task(rig.prepare("a"))
        await rig.clock.sleep(0.5)
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("a")))
        again = asyncio.create_task(rig.prepare("a"))
        await asyncio.gather(making, again)

        assert [each.id for each in rig.fake.partitions()] == [id_of("a")]
        assert rig.steward.counts == {("make", "done"): 2, ("delete", "done"): 1}

    play(test)


def test_a_pod_that_ends_while_its_partition_waits_to_be_made_leaves_none() -> None:
    async def test(rig: Rig) -> None:
        rig.controller.chances = Chances(latency_s=(4.0, 4.0))
        rig.fake.create(id_of("old"), 4)
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("old")))
        making = asyncio.create_task(rig.prepare("a"))  # behind the other's deletion
        await rig.clock.sleep(1)
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("a")))
        await making
        await rig.clock.sleep(20)
        assert rig.fake.partitions() == ()

    play(test)


def test_a_deletion_is_asked_for_again_when_something_was_made_since() -> None:
    async def test(rig: Rig) -> None:
        rig.controller.chances = Chances(latency_s=(4.0, 4.0))
        rig.fake.create(id_of("a"), 4)
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("a")))
        again = asyncio.create_task(rig.prepare("a"))
        await rig.clock.sleep(1)
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("a")))
        await again
        await rig.clock.sleep(20)
        assert rig.fake.partitions() == ()

    play(test)


def test_nothing_is_sent_after_the_lease() -> None:
    async def test(rig: Rig) -> None:
        rig.fake.create(id_of("old"), 4)
        rig.fence.deadline = lambda: 0.0
        with pytest.raises(Fenced):
            await rig.prepare("a")
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("old")))
        await rig.clock.sleep(5)

        assert [each.id for each in rig.fake.partitions()] == [id_of("old")]

    play(test)


def test_a_refusal_and_silence_are_told_apart() -> None:
    async def test(rig: Rig) -> None:
        rig.fake.create("other", 16)
        rig.heard()
        with pytest.raises(NotReady, match="refused a partition of 4"):
            await rig.prepare("a")
        assert on.PartitionRefused(ESTATE, 4) in rig.heard()
        rig.controller.chances = Chances(down=1.0)
        with pytest.raises(NotReady, match="the controller is down"):
            await rig.prepare("a")
        await rig.clock.sleep(3)
        assert [type(each) for each in rig.heard()] == [on.EstateLost]  # it was asked at once
        rig.controller.chances = Chances()
        await rig.clock.sleep(6)
        assert [type(each) for each in rig.heard()] == [on.EstateSeen]

    play(test)


def test_one_that_is_left_with_another_size_is_replaced() -> None:
    async def test(rig: Rig) -> None:
        rig.fake.create(id_of("a"), 8)
        found = await rig.prepare("a", 4)

        (there,) = rig.fake.partitions()
        assert (there.id, there.size) == (id_of("a"), 4)
        assert len(found.placement.held[0].devices) == 4

    play(test)


def test_a_partition_is_waited_for_until_it_is_ready() -> None:
    async def test(rig: Rig) -> None:
        real, looks = rig.fake.create, []

        def slow(*args: Any, **more: Any) -> Partition:
            return replace(real(*args, **more), state="CREATING", ipus=())

        def get(id: str) -> Partition | None:
            found = FakeVipu.get(rig.fake, id)
            if found is not None:
                looks.append(id)
            hides = found is not None and len(looks) < 4
            return replace(found, state="CREATING", ipus=()) if found and hides else found

        rig.fake.create, rig.fake.get = slow, get  # type: ignore[method-assign]
        found = await rig.prepare("a")

        assert len(looks) == 4
        assert len(found.placement.held[0].devices) == 4

    play(test)


def test_one_with_an_ipu_twice_is_not_used() -> None:
    async def test(rig: Rig) -> None:
        real = rig.fake.create

        def odd(*args: Any, **more: Any) -> Partition:
            return replace(real(*args, **more), ipus=(Ipu("ag1", 0),) * 4)

        rig.fake.create = odd  # type: ignore[method-assign]
        with pytest.raises(NotReady, match="refused"):
            await rig.prepare("a")

    play(test)


def test_until_the_pods_are_known_a_controller_tells_once() -> None:
    async def story() -> None:
        rig = Rig()
        rig.ready = False
        await rig.start()
        await rig.clock.sleep(120)
        assert [type(each) for each in rig.heard()] == [on.EstateSeen]
        rig.ready = True
        await rig.clock.sleep(65)
        assert [type(each) for each in rig.heard()] == [on.EstateSeen]
        await rig.stop()

    run(story())


def test_the_name_is_asked_for_until_it_is_known() -> None:
    async def story() -> None:
        rig, tries = Rig(), []

        async def name() -> str:
            tries.append(1)
            if len(tries) < 4:
                raise OSError("no API server")
            return "test"

        await rig.start(name)
        await rig.clock.sleep(30)
        assert len(tries) == 4
        assert [type(each) for each in rig.heard()] == [on.EstateSeen]
        await rig.stop()

    run(story())


def test_whatever_a_controller_does_it_is_asked_again() -> None:
    async def test(rig: Rig) -> None:
        rig.heard()

        def broken() -> Inventory:
            raise ZeroDivisionError("a bug")

        rig.fake.inventory = broken  # type: ignore[method-assign]
        await rig.clock.sleep(70)
        assert {type(each) for each in rig.heard()} == {on.EstateLost}
        del rig.fake.inventory
        await rig.clock.sleep(10)
        assert on.EstateSeen in {type(each) for each in rig.heard()}

    play(test)


def test_what_was_done_meanwhile_counts_more_than_a_list() -> None:
    async def test(rig: Rig) -> None:
        await rig.prepare("stays")
        await rig.prepare("goes")
        rig.controller.chances = Chances(latency_s=(10.0, 10.0))
        await rig.clock.sleep(65)  # a list is on its way
        rig.controller.chances = Chances()
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("goes")))
        await rig.prepare("comes")
        rig.heard()
        await rig.clock.sleep(20)
        (seen,) = [each for each in rig.heard() if isinstance(each, on.EstateSeen)]
        assert {each.id for each in seen.partitions} == {id_of("stays"), id_of("comes")}

    play(test)


def test_deletions_that_fail_do_not_pile_up() -> None:
    async def test(rig: Rig) -> None:
        rig.controller.chances = Chances(latency_s=(30.0, 30.0), down=1.0)
        for _ in range(50):
            rig.steward.dismantle(do.Dismantle(ESTATE, id_of("a")))
            await rig.clock.sleep(0.1)
        assert len(rig.steward._going) == 1

    play(test)


def test_partitions_are_told_by_their_ipus_when_allocations_change() -> None:
    async def test(rig: Rig) -> None:
        await rig.prepare("a")
        rig.heard()
        split = replace(
            one_cluster(16), allocations=(Allocation("new", "cluster", ("ag1", "ag2")),)
        )
        rig.fake.inventory = lambda: split  # type: ignore[method-assign]
        await rig.clock.sleep(65)
        lost, seen = [e for e in rig.heard() if isinstance(e, on.EstateLost | on.EstateSeen)]
        assert isinstance(lost, on.EstateLost)
        assert isinstance(seen, on.EstateSeen)
        assert (lost.name, seen.estate.name) == (ESTATE, "vipu:8090:cluster:new")
        assert [each.id for each in seen.partitions] == [id_of("a")]
        rig.steward.dismantle(do.Dismantle(ESTATE, id_of("a")))  # the old name still leads there
        await rig.clock.sleep(1)
        assert rig.fake.partitions() == ()

    play(test)


def test_estates_have_names_of_their_own_and_no_ipu_is_in_two() -> None:
    nobody: Any = None
    site = Site("vipu", 8090, world.VIPU, nobody)
    agents = tuple(Agent(f"ag{i}", 4, i != 2) for i in range(3))
    domains = (LinkDomain("d0", ("ag0", "ag1")), LinkDomain("d1", ("ag1", "ag2", "gone")))
    clusters = (Cluster("x", domains), Cluster("y", (LinkDomain("d0", ("ag0",)),)))
    same = (Allocation("a", "x", ("ag0", "ag1", "ag2")), Allocation("a", "y", ("ag0",)))

    first, second = places_of(site, Inventory(agents, clusters, same), PREFIX)

    assert [place.estate.name for place in (first, second)] == ["vipu:8090:x:a", "vipu:8090:y:a"]
    ids = [device.id for device in first.estate.devices]
    assert ids == [f"ag{i}.{k}" for i in range(3) for k in range(4)]
    assert [device.healthy for device in first.estate.devices] == [True] * 8 + [False] * 4
    assert [(spot.domain, spot.at) for spot in first.estate.spots[8:]] == [
        (1, 4 + i) for i in range(4)
    ]
    assert second.estate.devices == ()
