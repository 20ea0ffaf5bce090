"""Virtual time: an hour of waiting takes none, and the order of things is kept."""

import asyncio
import math
import time
from contextlib import suppress

import pytest

from bayplan.local.virtual import Stuck, VirtualClock, run


def test_a_day_of_sleep_takes_no_time() -> None:
    clock = VirtualClock()

    async def sleep() -> tuple[float, float]:
        await clock.sleep(86_400)
        return clock.time(), clock.wall()

    began = time.monotonic()
    at, wall = run(sleep())

    assert at == pytest.approx(86_400)
    assert wall == pytest.approx(1_767_225_600 + 86_400)
    assert time.monotonic() - began < 5


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock, woken = VirtualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async def all_of_them() -> None:
        await asyncio.gather(*(sleep(seconds) for seconds in (3.0, 0.5, 2.0, 0.1)))

    run(all_of_them())

    assert woken == [0.1, 0.5, 2.0, 3.0]


def test_a_timeout_comes_when_its_time_has_come() -> None:
    clock = VirtualClock()

    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with clock.timeout(60):
                await asyncio.Event().wait()
        return clock.time()

    assert run(wait()) == pytest.approx(60)


def test_waiting_for_what_never_comes_is_said() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="nothing is left that could happen"):
        run(wait())


def test_whoever_sleeps_until_a_time_is_not_woken_before_it() -> None:
    async def until(at: float) -> float:
        clock = VirtualClock()
        for _ in range(100):
            if clock.time() >= at:
                break
            with suppress(TimeoutError):
                async with clock.timeout(at - clock.time()):
                    await asyncio.sleep(0)  # somebody else has something to do
                    await asyncio.Event().wait()
        return clock.time()

    async def work() -> None:
        clock = VirtualClock()
        await clock.sleep(257.0655440368154)
        at = math.nextafter(clock.time(), math.inf)
        assert set(await asyncio.gather(*(until(at) for _ in range(3)))) == {at}

    run(work())
