"""A part of one device, asked of one or two rows in plain Python: it must say what all rows say."""

import random

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.core.devices.shared import Policy
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.devices import Devices, DevicesArgs
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.view import FEW, View
from bayplan.testing import World, check_plugin
from bayplan.testing.world import asks, cards, pod

GIB = 1024


def newcomer(rng: random.Random, name: str) -> Pod:
    """What is asked of one card: some of its memory, some of its compute, or both."""
    mib, percent = rng.choice(
        ((GIB, 0), (GIB // 2, 0), (3 * GIB, 30), (16 * GIB, 0), (0, 50), (0, 100))
    )
    of_memory, of_compute = asks(mib=mib), asks(percent=percent)
    return pod(name, devices=(of_memory if mib else ()) + (of_compute if percent else ()))


def worlds(rng: random.Random) -> World:
    """Nodes with a few cards, healthy or not, of which some are held, or nobody knows by whom; one
    without cards, and one that is gone."""
    world = World()
    world.node("plain")
    world.node("gone")
    for number in range(5):
        sizes = [rng.choice((4, 8, 16)) * GIB for _ in range(rng.randint(1, 4))]
        facts = cards(*sizes, name=f"n{number}-")
        (pool,) = facts["pools"]
        devices = tuple(replace(each, healthy=rng.random() < 0.8) for each in pool.devices)
        facts["pools"] = (replace(pool, devices=devices, unknown=rng.random() < 0.1),)
        world.node(f"n{number}", 0, **facts)
    for number in range(25):
        world.see(newcomer(rng, f"p{number}"))
    world.engine.cluster.remove_node("gone")
    return world


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_a_few_rows_say_what_all_say(policy: Policy) -> None:
    rng = random.Random(5)
    plugin, seen = Devices(DevicesArgs(policy)), set[tuple[int, ...]]()
    for _ in range(60):
        cluster = worlds(rng).engine.cluster
        newcomers = [newcomer(rng, f"q{number}") for number in range(4)]
        check_plugin(plugin, cluster, newcomers)
        for each in newcomers:
            ask = Ask(each, cluster.demand(each.row))
            for prepared in (plugin.refuser(ask), plugin.scorer(ask, cluster)):
                whole = prepared(View(cluster))
                assert whole is not None
                seen.add(tuple(whole.tolist()))
                for _ in range(6):
                    rows = np.array(rng.sample(range(cluster.height), rng.randint(1, FEW)))
                    few = prepared(View(cluster, rows))
                    assert few is not None
                    assert few.tolist() == whole[rows].tolist()
    assert len(seen) > 60


def test_where_no_node_has_cards() -> None:
    cluster, asked = World(a=8).engine.cluster, newcomer(random.Random(1), "q")
    ask = Ask(asked, cluster.demand(asked.row))
    refused = Devices().refuser(ask)(View(cluster))

    assert refused is not None
    assert refused.tolist() == [True]
    assert Devices().scorer(ask, cluster)(View(cluster)) is None
