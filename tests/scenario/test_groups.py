"""PodGroups: objects say what a gang is, and its members only name them."""

from typing import Any

import pytest

from bayplan.core.engine.advice import Advice
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.groups import PodGroup, Source, group_key
from bayplan.core.model.pods import Gang
from bayplan.core.model.steps import GangWhere, PlaceGang
from bayplan.core.state import laws
from bayplan.testing.world import GPU, World, pod
from tests.what_if.clusters import ask

X: Source = "scheduling.x-k8s.io"
OLD: Source = "scheduling.sigs.k8s.io"
NEW: Source = "scheduling.k8s.io"
KEY = group_key(X, "default", "train")
MEMBER = Gang(KEY, grouped=True)


def group(minimum: int, source: Source = X, **facts: Any) -> on.GroupSeen:
    fields = {name: facts.pop(name) for name in list(facts) if name in Gang.__struct_fields__}
    gang = Gang(group_key(source, "default", "train"), minimum, grouped=True, **fields)
    return on.GroupSeen(PodGroup(source, gang, **facts))


def said(world: World) -> dict[str, str]:
    """The last word to each pod."""
    found = [effect for effect in world.effects if isinstance(effect, do.Refuse)]
    return {each.pod.name: each.refusal.sentence for each in found}


def evicted(world: World) -> list[str]:
    return [each.pod.name for each in world.effects if isinstance(each, do.Evict)]


def test_three_are_wanted_and_two_wait_until_the_third_comes() -> None:
    world = World(a=8)
    world.tell(group(3))
    world.submit("w", pods=2, gpus=1, gang=MEMBER)
    world.wait(1)
    text = "PodGroup default/train is not complete: 2 of 3 members are here"
    assert said(world) == {"w-0": text, "w-1": text}
    world.submit("late", gpus=1, gang=MEMBER)
    assert len(world.running()) == 3


def test_members_wait_for_their_group_and_are_told_after_a_moment() -> None:
    world = World(a=8)
    world.submit("w", pods=2, gpus=1, gang=MEMBER)
    assert not said(world)
    world.wait(1)
    assert set(said(world).values()) == {"PodGroup default/train does not exist"}
    world.tell(group(2))
    assert len(world.running()) == 2


def test_a_group_of_the_older_name_does_as_well_and_the_newer_counts_where_both_are() -> None:
    world = World(a=8)
    world.tell(group(2, OLD))
    world.submit("w", pods=2, gpus=1, gang=MEMBER)
    assert len(world.running()) == 2
    world.tell(group(9))
    world.submit("more", gpus=1, gang=MEMBER)
    assert "more" not in world.running()
    world.tell(on.GroupGone(X, KEY))
    assert "more" in world.running()


def test_groups_of_kubernetes_itself_are_apart() -> None:
    world = World(a=8)
    world.tell(group(2, NEW))
    world.submit("w", pods=2, gpus=1, gang=MEMBER)
    assert not world.running()
    ours = Gang(group_key(NEW, "default", "train"), grouped=True)
    world.submit("v", pods=2, gpus=1, gang=ours)
    assert world.running().keys() == {"v-0", "v-1"}


def test_what_cannot_be_understood_is_told_to_the_members_and_to_nobody_else() -> None:
    world = World(a=8)
    world.tell(group(1, wrong="PodGroup default/train: spec.minMember: 0 is not from 1 on"))
    world.submit("w", gpus=1, gang=MEMBER)
    world.submit("other", gpus=1)
    world.wait(1)
    assert world.running().keys() == {"other"}
    assert said(world) == {"w": "PodGroup default/train: spec.minMember: 0 is not from 1 on"}
    world.tell(group(1))
    assert "w" in world.running()


def test_who_comes_later_is_told_as_well() -> None:
    world = World(a=8)
    world.tell(group(9))
    world.submit("w", gpus=1, gang=MEMBER)
    world.wait(2)
    world.submit("late", gpus=1, gang=MEMBER)
    world.wait(2)
    assert said(world)["late"].endswith("2 of 9 members are here")
    world.tell(on.GroupGone(X, KEY))
    world.wait(12)
    world.submit("later", gpus=1, gang=MEMBER)
    world.wait(2)
    assert said(world)["later"] == "PodGroup default/train does not exist"


def test_a_group_that_changes_or_goes_while_members_wait() -> None:
    world = World(a=2)
    world.tell(group(3))
    world.submit("w", pods=3, gpus=1, gang=MEMBER)
    assert not world.running()
    world.tell(on.GroupGone(X, KEY))
    world.wait(1)
    assert set(said(world).values()) == {"PodGroup default/train does not exist"}
    world.tell(group(2))
    assert len(world.running()) == 2
    assert not laws.broken(world.engine.cluster)


def test_members_that_run_stay_when_their_group_goes() -> None:
    world = World(a=8)
    world.tell(group(2))
    world.submit("w", pods=2, gpus=1, gang=MEMBER)
    world.tell(on.GroupGone(X, KEY))
    world.wait(1000)
    assert len(world.running()) == 2
    assert not evicted(world)


def test_a_million_members_are_waited_for() -> None:
    world = World(a=8)
    world.tell(group(1_000_000))
    world.submit("w", gpus=1, gang=MEMBER)
    world.wait(1)
    text = "PodGroup default/train is not complete: 1 of 1000000 members are here"
    assert said(world) == {"w": text}


def test_members_that_have_done_their_work_count() -> None:
    world = World(a=8)
    world.tell(group(4))
    world.submit("w", pods=4, gpus=2, gang=MEMBER)
    assert len(world.running()) == 4
    for name in ("w-0", "w-1", "w-2"):
        world.finish(name)
    world.submit("again", gpus=2, gang=MEMBER)
    assert "again" not in world.running()
    world.tell(group(4, ended=2))
    assert "again" in world.running()


