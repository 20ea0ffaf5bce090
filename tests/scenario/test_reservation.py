"""A gang that has waited for long gets places, and nobody is told to go for it."""

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.groups import Patience
from bayplan.core.model.pods import Gang
from bayplan.core.model.steps import Fits, Where
from bayplan.core.state import laws
from bayplan.testing.world import HOSTNAME, World, asks, cards, pod
from tests.what_if.clusters import ask

LONG = Patience().reserve_s
BIG = Gang("default/big", 2)


class Stream:
    """One-GPU pods that come as soon as there is room, each for a while."""

    def __init__(self, world: World, lasts_s: float = 10.0, **facts: Any) -> None:
        self.world, self.lasts_s, self.facts = world, lasts_s, facts
        self.number = 0
        self.ends: dict[str, float] = {}  # by name: seconds of work that are left, when it runs

    def flow(self, seconds: int) -> None:
        world = self.world
        for _ in range(seconds):
            if not any(name.startswith("small") for name in world.waiting()):
                self.number += 1
                name = f"small-{self.number}"
                world.submit(name, gpus=1, created_s=world.now, **self.facts)
            world.wait(1)
            for name in [name for name in world.running() if name.startswith("small")]:
                left = self.ends.setdefault(name, self.lasts_s) - 1
                self.ends[name] = left
                if left <= 0:
                    world.finish(name)


def reserved(world: World) -> set[str]:
    """The nodes where places are kept."""
    cluster = world.engine.cluster
    return {cluster.name(row) for row in cluster.holds.rows.values()}


def full(**facts: Any) -> World:
    """Two nodes of 4 GPUs whose pods came after the gang, which wants all of both."""
    world = World(a=4, b=4)
    world.now = 100.0
    for node in "ab":
        for at in range(4):
            world.see(pod(f"{node}-{at}", 1, node=node, created_s=90.0, **facts))
    world.submit("big", pods=2, gpus=4, gang=BIG, created_s=50.0)
    return world


def test_a_stream_of_small_pods_does_not_starve_a_gang() -> None:
    world = World(a=4, b=4, patience=Patience(reserve_s=60.0))
    stream = Stream(world)
    stream.flow(20)
    world.submit("big", pods=2, gpus=4, gang=BIG, created_s=world.now)
    for _ in range(20):
        stream.flow(10)
        if "big-0" in world.running():
            break
    assert {"big-0", "big-1"} <= world.running().keys()
    assert world.now < 20 + 60 + 40
    assert not [each for each in world.effects if isinstance(each, do.Preempt | do.Evict)]
    stream.flow(30)
    for name in ("big-0", "big-1"):
        world.finish(name)
    stream.flow(30)
    assert any(name.startswith("small") for name in world.running())
    assert not world.engine.cluster.holds.rows
    assert not laws.broken(world.engine.cluster)


def test_without_patience_for_it_the_gang_starves() -> None:
    """The test before this one can fail."""
    world = World(a=4, b=4, patience=Patience(reserve_s=float("inf")))
    stream = Stream(world)
    stream.flow(20)
    world.submit("big", pods=2, gpus=4, gang=BIG, created_s=world.now)
    stream.flow(200)
    assert "big-0" not in world.running()


def test_what_becomes_free_is_kept_and_nothing_before_it_is_time() -> None:
    world = full()
    world.wait(LONG - 1)
    assert not reserved(world)
    world.wait(12)
    assert reserved(world) == {"a", "b"}
    world.finish("a-0")
    world.submit("small", gpus=1, created_s=world.now)
    assert "small" not in world.running()
    texts = [each.refusal.sentence for each in world.effects if isinstance(each, do.Refuse)]
    assert any(
        "0 of 2 members fit." in text
        and text.endswith("2 places are kept for it until the pods there end.")
        for text in texts
    )
    for name in ("a-1", "a-2", "a-3", "b-0", "b-1", "b-2", "b-3"):
        assert "big-0" not in world.running()
        world.finish(name)
    assert {"big-0", "big-1"} <= world.running().keys()
    assert not world.engine.nominations.owners


