"""Devices side by side: every choice is what an oracle says, for one request and for several."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayplan.core.devices import contiguous
from bayplan.core.devices.shared import Policy
from bayplan.core.model.pods import DeviceAsk
from bayplan.core.model.vendors import NEURON
from bayplan.testing.world import asks
from tests.devices.side_by_side import (
    TABLE,
    Cells,
    Machine,
    at_the_same_time,
    cheapest,
    cost,
    joined,
    legal,
    machine,
    served,
)

TRN1 = machine("trn1.32xlarge")
OTHERS = {
    "a ring of 8": Machine(tuple(range(8)), 1, "ring"),
    "a ring of 5, each with 2 cores": Machine(tuple(range(5)), 2, "ring"),
    "a ring of 2": Machine((0, 1), 2, "ring"),
    "a ring with a hole": Machine((0, 1, 2, 4, 5), 1, "ring"),
    "a chain with holes": Machine((1, 2, 3, 5, 6, 9), 2, "chain"),
    "rows with a hole": Machine((*range(5), *range(6, 16)), 2, "rows"),
    "rows of 2": Machine(tuple(range(8)), 1, "rows", 2),
    "a half": Machine(tuple(range(8, 16)), 2, "rows"),
    "8 logical cores": Machine(tuple(range(16)), 8, "rows"),
}
MACHINES = {name: machine(name) for name in TABLE} | OTHERS
SMALL = 8  # columns of which every free set is tried


def free_sets(on: Machine, rng: random.Random) -> Iterator[Cells]:
    """All of them on small machines, else some of every fullness."""
    cells = sorted(on.everything)
    if len(cells) <= SMALL:
        for size in range(len(cells) + 1):
            yield from map(frozenset, combinations(cells, size))
        return
    yield on.everything
    for _ in range(25):
        dead = rng.random()
        devices = [i for i in on.indexes if rng.random() > dead]
        used = [cell for cell in cells if rng.random() < rng.choice((0, 0, 0.3))]
        yield joined(list(map(on.device, devices))) - frozenset(used)


def one(kind: str, amount: int) -> tuple[DeviceAsk, ...]:
    return asks(neurons=amount) if kind == "whole" else asks(cores=amount)


def test_the_table_is_that_of_the_documents() -> None:
    known = {each.type: (each.devices, each.cores, each.shape) for each in NEURON.instances}
    assert known == TABLE
    assert {each.row for each in NEURON.instances} == {4}


@pytest.mark.parametrize("kind", ["whole", "core"])
@pytest.mark.parametrize("name", list(MACHINES))
def test_the_choice_is_the_cheapest_of_all_that_are_legal(name: str, kind: str) -> None:
    on, rng = MACHINES[name], random.Random(name)
    counts = range(1, len(on.units(kind)) + 2)
    few = [c for c in counts if legal(on, kind, c)]
    for free in free_sets(on, rng):
        for count in few if len(few) <= 8 else rng.sample(few, 6):
            ours = contiguous.choose(on.layout, on.mask(free), one(kind, count))
            best = cheapest(on, kind, count, free)
            assert (ours is None) == (best is None), (count, sorted(free))
            if ours is not None and best is not None:
                (chosen,) = map(on.cells, ours.masks)
                assert chosen in legal(on, kind, count)
                assert chosen <= free
                assert cost(on, kind, chosen, free) == cost(on, kind, best, free)
                assert chosen == best, (count, sorted(free))


@pytest.mark.parametrize("kind", ["whole", "core"])
@pytest.mark.parametrize("name", list(MACHINES))
def test_the_sizes_that_are_served_are_those_of_the_documents(name: str, kind: str) -> None:
    on = MACHINES[name]
    total = len(on.units(kind))
    for count in (*range(1, total + 3), 1 << 40):
        windows = contiguous.windows(on.layout, kind, count)
        assert list(map(on.cells, windows)) == legal(on, kind, count)
    sizes = [c for c in range(1, total + 1) if legal(on, kind, c)]
    if name in TABLE and on.shape == "chain":
        assert sizes == list(range(1, total + 1))
    elif name in TABLE and kind == "whole":
        assert sizes == [1, 4, 8, 16]
        assert [sorted({d for d, _ in way}) for way in legal(on, kind, 8)] == [
            list(range(8)),
            list(range(8, 16)),
        ]


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("name", list(MACHINES))
def test_a_score_is_0_to_99_wherever_there_is_a_choice(name: str, policy: Policy) -> None:
    on, rng = MACHINES[name], random.Random(name)
    for free in free_sets(on, rng):
        for kind in ("whole", "core"):
            count = rng.randint(1, len(on.units(kind)) + 1)
            found = contiguous.look(on.layout, on.mask(free), one(kind, count), policy)
            if cheapest(on, kind, count, free) is not None:
                assert 0 <= found <= 99, (kind, count, sorted(free))
            else:
                supported = bool(legal(on, kind, count))
                assert found == (contiguous.SHORT if supported else contiguous.UNSUPPORTED)


# ---- several containers

containers = st.lists(
    st.tuples(
        st.sampled_from(("init", "sidecar", "main")),
        st.sampled_from(("neurons", "neurons", "cores")),
        st.sampled_from((1, 1, 2, 3, 4, 8)),
    ),
    min_size=2,
    max_size=4,
)
places = st.sampled_from(("inf1.6xlarge", "inf2.24xlarge", "inf2.48xlarge", "trn1.32xlarge"))


def requests(wanted: list[tuple[str, str, int]]) -> tuple[DeviceAsk, ...]:
    """As they start."""
    ordered = sorted(wanted, key=lambda each: each[0] == "main")
    made = (asks(f"c{i}", phase, **{what: n}) for i, (phase, what, n) in enumerate(ordered))
    return tuple(ask for (ask,) in made)


@given(places, containers, st.integers(0, 1 << 32))
@example("trn1.32xlarge", [("init", "neurons", 16), ("sidecar", "neurons", 4)], 0)
def test_all_containers_are_served_whenever_there_is_a_way(
    name: str, wanted: list[tuple[str, str, int]], seed: int
) -> None:
    """Devices and cores are counted apart, so they share nothing even one after the other."""
    on, devices = machine(name), requests(wanted)
    rng = random.Random(seed)
    dead = rng.choice((0, 0.2, 0.5))
    free = joined([on.device(i) for i in on.indexes if rng.random() >= dead])

    def clash(i: int, j: int) -> bool:
        return devices[i].kind != devices[j].kind or at_the_same_time(devices, i, j)

    ours = contiguous.choose(on.layout, on.mask(free), devices)

    assert (ours is not None) == served(on, free, devices, clash)
    given_ = [] if ours is None else list(map(on.cells, ours.masks))
    for ask, cells in zip(devices, given_, strict=ours is not None):
        assert cells in legal(on, ask.kind, ask.amount)
        assert cells <= free
    for i, j in combinations(range(len(given_)), 2):
        if at_the_same_time(devices, i, j):
            assert not given_[i] & given_[j]


def test_an_init_container_gets_devices_of_the_others() -> None:
    devices = (*asks("first", "init", neurons=4), *asks("main", neurons=8))
    found = contiguous.choose(TRN1.layout, TRN1.mask(TRN1.everything), devices)
    assert found is not None
    assert found.masks[0] & found.masks[1] == found.masks[0]
