"""Pods go for more important ones: who goes, what is kept meanwhile, and how it ends."""

from typing import Any

from msgspec.structs import replace

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import AffinityTerm, Gang, HostPort, Lifecycle, Pod
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.state import laws
from bayplan.testing.world import HOSTNAME, World, cards, node, pod, terms


def effects_of(world: World, kind: type) -> list[Any]:
    return [effect for effect in world.effects if isinstance(effect, kind)]


def victims(world: World) -> list[str]:
    return [each.name for effect in effects_of(world, do.Preempt) for each in effect.victims]


def nominated(world: World) -> dict[str, str | None]:
    """The last word on each pod."""
    return {each.pod.name: each.nominated for each in effects_of(world, do.Refuse)}


def resident(world: World, name: str) -> Pod:
    return world.engine.cluster.pods[f"uid-{name}"].pod


def full(**facts: Any) -> World:
    world = World(a=2, b=2)
    for at in range(4):
        world.submit(f"low-{at}", gpus=1, started_s=100.0 + at, **facts)
    return world


def test_the_pod_gets_the_place_of_its_victim_once_that_is_gone() -> None:
    world = full()
    world.submit("high", gpus=1, priority=10)
    assert victims(world) == ["low-3"]  # all else being equal, the one that started last
    node = world.running()["low-3"]
    assert nominated(world)["high"] == node
    assert "high" not in world.running()
    world.finish("low-3")
    assert world.running()["high"] == node
    assert not laws.broken(world.engine.cluster)
    assert not world.engine.nominations.owners
    assert not world.engine.nominations.doomed


def test_nobody_else_gets_the_place_that_is_kept() -> None:
    world = full()
    world.submit("high", gpus=1, priority=10)
    world.submit("low-9", gpus=1)
    world.finish("low-3")
    assert "low-9" not in world.running()
    world.finish("high")
    world.wait(1)
    assert "low-9" in world.running()


def test_the_place_is_given_up_when_the_pod_goes() -> None:
    world = full()
    world.submit("high", gpus=1, priority=10)
    world.submit("low-9", gpus=1)
    world.tell(on.PodGone("uid-high"))
    assert not world.engine.cluster.holds.rows
    world.finish("low-3")
    world.wait(1)
    assert "low-9" in world.running()


def test_equals_preempt_each_for_itself_and_claim_other_places() -> None:
    world = full()
    world.submit("high", pods=3, gpus=1, priority=10)
    assert sorted(victims(world)) == ["low-1", "low-2", "low-3"]
    for name in ("low-1", "low-2", "low-3"):
        world.finish(name)
    assert {"high-0", "high-1", "high-2"} <= world.running().keys()
    assert not laws.broken(world.engine.cluster)


def test_nobody_goes_for_equals_or_for_who_never_preempts() -> None:
    world = full(priority=10)
    world.submit("same", gpus=1, priority=10)
    world.submit("meek", gpus=1, priority=20, preempts=False)
    assert not victims(world)
    said = {each.pod.name: each.refusal.sentence for each in effects_of(world, do.Refuse)}
    short = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption:"
    nobody = "0/2 nodes are available: 2 No preemption victims found for incoming pod."
    assert said == {
        "same": f"{short} {nobody}",
        "meek": f"{short} not eligible due to preemptionPolicy=Never.",
    }


def test_a_more_important_pod_takes_the_place_that_is_kept() -> None:
    world = full()
    world.submit("high", gpus=1, priority=10)
    world.finish("low-3")  # its place would be taken at once, but …
    assert "high" in world.running()
    world = full()
    world.submit("high", gpus=1, priority=10, preempts=True)
    world.engine.handle(on.PodSeen(pod("higher", 1, priority=20)), world.now)
    world.engine.handle(on.PodGone("uid-low-3"), world.now)
    world.tick()
    assert world.running()["higher"]
    assert "high" not in world.running()


def test_a_victim_that_stays_gives_the_place_up() -> None:
    world = full()
    world.submit("high", gpus=1, priority=10)
    world.tell(on.VictimSpared("uid-low-3", "forbidden"))
    assert not world.engine.nominations.owners
    assert not world.engine.cluster.holds.rows
    world.wait(1)
    assert victims(world) == ["low-3", "low-3"]  # it looks again, and may be told so again


