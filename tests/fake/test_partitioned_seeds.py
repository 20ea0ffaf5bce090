"""Faults on, many seeds, two V-IPU controllers: no partition is leaked, none is missing."""

import os
import sys
from collections import Counter

import pytest

from tests.fake.partitioned import play

PROVE = bool(os.environ.get("BAYPLAN_PROVE"))
SEEDS = 500 if PROVE else 20
SHARES = 2
FAULTS = {"down", "refuse", "late", "twice", "unheard"}  # few meet "lose" by chance


@pytest.mark.timeout(3600 if PROVE else 300)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_every_pod_has_its_partition_and_no_other_is_left(share: int) -> None:
    played = [play(seed) for seed in range(share, SEEDS, SHARES)]

    met = Counter[str]()
    for each in played:
        for controller in each.controllers.values():
            met.update(controller.met)
    assert met.keys() >= FAULTS
    assert sum(each.kills for each in played) > 0
    assert sum(each.bound for each in played) > 10 * len(played)
    words = f"{sum(each.bound for each in played)} pods bound in {len(played)} seeds"
    sys.stdout.write(f"{words}; faults {dict(met)}\n")


def test_a_seed_is_always_the_same_story() -> None:
    one, other = play(3), play(3)

    assert [(c.pod.name, c.pod.node, c.gone) for c in one.history] == [
        (c.pod.name, c.pod.node, c.gone) for c in other.history
    ]
