"""GPU best fit beside a naive picker that looks at one node after the other."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bayplan.core.engine.profile import Enabled, PluginConfig, PluginSet, ProfileConfig
from bayplan.core.plugins.toy import GpuBestFit, GpuBestFitArgs
from bayplan.core.state.cluster import Cluster
from bayplan.testing import World, check_plugin
from bayplan.testing.world import node, pod

Gpus = tuple[int, int]  # of a node: how many it has, how many are used
Best = Callable[[Gpus, int], int]  # the larger, the better

RULES = ("leastLeftOver", "mostUsed")


def toy(rule: str = "leastLeftOver", resource: str = "nvidia.com/gpu") -> ProfileConfig:
    only = PluginSet(enabled=(Enabled("GpuBestFit"),), disabled=(Enabled("*"),))
    args = PluginConfig("GpuBestFit", {"rule": rule, "resource": resource})
    return ProfileConfig("toyscheduler", {"score": only}, (args,))


def world_of(nodes: Sequence[int], rule: str) -> World:
    return World({f"n{i}": gpus for i, gpus in enumerate(nodes)}, config=toy(rule))


def least_left_over(gpus: Gpus, asked: int) -> int:
    has, used = gpus
    return -(has - used - asked) if has else 1


def most_used(gpus: Gpus, asked: int) -> int:
    """The original's rule: the largest number in use."""
    _, used = gpus
    return used


def naive(nodes: dict[str, Gpus], asked: int, best: Best) -> set[str]:
    """The best nodes among those with room; any of them will do."""
    room = {name: gpus for name, gpus in nodes.items() if gpus[0] - gpus[1] >= asked}
    top = max((best(gpus, asked) for gpus in room.values()), default=0)
    return {name for name, gpus in room.items() if best(gpus, asked) == top}


@pytest.mark.parametrize(
    ("rule", "best"), [("leastLeftOver", least_left_over), ("mostUsed", most_used)]
)
@settings(deadline=None)
@given(
    sizes=some.lists(some.integers(0, 99) | some.integers(0, 8), min_size=1, max_size=8),
    asks=some.lists(some.integers(0, 99) | some.integers(0, 4), max_size=16),
    leaving=some.sets(some.integers(0, 15)),
)
def test_it_picks_what_the_naive_picker_picks(
    rule: str, best: Best, sizes: list[int], asks: list[int], leaving: set[int]
) -> None:
    world, again = world_of(sizes, rule), world_of(sizes, rule)
    nodes = {f"n{i}": (has, 0) for i, has in enumerate(sizes)}
    for i, asked in enumerate(asks):
        name = f"pod-{i}"
        world.submit(name, gpus=asked, scheduler="toyscheduler")
        again.submit(name, gpus=asked, scheduler="toyscheduler")
        allowed = naive(nodes, asked, best)
        assert world.running().get(name, "") in (allowed or {""})
        assert world.running() == again.running()  # ties go one way
        if place := world.running().get(name):
            has, used = nodes[place]
            if i in leaving:
                world.finish(name)
                again.finish(name)
            else:
                nodes[place] = (has, used + asked)


def test_a_small_node_is_filled_before_a_large_one_is_broken_into() -> None:
    world = World(small=2, large=8, config=toy())
    world.submit("fit", gpus=1, scheduler="toyscheduler")

    assert world.running() == {"fit": "small"}


def test_the_originals_rule_looks_at_what_is_used_not_at_what_is_left() -> None:
    """5 of 8 used beats 1 of 2 used, though it leaves 2 over and not 0."""
    for rule, expected in (("leastLeftOver", "small"), ("mostUsed", "large")):
        world = World(small=2, large=8, config=toy(rule))
        world.see(pod("a", gpus=5, node="large"))
        world.see(pod("b", gpus=1, node="small"))
        world.submit("new", gpus=1, scheduler="toyscheduler")

        assert world.running() == {"new": expected}


def test_a_pod_without_gpus_keeps_off_the_nodes_that_have_some() -> None:
    world = World(gpus=8, plain=0, config=toy())
    world.submit("web", scheduler="toyscheduler")

    assert world.running() == {"web": "plain"}


def test_where_all_nodes_have_gpus_a_pod_without_goes_where_fewest_are_free() -> None:
    world = World(a=8, b=8, c=8, config=toy())
    world.see(pod("train", gpus=7, node="b"))
    world.submit("web", scheduler="toyscheduler")

    assert world.running() == {"web": "b"}


def test_from_99_left_over_on_nodes_are_alike() -> None:
    world = World(a=400, b=300, c=200, d=98, config=toy())
    world.submit("new", scheduler="toyscheduler")
    world.submit("wide", gpus=150, scheduler="toyscheduler")

    assert world.running() == {"new": "d", "wide": "c"}


def test_filters_still_refuse() -> None:
    world = World(config=toy())
    world.node("tight", 1, unschedulable=True)
    world.node("roomy", 8)
    world.node("busy", 1, allocatable={"cpu": 500})
    world.submit("new", gpus=1, cpu=1000, scheduler="toyscheduler")

    assert world.running() == {"new": "roomy"}


def test_a_cluster_without_gpus_takes_pods_without_gpus() -> None:
    world = World(config=toy())
    bare = node("a")
    del bare.allocatable["nvidia.com/gpu"]
    world.engine.cluster.add_node(bare)
    world.submit("web", scheduler="toyscheduler")

    assert world.running() == {"web": "a"}


def test_another_resource_can_be_packed() -> None:
    world = World(config=toy(resource="amd.com/gpu"))
    world.node("large", 0, allocatable={"amd.com/gpu": 8})
    world.node("small", 0, allocatable={"amd.com/gpu": 2})
    world.submit("new", requests={"amd.com/gpu": 1}, scheduler="toyscheduler")

    assert world.running() == {"new": "small"}


@pytest.mark.parametrize("rule", RULES)
def test_the_checker_accepts_it(rule: str) -> None:
    world = World(a=8, b=4, c=0, d=200)
    world.see(pod("there", gpus=120, node="d"))
    world.see(pod("too-much", gpus=6, node="b"))  # more than there is
    cluster: Cluster = world.engine.cluster
    cluster.remove_node("c")
    args = GpuBestFitArgs(rule)  # type: ignore[arg-type]

    check_plugin(GpuBestFit(args), cluster, [pod("none"), pod("one", gpus=1), pod("all", gpus=8)])
