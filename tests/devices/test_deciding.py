"""Which node and which devices a pod gets: the whole decision, by example and by brute force."""

import random
from collections.abc import Iterator

import pytest

from bayplan.core.engine.profile import Profile
from bayplan.core.engine.questions import scores
from bayplan.core.model import events as on
from bayplan.core.model.devices import Device
from bayplan.core.model.effects import Report
from bayplan.core.model.nodes import Pool
from bayplan.core.model.pods import DeviceAsk, Holding, Part
from bayplan.core.state.laws import broken
from bayplan.core.state.pools import HOLDERS, MEMORY
from bayplan.scheduler.config import Configuration, profiles_of
from bayplan.testing.world import GPU, GPU_MEMORY, World, asks, cards, pod

GIB = 1 << 10  # MiB
SAVING, FAST = "alnair-cost-saving", "alnair-high-performance"
PROFILES: list[Profile] = profiles_of(Configuration())


def world(**sizes_gib: tuple[int, ...]) -> World:
    """Nodes and their cards by size."""
    made = World(profiles=PROFILES)
    for name, sizes in sizes_gib.items():
        made.node(name, **cards(*(size * GIB for size in sizes), name=name))
    return made


def gib(amount: int, percent: int = 0) -> tuple[DeviceAsk, ...]:
    return asks(mib=amount * GIB, percent=percent) if percent else asks(mib=amount * GIB)


