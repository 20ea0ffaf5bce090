"""Gangs: all members that are needed are placed together, or none."""

from typing import Any

import pytest

from bayplan.core.engine.profile import Profile, ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.groups import Patience
from bayplan.core.model.pods import AffinityTerm, Gang, HostPort
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.state import laws
from bayplan.core.state.waiting import Rests
from bayplan.testing.world import HOSTNAME, World, pod, terms

TIMEOUT_S = Patience().timeout_s
RACK = "example.com/rack"


def train(minimum: int, *near: str) -> Gang:
    return Gang("default/train", minimum, near)


def said(world: World) -> dict[str, str]:
    """The last word to each pod."""
    found = [effect for effect in world.effects if isinstance(effect, do.Refuse)]
    return {each.pod.name: each.refusal.sentence for each in found}


def effects_of(world: World, kind: type) -> list[Any]:
    return [effect for effect in world.effects if isinstance(effect, kind)]


def test_a_gang_is_placed_when_its_last_member_has_come() -> None:
    world = World(a=8, b=8)
    for at in range(4):
        assert not world.running()
        world.submit(f"w-{at}", gpus=4, gang=train(4))
    assert len(world.running()) == 4
    assert not laws.broken(world.engine.cluster)


def test_a_gang_that_does_not_fit_holds_nothing() -> None:
    world = World(a=8, b=8)
    world.submit("w", pods=5, gpus=4, gang=train(5))
    assert not world.running()
    assert said(world) == dict.fromkeys(
        [f"w-{at}" for at in range(5)],
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. "
        "gang default/train: 4 of 5 members fit. "
        "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
    )
    world.submit("single", gpus=8)
    assert world.running().keys() == {"single"}
    world.finish("single")
    world.node("c")
    world.wait(1)
    assert len(world.running()) == 5


def test_two_gangs_that_could_each_hold_half_do_not_block_each_other() -> None:
    world = World(a=4)
    for at in range(4):
        for name in ("x", "y"):
            gang = Gang(f"default/{name}", 4)
            world.engine.handle(on.PodSeen(pod(f"{name}-{at}", 1, gang=gang)), 0.0)
    world.tick()
    assert {name[0] for name in world.running()} == {"x"}
    assert len(world.running()) == 4
    for at in range(4):
        world.finish(f"x-{at}")
    world.wait(1)
    assert {name[0] for name in world.running()} == {"y"}
    assert len(world.running()) == 4


def test_members_that_wait_for_others_are_told_after_a_moment() -> None:
    world = World(a=8)
    world.submit("w", pods=2, gpus=1, gang=train(3))
    assert not said(world)
    world.wait(1)
    text = "gang default/train is not complete: 2 of 3 members are here"
    assert said(world) == {"w-0": text, "w-1": text}
    world.submit("late", gpus=1, gang=train(3))
    assert len(world.running()) == 3


def test_a_launcher_and_workers_are_one_gang() -> None:
    world = World(a=8, b=8)
    world.submit("launcher", cpu=1000, gang=train(3))
    world.submit("w", pods=2, gpus=8, gang=train(3))
    assert len(world.running()) == 3


def test_the_largest_go_first_where_the_order_would_not_do() -> None:
    """The small one, first in order, would go to the emptier node, and the large one needs that."""
    world = World(a=4, b=8)
    world.engine.handle(on.PodSeen(pod("small", 4, gang=train(2))), 0.0)
    world.engine.handle(on.PodSeen(pod("large", 8, gang=train(2))), 0.0)
    world.tick()
    assert world.running() == {"small": "a", "large": "b"}


def test_members_beyond_the_minimum_come_later() -> None:
    world = World(a=4)
    world.submit("w", pods=3, gpus=2, gang=train(2))
    assert len(world.running()) == 2
    world.finish("w-0")
    world.wait(1)
    assert world.running().keys() == {"w-1", "w-2"}


