"""Time-outs of the real clock, which share timers."""

import asyncio

import pytest

from bayplan.kube import clock as clocks
from bayplan.kube.clock import RealClock

SHORT_S = 0.05


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> RealClock:
    monkeypatch.setattr(clocks, "_SHARED_S", SHORT_S)
    return RealClock()


async def late(clock: RealClock, seconds: float, work_s: float) -> bool:
    try:
        async with clock.timeout(seconds):
            await asyncio.sleep(work_s)
    except TimeoutError:
        return True
    return False


def test_of_several_that_began_one_after_the_other_only_the_late_ones_end(clock: RealClock) -> None:
    async def story() -> list[bool]:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for work_s in (9.0, 0.0, 9.0, 0.02):
                tasks.append(group.create_task(late(clock, SHORT_S, work_s)))
                await asyncio.sleep(0.01)
        return [task.result() for task in tasks]

    assert asyncio.run(story()) == [True, False, True, False]


def test_each_has_its_whole_time(clock: RealClock) -> None:
    async def story() -> float:
        assert not await late(clock, SHORT_S, 0.0)  # its timer rings for the next one too early
        await asyncio.sleep(SHORT_S / 2)
        began = clock.time()
        assert await late(clock, SHORT_S, 9.0)
        return clock.time() - began

    assert asyncio.run(story()) >= SHORT_S * 0.99


def test_one_that_is_slow_to_end_does_not_keep_the_others(clock: RealClock) -> None:
    async def slow() -> bool:
        try:
            async with clock.timeout(SHORT_S):
                try:
                    await asyncio.sleep(9.0)
                finally:
                    await asyncio.sleep(4 * SHORT_S)
        except TimeoutError:
            return True
        return False

    async def story() -> list[bool]:
        first = asyncio.create_task(slow())
        await asyncio.sleep(SHORT_S / 2)
        return [await late(clock, SHORT_S, 9.0), first.done(), await first]

    assert asyncio.run(story()) == [True, False, True]


def test_a_cancelled_one_is_cancelled(clock: RealClock) -> None:
    async def story() -> None:
        task = asyncio.create_task(late(clock, SHORT_S, 9.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_those_that_are_over_leave_nothing(clock: RealClock) -> None:
    async def story() -> int:
        for millis in range(200):
            assert not await late(clock, SHORT_S + millis / 1e3, 0.0)
        assert await late(clock, SHORT_S + 0.2, 9.0)  # the longest of all
        return len(clock._limits)

    assert asyncio.run(story()) == 0


def test_one_event_loop_after_another(clock: RealClock) -> None:
    assert not asyncio.run(late(clock, SHORT_S, 0.0))  # its timer never rings
    assert asyncio.run(late(clock, SHORT_S, 9.0))


def test_one_that_is_late_and_cancelled_is_cancelled(clock: RealClock) -> None:
    async def slow(is_late: asyncio.Event) -> None:
        async with clock.timeout(SHORT_S):
            try:
                await asyncio.sleep(9.0)
            finally:
                is_late.set()
                await asyncio.sleep(9.0)

    async def story() -> None:
        is_late = asyncio.Event()
        task = asyncio.create_task(slow(is_late))
        await is_late.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_one_within_another(clock: RealClock) -> None:
    async def story() -> list[str]:
        ended = []
        try:
            async with clock.timeout(3 * SHORT_S):
                try:
                    async with clock.timeout(SHORT_S):
                        await asyncio.sleep(9.0)
                except TimeoutError:
                    ended.append("inner")
                await asyncio.sleep(9.0)
        except TimeoutError:
            ended.append("outer")
        return ended

    assert asyncio.run(story()) == ["inner", "outer"]


def test_one_that_was_made_long_before_still_ends(clock: RealClock) -> None:
    async def story() -> bool:
        limit = clock.timeout(SHORT_S)
        assert await late(clock, SHORT_S, 9.0)
        try:
            async with limit:
                await asyncio.sleep(9.0)
        except TimeoutError:
            return True
        return False

    assert asyncio.run(story())
