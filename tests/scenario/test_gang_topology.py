"""Where the members of a gang are to each other: in one domain, near, or spread."""

from collections import Counter

import pytest

from bayplan.core.model import effects as do
from bayplan.core.model.pods import AffinityTerm, Gang
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.state import laws
from bayplan.testing.world import HOSTNAME, World, pod, terms

RACK, ZONE = "example.com/rack", "example.com/zone"


def racks(**sizes: tuple[int, ...]) -> World:
    """By rack the GPUs of its nodes."""
    world = World()
    for rack, gpus in sizes.items():
        for at, count in enumerate(gpus):
            world.node(f"{rack}{at}", count, labels={RACK: rack, ZONE: rack[0]})
    return world


def where(world: World) -> Counter[str]:
    return Counter(node[:-1] for node in world.running().values())


def said(world: World) -> set[str]:
    found = [effect for effect in world.effects if isinstance(effect, do.Refuse)]
    return {each.refusal.sentence for each in found}


def test_one_domain_is_a_must() -> None:
    world = racks(x=(4, 4), y=(4, 4))
    world.submit("w", pods=3, gpus=4, gang=Gang("default/g", 3, within=RACK))
    assert not world.running()
    assert said(world) == {
        "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, "
        "2 node(s) didn't match the gang's topology. "
        f"gang default/g: 2 of 3 members fit in one {RACK}. "
        "preemption: 0/4 nodes are available: 2 No preemption victims found for incoming pod."
    }
    world.node("y2", 4, labels={RACK: "y", ZONE: "y"})
    world.wait(1)
    assert where(world) == {"y": 3}


def test_the_tightest_domain_that_has_room_for_all_is_taken() -> None:
    world = racks(x=(8, 8, 8), y=(8, 8), z=(8,))
    world.submit("w", pods=4, gpus=4, gang=Gang("default/g", 4, within=RACK))
    assert where(world) == {"y": 4}


def test_where_all_do_not_fit_enough_do() -> None:
    world = racks(x=(2, 2), y=(4, 4))
    world.submit("w", pods=6, gpus=2, gang=Gang("default/g", 3, within=RACK))
    assert where(world) == {"y": 4}
    assert len(world.waiting()) == 2
    assert not laws.broken(world.engine.cluster)


def test_a_domain_may_be_too_small_for_members_that_are_not_needed() -> None:
    world = racks(x=(1,), y=(2, 2))
    gang = Gang("default/g", 2, within=RACK)
    for name, gpus in (("large", 8), ("small-0", 2), ("small-1", 2)):
        world.see(pod(name, gpus, gang=gang))
    world.wait(2)
    assert world.running().keys() == {"small-0", "small-1"}
    assert where(world) == {"y": 2}


def test_a_member_that_must_be_beside_another_does_not_close_a_domain() -> None:
    world = racks(x=(8,))
    gang = Gang("default/g", 2, within=RACK)
    mate = Selector((Requirement("app", "In", ("x",)),))
    beside = terms(affinity=(AffinityTerm(mate, HOSTNAME, ("default",)),))
    world.see(pod("first", 1, terms=beside, gang=gang))
    world.see(pod("second", 1, labels={"app": "x"}, gang=gang))
    world.wait(2)
    assert world.running().keys() == {"first", "second"}


def test_later_members_go_where_the_others_are() -> None:
    world = racks(x=(4,), y=(8, 8))
    gang = Gang("default/g", 2, within=RACK)
    world.submit("w", pods=2, gpus=4, gang=gang)
    assert where(world) == {"y": 2}
    world.submit("late", pods=2, gpus=4, gang=gang)
    assert where(world) == {"y": 4}
    world.submit("more", gpus=4, gang=gang)
    assert "more" not in world.running()
    world.finish("w-0")
    world.wait(1)
    assert world.running()["more"].startswith("y")


def test_nodes_without_the_label_are_no_domain() -> None:
    world = World(a=8, b=8)
    world.submit("w", pods=2, gpus=8, gang=Gang("default/g", 2, within=RACK))
    assert not world.running()


def test_others_go_in_one_domain_only() -> None:
    world = racks(x=(4, 4), y=(4, 4, 4))
    for node in ("x0", "x1", "y0", "y1", "y2"):
        world.see(pod(f"on-{node}", 4, node=node))
    world.submit("w", pods=3, gpus=4, priority=5, gang=Gang("default/g", 3, within=RACK))
    gone = [effect for effect in world.effects if isinstance(effect, do.Preempt)]
    victims = {each.name for effect in gone for each in effect.victims}
    assert victims == {"on-y0", "on-y1", "on-y2"}
    for name in victims:
        world.finish(name)
    assert where(world) == {"y": 3}
    assert not world.engine.cluster.holds.rows