def test_pods_that_were_there_before_are_not_waited_for() -> None:
    world = World(a=4)
    world.now = 100.0
    world.see(pod("old", 2, node="a", created_s=10.0))
    world.see(pod("young", 2, node="a", created_s=90.0))
    world.submit("big", gpus=4, gang=Gang("default/big", 1), created_s=50.0)
    world.wait(LONG + 10)
    assert not reserved(world)


def test_more_important_pods_take_the_place_and_another_is_found() -> None:
    world = full()
    world.node("c", 4)
    world.see(pod("on-c", 4, node="c", created_s=95.0))
    world.wait(LONG + 12)
    before = reserved(world)
    assert len(before) == 2
    world.submit("urgent", gpus=4, priority=10, created_s=world.now)
    for each in [each for each in world.effects if isinstance(each, do.Preempt)]:
        for victim in each.victims:
            world.finish(victim.name)
    assert "urgent" in world.running()
    world.wait(12)
    assert world.running()["urgent"] not in reserved(world)
    assert len(reserved(world)) == 2


def test_a_node_that_goes_or_is_cordoned_is_a_place_that_is_lost() -> None:
    world = full()
    world.node("c", 4)
    world.see(pod("on-c", 4, node="c", created_s=95.0))
    world.wait(LONG + 12)
    gone, *_ = reserved(world)
    world.tell(on.NodeGone(gone))
    world.wait(12)
    assert reserved(world) == {"a", "b", "c"} - {gone}
    world.node(gone, 4)
    cordoned, *_ = reserved(world)
    world.node(cordoned, 4, unschedulable=True)
    world.finish("nobody")
    for _ in range(40):
        world.wait(10)
    assert cordoned not in reserved(world)


def test_one_gang_has_places_at_a_time_for_each_class_of_devices() -> None:
    world = full(cpu=1000)
    world.submit("next", pods=2, gpus=2, gang=Gang("default/next", 2), created_s=60.0)
    world.submit("cpus", pods=2, cpu=64_000, gang=Gang("default/cpus", 2), created_s=60.0)
    for name in ("x", "y"):
        world.node(name, 0)
        world.see(pod(f"on-{name}", 0, 40_000, node=name, created_s=95.0))
    for _ in range(4):
        world.wait(LONG / 2)
    owners = set(world.engine.nominations.awaited)
    assert owners == {"default/big", "default/cpus"}
    for name in [each for each in world.engine.cluster.pods if each.startswith("uid-a")]:
        world.finish(name.removeprefix("uid-"))
    for name in [each for each in world.engine.cluster.pods if each.startswith("uid-b")]:
        world.finish(name.removeprefix("uid-"))
    assert {"big-0", "big-1"} <= world.running().keys()


def test_a_more_important_gang_takes_the_places_over() -> None:
    world = full()
    world.wait(LONG + 12)
    assert set(world.engine.nominations.awaited) == {"default/big"}
    higher = Gang("default/higher", 2)
    facts = {"gang": higher, "created_s": 60.0, "priority": 5, "preempts": False}
    world.submit("higher", pods=2, gpus=4, **facts)
    for _ in range(5):
        world.wait(LONG / 2)
    assert set(world.engine.nominations.awaited) == {"default/higher"}


def test_places_are_given_up_with_the_gang() -> None:
    world = full()
    world.wait(LONG + 12)
    world.finish("big-0")
    world.wait(12)
    assert not reserved(world)
    assert not world.engine.nominations.awaited
    world.finish("a-0")
    world.submit("small", gpus=1, created_s=world.now)
    assert world.running()["small"] == "a"


def test_places_are_not_kept_where_others_are_promised_room() -> None:
    """Beside such a hold the other would not fit until those who are awaited have ended."""
    world = World(a=4)
    world.now = 100.0
    for at in range(4):
        world.see(pod(f"a-{at}", 1, node="a", created_s=90.0))
    world.submit("big", gpus=2, gang=Gang("default/big", 1), created_s=50.0)
    world.wait(LONG - 1)
    world.submit("urgent", gpus=2, priority=10, created_s=world.now)
    (preempt,) = [each for each in world.effects if isinstance(each, do.Preempt)]
    world.wait(12)
    assert set(world.engine.nominations.owners) == {"uid-urgent"}
    for victim in preempt.victims:
        world.finish(victim.name)
    assert world.running() == {"urgent": "a"}
    world.wait(12)
    assert "uid-big" in world.engine.nominations.owners


