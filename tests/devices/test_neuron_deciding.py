"""Which Neuron devices a pod gets, and why it gets none: the whole decision."""

import random
from itertools import combinations

import pytest
from msgspec.structs import replace

from bayplan.core.model.effects import Bind
from bayplan.core.model.events import NodeGone
from bayplan.core.model.nodes import Layout, Pool
from bayplan.core.model.pods import DeviceAsk
from bayplan.core.state.laws import broken
from bayplan.testing.world import NEURON as DEVICE
from bayplan.testing.world import World, asks, neurons
from tests.devices.side_by_side import (
    TABLE,
    Cells,
    at_the_same_time,
    joined,
    legal,
    machine,
    served,
)


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
    made.wait(20)
    assert made.running() == {"seven": "c", "three": "c"}


def test_what_is_only_taken_is_told_apart_from_what_is_never_served() -> None:
    made = world(a=("inf2.24xlarge", 6, 12))
    made.submit("four", devices=asks(neurons=4))
    made.submit("three", devices=asks(neurons=3))
    assert made.waiting() == {"three": f"0/1 nodes are available: 1 Insufficient {DEVICE}."}
    made.node("a", gpus=0, **neurons("inf2.24xlarge", 6, 12) | {"allocatable": {DEVICE: 12}})
    made.wait(20)
    text = f"1 node(s) had no free devices side by side for {DEVICE}."
    assert made.waiting() == {"three": f"0/1 nodes are available: {text}"}


def test_two_layouts_of_one_type_are_refused_in_words_of_their_own() -> None:
    """Both are trn2.48xlarge; one joins its cores to 64 logical ones, the other does not."""
    made = world(a=("trn2.48xlarge", 16, 128))
    made.submit("nine", devices=asks(cores=9))
    made.tell(NodeGone("a"))
    made.node("b", gpus=0, **neurons("trn2.48xlarge", 16, 64))
    made.submit("six", devices=asks(cores=6))
    assert (
        "1 Instance type trn2.48xlarge does not support requests for core: 6."
        in (made.waiting()["six"])
    )


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
    made.wait(20)
    assert made.devices["more"] == ["0"]
    assert made.waiting().keys() == {"device"}


def test_unhealthy_and_cordoned_devices_are_not_given() -> None:
    made = World()
    facts = neurons("inf2.24xlarge", 6, 12, cordon="1")
    (pool,) = facts["pools"]
    sick = tuple(replace(d, healthy=d.healthy and d.index != 4) for d in pool.devices)
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
    (pool,) = neurons(kind, devices, cores, cordon=out)["pools"]
    assert pool.unknown == ""
    assert {d.index for d in pool.devices if not d.healthy} == {*map(int, out.split(","))}
    assert {device.cores for device in pool.devices} == {each}
    (pool,) = neurons(kind, devices, cores, cordon="GPU-a,GPU-b,99,00,x,y,z,-1")["pools"]
    assert "nobody says which" in pool.unknown  # it names no device of this machine


# ---- streams

NODES = ("inf1.xlarge", "inf1.6xlarge", "inf2.24xlarge", "inf2.48xlarge", "trn1.32xlarge")
WANTED: tuple[dict[str, int], ...] = (
    *({"neurons": amount} for amount in (1, 2, 3, 4, 8, 16)),
    *({"cores": amount} for amount in (1, 2, 3, 8)),
)


def containers(rng: random.Random) -> tuple[DeviceAsk, ...]:
    """Most pods have one; some a sidecar, or an init container."""
    found = asks("main", **rng.choice(WANTED))
    if rng.random() < 0.2:
        found = (*asks("beside", "sidecar", **rng.choice(WANTED[:3])), *found)
    if rng.random() < 0.2:
        found = (*found, *asks("other", **rng.choice(WANTED[:2])))
    return found


class Held:
    """Who has what, kept apart from the engine."""

    def __init__(self) -> None:
        self.free = {kind: machine(kind).everything for kind in NODES}
        self.pods: dict[str, tuple[str, Cells]] = {}

    def take(self, made: World, name: str, devices: tuple[DeviceAsk, ...]) -> None:
        """What the engine gave is legal, and was free."""
        node = made.bound[name]
        on = machine(node)
        placement = next(
            effect.placement
            for effect in reversed(made.effects)
            if isinstance(effect, Bind) and effect.placement.pod.name == name
        )
        given = []
        for ask, held in zip(devices, placement.held, strict=True):
            numbers = {device.index for device in held.devices}
            cells = joined([cells for number, cells in on.units(ask.kind) if number in numbers])
            assert cells in legal(on, ask.kind, ask.amount)
            given.append(cells)
        assert not any(one & other for one, other in combinations(given, 2))
        assert joined(given) <= self.free[node], (name, node)
        self.pods[name] = (node, joined(given))
        self.free[node] -= joined(given)

    def lose(self, name: str) -> None:
        node, cells = self.pods.pop(name)
        self.free[node] |= cells

    def serves(self, devices: tuple[DeviceAsk, ...]) -> list[str]:
        """The nodes where there is a way."""
        return [
            kind
            for kind, free in self.free.items()
            if served(machine(kind), free, devices, lambda i, j: at_the_same_time(devices, i, j))
        ]


@pytest.mark.parametrize("seed", range(3))
def test_streams_never_give_a_device_twice_nor_refuse_what_there_is(seed: int) -> None:
    rng, made, held = random.Random(seed), World(), Held()
    for kind in NODES:
        count, cores, _ = TABLE[kind]
        made.node(kind, gpus=0, **neurons(kind, count, count * cores))
    refused = 0
    for number in range(150):
        while held.pods and rng.random() < 0.45:
            gone = rng.choice(sorted(held.pods))
            held.lose(gone)
            made.finish(gone)
        name, devices = f"p{number}", containers(rng)
        made.submit(name, devices=devices)
        if name in made.bound:
            held.take(made, name, devices)
        else:
            assert held.serves(devices) == []
            made.finish(name)
            refused += 1
        if number % 25 == 0:
            assert broken(made.engine.cluster) == []
    assert 10 < refused < 100
    for name in sorted(held.pods):
        made.finish(name)
    tables = made.engine.cluster.pools.ordered["neuron"]
    for kind, row in made.engine.cluster.rows.items():
        assert tables.free[row] == machine(kind).mask(machine(kind).everything)
