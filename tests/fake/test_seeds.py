"""Faults on, many seeds: every pod that fits is bound once, and the laws hold after every step."""

import os
import sys
from collections import Counter

import pytest

from tests.fake.simulation import Simulation, met, play

PROVE = bool(os.environ.get("BAYPLAN_PROVE"))
SEEDS = 1_000 if PROVE else 68
SHARES = 4  # tests, which run beside each other; each meets every fault
FAULTS = {
    "busy",
    "broken_watch",
    "conflict",
    "dropped_events",
    "error",
    "expired_watch",
    "hang",
    "late_events",
    "lost_answer",
    "refused",
    "repeated_events",
}


@pytest.mark.timeout(3600 if PROVE else 300)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_every_pod_that_fits_is_bound_once(share: int) -> None:
    played = [play(seed) for seed in range(share, SEEDS, SHARES)]

    assert met(played).keys() == FAULTS
    assert sum(simulation.kills for simulation in played) > 0
    assert sum(simulation.law_steps for simulation in played) > 100 * len(played)
    sys.stdout.write(f"{summary(played)}\n")


def test_a_seed_is_always_the_same_story() -> None:
    one, other = play(7), play(7)

    assert [(c.pod.name, c.pod.node, c.gone) for c in one.history] == [
        (c.pod.name, c.pod.node, c.gone) for c in other.history
    ]


def summary(played: list[Simulation]) -> str:
    total = Counter[str]()
    for simulation in played:
        total["pods"] += simulation.pods
        total["versions"] += len(simulation.history)
        total["kills"] += simulation.kills
        total["law checks"] += simulation.law_steps
    told = ", ".join(f"{count} {name}" for name, count in total.items())
    return f"{len(played)} seeds: {told}; faults {met(played)}"