def left(made: World, name: str) -> list[int]:
    """GiB that are left on the cards of a node."""
    table = made.engine.cluster.pools.tables["nvidia"]
    row = made.engine.cluster.rows[name]
    count = len(table.usable[row])
    return [int(mib) // GIB for mib in table.cells[row, MEMORY, :count]]


def test_cost_saving_fills_a_card_before_it_breaks_into_another() -> None:
    made = world(a=(16, 16), b=(16, 16))
    for i in range(4):
        made.submit(f"p{i}", devices=gib(4), scheduler=SAVING)

    assert len(set(made.running().values())) == 1
    assert {tuple(ids) for ids in made.devices.values()} == {("GPU-a0",)} or {
        tuple(ids) for ids in made.devices.values()
    } == {("GPU-b0",)}


def test_high_performance_gives_every_pod_a_card_of_its_own_while_there_are_any() -> None:
    made = world(a=(16, 16), b=(16, 16))
    for i in range(4):
        made.submit(f"p{i}", devices=gib(4), scheduler=FAST)

    assert sorted(ids for (ids,) in made.devices.values()) == [
        "GPU-a0",
        "GPU-a1",
        "GPU-b0",
        "GPU-b1",
    ]
    made.submit("fifth", devices=gib(4), scheduler=FAST)
    assert "fifth" in made.running()


@pytest.mark.parametrize("profile", [SAVING, FAST])
def test_nine_pods_of_ten_on_eight_cards_of_sixteen_place_eight(profile: str) -> None:
    made = world(a=(16,) * 8)
    for i in range(9):
        made.submit(f"p{i}", devices=gib(10), scheduler=profile)

    assert len(made.running()) == 8
    assert made.waiting() == {
        "p8": "0/1 nodes are available: 1 node(s) had no device with enough room for "
        "bayplan.dev/gpu-memory-mib."
    }


def test_a_request_is_never_split_between_cards() -> None:
    made = world(a=(16, 16))
    made.submit("one", devices=gib(10), scheduler=FAST)
    made.submit("two", devices=gib(10), scheduler=FAST)
    made.submit("three", devices=gib(12), scheduler=FAST)  # 12 are left, 6 on each

    assert made.running() == {"one": "a", "two": "a"}


def test_compute_is_shared_too() -> None:
    made = world(a=(16,))
    made.submit("half", devices=gib(1, 50))
    made.submit("most", devices=gib(1, 60))
    made.submit("other-half", devices=gib(1, 50))
    made.submit("whenever", devices=gib(1))  # asks for no share, so there is always one

    assert set(made.running()) == {"half", "other-half", "whenever"}


def test_a_card_held_as_a_whole_is_not_shared_and_a_shared_one_not_given_whole() -> None:
    made = world(a=(16, 16))
    made.submit("whole", gpus=1)
    made.submit("part", devices=gib(4))
    made.submit("another-whole", gpus=1)

    assert made.devices["whole"] != made.devices["part"]
    assert set(made.running()) == {"whole", "part"}


def test_containers_get_devices_of_their_own_and_several_requests_are_weighed_together() -> None:
    made = world(a=(16, 16))
    made.submit(
        "pair", devices=(*asks("one", mib=10 * GIB), *asks("two", mib=10 * GIB)), containers=2
    )

    assert made.devices["pair"] == ["GPU-a0", "GPU-a1"]


def test_whole_and_part_in_one_pod() -> None:
    made = world(a=(16, 16))
    made.submit("mixed", devices=(*asks("one", gpus=1), *asks("two", mib=4 * GIB)))

    assert sorted(made.devices["mixed"]) == ["GPU-a0", "GPU-a1"]
    assert sorted(left(made, "a")) == [0, 12]


def test_an_init_container_uses_what_the_others_will_have() -> None:
    made = world(a=(16, 16))
    both = (*asks("first", "init", mib=12 * GIB), *gib(4))
    made.submit("init", requests={GPU_MEMORY: 12 * GIB}, devices=both)

    assert sorted(left(made, "a")) == [4, 16]
    made.submit("whole", gpus=1, devices=(*asks("first", "init", gpus=1), *asks(gpus=1)))
    assert sorted(left(made, "a")) == [0, 4]


def test_a_sidecar_keeps_its_devices_beside_an_init_container() -> None:
    made = world(a=(16, 16, 16))
    made.submit(
        "pod",
        requests={GPU: 3},
        devices=(*asks("side", "sidecar", gpus=1), *asks("first", "init", gpus=2), *asks(gpus=1)),
    )

    assert left(made, "a") == [0, 0, 0]


def test_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    first = (*asks("side", "sidecar", mib=10 * GIB), *asks("first", "init", mib=10 * GIB))
    made = world(a=(16, 16))
    made.submit("pod", requests={GPU_MEMORY: 20 * GIB}, devices=(*first, *gib(1)))

    assert min(left(made, "a")) >= 0
    assert made.running() == {"pod": "a"}
    alone = world(a=(16, 16))
    alone.submit("pod", requests={GPU_MEMORY: 20 * GIB}, devices=first)
    assert min(left(alone, "a")) >= 0


def test_an_init_container_is_on_the_card_of_the_largest() -> None:
    made = world(a=(16,))
    mains = (*asks("m0", mib=4 * GIB), *asks("m1", mib=12 * GIB))
    devices = (*asks("first", "init", mib=12 * GIB), *mains)
    made.submit("pod", requests={GPU_MEMORY: 16 * GIB}, devices=devices)

    assert made.running() == {"pod": "a"}
    assert left(made, "a") == [0]


def test_a_whole_device_and_parts_fit_where_parts_must_be_packed() -> None:
    for profile in (SAVING, FAST):
        made = world(a=(16, 16, 8))
        held = Holding((Part("nvidia", "GPU-a0", 8 * GIB),))
        made.see(pod("old", node="a", devices=gib(8), held=held))
        parts = (*asks("m1", mib=12 * GIB), *asks("m2", mib=8 * GIB))
        made.submit("pod", devices=(*asks("m0", gpus=1), *parts), scheduler=profile)
        assert made.devices["pod"] == ["GPU-a2", "GPU-a1", "GPU-a0"]


def test_many_containers_end_in_a_decision() -> None:
    made = world(a=(16,) * 8)
    many = tuple(ask for i in range(120) for ask in asks(f"c{i}", mib=512 + i))
    made.submit("many", devices=many)

    assert made.running() == {"many": "a"}


def test_scores_stay_between_0_and_100() -> None:
    links = ((0, 1, 9, 9), (1, 0, 9, 9), (9, 9, 0, 1), (9, 9, 1, 0))
    made = World(profiles=PROFILES)
    for name in ("a", "b"):
        devices = tuple(Device(f"{name}{i}", i, 16 * GIB, numa=i // 2) for i in range(4))
        made.node(name, **cards(*[16 * GIB] * 4, devices=devices, links=links))
    held = tuple(Part("nvidia", f"a{i}", whole=True) for i in (1, 3))
    made.see(pod("old", 2, node="a", held=Holding(held)))
    found = scores(made.engine.verdicts["bayplan"], pod("q", 2))

    assert all(0 <= each["Devices"] <= 100 for each in found.values())
    made.submit("q", gpus=2, scheduler=SAVING)
    assert made.running()["q"] == "b"  # on one NUMA node


def test_the_least_is_left_over_on_whatever_node() -> None:
    made = world(a=(80,), b=(16,))
    for name, free in (("a", 14), ("b", 8)):
        amount = (80 if name == "a" else 16) - free
        held = Holding((Part("nvidia", f"GPU-{name}0", amount * GIB),))
        made.see(pod(f"on-{name}", node=name, devices=gib(amount), held=held))
    made.submit("small", devices=gib(4), scheduler=SAVING)

    assert made.running()["small"] == "b"


def test_what_is_odd_is_told_when_the_node_comes_after_its_pods() -> None:
    made = World(profiles=PROFILES)
    made.see(pod("foreign", 1, node="a"))
    made.node("a", **cards(16 * GIB, name="a"))
    made.node("b", pools=(Pool("nvidia", unknown="version 7"),))

    assert [effect.text for effect in made.effects if isinstance(effect, Report)] == [
        "nobody can say which nvidia devices of node a pod default/foreign holds; none are given "
        "there until that is known",
        "nvidia devices of node b: version 7",
    ]
    made.submit("part", devices=gib(1), requests={GPU_MEMORY: 0})
    assert "2 node(s) had nvidia devices that are not known" in made.waiting()["part"]


def test_links_and_numa_nodes_decide_between_whole_devices() -> None:
    links = ((0, 1, 9, 1), (1, 0, 1, 9), (9, 1, 0, 1), (1, 9, 1, 0))
    devices = tuple(Device(f"g{i}", i, 16 * GIB) for i in range(4))
    made = World(profiles=PROFILES)
    made.node("a", **cards(*[16 * GIB] * 4, devices=devices, links=links))
    made.submit("two", gpus=2)
    assert made.devices["two"] == ["g0", "g2"]

    apart = tuple(Device(f"g{i}", i, 16 * GIB, numa=(0, 1, 1, 0)[i]) for i in range(4))
    made = World(profiles=PROFILES)
    made.node("a", **cards(*[16 * GIB] * 4, devices=apart))
    made.submit("two", gpus=2)
    assert made.devices["two"] == ["g0", "g3"]


def test_well_joined_devices_are_worth_an_emptier_node() -> None:
    links = ((0, 1, 9, 1), (1, 0, 1, 9), (9, 1, 0, 1), (1, 9, 1, 0))
    for torn in ("a", "b"):
        made = World(profiles=PROFILES)
        for name in ("a", "b"):
            devices = tuple(Device(f"{name}{i}", i, 16 * GIB) for i in range(4))
            made.node(name, **cards(*[16 * GIB] * 4, devices=devices, links=links))
        held = tuple(Part("nvidia", f"{torn}{i}", whole=True) for i in range(2))  # of both pairs
        made.see(pod("old", 2, node=torn, held=Holding(held)))
        made.submit("two", gpus=2)
        assert made.running() == {"two": "b" if torn == "a" else "a"}


def test_unhealthy_devices_are_not_given_and_holders_stay() -> None:
    made = world(a=(16, 16))
    made.submit("first", devices=gib(4))
    held = made.devices["first"][0]
    sick = tuple(Device(f"GPU-a{i}", i, 16 * GIB, healthy=f"GPU-a{i}" != held) for i in range(2))
    made.node("a", **cards(16 * GIB, 16 * GIB, devices=sick))
    made.submit("second", devices=gib(4))

    assert made.devices["second"] != [held]
    well = cards(16 * GIB, 16 * GIB, name="a")
    made.node("a", **well)
    assert sorted(left(made, "a")) == [12, 12]


def test_a_device_that_vanishes_and_comes_back_has_its_holders_again() -> None:
    made = world(a=(16, 16))
    made.submit("first", devices=gib(10))
    (held,) = made.devices["first"]
    kept = (Device("GPU-a0", 0, 16 * GIB), Device("GPU-a1", 1, 16 * GIB))
    made.node("a", **cards(16 * GIB, devices=tuple(d for d in kept if d.id != held)))
    made.submit("second", devices=gib(6))  # the node counts what the vanished card's holder has
    made.submit("third", devices=gib(12))
    assert set(made.running()) == {"first", "second"}

    made.node("a", **cards(16 * GIB, 16 * GIB, devices=kept))
    assert sorted(left(made, "a")) == [6, 10]
    made.wait(20)
    assert "third" in made.waiting()
    made.finish("first")
    made.wait(20)
    assert made.devices["third"] == [held]


def test_a_pod_whose_devices_nobody_knows_closes_its_class_and_no_more() -> None:
    made = world(a=(16, 16), b=())
    made.see(pod("foreign", 1, node="a", scheduler="other"))
    made.submit("part", devices=gib(1))
    made.submit("plain", cpu=1000)

    assert set(made.running()) == {"plain"}
    assert [effect.text for effect in made.effects if isinstance(effect, Report)] == [
        "nobody can say which nvidia devices of node a pod default/foreign holds; none are given "
        "there until that is known"
    ]
    said = made.waiting()["part"]
    assert "1 node(s) had nvidia devices that are not known" in said

    told = Holding((Part("nvidia", "GPU-a0", whole=True),))
    made.see(pod("foreign", 1, node="a", scheduler="other", held=told))
    made.wait(20)
    assert made.devices["part"] == ["GPU-a1"]


def test_given_twice_by_the_api_nothing_more_is_given_there() -> None:
    made = world(a=(16,))
    for i in range(2):
        held = Holding((Part("nvidia", "GPU-a0", memory_mib=10 * GIB),))
        made.see(pod(f"p{i}", node="a", devices=gib(10), held=held))
    made.submit("more", devices=asks(percent=1))

    assert left(made, "a") == [-4]
    assert [effect.text for effect in made.effects if isinstance(effect, Report)] == [
        "of nvidia device GPU-a0 of node a more is held than there is, by pod default/p1 and "
        "others; it is not given any more"
    ]
    assert "more" in made.waiting()
    made.finish("p0")
    made.wait(20)
    assert made.devices["more"] == ["GPU-a0"]


def test_wholes_are_only_counted_where_no_devices_are_published() -> None:
    made = World(profiles=PROFILES)
    made.node("a", 2)
    made.submit("two", gpus=2)
    made.submit("one", gpus=1)

    assert made.running() == {"two": "a"}
    assert made.devices["two"] == []
    made.submit("part", requests={GPU: 1}, devices=gib(1))
    assert "part" in made.waiting()


def test_parts_need_devices_that_are_published() -> None:
    made = World(profiles=PROFILES)
    made.node("a", allocatable={"bayplan.dev/gpu-memory-mib": 100 * GIB})
    made.submit("part", devices=gib(1))

    assert made.waiting() == {
        "part": "0/1 nodes are available: 1 node(s) did not publish the devices for "
        "bayplan.dev/gpu-memory-mib."
    }


def test_cards_of_several_sizes_in_one_node() -> None:
    made = world(a=(8, 40, 16))
    made.submit("large", devices=gib(30), scheduler=SAVING)
    made.submit("middle", devices=gib(12), scheduler=SAVING)
    made.submit("small", devices=gib(6), scheduler=SAVING)

    assert made.devices == {"large": ["GPU-a1"], "middle": ["GPU-a2"], "small": ["GPU-a1"]}


# ---- every decision against brute force


def whole_cards(made: World) -> int:
    table = made.engine.cluster.pools.tables["nvidia"]
    return sum(
        int((table.cells[row, HOLDERS, : len(table.usable[row])] == 0).sum())
        for row in made.engine.cluster.rows.values()
    )


def shared_cards(made: World) -> int:
    table = made.engine.cluster.pools.tables["nvidia"]
    return sum(
        int((table.cells[row, HOLDERS, : len(table.usable[row])] > 1).sum())
        for row in made.engine.cluster.rows.values()
    )


def other_places(made: World, amount: int) -> Iterator[tuple[str, str]]:
    """Every card with room for so much."""
    for name in made.engine.cluster.rows:
        for at, room in enumerate(left(made, name)):
            if room * GIB >= amount:
                yield name, f"GPU-{name}{at}"


@pytest.mark.parametrize("profile", [SAVING, FAST])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_place_is_better_at_any_decision(profile: str, seed: int) -> None:
    rng = random.Random(seed)
    sizes = {f"n{i}": tuple(rng.choice((8, 16, 40)) for _ in range(4)) for i in range(3)}
    made = world(**sizes)
    metric = whole_cards if profile == SAVING else shared_cards
    running: list[str] = []
    for i in range(25):
        if running and rng.random() < 0.35:
            made.finish(running.pop(rng.randrange(len(running))))
        amount = rng.choice((2, 3, 4, 6, 8, 12, 20)) * GIB
        ask = asks(mib=amount)
        best: int | None = None
        for name, card in list(other_places(made, amount)):
            trial = pod("trial", node=name, devices=ask)
            held = Holding((Part("nvidia", card, memory_mib=amount),))
            cluster = made.engine.cluster
            with cluster.trial():
                cluster.place(pod("trial", node=name, devices=ask, held=held), trial.node)
                found = metric(made)
            if best is None or (found > best if profile == SAVING else found < best):
                best = found
        made.submit(f"p{i}", devices=ask, scheduler=profile)
        assert (f"p{i}" in made.running()) == (best is not None)
        if best is None:
            made.tell(on.PodGone(f"uid-p{i}"))
        else:
            running.append(f"p{i}")
            assert metric(made) == best, f"decision {i}"
        assert broken(made.engine.cluster) == []
        assert min(min(left(made, name)) for name in sizes) >= 0
    assert running
