"""One or two rows are asked in plain Python: they must say what all rows at once say."""

import random
from typing import Any

import numpy as np
import pytest

from bayplan.core.model.pods import RowKey
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.plugins.amounts import Resource
from bayplan.core.plugins.hooks import Ask
from bayplan.core.plugins.node_affinity import NodeAffinity
from bayplan.core.plugins.resources import (
    BalancedArgs,
    FitArgs,
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
    Strategy,
)
from bayplan.core.state.view import FEW, View
from bayplan.testing import World
from bayplan.testing.world import pod

GPU, CPU, GIB = "nvidia.com/gpu", "cpu", 1 << 30
RESOURCES = (Resource(CPU), Resource("memory", 3), Resource(GPU, 5))
PLUGINS = [
    NodeResourcesFit(),
    NodeResourcesFit(FitArgs(Strategy("MostAllocated", RESOURCES))),
    NodeResourcesFit(FitArgs(Strategy("LeastAllocated", RESOURCES), (GPU,))),
    NodeResourcesBalancedAllocation(),
    NodeResourcesBalancedAllocation(BalancedArgs(RESOURCES)),
    NodeAffinity(),
]


def clusters(rng: random.Random) -> World:
    """Nodes of any size, some without a resource, some with more in use than they have."""
    world = World()
    for number in range(rng.randint(1, 6)):
        labels = {key: rng.choice("12x") for key in "ab" if rng.random() < 0.7}
        has = {"cpu": rng.choice((0, 999, 64_000)), "memory": rng.choice((0, GIB, (1 << 53) - 1))}
        world.node(f"n{number}", rng.choice((0, 1, 8)), allocatable=has, labels=labels)
        for at in range(rng.randint(0, 3)):
            uses = {"cpu": rng.choice((0, 333, 50_000)), "memory": rng.choice((0, GIB // 2))}
            world.see(pod(f"p{number}-{at}", rng.choice((0, 1)), node=f"n{number}", **uses))
    return world


def newcomer(rng: random.Random) -> dict[str, Any]:
    def term() -> NodeTerm:
        asked = [
            Requirement(key, op, () if op in ("Exists", "DoesNotExist") else (rng.choice("12"),))
            for key in "ab"
            for op in rng.sample(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"), 1)
        ]
        named = (f"n{rng.randrange(4)}",)
        names = {"name_in": named} if rng.random() < 0.2 else {"name_not_in": named}
        return NodeTerm(tuple(asked[: rng.randint(0, 2)]), broken=rng.random() < 0.1, **names)

    asks: dict[str, Any] = {"cpu": rng.choice((0, 1, 1000)), "memory": rng.choice((0, GIB // 4))}
    if rng.random() < 0.5:
        asks["required"] = tuple(term() for _ in range(rng.randint(1, 2)))
    if rng.random() < 0.5:
        asks["node_selector"] = tuple((key, rng.choice("12")) for key in rng.sample("ab", 2))
    return asks


@pytest.mark.parametrize("plugin", PLUGINS, ids=range(len(PLUGINS)))
def test_a_few_rows_say_what_all_say(plugin: Any) -> None:
    rng = random.Random(7)
    seen: set[tuple[int, ...]] = set()
    for _ in range(300):
        cluster = clusters(rng).engine.cluster
        asks = pod("asks", rng.choice((0, 1)), **newcomer(rng))
        assert isinstance(asks.row, RowKey)
        ask = Ask(asks, cluster.demand(asks.row))
        for method in ("refuse", "score"):
            whole = answer(plugin, method, ask, View(cluster))
            seen.add(tuple(whole))
            for first in range(cluster.height):
                rows = np.array([first, rng.randrange(cluster.height)][: rng.randint(1, FEW)])
                few = answer(plugin, method, ask, View(cluster, rows))
                assert few == [whole[row] for row in rows], (method, asks, rows)
    assert len(seen) > 20


def answer(plugin: Any, method: str, ask: Ask, view: View) -> list[int]:
    found = getattr(plugin, method, lambda *_: None)(ask, view)
    return [0] * len(view) if found is None else [int(each) for each in found]
