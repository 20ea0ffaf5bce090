"""How pods wait: who is tried, who rests, and what wakes them."""

import pytest

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import (
    Enabled,
    PluginSet,
    Profile,
    ProfileConfig,
    ProfileError,
)
from bayplan.core.model import effects as do
from bayplan.core.model.events import BindFailed, NodeGone, NodeSeen, PodGone, PodSeen, Tick
from bayplan.core.model.pods import AffinityTerm, Pod, Spread
from bayplan.core.model.selectors import Requirement, Selector
from bayplan.core.plugins.order import NamespaceShare
from bayplan.core.plugins.registry import BUILT_IN
from bayplan.testing.world import HOSTNAME, World, node, pod, terms

WEB = Selector((Requirement("app", "In", ("web",)),))
SHARE = PluginSet(enabled=(Enabled("NamespaceShare"),), disabled=(Enabled("PrioritySort"),))


def test_a_long_queue_of_equals_costs_no_more_per_pod_than_a_short_one() -> None:
    """Counted, not timed: one entry per group, however many pods it has."""
    engine = Engine(max_in_flight=1 << 20)
    engine.handle(NodeSeen(node("a", gpus=10_000, allocatable={"pods": 10_000})), 0)
    for i in range(5_000):
        engine.handle(PodSeen(pod(f"p{i}", gpus=1)), 0)
    assert len(engine.waiting._ready) == 1

    bound = [e for e in engine.handle(Tick(limit=10_000), 0) if isinstance(e, do.Bind)]

    assert [e.placement.pod.name for e in bound] == [f"p{i}" for i in range(5_000)]
    assert len(engine.waiting._ready) <= 1


def test_what_a_long_life_leaves_behind_is_bounded() -> None:
    engine = Engine()
    engine.handle(NodeSeen(node("a", gpus=8)), 0)
    engine.handle(PodSeen(pod("huge", gpus=9)), 0)
    for i in range(2_000):
        now = float(i * 11)
        engine.handle(PodSeen(pod(f"p{i}", gpus=9)), now)
        engine.handle(
            NodeSeen(node("a", gpus=8, labels={"n": str(i)}, allocatable={"cpu": i})), now
        )
        engine.handle(Tick(), now)
        engine.handle(PodGone(f"uid-p{i}"), now)
    waiting = engine.waiting
    (group,) = waiting.groups.values()

    assert len(waiting._timers) < 20
    assert len(waiting._ready) < 5
    assert len(group.newcomers) < 5
    assert len(group.awake) + len(group.resting) < 80


def test_a_node_that_goes_wakes_those_whom_its_pods_kept_away() -> None:
    world = World(a=8, b=8)
    alone = terms(anti_affinity=(AffinityTerm(WEB, "zone", ("default",)),))
    for name in "ab":
        world.node(name, labels={"zone": "z"})
    world.submit("first", labels={"app": "web"}, terms=alone)
    world.submit("second", labels={"app": "web"}, terms=alone)
    assert set(world.running()) == {"first"}

    world.wait(20)
    world.tell(NodeGone(world.running()["first"]))

    assert set(world.running()) == {"first", "second"}


def test_a_domain_that_goes_wakes_those_whom_it_kept_waiting() -> None:
    world = World()
    world.node("a", labels={"zone": "x"})
    world.node("b", labels={"zone": "y"}, unschedulable=True)
    even = terms(spread=(Spread(1, "zone", True, WEB),))
    world.submit("first", labels={"app": "web"}, terms=even)
    world.submit("second", labels={"app": "web"}, terms=even)
    assert set(world.running()) == {"first"}

    world.wait(20)
    world.tell(NodeGone("b"))

    assert set(world.running()) == {"first", "second"}


def test_the_last_of_a_series_that_goes_lets_the_next_be_the_first() -> None:
    world = World(a=8, b=8)
    together = terms(affinity=(AffinityTerm(WEB, HOSTNAME, ("default",)),))
    world.submit("first", gpus=8, labels={"app": "web"}, terms=together)
    world.submit("second", gpus=8, labels={"app": "web"}, terms=together)
    assert set(world.running()) == {"first"}

    world.wait(20)
    world.finish("first")

    assert set(world.running()) == {"second"}


class Fragile:
    """Fails for one pod, wherever it is asked."""

    name = "Fragile"
    where = "hold"

    def hold(self, pod: Pod) -> str | None:
        self._fail("hold", pod)
        return None

    def key(self, pod: Pod, arrival: int) -> tuple[float, ...]:
        self._fail("key", pod)
        return (arrival,)

    def started(self, pod: Pod, key: tuple[float, ...]) -> None:
        self._fail("started", pod)

    def left(self, pod: Pod) -> None:
        """Nothing to remember."""

    def _fail(self, where: str, pod: Pod) -> None:
        if where == self.where and pod.name == "bad":
            raise KeyError("x")