def test_what_a_group_asks_for_must_be_free_on_all_nodes_together() -> None:
    world = World(a=4, b=4)
    world.tell(group(2, resources=((GPU, 9), ("cpu", 1000))))
    world.submit("w", pods=2, gpus=1, gang=MEMBER)
    world.wait(1)
    text = (
        f"PodGroup default/train: minResources asks for 9 {GPU}, and 8 are free "
        "on all nodes together"
    )
    assert set(said(world).values()) == {text}
    world.node("c", 1)
    world.wait(1)
    assert len(world.running()) == 2


def test_what_members_have_counts_as_free_for_their_group() -> None:
    world = World(a=8)
    world.tell(group(2, resources=((GPU, 8),)))
    world.submit("w", pods=2, gpus=3, gang=MEMBER)
    assert len(world.running()) == 2
    world.submit("more", gpus=2, gang=MEMBER)
    assert len(world.running()) == 3


def test_a_group_says_how_long_it_may_run_in_part() -> None:
    world = World(a=2, binds="hold")
    world.tell(group(2, timeout_s=10.0))
    world.submit("w", pods=2, gpus=1, gang=MEMBER, controlled=True)
    world.answer("w-0")
    world.answer("w-1", ok=False)
    world.see(pod("higher", 1, node="a"))
    world.wait(2)
    assert not evicted(world)
    world.wait(8)
    world.wait(2)
    assert evicted(world) == ["w-0"]


def test_a_gang_in_part_whose_others_never_come_is_given_up() -> None:
    world = World(a=8)
    world.tell(group(2, timeout_s=30.0))
    world.submit("w", pods=2, gpus=1, gang=MEMBER, controlled=True)
    world.finish("w-0")
    world.finish("w-1")
    world.tell(group(4, timeout_s=30.0))
    world.see(pod("old", 1, node="a", gang=MEMBER, controlled=True))
    world.submit("new", gpus=1, gang=MEMBER, controlled=True)
    for _ in range(40):
        world.wait(1)
    assert "new" not in world.running()
    assert evicted(world) == ["old"]


@pytest.mark.parametrize("victims", ["w-0", "w-1"])
def test_a_group_goes_as_a_whole(victims: str) -> None:
    """The members themselves do not say how many they need."""
    world = World(a=4)
    world.tell(group(2))
    world.submit("w", pods=2, gpus=2, gang=MEMBER)
    world.submit("urgent", gpus=2, priority=10)
    gone = [each for each in world.effects if isinstance(each, do.Preempt)]
    assert victims in {pod.name for each in gone for pod in each.victims}


def test_nobody_goes_for_a_group_that_would_not_start_then() -> None:
    world = World(a=4, b=4)
    for node in "ab":
        world.see(pod(f"on-{node}", 4, node=node))
    world.tell(group(2, resources=((GPU, 16),)))
    world.submit("w", pods=2, gpus=4, gang=MEMBER, priority=10)
    world.wait(20)
    assert not [each for each in world.effects if isinstance(each, do.Preempt)]
    assert "minResources asks for 16" in said(world)["w-0"]


def test_what_is_left_of_a_group_needs_less_of_what_it_asked_for() -> None:
    world = World(a=4, b=4)
    world.tell(group(4, resources=((GPU, 8),), ended=3))
    world.see(pod("other", 3, node="a"))
    world.see(pod("another", 3, node="b"))
    world.submit("last", gpus=1, gang=MEMBER)
    assert "last" in world.running()


def test_members_on_a_cordoned_node_count_for_their_group() -> None:
    world = World(a=4, b=4)
    world.tell(group(2, resources=((GPU, 8),)))
    world.submit("w", pods=2, gpus=4, gang=MEMBER)
    lost, node = next(iter(world.running().items()))
    other = "b" if node == "a" else "a"
    world.node(other, 4, unschedulable=True)
    world.finish(lost)
    world.submit("new", gpus=4, gang=MEMBER)
    assert world.running()["new"] == node


def test_a_group_that_has_done_its_work_starts_anew_as_a_whole() -> None:
    world = World(a=2)
    world.tell(group(4, ended=4))
    world.submit("w", pods=4, gpus=1, gang=MEMBER)
    assert not world.running()


def test_a_pod_that_is_relabelled_into_a_group_completes_it() -> None:
    world = World(a=8)
    world.tell(group(2))
    world.submit("w", gpus=1, gang=MEMBER)
    world.see(pod("other", 1, node="a"))
    world.wait(20)
    assert "w" not in world.running()
    world.see(pod("other", 1, node="a", gang=MEMBER, labels={"pod-group": "train"}))
    world.wait(10)
    assert "w" in world.running()


def test_questions_know_what_a_group_asks_for() -> None:
    world = World(a=8)
    world.tell(group(1, resources=((GPU, 64),)))
    world.submit("w", gpus=1, gang=MEMBER)
    missing = Gang(group_key(X, "default", "nowhere"), grouped=True)
    found = [
        ask(world.engine, PlaceGang("g", pod("x", 1, gang=gang), 1, 1))[0]
        for gang in (MEMBER, missing)
    ]
    assert [isinstance(each, GangWhere) and each.message for each in found] == [
        f"PodGroup default/train: minResources asks for 64 {GPU}, and 8 are free "
        "on all nodes together",
        "PodGroup default/nowhere does not exist",
    ]
    said = Advice(world.engine).explain("default/w")
    assert not said.ok
    assert "minResources asks for 64" in said.message