def test_a_member_that_died_is_replaced_alone() -> None:
    world = World(a=4)
    world.submit("w", pods=2, gpus=2, gang=train(2))
    world.finish("w-0")
    world.submit("again", gpus=2, gang=train(2))
    assert world.running().keys() == {"w-1", "again"}


def test_the_place_of_a_member_whose_bind_failed_is_kept() -> None:
    world = World(a=4, binds="hold")
    world.submit("w", pods=2, gpus=2, gang=train(2))
    world.answer("w-0", ok=True)
    world.answer("w-1", ok=False)
    world.submit("other", gpus=2)
    assert "other" not in world.running()
    world.wait(1)
    assert world.running()["w-1"] == "a"
    assert not laws.broken(world.engine.cluster)


@pytest.mark.parametrize("controlled", [True, False])
def test_a_gang_in_part_is_given_up_after_its_time(controlled: bool) -> None:
    world = World(a=4, binds="hold")
    world.submit("w", pods=2, gpus=2, gang=train(2), controlled=controlled)
    world.answer("w-0", ok=True)
    world.answer("w-1", ok=False)
    world.node("a", unschedulable=True)
    world.wait(2)
    for _ in range(3):
        world.wait(TIMEOUT_S)
    evicted = [effect.pod.name for effect in effects_of(world, do.Evict)]
    assert set(evicted) == ({"w-0"} if controlled else set())


def test_the_time_begins_when_somebody_else_binds_a_member() -> None:
    world = World(a=4)
    world.node("side", unschedulable=True)
    world.submit("w", pods=3, gpus=4, gang=train(3), controlled=True)
    world.wait(20)  # it was refused, and sleeps until something could help
    world.see(pod("w-0", gpus=4, gang=train(3), controlled=True, node="side"))
    world.wait(TIMEOUT_S - 1)
    assert not effects_of(world, do.Evict)
    world.wait(Rests().longest_s)
    assert [effect.pod.name for effect in effects_of(world, do.Evict)] == ["w-0"]


def test_more_important_gangs_go_first_and_others_go_for_them() -> None:
    world = World(a=4, b=4)
    world.submit("low", pods=8, gpus=1, started_s=5.0)
    world.submit("w", pods=2, gpus=3, gang=train(2), priority=10)
    victims = [each for effect in effects_of(world, do.Preempt) for each in effect.victims]
    assert len(victims) == 6  # 3 on each node: nobody who could be spared
    assert not any(name.startswith("w") for name in world.running())
    for victim in victims:
        world.finish(victim.name)
    assert {"w-0", "w-1"} <= world.running().keys()
    assert not world.engine.nominations.owners
    assert not laws.broken(world.engine.cluster)


def test_a_gang_goes_as_a_whole() -> None:
    world = World(a=2, b=2)
    world.submit("w", pods=2, gpus=2, gang=train(2), started_s=5.0)
    world.submit("high", gpus=1, priority=10)
    victims = [each.name for effect in effects_of(world, do.Preempt) for each in effect.victims]
    assert sorted(victims) == ["w-0", "w-1"]


def test_a_member_beyond_the_minimum_goes_alone() -> None:
    world = World(a=2, b=2)
    world.submit("w", pods=2, gpus=2, gang=train(1), started_s=5.0)
    world.submit("high", gpus=1, priority=10)
    victims = [each.name for effect in effects_of(world, do.Preempt) for each in effect.victims]
    assert len(victims) == 1


def test_a_gang_prefers_one_rack_and_the_tightest() -> None:
    world = World()
    for name, rack, gpus in (("a", "r1", 8), ("b", "r1", 8), ("c", "r2", 4), ("d", "r2", 4)):
        world.node(name, gpus, labels={RACK: rack})
    world.submit("w", pods=2, gpus=4, gang=train(2, RACK))
    assert set(world.running().values()) == {"c", "d"}
    world.submit("v", pods=4, gpus=4, gang=Gang("default/v", 4, (RACK,)))
    assert {world.running()[f"v-{at}"] for at in range(4)} == {"a", "b"}


