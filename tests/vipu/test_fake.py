"""The pretend controller: what it gives, what it refuses, and that it never gives twice."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.vipu.controller import (
    ACTIVE,
    ERROR,
    Agent,
    Allocation,
    Cluster,
    Inventory,
    Ipu,
    LinkDomain,
    Partition,
    Refused,
)
from bayplan.vipu.fake import Choice, FakeVipu, one_cluster

# Two clusters; in one, allocations that begin in the middle of a block and span link domains.
UNEVEN = Inventory(
    tuple(Agent(name, 4, True) for name in "abcdefghijk"),
    (
        Cluster("left", (LinkDomain("l1", tuple("abcd")), LinkDomain("l2", tuple("efg")))),
        Cluster("right", (LinkDomain("r1", tuple("kjih")),)),
    ),
    (Allocation("x", "left", ("a",)), Allocation("y", "left", tuple("bcdef"))),
)
PLACES = [("", "x"), ("left", "y"), ("right", ""), ("", "")]


def names(partition: Partition) -> list[str]:
    return [ipu.name for ipu in partition.ipus]


def why(fake: FakeVipu, id: str, size: int, cluster: str = "", allocation: str = "") -> str:
    before = fake.partitions()
    with pytest.raises(Refused) as raised:
        fake.create(id, size, cluster=cluster, allocation=allocation)
    assert fake.partitions() == before
    return str(raised.value)


# ---- what it gives


def test_the_first_block_that_is_free() -> None:
    fake = FakeVipu()

    assert names(fake.create("a", 1)) == ["ag1.0"]
    assert names(fake.create("b", 2)) == ["ag1.2", "ag1.3"]
    assert [ipu.agent for ipu in fake.create("c", 8).ipus] == ["ag3"] * 4 + ["ag4"] * 4
    assert names(fake.create("d", 4)) == ["ag2.0", "ag2.1", "ag2.2", "ag2.3"]
    assert fake.delete("b")
    assert names(fake.create("e", 1)) == ["ag1.1"]


def test_the_last_block_that_is_free() -> None:
    fake = FakeVipu(choice="last")

    assert names(fake.create("a", 1)) == ["ag16.3"]
    assert names(fake.create("b", 2)) == ["ag16.0", "ag16.1"]


def test_a_random_block_is_that_of_the_seed() -> None:
    def given(seed: int) -> list[str]:
        fake = FakeVipu(choice="random", rng=random.Random(seed))
        return [names(fake.create(str(i), 1))[0] for i in range(10)]

    assert given(1) == given(1)
    assert given(1) != given(2)


def test_an_id_is_made_once() -> None:
    fake = FakeVipu(one_cluster(64, 64, {"x": 16}))
    made = fake.create("a", 4, allocation="x", reconfigurable=True)

    assert made.reconfigurable
    assert fake.create("a", 4, cluster="cluster", allocation="x") == made
    assert fake.partitions() == (made,)
    assert fake.get("a") == made
    assert (fake.delete("a"), fake.delete("a"), fake.get("a")) == (True, False, None)


def test_an_agent_that_is_ill() -> None:
    fake = FakeVipu(one_cluster(8))
    made = fake.create("a", 1)
    assert made.state == ACTIVE
    fake.set_health("ag1", False)

    assert [each.state for each in fake.partitions()] == [ERROR]
    assert names(fake.create("b", 1)) == ["ag2.0"]
    assert why(fake, "c", 4) == "4 IPUs: no room for them"
    assert [agent.healthy for agent in fake.inventory().agents] == [False, True]

    fake.set_health("ag1", True)
    assert fake.get("a") == made


def test_a_partition_that_is_lost() -> None:
    fake = FakeVipu()
    fake.create("a", 64)
    fake.lose("a")

    assert fake.partitions() == ()
    fake.create("b", 64)


# ---- what it refuses


@pytest.mark.parametrize("size", [-1, 0, 3, 12, 63])
def test_a_size_that_is_no_power_of_two(size: int) -> None:
    assert why(FakeVipu(), "a", size) == f"{size} IPUs: the size should be a power of two"


def test_other_refusals() -> None:
    fake = FakeVipu(one_cluster(64, 32))
    fake.create("a", 32)

    assert why(fake, "b", 64) == "64 IPUs: no link domain has as many"
    assert why(fake, "", 1) == "a partition needs an id"
    assert why(fake, "a", 16) == "partition a exists with another size or place"
    assert why(fake, "b", 1, "other") == "there is no cluster other"
    assert why(fake, "b", 1, "", "x") == "there is no allocation x"
    fake.create("b", 32)
    assert why(fake, "c", 1) == "1 IPUs: no room for them"


def test_where_there_are_allocations_one_is_needed() -> None:
    fake = FakeVipu(UNEVEN)
    made = fake.create("a", 4, allocation="x")

    assert (made.cluster, made.allocation) == ("left", "x")
    assert why(fake, "b", 1, "left") == "one of the allocations is needed: x, y"
    assert why(fake, "b", 1, "right", "x") == "there is no allocation x in cluster right"
    assert why(fake, "b", 1, "", "x") == "1 IPUs: no room for them"
    assert why(fake, "a", 4, "", "y") == "partition a exists with another size or place"
    assert fake.create("b", 1).cluster == "right"


@pytest.mark.parametrize(
    ("ipus", "domain_ipus", "allocations", "says"),
    [
        (0, 64, {}, "the IPUs should be a positive multiple of 4, not 0"),
        (6, 64, {}, "the IPUs should be a positive multiple of 4, not 6"),
        (64, 2, {}, "the IPUs of a link domain should be a positive multiple of 4, not 2"),
        (8, 8, {"a": 1, "b": 2}, "allocation b of 2 agents, where 1 are left"),
        (8, 8, {"a": 0}, "allocation a of 0 agents, where 2 are left"),
    ],
)
def test_clusters_that_cannot_be(
    ipus: int, domain_ipus: int, allocations: dict[str, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        one_cluster(ipus, domain_ipus, allocations)


def test_agents_of_another_size() -> None:
    with pytest.raises(ValueError, match="every agent should have 4 IPUs"):
        FakeVipu(Inventory((Agent("a", 8, True),)))


# ---- any sequence


def legal(inventory: Inventory, size: int, allocation: str) -> Iterator[tuple[str, frozenset[Ipu]]]:
    """Every block that may be a partition, found by trying every row of neighbours."""
    groups = {each.id: set(each.agents) for each in inventory.allocations}
    for cluster in inventory.clusters:
        mine = [each.id for each in inventory.allocations if each.cluster == cluster.id]
        if allocation not in (mine or [""]):
            continue
        for domain in cluster.link_domains:
            row = [(a, i) for a in range(len(domain.agents)) for i in range(4)]
            for start in range(len(row)):
                some = row[start : start + size]
                agents = {domain.agents[a] for a, _ in some}
                whole = len(some) == size and (mine == [] or agents <= groups[allocation])
                small = size <= 4 and len(agents) == 1 and some[0][1] % size == 0
                large = size > 4 and some[0][1] == 0 and some[0][0] % (size // 4) == 0
                if whole and (small or large):
                    block = frozenset(Ipu(domain.agents[a], i) for a, i in some)
                    yield cluster.id, block


CREATES = st.tuples(st.sampled_from([1, 1, 2, 2, 4, 4, 8, 8, 16]), st.sampled_from(PLACES))
STEPS = st.lists(
    CREATES
    | st.tuples(st.just("delete"), st.integers(0, 20))
    | st.tuples(st.just("lose"), st.integers(0, 20))
    | st.tuples(st.just("health"), st.sampled_from(UNEVEN.agents).map(lambda agent: agent.id)),
    max_size=40,
)


@settings(max_examples=150)
@given(steps=STEPS, choice=st.sampled_from(["first", "last", "random"]))
def test_no_ipu_twice_and_no_refusal_where_there_is_room(
    steps: list[tuple[object, object]], choice: Choice
) -> None:
    fake, model, made = FakeVipu(UNEVEN, choice), dict[str, Partition](), 0
    ill: set[str] = set()
    for what, which in steps:
        if isinstance(what, int):
            assert isinstance(which, tuple)
            id, made = f"p{made}", made + 1
            cluster, allocation = which
            held = {ipu for each in model.values() for ipu in each.ipus}
            blocks = {
                (place, block)
                for place, block in legal(UNEVEN, what, allocation)
                if cluster in ("", place)
                and not block & held
                and not any(ipu.agent in ill for ipu in block)
            }
            try:
                model[id] = fake.create(id, what, cluster=cluster, allocation=allocation)
            except Refused:
                assert not blocks
            else:
                assert (model[id].cluster, frozenset(model[id].ipus)) in blocks
                assert len(model[id].ipus) == what
        elif what == "health":
            assert isinstance(which, str)
            ill ^= {which}
            fake.set_health(which, which not in ill)
        else:
            id = f"p{which}"
            there = model.pop(id, None) is not None
            if what == "delete":
                assert fake.delete(id) is there
            elif there:
                fake.lose(id)
        assert {each.id: each.ipus for each in fake.partitions()} == {
            id: each.ipus for id, each in model.items()
        }

    for id in model:
        assert fake.delete(id)
    for agent in ill:
        fake.set_health(agent, True)
    fake.create("all of the right", 16, cluster="right")