def test_near_within() -> None:
    """One zone is a must, one rack of it a wish."""
    world = World()
    for rack, gpus in {"a1": 4, "a2": 8, "b1": 6, "b2": 6}.items():
        world.node(rack, gpus, labels={RACK: rack, ZONE: rack[0]})
    gang = Gang("default/g", 2, near=(RACK,), within=ZONE)
    world.submit("w", pods=2, gpus=4, gang=gang)
    assert set(world.running().values()) == {"a2"}


@pytest.mark.parametrize(
    "gang", [Gang("default/g", 6, spread=RACK), Gang("default/g", 6, across=RACK)]
)
def test_members_are_spread_evenly(gang: Gang) -> None:
    world = racks(x=(8, 8), y=(8,), z=(8, 8))
    world.submit("w", pods=6, gpus=1, gang=gang)
    assert where(world) == {"x": 2, "y": 2, "z": 2}


def test_spread_is_a_wish_and_across_a_must() -> None:
    world = racks(x=(8,), y=(1,))
    world.submit("s", pods=4, gpus=1, gang=Gang("default/s", 4, spread=RACK))
    assert where(world) == {"x": 3, "y": 1}
    world = racks(x=(8,), y=(1,))
    world.submit("a", pods=4, gpus=1, gang=Gang("default/a", 4, across=RACK))
    assert not world.running()
    assert {text.partition(" preemption")[0] for text in said(world)} == {
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "1 node(s) didn't match the gang's topology. "
        f"gang default/a: 3 of 4 members fit evenly across {RACK}."
    }
    world.node("y1", 1, labels={RACK: "y"})
    world.wait(1)
    assert where(world) == {"x": 2, "y": 2}


def test_a_domain_that_could_never_take_a_member_does_not_count() -> None:
    world = racks(x=(8,), y=(8,))
    world.node("z0", 8, labels={RACK: "z"}, unschedulable=True)
    world.submit("w", pods=4, gpus=1, gang=Gang("default/g", 4, across=RACK))
    assert where(world) == {"x": 2, "y": 2}


def test_members_that_die_are_replaced_where_they_are_missing() -> None:
    world = racks(x=(8,), y=(8,))
    gang = Gang("default/g", 4, across=RACK)
    world.submit("w", pods=4, gpus=1, gang=gang)
    lost = next(name for name, node in world.running().items() if node == "x0")
    world.finish(lost)
    world.submit("new", gpus=1, gang=gang)
    assert world.running()["new"] == "x0"
    assert where(world) == {"x": 2, "y": 2}


def test_spread_inside_one_domain() -> None:
    world = World()
    for rack, hosts in {"x": 2, "y": 3}.items():
        for at in range(hosts):
            world.node(f"{rack}{at}", 8, labels={RACK: rack})
    gang = Gang("default/g", 6, within=RACK, spread="kubernetes.io/hostname")
    world.submit("w", pods=6, gpus=1, gang=gang)
    found = Counter(world.running().values())
    assert len({node[0] for node in found}) == 1
    assert max(found.values()) - min(found.values()) <= 1


def test_others_go_in_whatever_domain_they_are() -> None:
    """Nine racks are full of more important pods, and nodes that are gone have left labels."""
    world = racks(**{f"r{at}": (4,) for at in range(10)})
    for at in range(10):
        world.see(pod(f"p{at}", 4, node=f"r{at}0", priority=0 if at == 9 else 100))
    world.submit("w", gpus=4, priority=50, gang=Gang("default/g", 1, within=RACK))
    (gone,) = [effect for effect in world.effects if isinstance(effect, do.Preempt)]
    assert [each.name for each in gone.victims] == ["p9"]


@pytest.mark.parametrize("gang", [Gang("default/g", 2, within=RACK), Gang("default/g", 2)])
def test_members_that_are_about_to_go_bind_nobody_to_their_domain(gang: Gang) -> None:
    world = racks(x=(8,), y=(8,))
    world.node("x0", 8, labels={RACK: "x"}, unschedulable=True)
    for at in range(2):
        world.see(pod(f"old-{at}", 4, node="x0", gang=gang, terminating=True))
    world.submit("new", pods=2, gpus=4, gang=gang)
    assert set(world.running().values()) == {"y0"}
