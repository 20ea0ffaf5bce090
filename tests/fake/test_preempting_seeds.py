"""Faults on, many seeds, priorities and gangs: nobody goes in vain, and nothing stays kept."""

import os
import sys

import pytest

from tests.fake.preempting import play

PROVE = bool(os.environ.get("BAYPLAN_PROVE"))
SEEDS = 500 if PROVE else 12
SHARES = 4


@pytest.mark.timeout(3600 if PROVE else 300)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_nobody_goes_in_vain(share: int) -> None:
    played = [play(seed) for seed in range(share, SEEDS, SHARES)]

    assert sum(each.preemptions for each in played) > len(played)
    assert sum(each.gangs for each in played) > len(played)
    assert sum(each.kills for each in played) > 0
    words = f"{sum(each.preemptions for each in played)} preemptions in {len(played)} seeds"
    sys.stdout.write(f"{words}\n")
