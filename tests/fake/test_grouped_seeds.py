"""Faults on, many seeds, PodGroups whose owners make members anew: no gang stays in part."""

import os
import sys

import pytest

from tests.fake.grouped import play

PROVE = bool(os.environ.get("BAYPLAN_PROVE"))
SEEDS = 400 if PROVE else 12
SHARES = 4


@pytest.mark.timeout(3600 if PROVE else 300)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_no_gang_stays_in_part(share: int) -> None:
    played = [play(seed) for seed in range(share, SEEDS, SHARES)]

    assert sum(len(each.started) for each in played) > len(played)
    assert sum(each.kills for each in played) > 0
    words = f"{sum(len(each.started) for each in played)} gangs started in {len(played)} seeds"
    sys.stdout.write(f"{words}, {sum(each.reservations for each in played)} got places kept\n")