@pytest.mark.parametrize("where", ["hold", "key", "started"])
def test_a_failure_in_admit_or_order_is_contained_too(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "where", where)
    only = PluginSet(enabled=(Enabled("Fragile"),), disabled=(Enabled("*"),))
    config = ProfileConfig(plugins={"admit": only, "order": only})
    world = World(profiles=[Profile(config, {**BUILT_IN, "Fragile": Fragile})], a=8)
    world.submit("bad", gpus=1)
    world.submit("good", gpus=1)

    assert world.running() == {"good": "a"}
    assert world.engine.plugin_errors >= 1
    assert "uid-bad" in world.engine.held or "uid-bad" in world.engine.waiting.pods


def test_a_pod_whose_bind_failed_rests_while_its_equals_are_tried() -> None:
    world = World(a=8, binds="hold")
    world.engine.max_in_flight = 1
    world.submit("train", gpus=1, pods=2)
    world.answer("train-0", ok=False)
    assert set(world.running()) == {"train-1"}

    world.engine.max_in_flight = 9
    world.tick()
    assert set(world.running()) == {"train-1"}
    world.wait(1)
    assert set(world.running()) == {"train-0", "train-1"}


@pytest.mark.parametrize("change", [{"terminating": True}, {"scheduler": "other"}])
def test_a_pod_that_is_no_longer_ours_is_not_queued_when_its_bind_fails(change: dict) -> None:  # type: ignore[type-arg]
    world = World(a=8, binds="hold")
    world.submit("train", gpus=1)
    world.see(pod("train", 1, **change))
    world.tell(BindFailed("uid-train", "conflict"))
    world.wait(20)

    assert len([e for e in world.effects if isinstance(e, do.Bind)]) == 1
    assert not world.engine.waiting.pods
    assert not world.engine.cluster.pods


def test_a_waiting_pod_that_changes_keeps_its_place_and_its_back_off() -> None:
    world = World(a=0)
    world.submit("first", gpus=1)
    world.submit("second", gpus=1, cpu=1)
    before, _ = world.engine.waiting.pods["uid-first"]
    told = len(world.effects)
    world.see(pod("first", 1, labels={"changed": "yes"}))
    after, _ = world.engine.waiting.pods["uid-first"]

    assert (after.arrival, after.attempts) == (before.arrival, before.attempts)
    assert len(world.effects) == told


def test_a_namespace_is_not_charged_for_pods_that_it_took_back() -> None:
    order = NamespaceShare()
    for i in range(5_000):
        order.key(pod(f"p{i}", namespace="a"), i)
    for i in range(5_000):
        order.left(pod(f"p{i}", namespace="a"))

    assert order.key(pod("late", namespace="a"), 1)[1] == 1
    assert order.key(pod("other", namespace="b"), 2)[1] == 1


def test_profiles_in_one_engine_must_sort_alike_and_have_names_of_their_own() -> None:
    plain, shared = ProfileConfig("one"), ProfileConfig("two", plugins={"order": SHARE})
    with pytest.raises(ProfileError, match="same order plugin"):
        Engine([Profile(plain), Profile(shared)])
    with pytest.raises(ProfileError, match="two profiles have this schedulerName"):
        Engine([Profile(plain), Profile(plain)])


def test_two_profiles_share_the_cluster() -> None:
    one, two = Profile(ProfileConfig("one")), Profile(ProfileConfig("two"))
    world = World(profiles=[one, two], a=8)
    world.submit("first", gpus=8, scheduler="one")
    world.submit("second", gpus=8, scheduler="two")

    assert world.running() == {"first": "a"}


def test_the_driver_learns_when_to_tick_next() -> None:
    world = World(a=8)
    waiting = world.engine.waiting
    assert waiting.next_time(world.now) is None
    world.submit("huge", gpus=9)
    assert waiting.next_time(world.now) == 1.0  # when its rest is over
    world.engine.handle(PodSeen(pod("small", gpus=1)), world.now)
    assert waiting.next_time(world.now) == world.now


def test_a_pod_that_comes_to_a_sleeping_group_by_a_change_of_terms_is_told() -> None:
    world = World(a=8)
    world.submit("huge", gpus=9)
    world.see(pod("late", 9, labels={"app": "web"}))

    told = [e.pod.name for e in world.effects if isinstance(e, do.Refuse)]
    assert told == ["huge", "late"]