def test_one_that_is_awaited_gets_its_own_place_back_when_its_bind_fails() -> None:
    world = World(a=4, binds="hold")
    world.now = 100.0
    world.submit("big", gpus=4, gang=Gang("default/big", 1), created_s=50.0)
    world.answer("big")
    world.finish("big")
    world.see(pod("a", 3, node="a", created_s=90.0))
    world.submit("w", gpus=1, gang=Gang("default/w", 1), created_s=95.0)
    world.submit("big", gpus=4, gang=Gang("default/big", 1), created_s=50.0)
    world.wait(LONG + 12)
    assert "uid-w" in world.engine.nominations.awaited["default/big"]
    world.answer("w", ok=False)
    world.wait(2)
    assert world.running()["w"] == "a"


def test_a_gang_for_which_there_are_no_places_is_in_nobodys_way() -> None:
    world = full()
    world.submit("huge", pods=2, gpus=64, gang=Gang("default/huge", 2), created_s=40.0)
    world.finish("big-0")
    world.finish("big-1")
    world.wait(1)
    world.submit("big", pods=2, gpus=4, gang=BIG, created_s=50.0)
    for _ in range(6):
        world.finish("nobody")
        world.wait(LONG / 4)
    assert set(world.engine.nominations.awaited) == {"default/big"}


def test_places_are_sought_where_pods_come_and_go() -> None:
    """One that has run for long may run for ever."""
    world = World(a=4, b=4)
    world.now = 100.0
    world.see(pod("server", 4, node="a", created_s=60.0))
    for at in range(4):
        world.see(pod(f"b-{at}", 1, node="b", created_s=90.0))
    world.submit("big", gpus=4, gang=Gang("default/big", 1), created_s=50.0)
    world.wait(LONG + 12)
    assert reserved(world) == {"b"}


def test_places_where_nobody_ends_are_given_up_for_others() -> None:
    world = World(a=4, b=4)
    world.now = 100.0
    world.see(pod("server", 4, node="a", created_s=95.0))
    world.see(pod("other", 4, node="b", created_s=60.0))
    world.submit("big", gpus=4, gang=Gang("default/big", 1), created_s=50.0)
    world.wait(LONG + 12)
    assert reserved(world) == {"a"}
    world.finish("other")
    world.see(pod("young", 4, node="b", created_s=world.now))
    world.wait(20)
    assert reserved(world) == {"a"}
    for _ in range(40):
        world.wait(10)
    assert reserved(world) == {"b"}


def test_what_is_free_already_is_used_first() -> None:
    """Places that are chosen anew do not throw away what was gained."""
    world = World(a=4, b=4, c=4, d=4)
    world.now = 100.0
    for at, node in enumerate("bcd"):
        world.see(pod(f"on-{node}", 4, node=node, created_s=90.0 + at))
    world.submit("big", pods=2, gpus=4, gang=BIG, created_s=50.0)
    world.wait(LONG + 12)
    assert reserved(world) == {"a", "d"}


def test_one_borrower_after_the_other_does_not_put_the_gang_off() -> None:
    world = lending()
    world.submit("first", gpus=1, run_s=700.0, created_s=world.now)
    started(world, "first", world.now + 500.0)
    world.finish("a-1")
    world.submit("second", gpus=1, run_s=1000.0, created_s=world.now)
    assert "second" not in world.running()


def started(world: World, name: str, at: float) -> None:
    """The kubelet says when the pod began."""
    resident = world.engine.cluster.pods[f"uid-{name}"]
    world.see(replace(resident.pod, node=world.engine.cluster.name(resident.row), started_s=at))


def lending(run_s: float = 1000.0) -> World:
    """Places are kept until 8 pods end, which they do by 1200; one GPU is free already."""
    world = full(run_s=run_s, started_s=200.0 if run_s else 0.0)
    world.wait(LONG + 12)
    assert reserved(world) == {"a", "b"}
    world.finish("a-0")
    return world


