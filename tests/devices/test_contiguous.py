"""Devices side by side: every choice against an oracle, and the whole decision by example."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bayplan.core.devices import contiguous
from bayplan.core.model.devices import Device
from bayplan.core.model.nodes import Layout, Pool
from bayplan.core.model.pods import DeviceAsk
from bayplan.core.model.vendors import NEURON
from bayplan.core.state.laws import broken
from bayplan.testing.world import NEURON as DEVICE
from bayplan.testing.world import NEURON_CORE, World, asks, neurons
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
    for _ in range(60):
        dead = rng.random()
        devices = [i for i in on.indexes if rng.random() > dead]
        used = [cell for cell in cells if rng.random() < rng.choice((0, 0, 0.3))]
        yield joined(list(map(on.device, devices))) - frozenset(used)


def one(kind: str, amount: int) -> tuple[DeviceAsk, ...]:
    return asks(**{"neurons" if kind == "whole" else "cores": amount})


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
def test_a_score_is_0_to_99_wherever_there_is_a_choice(name: str, policy: str) -> None:
    on, rng = MACHINES[name], random.Random(name)
    for free in free_sets(on, rng):
        for kind in ("whole", "core"):
            count = rng.randint(1, len(on.units(kind)) + 1)
            found = contiguous.look(on.layout, on.mask(free), one(kind, count), policy)  # type: ignore[arg-type]
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


# ---- the whole decision


def world(**machines: tuple[str, int, int]) -> World:
    """Nodes by type, and how many devices and cores they count."""
    made = World()
    for name, (kind, devices, cores) in machines.items():
        made.node(name, gpus=0, **neurons(kind, devices, cores))
    return made


def test_a_size_that_a_machine_does_not_serve_is_refused_in_the_originals_words() -> None:
    made = world(a=("trn1.32xlarge", 16, 32), b=("trn1.32xlarge", 16, 32))
    made.submit("seven", devices=asks(neurons=7))
    made.submit("three", devices=asks(cores=3))

    words = "2 Instance type trn1.32xlarge does not support requests for"
    assert made.waiting() == {
        "seven": f"0/2 nodes are available: {words} device: 7. "
        "Please request a different number of devices..",
        "three": f"0/2 nodes are available: {words} core: 3. "
        "Please request a different number of cores..",
    }
    made.node("c", gpus=0, **neurons("inf1.24xlarge", 16, 64))
    assert made.running() == {"seven": "c", "three": "c"}


def test_what_is_only_taken_is_told_apart_from_what_is_never_served() -> None:
    made = world(a=("inf2.24xlarge", 6, 12))
    made.submit("four", devices=asks(neurons=4))
    made.submit("three", devices=asks(neurons=3))
    assert made.waiting() == {"three": f"0/1 nodes are available: 1 Insufficient {DEVICE}."}
    made.node("a", gpus=0, **neurons("inf2.24xlarge", 6, 12) | {"allocatable": {DEVICE: 12}})
    assert made.waiting() == {
        "three": f"0/1 nodes are available: 1 node(s) had no free devices side by side for {DEVICE}."
    }


def test_two_layouts_of_one_type_are_refused_in_words_of_their_own() -> None:
    """Both are trn2.48xlarge; one joins its cores to 64 logical ones, the other does not."""
    made = world(a=("trn2.48xlarge", 16, 128))
    made.submit("nine", devices=asks(cores=9))
    made.finish("nine")
    made.engine.handle_node_gone = None  # type: ignore[attr-defined]
    made.node("b", gpus=0, **neurons("trn2.48xlarge", 16, 64))
    made.node("a", gpus=0, **neurons("trn2.48xlarge", 16, 64))
    made.submit("six", devices=asks(cores=6))
    assert "does not support requests for core: 6" in made.waiting()["six"]


def test_a_device_with_a_core_in_use_is_not_given_whole_and_the_reverse() -> None:
    made = world(a=("inf1.6xlarge", 4, 16))
    made.submit("core", devices=asks(cores=1))
    made.submit("three", devices=asks(neurons=3))
    assert made.devices == {"core": ["0"], "three": ["1", "2", "3"]}
    made.submit("cores", devices=asks(cores=3))
    assert made.devices["cores"] == ["1", "2", "3"]  # of the first device
    made.submit("more", devices=asks(cores=1))
    made.submit("device", devices=asks(neurons=1))
    assert made.waiting().keys() == {"more", "device"}
    made.finish("core")
    assert made.devices["more"] == ["0"]
    assert made.waiting().keys() == {"device"}


def test_unhealthy_and_cordoned_devices_are_not_given() -> None:
    made = World()
    facts = neurons("inf2.24xlarge", 6, 12, **{"bayplan.dev/cordon-devices": "1"})
    (pool,) = facts["pools"]
    sick = tuple(Device(d.id, d.index, healthy=d.healthy and d.index != 4, cores=2) for d in pool.devices)
    made.node("a", gpus=0, **facts | {"pools": (Pool("neuron", sick, layout=pool.layout),)})
    for i, size in enumerate((3, 2, 1, 1, 1)):
        made.submit(f"p{i}", devices=asks(neurons=size))

    assert made.devices == {"p1": ["2", "3"], "p2": ["0"], "p3": ["5"]}


@pytest.mark.parametrize(
    ("kind", "devices", "cores", "each"),
    [
        ("trn2.48xlarge", 16, 64, 4),
        ("trn2.48xlarge", 16, 128, 8),
        ("trn2.48xlarge", 0, 128, 8),
        ("trn2.48xlarge", 16, 0, 4),
        ("trn1.32xlarge", 16, 32, 2),
        ("trn1.32xlarge", 0, 32, 2),
        ("new.metal", 3, 12, 4),
        ("new.metal", 3, 0, 1),
        ("new.metal", 0, 6, 1),
    ],
)
def test_cores_are_as_large_as_the_node_counts_them(
    kind: str, devices: int, cores: int, each: int
) -> None:
    (pool,) = neurons(kind, devices, cores)["pools"]
    count = TABLE[kind][0] if kind in TABLE else devices or cores
    shape = TABLE[kind][2] if kind in TABLE else "chain"
    assert pool.layout == Layout(tuple(range(count)), each, shape, 4, kind)  # type: ignore[arg-type]
    assert all(device.cores == each and device.healthy for device in pool.devices)


@pytest.mark.parametrize(
    ("kind", "devices", "cores", "out", "each"),
    [
        ("trn1.32xlarge", 14, 28, "14,15", 2),
        ("trn2.48xlarge", 12, 48, "0,1,2,3", 4),
        ("trn2.48xlarge", 12, 96, "0, 1, 2, 3", 8),
        ("trn1.32xlarge", 8, 16, "0,1,2,3,4,5,6,7", 2),
        ("trn2.48xlarge", 0, 48, "0,1,2,3", 4),
        ("inf2.48xlarge", 11, 22, "5", 2),
    ],
)
def test_devices_that_do_not_work_must_be_named(
    kind: str, devices: int, cores: int, out: str, each: int
) -> None:
    (pool,) = neurons(kind, devices, cores)["pools"]
    assert "nobody says which" in pool.unknown
    (pool,) = neurons(kind, devices, cores, **{"bayplan.dev/cordon-devices": out})["pools"]
    assert pool.unknown == ""
    assert {d.index for d in pool.devices if not d.healthy} == {*map(int, out.split(","))}
    assert {device.cores for device in pool.devices} == {each}
    strange = {"bayplan.dev/cordon-devices": "GPU-a,GPU-b,99,00,x,y,z,-1"}
    (pool,) = neurons(kind, devices, cores, **strange)["pools"]
    assert "nobody says which" in pool.unknown  # it names no device of this machine