def test_a_gang_prefers_one_node_and_takes_more_where_it_must() -> None:
    world = World(a=4, b=4, c=4)
    near = ("kubernetes.io/hostname",)
    world.submit("w", pods=4, gpus=1, gang=train(4, *near))
    assert len(set(world.running().values())) == 1
    world.submit("v", pods=6, gpus=1, gang=Gang("default/v", 6, near))
    assert len(world.running()) == 10


def test_a_gang_that_is_complete_is_left_alone_while_one_more_waits() -> None:
    world = World(a=2)
    world.submit("m", pods=3, gpus=1, gang=train(2), controlled=True)
    for _ in range(4):
        world.wait(TIMEOUT_S)
    assert len(world.running()) == 2
    assert not effects_of(world, do.Evict)


def test_members_that_are_going_do_not_count() -> None:
    world = World(a=4)
    for name in ("old-0", "old-1"):
        world.see(pod(name, 1, node="a", gang=train(2), terminating=True))
    world.submit("new-0", gpus=1, gang=train(2))
    assert not world.running()
    world.submit("new-1", gpus=1, gang=train(2))
    assert world.running().keys() == {"new-0", "new-1"}


def test_a_lower_minimum_starts_the_gang_at_once() -> None:
    world = World(a=4)
    world.submit("m", pods=2, gpus=1, gang=train(3))
    world.wait(2)
    world.wait(2)
    for name in ("m-0", "m-1"):
        world.see(pod(name, 1, gang=train(2)))
    assert world.running().keys() == {"m-0", "m-1"}


def test_a_gang_looks_elsewhere_when_the_node_of_its_victim_vanishes() -> None:
    world = World(a=1, b=1, c=1)
    world.submit("keep", gpus=1, priority=5)
    world.submit("v", pods=2, gpus=1)
    world.submit("m", pods=2, gpus=1, gang=train(2), priority=10)
    gone = world.running()["v-1"]
    world.tell(on.NodeGone(gone))
    world.finish("v-1")
    world.finish("v-0")
    for _ in range(5):
        world.wait(20)
    assert "keep" in [each.name for e in effects_of(world, do.Preempt) for each in e.victims]


def test_a_search_that_cannot_succeed_ends() -> None:
    away = AffinityTerm(Selector((Requirement("app", "In", ("a",)),)), HOSTNAME, ("default",))
    world = World({f"n{at}": 8 for at in range(10)})
    facts = {"labels": {"app": "a"}, "terms": terms(anti_affinity=(away,))}
    world.submit("m", pods=40, gpus=1, gang=train(40), **facts)
    assert not world.running()
    assert "10 of 40 members fit" in said(world)["m-0"]


def test_members_with_different_scheduler_names_are_told_so() -> None:
    profiles = [Profile(ProfileConfig(name)) for name in ("bayplan", "other")]
    world = World(profiles=profiles, a=8)
    gang = Gang("default/g", 2)
    world.submit("one", gpus=1, gang=gang)
    world.submit("two", gpus=1, gang=gang, scheduler="other")
    world.wait(2)
    told = world.waiting()["one"]
    assert told.startswith("gang default/g is not complete: 1 of 2 members are here")
    assert "1 more have schedulerName other, and a gang needs one" in told


def test_a_gang_asks_again_once_a_pod_was_left_alone_for_long_enough() -> None:
    world = World(a=1)
    world.submit("low", gpus=1)
    world.tell(on.VictimSpared("uid-low", "forbidden", "uid-other", 300.0))
    world.submit("g", gpus=1, priority=10, gang=train(1))
    assert not effects_of(world, do.Preempt)
    world.wait(301)
    assert [each.victims[0].name for each in effects_of(world, do.Preempt)] == ["low"]