def test_a_nomination_of_before_is_found_again() -> None:
    world = World(a=1)
    world.see(pod("low", 1, node="a", terminating=True, preempted=True))
    world.see(pod("high", 1, priority=10, nominated="a"))
    assert world.engine.cluster.holds.rows == {"uid-high": 0}
    assert not victims(world)
    (said,) = effects_of(world, do.Refuse)
    assert said.refusal.more == (
        "preemption: not eligible due to a terminating pod on the nominated node."
    )
    world.submit("equal", gpus=1, priority=10)
    world.finish("low")
    assert world.running() == {"high": "a"}


def test_devices_that_are_freed_are_held_by_id() -> None:
    world = World()
    world.node("a", 2, **cards(100, 100, name="a"))
    world.submit("low", pods=2, gpus=1)
    world.submit("high", gpus=1, priority=10)
    (victim,) = victims(world)
    freed = world.devices[victim]
    world.finish(victim)
    assert world.devices["high"] == freed


def test_an_update_that_changes_the_request_gives_the_place_up() -> None:
    world = full()
    world.submit("high", gpus=1, priority=10)
    world.see(pod("high", 0, priority=10))
    world.wait(1)
    assert "high" in world.running()
    assert not world.engine.cluster.holds.rows


def test_the_least_work_is_lost_where_all_else_is_equal() -> None:
    world = World(a=1, b=1)
    world.submit("x", gpus=1, started_s=50.0)
    world.submit("y", gpus=1, started_s=50.0)
    saved = replace(resident(world, "x"), lifecycle=Lifecycle(checkpoint_s=900.0))
    world.see(replace(saved, node=world.running()["x"]))
    world.submit("high", gpus=1, priority=10, created_s=1000.0)
    assert victims(world) == ["x"]


def test_whoever_comes_back_on_a_trial_is_still_asked() -> None:
    """The one that is in the way by its own anti-affinity goes, not the other."""
    world = World()
    world.node("a", 0, allocatable={"cpu": 2000})
    away = AffinityTerm(Selector((Requirement("app", "In", ("a",)),)), HOSTNAME, ("default",))
    world.submit("p0", cpu=1000, priority=1, terms=terms(anti_affinity=(away,)))
    world.submit("p1", cpu=1000)
    world.submit("new", cpu=1000, priority=10, labels={"app": "a"})
    assert victims(world) == ["p0"]


def test_a_pod_whose_place_can_never_be_looks_elsewhere() -> None:
    world = World(a=1, b=1)
    world.see(pod("low-a", 1, node="a", terminating=True, preempted=True))
    world.see(pod("low-b", 1, node="b"))
    world.node("a", 1, unschedulable=True)
    world.see(pod("high", 1, priority=10, nominated="a"))
    assert victims(world) == ["low-b"]


def test_places_that_exclude_each_other_are_not_promised_twice() -> None:
    world = full()
    ports = (HostPort("TCP", 80, "0.0.0.0"),)
    world.submit("high", pods=3, gpus=1, priority=10, ports=ports)
    assert len(victims(world)) == 2  # one on each node; the third has to wait
    for name in victims(world):
        world.finish(name)
    assert sum(name.startswith("high") for name in world.running()) == 2


def test_devices_of_pods_that_left_are_free() -> None:
    world = World()
    world.node("a", 4, **cards(100, 100, 100, 100, name="a"))
    world.submit("v", pods=4, gpus=1, started_s=5.0)
    world.submit("first", gpus=1, priority=10)  # from now on the pods are known as columns
    world.finish(victims(world)[0])
    for name in ("v-0", "v-1", "v-2", "v-3"):
        if name in world.running():
            world.finish(name)
    world.submit("w", pods=3, gpus=1, started_s=5.0)
    world.submit("second", gpus=1, priority=10)
    assert len(victims(world)) == 2


def test_room_that_is_given_up_wakes_others() -> None:
    world = World(a=1)
    world.submit("v", gpus=1)
    world.submit("high", gpus=1, priority=10)
    world.submit("low", gpus=1)
    world.node("b", 1)
    world.wait(2)
    assert world.running()["high"] == "b"
    world.finish("v")
    world.wait(2)
    assert world.running()["low"] == "a"


