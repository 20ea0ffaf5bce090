"""Partitions: buddy blocks against brute force, and pods that get them from a shared estate."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.core.devices import partition
from bayplan.core.engine.what_if import WhatIf
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model import steps as ask_for
from bayplan.core.model.devices import Held, HeldDevice
from bayplan.core.model.partitions import Estate, Partition, Spot
from bayplan.core.model.pods import Gang, Lifecycle
from bayplan.core.state import laws
from bayplan.testing.world import VIPU, World, asks, ipus, pod

HEAD: dict[str, Any] = {"labels": dict([VIPU])}
NAME = "vipu:8090"


def world(*estates: Estate, heads: int = 2, **facts: Any) -> World:
    made = World(**facts)
    for i in range(1, heads + 1):
        made.node(f"head-{i}", 0, **HEAD)
    for estate in estates or (ipus(),):
        made.estate(estate)
    return made


def want(world: World, name: str, count: int, **facts: Any) -> None:
    world.submit(name, devices=asks(ipus=count), **facts)


def check(world: World) -> None:
    assert laws.broken(world.engine.cluster) == []


# ---- the model


SIZES = (1, 2, 4, 8, 16)


def legal(spots: tuple[Spot, ...], size: int) -> set[int]:
    """All blocks, found the slow way: every set of so many that fills an aligned stretch."""
    found = set()
    for domain in {spot.domain for spot in spots}:
        own = {spot.at: i for i, spot in enumerate(spots) if spot.domain == domain}
        for first in range(0, max(own) + 1, size):
            if all(at in own for at in range(first, first + size)):
                found.add(sum(1 << own[at] for at in range(first, first + size)))
    return found


def whole_blocks(spots: tuple[Spot, ...], free: int) -> tuple[int, ...]:
    """How many legal blocks are free, the largest size first."""
    return tuple(sum(b & free == b for b in legal(spots, size)) for size in reversed(SIZES))


@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=2),
    st.integers(0, (1 << 32) - 1),
    st.sampled_from(SIZES),
)
@settings(max_examples=400)
def test_a_block_is_found_where_there_is_one_and_the_largest_stay_whole(
    domains: list[int], free: int, size: int
) -> None:
    spots = tuple(Spot(d, at) for d, count in enumerate(domains) for at in range(count))
    free &= (1 << len(spots)) - 1
    there = {block for block in legal(spots, size) if block & free == block}
    chosen = partition.choose(spots, free, size)
    assert (chosen is None) == (not there)
    look = partition.look(spots, free, size, "binpack")
    assert (look >= 0) == bool(there)
    assert (look == partition.NEVER) == (not legal(spots, size))
    if chosen is not None:
        assert chosen in there
        best = max(whole_blocks(spots, free & ~block) for block in there)
        assert whole_blocks(spots, free & ~chosen) == best


@pytest.mark.parametrize("size", [0, 3, 6, 12, -4])
def test_only_powers_of_two_are_given(size: int) -> None:
    spots = tuple(Spot(0, at) for at in range(16))
    assert partition.blocks(spots, size) == ()


@given(st.lists(st.sampled_from((1, 2, 4, 8)), max_size=40))
@settings(max_examples=200)
def test_packing_never_refuses_what_some_order_of_blocks_could_hold(
    sizes: list[int],
) -> None:
    """Best fit keeps a buddy allocator's promise: without frees in between, a request is refused
    only if no legal choice of blocks for all that came could have left room for it."""
    spots = tuple(Spot(0, at) for at in range(16))
    free, given_sizes = (1 << 16) - 1, list[int]()
    for size in sizes:
        block = partition.choose(spots, free, size)
        if block is None:
            assert not holds_all(spots, sorted([*given_sizes, size], reverse=True), (1 << 16) - 1)
            return
        free &= ~block
        given_sizes.append(size)


def holds_all(spots: tuple[Spot, ...], sizes: list[int], free: int) -> bool:
    if not sizes:
        return True
    blocks = [b for b in legal(spots, sizes[0]) if b & free == b]
    return any(holds_all(spots, sizes[1:], free & ~b) for b in blocks[:1])


# ---- deciding


def test_head_nodes_share_what_the_controller_has() -> None:
    made = world()
    want(made, "a", 8)
    want(made, "b", 8)
    want(made, "c", 1)
    assert set(made.running()) == {"a", "b"}
    assert "no free partition of 1 graphcore.ai/ipu" in made.waiting()["c"]
    assert not set(made.devices["a"]) & set(made.devices["b"])
    made.finish("a")
    made.wait(2)
    assert "c" in made.running()
    check(made)


def test_nodes_without_the_label_reach_nothing() -> None:
    made = world()
    made.node("plain", 0)
    want(made, "a", 4, node_selector=(("kubernetes.io/hostname", "plain"),))
    assert "reach no controller for 4 graphcore.ai/ipu" in made.waiting()["a"]
    made.node("plain", 0, **HEAD)
    made.wait(2)
    assert made.running() == {"a": "plain"}


@pytest.mark.parametrize("count", [3, 32])
def test_what_can_never_be_made_is_said_so(count: int) -> None:
    made = world()
    want(made, "a", count)
    assert f"never have a partition of {count} graphcore.ai/ipu" in made.waiting()["a"]


def test_no_controller_has_told_anything_yet() -> None:
    made = World()
    made.node("head-1", 0, **HEAD)
    want(made, "a", 4)
    assert "reach no controller" in made.waiting()["a"]
    made.estate(ipus())
    made.wait(2)
    assert made.running() == {"a": "head-1"}


def test_a_controller_that_is_down_closes_its_estate() -> None:
    made = world()
    made.tell(on.EstateLost(NAME, "time-out"))
    want(made, "a", 4)
    assert "does not answer" in made.waiting()["a"]
    made.estate(ipus())
    made.wait(2)
    assert "a" in made.running()


def test_allocations_are_estates_of_their_own() -> None:
    made = world(ipus("vipu:8090.one", 8), ipus("vipu:8090.two", 4))
    want(made, "eight", 8)
    want(made, "four", 4)
    want(made, "more", 4)
    assert set(made.running()) == {"eight", "four"}
    check(made)


def test_the_smallest_block_that_fits_is_broken_into() -> None:
    made = world()
    want(made, "a", 2)
    want(made, "b", 1)
    want(made, "c", 1)
    assert made.devices["c"] != made.devices["b"]
    want(made, "big", 8)
    assert "big" in made.running()
    check(made)


def test_partitions_of_others_are_left_alone() -> None:
    made = world()
    made.estate(
        ipus(), Partition("somebody", tuple(f"ag{i}.{k}" for i in (0, 1) for k in range(4)))
    )
    want(made, "a", 16)
    want(made, "b", 8)
    assert set(made.running()) == {"b"}
    made.estate(ipus(), Partition("bp-uid-b", tuple(made.devices["b"])))
    made.finish("b")
    made.wait(2)
    assert "a" in made.running()
    check(made)


def test_a_partition_that_nobody_owns_is_deleted_after_a_while() -> None:
    made = world()
    stray = Partition("bp-uid-gone", ("ag0.0",))
    other = Partition("else-1", ("ag0.1",))
    for seconds in (0, 20, 20):
        made.now += seconds
        made.estate(ipus(), stray, other)
    gone = [each for each in made.effects if isinstance(each, do.Dismantle)]
    assert gone == [do.Dismantle(NAME, "bp-uid-gone")]
    want(made, "a", 16)
    assert "a" not in made.running()
    made.estate(ipus(), stray)
    made.tell(on.PartitionGone(NAME, "bp-uid-gone"))
    made.wait(2)
    assert "a" in made.running()


@pytest.mark.parametrize("controlled", [True, False])
def test_a_pod_whose_partition_is_gone_is_evicted_or_reported(controlled: bool) -> None:
    made = world()
    want(made, "a", 4, controlled=controlled)
    mine = Partition("bp-uid-a", tuple(made.devices["a"]))
    made.estate(ipus(), mine)
    made.effects.clear()
    for seconds in (60, 20, 20):
        made.now += seconds
        made.estate(ipus())
    (effect,) = [e for e in made.effects if isinstance(e, do.Evict | do.Report)]
    assert isinstance(effect, do.Evict if controlled else do.Report)
    assert "partition is gone" in str(effect)


def test_real_devices_take_the_place_of_the_plan_and_others_plans_give_way() -> None:
    made = world(binds="hold")
    want(made, "a", 8)
    want(made, "b", 4)
    planned = {name: made.devices[name] for name in ("a", "b")}
    effect = next(e for e in made.effects if isinstance(e, do.Bind))
    assert effect.placement.pod.name == "a"
    (held,) = effect.placement.held
    other = tuple(ipus().devices[8:16])
    assert planned["b"] == [device.id for device in other[:4]]
    real = [(type(held.devices[0]))(d.id, d.index, 1) for d in other]
    made.tell(on.PartitionMade("uid-a", (type(held)("main", held.resource, NAME, tuple(real)),)))
    check(made)
    line = made.engine.cluster.estates.lines[NAME]
    assert line.free.bit_count() == 4
    assert max(line.holders) == 1


def test_a_size_that_was_refused_waits_until_something_is_freed() -> None:
    made = world(binds="hold")
    want(made, "a", 4)
    made.tell(on.PartitionRefused(NAME, 4))
    made.answer("a", ok=False)
    assert do.Dismantle(NAME, "bp-uid-a") in made.effects
    made.wait(5)
    assert "refused a partition of 4" in made.waiting()["a"]
    want(made, "small", 2)
    assert "small" in made.running()
    made.tell(on.PartitionGone(NAME, "bp-uid-a", freed=False))  # there was none
    made.wait(15)
    assert "a" not in made.running()
    made.tell(on.PartitionGone(NAME, "bp-other"))
    made.wait(15)
    assert "a" in made.running()


def test_a_refusal_does_not_last_for_ever() -> None:
    made = world(binds="hold")
    made.tell(on.PartitionRefused(NAME, 1))
    want(made, "a", 4)
    assert "a" not in made.running()
    made.now += 301
    made.estate(ipus())
    assert "a" in made.running()


def test_victims_may_stand_on_any_head_node() -> None:
    made = world()
    want(made, "low", 16, priority=1, node_selector=(("kubernetes.io/hostname", "head-1"),))
    want(made, "high", 4, priority=9, node_selector=(("kubernetes.io/hostname", "head-2"),))
    (asked,) = [each for each in made.effects if isinstance(each, do.Preempt)]
    assert [victim.name for victim in asked.victims] == ["low"]
    assert asked.node == "head-2"
    made.finish("low")
    assert made.running() == {"high": "head-2"}
    check(made)


def test_only_as_many_go_as_must() -> None:
    made = world()
    for name, priority in (("one", 1), ("two", 2), ("three", 3), ("four", 4)):
        want(made, name, 4, priority=priority)
    want(made, "high", 4, priority=9)
    (asked,) = [each for each in made.effects if isinstance(each, do.Preempt)]
    assert [victim.name for victim in asked.victims] == ["one"]


def test_a_pod_on_a_node_that_vanished_keeps_its_devices() -> None:
    made = world()
    want(made, "a", 16, node_selector=(("kubernetes.io/hostname", "head-1"),))
    made.tell(on.NodeGone("head-1"))
    check(made)
    want(made, "b", 1)
    assert "b" not in made.running()
    made.finish("a")
    assert do.Dismantle(NAME, "bp-uid-a") in made.effects
    made.wait(2)
    assert made.running() == {"b": "head-2"}
    check(made)


def test_blocks_do_not_cross_link_domains() -> None:
    spots = tuple(Spot(i // 4, i % 4) for i in range(8))
    assert partition.blocks(spots, 8) == ()
    pairs = {sum(1 << i for i in pair) for pair in combinations(range(8), 2)}
    assert set(partition.blocks(spots, 2)) <= pairs


# ---- what went wrong once


def told(made: World, kind: type) -> list[Any]:
    return [each for each in made.effects if isinstance(each, kind)]


def listed_for_long(made: World, *partitions: Partition, estate: Estate | None = None) -> None:
    for _ in range(3):
        made.now += 40
        made.estate(estate or ipus(), *partitions)


def test_a_pod_that_says_no_more_what_it_holds_keeps_its_partition() -> None:
    made = world()
    want(made, "a", 4)
    pod = made.engine.cluster.pods["uid-a"].pod
    mine = Partition("bp-uid-a", tuple(made.devices["a"]))
    made.see(replace(pod, held=None))
    listed_for_long(made, mine)
    assert told(made, do.Dismantle) == []
    want(made, "b", 16)
    assert "b" not in made.running()
    check(made)


def test_a_pod_whose_machine_left_the_inventory_keeps_its_partition() -> None:
    made = world()
    want(made, "a", 4)
    mine = Partition("bp-uid-a", tuple(made.devices["a"]))
    less = replace(ipus(), devices=ipus().devices[4:], spots=ipus().spots[4:])
    listed_for_long(made, mine, estate=less)
    assert told(made, do.Dismantle) == []
    check(made)


def test_a_pod_that_cannot_be_read_keeps_its_partition() -> None:
    made = world()
    want(made, "a", 4)
    made.tell(on.PodUnreadable("uid-a", made.running()["a"]))
    listed_for_long(made, Partition("bp-uid-a", tuple(made.devices["a"])))
    assert told(made, do.Dismantle) == []


def test_what_is_left_on_another_controller_is_deleted_though_the_pod_runs() -> None:
    made = world(ipus("one:1:c"), ipus("two:1:c"))
    want(made, "a", 4)
    (home,) = [n for n, line in made.engine.cluster.estates.lines.items() if line.pods]
    other = "two:1:c" if home == "one:1:c" else "one:1:c"
    listed_for_long(made, Partition("bp-uid-a", ("ag0.0",)), estate=ipus(other))
    assert told(made, do.Dismantle)[0] == do.Dismantle(other, "bp-uid-a")


def test_a_gang_has_its_victims_on_another_head_node() -> None:
    made = world()
    for i in range(4):
        want(made, f"low{i}", 4, priority=1, node_selector=(("kubernetes.io/hostname", "head-1"),))
    gang = Gang("default/g", 2)
    there = (("kubernetes.io/hostname", "head-2"),)
    for i in range(2):
        want(made, f"g{i}", 4, priority=9, gang=gang, node_selector=there)
    victims = [pod.name for plan in told(made, do.Preempt) for pod in plan.victims]
    assert len(victims) == 2
    for name in victims:
        made.finish(name)
    made.wait(20)
    assert {"g0", "g1"} <= made.running().keys()
    check(made)


def test_what_is_kept_on_another_head_node_gives_way_to_the_more_important() -> None:
    made = world()
    first, second = ((("kubernetes.io/hostname", f"head-{i}"),) for i in (1, 2))
    want(made, "low", 16, priority=1, node_selector=first)
    want(made, "mid", 16, priority=5, node_selector=first)
    want(made, "high", 16, priority=9, node_selector=second)
    made.finish("low")
    made.wait(20)
    assert made.running() == {"high": "head-2"}
    check(made)


def test_a_plan_of_devices_that_are_no_more_is_replaced() -> None:
    made = world(binds="hold")
    want(made, "a", 4)
    want(made, "b", 4)
    less = replace(ipus(), devices=ipus().devices[4:], spots=ipus().spots[4:])
    made.estate(less)
    real = tuple(HeldDevice(d.id, d.index, 1) for d in ipus().devices[4:8])
    made.tell(on.PartitionMade("uid-a", (Held("main", "graphcore.ai/ipu", NAME, real),)))
    check(made)


def test_a_stranger_that_becomes_smaller_makes_room() -> None:
    made = world()
    made.estate(ipus(), Partition("hand", tuple(d.id for d in ipus().devices[:8])))
    want(made, "a", 8)
    want(made, "b", 4)
    assert set(made.running()) == {"a"}
    made.estate(ipus(), Partition("hand", ("ag0.0",)))
    made.wait(2)
    assert set(made.running()) == {"a", "b"}


def test_after_a_restart_nobody_else_goes_for_a_nominee_of_another_head_node() -> None:
    made = world()
    first, second = ((("kubernetes.io/hostname", f"head-{i}"),) for i in (1, 2))
    want(made, "v1", 8, priority=1, node_selector=first)
    want(made, "v2", 8, priority=1, node_selector=first)
    going = made.engine.cluster.pods["uid-v1"].pod
    going = replace(going, terminating=True, lifecycle=Lifecycle(preempted=True))
    made.see(going)
    made.effects.clear()
    want(made, "high", 8, priority=9, node_selector=second, nominated="head-2")
    assert told(made, do.Preempt) == []


def test_evictions_have_one_order_whatever_was_asked_before() -> None:
    made = world()
    want(made, "b", 4, controlled=True)
    want(made, "a", 4, controlled=True)
    WhatIf(made.engine).ask([ask_for.Evict(("default/a",))])
    listed_for_long(made)
    assert [each.pod.name for each in told(made, do.Evict)][:2] == ["a", "b"]


def test_devices_that_two_pods_say_they_hold_are_reported() -> None:
    made = world()
    want(made, "a", 4)
    other = replace(
        pod("b", devices=asks(ipus=4)),
        node="head-1",
        held=made.engine.cluster.pods["uid-a"].pod.held,
    )
    made.see(other)
    (said,) = told(made, do.Report)
    assert said.text.endswith("of vipu:8090 are held by pod default/b and another")
    check(made)


def made_of(first: int, size: int) -> tuple[Held, ...]:
    devices = tuple(HeldDevice(d.id, d.index, 1) for d in ipus().devices[first : first + size])
    return (Held("main", "graphcore.ai/ipu", NAME, devices),)


def test_a_victim_that_gets_others_inside_the_place_kept_for_its_preemptor() -> None:
    made = world(binds="hold")
    want(made, "low", 4, priority=1)
    want(made, "high", 16, priority=9)
    made.tell(on.PartitionMade("uid-low", made_of(8, 4)))
    check(made)
    line = made.engine.cluster.estates.lines[NAME]
    assert sum(line.holders) == 20


def test_a_partition_over_two_allocations_of_a_controller_stays_its_pods() -> None:
    both = [ipus(f"vipu:8090:{name}", 4, site="vipu:8090") for name in ("a", "b")]
    other = replace(both[1], devices=tuple(replace(d, id=f"x{d.id}") for d in both[1].devices))
    made = world(both[0], other)
    want(made, "p", 4)
    home = next(n for n, line in made.engine.cluster.estates.lines.items() if line.pods)
    (away,) = [each for each in (both[0], other) if each.name != home]
    listed_for_long(made, Partition("bp-uid-p", (away.devices[0].id,)), estate=away)
    assert told(made, do.Dismantle) == []


def test_nobody_is_preempted_because_a_controller_refuses() -> None:
    made = world(binds="hold")
    for i in range(2):
        want(made, f"low{i}", 4, priority=1)
        made.answer(f"low{i}")
    want(made, "high", 4, priority=9)
    made.tell(on.PartitionRefused(NAME, 4))
    made.answer("high", ok=False)
    made.wait(30)
    assert told(made, do.Preempt) == []
    assert "refused a partition of 4" in made.waiting()["high"]


def test_whoever_waits_hears_that_a_partition_lies_elsewhere_than_planned() -> None:
    made = world(binds="hold")
    want(made, "a", 4)
    want(made, "b", 4)
    want(made, "c", 4)
    want(made, "large", 8)
    assert "large" not in made.running()
    plans = {name: made.devices[name][0] for name in ("a", "b", "c")}
    assert plans == {"a": "ag0.0", "b": "ag1.0", "c": "ag2.0"}
    made.tell(on.PodGone("uid-b"))
    made.wait(2)
    assert "large" not in made.running()
    made.tell(on.PartitionMade("uid-c", made_of(4, 4)))  # beside a
    made.wait(2)
    assert "large" in made.running()
    check(made)


def test_a_refusal_ends_when_something_is_freed_and_not_before() -> None:
    made = world(binds="hold")
    line = made.engine.cluster.estates.lines[NAME]
    want(made, "stays", 4)
    made.answer("stays")
    want(made, "a", 4)
    want(made, "b", 4)
    made.tell(on.PartitionRefused(NAME, 4))
    made.answer("a", ok=False)
    made.answer("b", ok=False)  # what was only planned is given back
    assert line.refuses(4)
    assert not line.refuses(2)
    made.finish("stays")
    assert not line.refuses(4)
    made.tell(on.PartitionRefused(NAME, 16))
    assert not line.refuses(4)
