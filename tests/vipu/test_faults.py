"""Every fault of the pretend controller, on a clock that is moved by hand."""

import asyncio
import random

import pytest

from bayplan.vipu.controller import Refused, Unavailable
from bayplan.vipu.fake import FakeVipu, one_cluster
from bayplan.vipu.faults import Chances, Faulty
from tests.kube_net.manual_clock import ManualClock

NO_FAULTS = Chances()


def faulty(chances: Chances = NO_FAULTS, clock: ManualClock | None = None) -> Faulty:
    return Faulty(FakeVipu(), clock or ManualClock(), chances, random.Random(1))


def ids(controller: Faulty) -> list[str]:
    return [partition.id for partition in controller.fake.partitions()]


async def test_without_faults_it_is_the_controller() -> None:
    controller, clock = faulty(), ManualClock()
    made = await controller.create("a", 4, cluster="cluster", reconfigurable=True)

    assert made.reconfigurable
    assert await controller.get("a") == made
    assert await controller.partitions() == (made,)
    assert (await controller.inventory()) == one_cluster()
    with pytest.raises(Refused):
        await controller.create("b", 3)
    assert (await controller.delete("a"), await controller.delete("a")) == (True, False)
    assert (controller.met, clock.slept) == ({}, [])


async def test_latency_is_half_before_and_half_after() -> None:
    clock = ManualClock(skips=False)
    controller = faulty(Chances(latency_s=(2.0, 2.0)), clock)
    call = asyncio.create_task(controller.create("a", 1))

    await clock.until_asleep()
    assert ids(controller) == []
    clock.advance(1.0)
    await clock.until_asleep()
    assert ids(controller) == ["a"]
    assert not call.done()
    clock.advance(1.0)
    assert (await call).id == "a"


async def test_latency_is_within_its_range() -> None:
    clock = ManualClock()
    controller = faulty(Chances(latency_s=(1.0, 3.0)), clock)
    for _ in range(20):
        await controller.partitions()

    assert 20 < clock.now - 1000 < 60
    assert len(set(clock.slept)) == 20


async def test_while_it_is_down_nothing_happens() -> None:
    controller = faulty(Chances(down=1.0))
    for call in (
        controller.create("a", 1),
        controller.get("a"),
        controller.delete("a"),
        controller.partitions(),
        controller.inventory(),
    ):
        with pytest.raises(Unavailable):
            await call
    assert (ids(controller), controller.met) == ([], {"down": 5})

    controller.chances = Chances()
    await controller.create("a", 1)


async def test_it_refuses_though_there_is_room() -> None:
    controller = faulty(Chances(refuse=1.0))
    with pytest.raises(Refused):
        await controller.create("a", 1)

    assert (ids(controller), controller.met) == ([], {"refuse": 1})
    assert await controller.delete("a") is False


async def test_a_late_partition_appears_after_its_caller_gave_up() -> None:
    clock = ManualClock(skips=False)
    controller = faulty(Chances(late=1.0, timeout_s=10.0, lateness_s=5.0), clock)
    call = asyncio.create_task(controller.create("a", 4))
    await clock.until_asleep()
    clock.advance(10.0)

    with pytest.raises(Unavailable):
        await call
    assert await controller.get("a") is None
    clock.advance(5.0)
    found = await controller.get("a")
    assert found is not None
    assert (found.size, controller.met) == (4, {"late": 1})


async def test_a_late_partition_comes_also_if_its_caller_gave_up_sooner() -> None:
    clock = ManualClock(skips=False)
    controller = faulty(Chances(late=1.0), clock)
    call = asyncio.create_task(controller.create("a", 4))
    await clock.until_asleep()
    call.cancel()
    await asyncio.wait([call])
    clock.advance(15.0)

    assert [partition.id for partition in await controller.partitions()] == ["a"]


async def test_a_late_partition_may_find_no_room() -> None:
    clock = ManualClock()
    controller = faulty(Chances(late=1.0), clock)
    with pytest.raises(Unavailable):
        await controller.create("a", 64)
    controller.chances = Chances()
    await controller.create("b", 1)
    clock.advance(5.0)

    controller.settle()
    assert ids(controller) == ["b"]


async def test_what_is_asked_twice_is_there_once() -> None:
    clock = ManualClock()
    controller = faulty(Chances(twice=1.0, lateness_s=5.0), clock)
    made = await controller.create("a", 4)
    clock.advance(5.0)

    assert await controller.partitions() == (made,)
    assert controller.met == {"twice": 1}


async def test_what_is_asked_twice_comes_back_if_it_was_deleted_in_between() -> None:
    clock = ManualClock()
    controller = faulty(Chances(twice=1.0, lateness_s=5.0), clock)
    await controller.create("a", 4)
    assert await controller.delete("a")
    assert await controller.get("a") is None
    clock.advance(5.0)

    assert await controller.get("a") is not None
    assert await controller.delete("a")
    clock.advance(50.0)
    assert await controller.get("a") is None


async def test_a_partition_is_lost() -> None:
    controller = faulty()
    for id in ("a", "b", "c"):
        await controller.create(id, 1)
    controller.chances = Chances(lose=1.0)

    assert len(await controller.partitions()) == 2
    assert controller.met == {"lose": 1}


async def test_a_seed_is_a_run_and_chances_are_kept() -> None:
    async def run(seed: int) -> list[bool]:
        chances = Chances(down=0.3, lose=0.1, latency_s=(0.0, 1.0))
        controller = Faulty(FakeVipu(), ManualClock(), chances, random.Random(seed))
        answered = []
        for i in range(200):
            try:
                await controller.create(str(i % 16), 4)
                answered.append(True)
            except Unavailable:
                answered.append(False)
        assert answered.count(False) == controller.met["down"]
        assert 30 < controller.met["down"] < 90
        return answered

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)