def test_a_victim_that_two_count_on_is_deleted_for_the_one_that_is_left() -> None:
    world = World(a=2)
    world.submit("v", gpus=2)
    world.submit("one", gpus=1, priority=10)
    world.submit("two", gpus=1, priority=10)
    assert victims(world) == ["v"]
    world.tell(on.PodGone("uid-one"))
    world.tell(on.VictimSpared("uid-v", "nobody needs it", "uid-one"))
    assert victims(world) == ["v", "v"]
    assert [effect.pod.name for effect in effects_of(world, do.Preempt)] == ["one", "two"]


def test_nobody_is_deleted_for_an_equal_that_only_counted_on_it() -> None:
    world = World(a=2)
    world.submit("v", gpus=2, priority=5)
    world.submit("one", gpus=1, priority=10)
    world.submit("two", gpus=1, priority=5)
    assert victims(world) == ["v"]
    world.tell(on.PodGone("uid-one"))
    world.tell(on.VictimSpared("uid-v", "nobody needs it", "uid-one"))
    assert victims(world) == ["v"]
    assert list(world.waiting()) == ["two"]


def test_nobody_is_deleted_for_a_pod_that_fits_beside_it_meanwhile() -> None:
    world = World(a=3)
    world.submit("v", pods=2, gpus=1)
    world.submit("w", gpus=1, priority=1)
    world.submit("one", gpus=2, priority=10)
    world.submit("two", gpus=1, priority=9)
    told = victims(world)
    assert sorted(told) == ["v-0", "v-1", "w"]
    world.finish("w")
    world.tell(on.PodGone("uid-one"))
    world.tell(on.VictimSpared("uid-v-0", "nobody needs it", "uid-one"))
    assert victims(world) == told


def test_nobody_is_deleted_for_pods_that_have_room_enough_by_the_others_who_go() -> None:
    world = World(a=3)
    world.submit("v", pods=3, gpus=1)
    for name in ("one", "two", "three"):
        world.submit(name, gpus=1, priority=10)
    first, *others = told = victims(world)
    assert sorted(told) == ["v-0", "v-1", "v-2"]
    world.tell(on.PodGone("uid-one"))
    world.tell(on.VictimSpared(f"uid-{first}", "nobody needs it", "uid-one"))
    assert victims(world) == told
    for name in others:
        world.finish(name)
    world.wait(2)
    assert world.running().keys() == {first, "two", "three"}


def test_nobody_is_deleted_whose_gang_cannot_be_without_it_meanwhile() -> None:
    world = World(a=2, b=1, c=1)
    gang = Gang("default/g", 2)
    for at, gpus in (("a", 2), ("b", 1), ("c", 1)):
        world.see(pod(f"on-{at}", gpus, node=at, gang=gang))
    for name in ("one", "two"):
        world.see(pod(name, 1, priority=10, node_selector=((HOSTNAME, "a"),)))
    world.tick()
    assert victims(world) == ["on-a"]
    world.tell(on.PodGone("uid-on-b"))
    world.tell(on.PodGone("uid-one"))
    world.tell(on.VictimSpared("uid-on-a", "nobody needs it", "uid-one"))
    assert victims(world) == ["on-a"]
    world.wait(2)
    assert sorted(victims(world)) == ["on-a", "on-a", "on-c"]


def test_a_victim_that_cannot_be_deleted_is_left_alone_for_a_while() -> None:
    world = World(a=1, b=1)
    world.submit("v", gpus=1)
    world.submit("w", gpus=1, priority=1)
    world.submit("high", gpus=1, priority=10)
    assert victims(world) == ["v"]
    world.tell(on.VictimSpared("uid-v", "forbidden", "uid-high", 300.0))
    world.wait(10)
    assert victims(world) == ["v", "w"]
    world.tell(on.VictimSpared("uid-w", "forbidden", "uid-high", 600.0))
    world.wait(10)
    assert victims(world) == ["v", "w"]
    assert "No preemption victims found" in effects_of(world, do.Refuse)[-1].refusal.sentence
    world.wait(301)
    assert victims(world) == ["v", "w", "v"]


def test_a_gang_with_a_member_that_cannot_be_deleted_is_nobodys_victim() -> None:
    world = World(a=1, b=1)
    world.submit("g", pods=2, gpus=1, gang=Gang("default/g", 2))
    world.tell(on.VictimSpared("uid-g-0", "forbidden", "uid-other", 300.0))
    world.submit("high", gpus=1, priority=10)
    assert victims(world) == []