def test_what_a_gang_is_told_is_no_answer_to_another_that_could_remove_its_members() -> None:
    world = World(a=1)
    world.submit("x-0", gpus=1, gang=Gang("default/x", 1))
    for name, gang in (("x-1", Gang("default/x", 2)), ("y-0", Gang("default/y", 1))):
        world.engine.handle(on.PodSeen(pod(name, 1, priority=10, gang=gang)), world.now)
    world.tick()
    (effect,) = effects_of(world, do.Preempt)
    assert (effect.pod.name, [each.name for each in effect.victims]) == ("y-0", ["x-0"])


def test_room_that_a_gang_does_not_take_wakes_others() -> None:
    world = World()
    world.node("a", 2, labels={HOSTNAME: "a", "x": "1"})
    world.node("b", 2, allocatable={"cpu": 4000})
    world.submit("low", gpus=1, node_selector=((HOSTNAME, "a"),))
    world.submit("g", gpus=2, priority=10, node_selector=(("x", "1"),), gang=train(1))
    world.submit("small", gpus=1, cpu=8000)
    assert "small" not in world.running()
    world.node("b", 2, allocatable={"cpu": 4000}, labels={HOSTNAME: "b", "x": "1"})
    world.wait(1)
    assert world.running()["g"] == "b"
    world.wait(10)
    assert world.running()["small"] == "a"


def test_a_gang_that_loses_its_place_is_told_so() -> None:
    world = World(a=1)
    world.submit("low", gpus=1)
    world.submit("g", gpus=1, priority=10, gang=train(1))
    world.tell(on.VictimSpared("uid-low", "forbidden", "uid-g", 300.0))
    world.wait(20)
    assert [each.nominated for each in effects_of(world, do.Refuse)] == ["a", ""]
    assert world.engine.waiting.pods["uid-g"][0].pod.nominated == ""


def test_members_that_need_not_go_after_all_are_enough_for_the_next() -> None:
    world = World(a=2, b=1)
    on_a = ((HOSTNAME, "a"),)
    world.submit("g", pods=2, gpus=1, gang=train(2), node_selector=on_a)
    world.submit("high", gpus=2, priority=10)
    world.submit("g-2", gpus=1, gang=train(2))
    world.wait(5)
    assert "g-2" not in world.running()
    world.tell(on.PodGone("uid-high"))
    for name in ("g-0", "g-1"):
        world.tell(on.VictimSpared(f"uid-{name}", "nobody needs it", "uid-high"))
    world.wait(10)
    assert world.running()["g-2"] == "b"


def test_that_members_are_missing_is_told_soon_whatever_was_told_before() -> None:
    world = World(a=1)
    world.submit("x", gpus=1, priority=100)
    world.submit("g", pods=2, gpus=1, gang=train(2))
    world.wait(2)
    world.tell(on.PodGone("uid-g-1"))
    world.tell(on.PodGone("uid-x"))
    for _ in range(4):
        world.wait(1)
    assert "is not complete: 1 of 2 members are here" in said(world)["g-0"]


def test_what_is_left_of_a_place_that_went_to_another_is_anybodys() -> None:
    world = World(n=3, binds="hold")
    world.submit("large", gpus=3, gang=Gang("default/g", 1))
    world.submit("small", gpus=1)
    world.engine.handle(on.BindFailed("uid-large", "conflict"), world.now)
    world.submit("high", gpus=2, priority=9)
    world.wait(2)
    assert sorted(world.engine.assumed) == ["uid-high", "uid-small"]


@pytest.mark.parametrize("gang", [None, Gang("default/g", 1)])
def test_who_could_not_be_beside_a_pod_hears_that_its_bind_failed(gang: Gang | None) -> None:
    world = World(n=8, binds="hold")
    taken = (HostPort(port=80, protocol="TCP", ip="0.0.0.0"),)
    world.submit("low", gpus=1, ports=taken, gang=gang)
    world.submit("high", gpus=1, ports=taken, priority=9, preempts=False)
    world.now += 1.5
    world.answer("low", ok=False)
    assert list(world.engine.assumed) == ["uid-high"]
