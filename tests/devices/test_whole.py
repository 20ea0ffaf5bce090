"""Whole devices: brute force agrees with every exact choice, and nobody beats it."""

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.devices.whole import (
    FEW,
    Choice,
    Topology,
    by_exchanges,
    by_groups,
    choose,
    equal_groups,
)

DGX = Topology((0,) * 4 + (1,) * 4)


def grouped(groups: int, size: int, per_numa: int, near: int = 9, far: int = 2) -> Topology:
    count = groups * size
    links = tuple(
        tuple(0 if a == b else near if a // size == b // size else far for b in range(count))
        for a in range(count)
    )
    return Topology(tuple(d // (size * per_numa) for d in range(count)), links)


@st.composite
def topologies(draw: st.DrawFn, most: int = 7) -> Topology:
    size = draw(st.integers(1, most))
    numa = tuple(draw(st.lists(st.integers(-1, 2), min_size=size, max_size=size)))
    if draw(st.booleans()):
        return Topology(numa)
    upper = {pair: draw(st.integers(0, 3)) for pair in combinations(range(size), 2)}
    links = tuple(
        tuple(upper.get((min(a, b), max(a, b)), 0) for b in range(size)) for a in range(size)
    )
    return Topology(numa, links)


def brute(topology: Topology, free: tuple[int, ...], count: int) -> Choice:
    """Said once more, from the docstring."""
    links = topology.links

    def joined(devices: list[int]) -> int:
        return sum(links[a][b] for a in devices for b in devices if a < b) if links else 0

    def cost(chosen: tuple[int, ...]) -> tuple[int, int, int]:
        rest = [device for device in free if device not in chosen]
        return len({topology.numa[d] for d in chosen}), -joined(list(chosen)), -joined(rest)

    best = min(combinations(free, count), key=lambda chosen: (cost(chosen), chosen))
    return Choice(best, cost(best))


@given(topologies(), st.randoms(use_true_random=False), st.integers(1, 7))
def test_brute_force_agrees(topology: Topology, rng: random.Random, count: int) -> None:
    size = len(topology.numa)
    free = tuple(sorted(rng.sample(range(size), rng.randint(0, size))))
    if count > len(free):
        assert choose(topology, free, count) is None
    else:
        assert choose(topology, free, count) == brute(topology, free, count)


@pytest.mark.parametrize("shape", [(2, 4, 1), (4, 2, 2), (3, 3, 1), (4, 3, 2), (2, 5, 2)])
def test_choosing_by_groups_costs_what_brute_force_costs(shape: tuple[int, int, int]) -> None:
    topology = grouped(*shape)
    groups = equal_groups(topology)
    assert groups is not None
    assert len(groups) == shape[0]
    rng = random.Random(str(shape))
    for _ in range(40):
        free = tuple(sorted(rng.sample(range(len(topology.numa)), rng.randint(1, 8))))
        count = rng.randint(1, len(free))
        assert by_groups(topology, groups, free, count).cost == brute(topology, free, count).cost


def test_devices_that_are_joined_alike_are_grouped_by_their_numa_node() -> None:
    alike = Topology(DGX.numa, tuple((5,) * 8 for _ in range(8)))
    assert equal_groups(DGX) == equal_groups(alike) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_ring_is_no_equal_groups() -> None:
    ring = ring_of(6)
    assert equal_groups(ring) is None


def ring_of(count: int) -> Topology:
    near = {frozenset((d, (d + 1) % count)) for d in range(count)}
    links = tuple(tuple(int(frozenset((a, b)) in near) for b in range(count)) for a in range(count))
    return Topology((0,) * count, links)


def test_sixty_four_devices_in_equal_groups_are_exact() -> None:
    topology = grouped(8, 8, 4)
    free = tuple(d for d in range(64) if d % 8 < 5 or d >= 56)  # five of each, eight of the last
    choice = choose(topology, free, 8)
    assert choice is not None
    assert choice.exact
    assert choice.devices == tuple(range(56, 64))


@given(topologies(most=6), st.integers(1, 6))
def test_exchanging_never_beats_and_seldom_misses_the_best(topology: Topology, count: int) -> None:
    free = tuple(range(len(topology.numa)))
    if count <= len(free):
        found = by_exchanges(topology, free, count)
        assert not found.exact
        assert found.cost >= brute(topology, free, count).cost
        assert topology.cost(found.devices, free) == found.cost


def test_a_large_pool_without_structure_says_that_it_is_not_exact() -> None:
    topology = ring_of(FEW + 4)
    choice = choose(topology, tuple(range(FEW + 4)), 4)
    assert choice is not None
    assert not choice.exact
    assert all(b - a in (1, 17) for a, b in pairwise(choice.devices))  # it still runs along it


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), 4, (0, 1, 2, 3)),  # one NUMA node
        ((0, 1, 4, 5, 6), 3, (4, 5, 6)),
        ((0, 4), 2, (0, 4)),
        ((3, 7), 3, None),
        ((), 1, None),
    ],
)
def test_on_two_numa_nodes(
    free: tuple[int, ...], count: int, expected: tuple[int, ...] | None
) -> None:
    choice = choose(DGX, free, count)
    assert (choice and choice.devices) == expected


def test_well_joined_devices_are_chosen_and_left() -> None:
    pairs = grouped(4, 2, 4)  # four pairs on one NUMA node
    two = choose(pairs, (0, 2, 3, 4), 2)
    assert two is not None
    assert two.devices == (2, 3)
    one = choose(pairs, (0, 2, 3, 4, 5), 1)
    assert one is not None
    assert one.devices == (0,)  # no pair is broken