def test_who_waits_for_others_to_go_hears_that_the_node_is_another() -> None:
    world = World(a=1, b=1)
    world.submit("v", pods=2, gpus=1)
    world.submit("high", gpus=1, priority=10)
    (first,) = victims(world)
    home = world.running()[first]
    world.tell(on.NodeSeen(node(home, 1, unschedulable=True)))
    world.tick()
    assert len(victims(world)) == 2


def test_a_pod_that_gets_another_label_keeps_its_place() -> None:
    world = World(a=1)
    world.submit("v", gpus=1)
    world.submit("high", gpus=1, priority=10)
    assert victims(world) == ["v"]
    world.see(pod("high", 1, priority=10, nominated="a", labels={"new": "label"}))
    world.submit("equal", gpus=1, priority=10)
    assert victims(world) == ["v"]
    world.finish("v")
    assert world.running() == {"high": "a"}
    assert world.engine.nominations.owners == {}


def test_a_pod_that_asks_for_more_gets_another_place() -> None:
    world = World(a=2)
    world.submit("v", pods=2, gpus=1)
    world.submit("high", gpus=1, priority=10)
    (first,) = victims(world)
    world.see(pod("high", 2, priority=10, nominated="a"))
    world.finish(first)
    world.wait(10)
    _, second = victims(world)
    assert {first, second} == {"v-0", "v-1"}
    world.finish(second)
    assert world.running() == {"high": "a"}


def test_who_is_left_alone_does_not_go_for_another_that_counted_on_it() -> None:
    world = World(a=2)
    world.submit("v", gpus=2)
    world.submit("one", gpus=1, priority=10)
    world.submit("two", gpus=1, priority=10)
    world.tell(on.PodGone("uid-one"))
    world.tell(on.VictimSpared("uid-v", "forbidden", "uid-one", 300.0))
    assert victims(world) == ["v"]
    assert world.engine.nominations.owners == {}


def test_what_a_nominated_pod_waits_for_is_no_answer_to_its_equals() -> None:
    world = World(a=1, b=1)
    going = pod("going", 1, node="a", terminating=True, preempted=True)
    world.see(going)
    world.see(pod("low", 1, node="b"))
    world.see(pod("other", 1, priority=20, nominated="a"))  # it was there before this engine
    world.see(pod("first", 1, priority=10, nominated="a"))
    assert victims(world) == []
    world.see(pod("second", 1, priority=10))
    assert victims(world) == ["low"]


def test_a_place_that_is_given_up_for_another_is_anybodys() -> None:
    world = World()
    for name, gpus in (("a", 3), ("b", 2)):
        world.node(name, gpus, labels={"zone": "z"})
    world.see(pod("low", 2, node="a"))
    world.see(pod("middle", 2, node="b", priority=5))
    world.submit("high", gpus=2, priority=10, node_selector=(("zone", "z"),))
    world.submit("small", gpus=1, node_selector=((HOSTNAME, "a"),))
    assert (victims(world), sorted(world.waiting())) == (["low"], ["high", "small"])
    world.node("a", 3, labels={"zone": "y"})
    assert victims(world) == ["low", "middle"]
    world.wait(1.1)
    assert world.running() == {"small": "a"}


def test_another_schedulers_pod_that_others_go_for_is_in_nobodys_way() -> None:
    world = World(n=3)
    world.submit("v", gpus=3)
    world.submit("ours", gpus=3, priority=5)
    world.submit("small", gpus=1)
    world.tell(on.PlaceWanted(pod("foreign", 2, scheduler="other", priority=9), ("n",)))
    world.finish("v")
    world.wait(11)
    assert world.running() == {"small": "n"}


def test_what_was_kept_for_another_schedulers_pod_is_anybodys_when_it_comes_no_more() -> None:
    for ends in (lambda world: world.tell(on.PodNotExpected("uid-foreign")), lambda world: None):
        world = World(n=3)
        world.tell(on.PodExpected(pod("foreign", 3, scheduler="other"), "n"))
        world.submit("ours", gpus=1)
        assert list(world.waiting()) == ["ours"]
        ends(world)
        world.wait(3)
        assert world.running() == {"ours": "n"}
