"""The allocator's thresholds, and what empty dicts keep."""

import asyncio
import sys

import pytest

from bayplan.scheduler.heap import TRIM_EVERY_S, keep_trimming, settle
from tests.kube_net.manual_clock import ManualClock


@pytest.mark.parametrize("again", [False, True])
def test_glibc_takes_them_and_takes_them_again(again: bool) -> None:
    assert settle() is (sys.platform == "linux")


def test_dicts_that_are_empty_again_give_their_room_back() -> None:
    emptied = dict.fromkeys(map(str, range(1000)), 0)
    for key in list(emptied):
        del emptied[key]
    used = dict.fromkeys(map(str, range(1000)), 0)
    before = sys.getsizeof(emptied)

    async def main() -> None:
        clock = ManualClock(skips=False)
        trimming = asyncio.create_task(keep_trimming(clock, lambda: [emptied, used]))
        await clock.until_asleep()
        clock.advance(TRIM_EVERY_S)
        await asyncio.sleep(0)
        await clock.until_asleep()
        trimming.cancel()

    asyncio.run(main())
    assert sys.getsizeof(emptied) == sys.getsizeof({}) < before
    assert len(used) == 1000
