"""Whoever fits by the rule starts soon: stories by seeds, with either rule, on virtual time."""

import os
import random

import pytest

from bayplan.elastic.planner import Settings
from bayplan.elastic.sizes import Policy
from bayplan.local.faults import Chances
from tests.elastic.stage import Stage, elastic, play

SEEDS = range(60 if os.environ.get("BAYPLAN_PROVE") else 2)
CLUSTERS = ({"left": 3, "right": 3}, {"one": 2, "two": 2, "three": 2}, {"only": 6})
# Two statuses that the scheduler has written in the meantime cost a look each, not a second each.
SOON_S, SOON_FROM_AFAR_S = 1.5, 4.5
STEP_S = 0.1


async def starts(stage: Stage, name: str, within_s: float) -> None:
    """It comes, and has its minimum soon."""
    await stage.submit(elastic(name, 2, 5))
    for _ in range(round(within_s / STEP_S)):
        await stage.pass_time(STEP_S)
        if stage.workers().get(name, 0) >= 2:
            return
    raise AssertionError(f"{name} has not started in {within_s} s: {stage.workers()}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("rule", ["best", "faithful"])
def test_a_third_job_and_one_after_another_has_gone_start_soon(
    rule: str, far: bool, seed: int
) -> None:
    """`far`: each answer of the API takes up to 0.2 s."""
    rng = random.Random(seed)
    soon_s = SOON_FROM_AFAR_S if far else SOON_S

    async def story(stage: Stage) -> None:
        stage.faults.chances = Chances(latency=0.2 if far else 0.0)
        names = rng.sample("abcd", 3)
        for name in names[:2]:
            await stage.submit(elastic(name, 2, 5))
            await stage.pass_time(rng.uniform(3, 6))
        await starts(stage, names[2], soon_s)
        await stage.pass_time(rng.uniform(0, 3))
        await stage.remove(rng.choice(names))
        await stage.pass_time(rng.uniform(0, 2))
        await starts(stage, "e", soon_s)
        assert stage.standin.overtaken == []

    policy = Policy(allocator="best" if rule == "best" else "faithful")
    play(story, Settings(policy=policy), **rng.choice(CLUSTERS))