def test_pods_that_end_before_the_gang_can_start_may_use_its_places() -> None:
    world = lending()
    world.submit("short", gpus=1, run_s=700.0, created_s=world.now)
    assert world.running()["short"] == "a"
    assert "uid-short" in world.engine.nominations.awaited["default/big"]
    assert not laws.broken(world.engine.cluster)
    world.submit("another", gpus=1, run_s=1.0, created_s=world.now)
    assert "another" not in world.running()
    for name in ("a-1", "a-2", "a-3", "b-0", "b-1", "b-2", "b-3"):
        world.finish(name)
    assert "big-0" not in world.running()
    world.finish("short")
    assert {"big-0", "big-1"} <= world.running().keys()


def test_a_question_about_such_a_pod_is_answered_as_it_would_be_decided() -> None:
    world = lending()
    kept = dict(world.engine.cluster.holds.rows)
    short, long = (ask(world.engine, Fits(pod("x", 1, run_s=run_s)))[0] for run_s in (700.0, 900.0))
    assert isinstance(short, Where)
    assert isinstance(long, Where)
    assert (short.ok, short.node, long.ok) == (True, "a", False)
    assert world.engine.cluster.holds.rows == kept


@pytest.mark.parametrize("run_s", [0.0, 900.0], ids=["nobody says how long", "too long"])
def test_others_may_not(run_s: float) -> None:
    world = lending()
    world.submit("long", gpus=1, run_s=run_s, created_s=world.now)
    assert "long" not in world.running()


def test_without_a_word_on_their_end_nobody_knows_when_the_gang_can_start() -> None:
    world = lending(run_s=0.0)
    world.submit("short", gpus=1, run_s=1.0, created_s=world.now)
    assert "short" not in world.running()


def test_a_short_pod_is_tried_again_when_it_is_known_how_long_the_others_run() -> None:
    world = full(run_s=1000.0)
    world.wait(LONG + 12)
    world.finish("a-0")
    world.submit("short", gpus=1, run_s=700.0, created_s=world.now)
    assert "short" not in world.running()
    for node, count in (("a", range(1, 4)), ("b", range(4))):
        for at in count:
            started(world, f"{node}-{at}", 300.0)
    world.wait(10)
    assert "short" in world.running()


def test_places_are_devices_where_those_are_known() -> None:
    world = World()
    world.now = 100.0
    world.node("a", 2, **cards(100, 100, name="a"))
    for at in range(2):
        world.submit(f"p-{at}", devices=asks(mib=60), created_s=90.0)
    assert len(world.running()) == 2
    world.submit("big", pods=2, gpus=1, gang=BIG, created_s=50.0)
    world.wait(LONG + 12)
    assert len(reserved(world)) == 1
    world.finish("p-0")
    world.submit("part", devices=asks(mib=30), created_s=world.now)
    assert "part" not in world.running()
    world.finish("p-1")
    assert {"big-0", "big-1"} <= world.running().keys()
    assert not laws.broken(world.engine.cluster)


def test_a_place_that_moves_to_where_pods_end_is_anybodys() -> None:
    world = World(binds="hold", patience=Patience(reserve_s=5.0, timeout_s=10_000.0))
    for name, gpus in (("a", 1), ("b", 2), ("c", 2)):
        world.node(name, gpus, labels={"zone": "z"})
    facts: dict[str, Any] = {
        "gang": Gang("default/g", 2),
        "node_selector": (("zone", "z"),),
        "created_s": 1.0,
    }
    world.see(pod("later", 2, node="c", created_s=50.0))
    for name, gpus in (("g-0", 1), ("g-1", 2)):
        world.engine.handle(on.PodSeen(pod(name, gpus, **facts)), world.now)
    world.tick()
    assert world.running() == {"g-0": "a", "g-1": "b"}
    world.answer("g-0")
    world.see(pod("g-0", 1, node="a", **facts))
    world.answer("g-1", ok=False)
    world.submit("small", gpus=1, node_selector=((HOSTNAME, "b"),), created_s=60.0)
    world.node("b", 2, labels={"zone": "y"})
    for _ in range(10):
        world.wait(3)
    assert world.running()["small"] == "b"
