"""Each step, on a cluster of a few nodes."""

import pytest
from msgspec.structs import replace

from bayplan.core.engine.bounds import Limits, TooLong, TooMuch
from bayplan.core.engine.preempting import KEPT
from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.engine.what_if import WhatIf, new_node
from bayplan.core.model import events as on
from bayplan.core.model import steps
from bayplan.core.model.effects import Placement
from bayplan.core.model.nodes import Image
from bayplan.core.model.pods import AffinityTerm, Gang, HostPort, PodTerms
from bayplan.core.model.selectors import NodeTerm, Requirement, Selector, Taint
from bayplan.core.model.steps import (
    AddNodes,
    Capacity,
    Changed,
    ChangeNodes,
    Counted,
    Evict,
    Failed,
    Fits,
    GangWhere,
    Place,
    PlaceGang,
    Preempt,
    Where,
)
from bayplan.core.model.verdicts import Tally
from bayplan.core.plugins.hooks import Ask
from bayplan.core.plugins.registry import installed
from bayplan.core.state.cluster import Cluster
from bayplan.testing import World
from bayplan.testing.world import GPU, HOSTNAME, cards, node, pod
from tests.what_if.clusters import ask, asked

LACK = f"Insufficient {GPU}"


def full() -> World:
    """Two nodes of 8 GPUs, one of them full."""
    world = World(a=8, b=8)
    world.submit("big", 8)
    return world


def test_fits_says_where_and_with_which_devices() -> None:
    world = World()
    world.node("a", **cards(16 << 10, 16 << 10, name="a-"))

    (found,) = ask(world.engine, Fits(pod("x", 1)))

    assert isinstance(found, Where)
    assert (found.ok, found.node, found.victims) == (True, "a", ())
    assert [device.id for held in found.devices for device in held.devices] == ["GPU-a-0"]
    assert not world.engine.cluster.pods


def test_a_no_says_why_and_how_many_nodes_said_so() -> None:
    world = World({f"n{i:02}": 4 for i in range(12)})

    (found,) = ask(world.engine, Fits(pod("x", 8)))

    assert found == Where(
        ok=False,
        message=f"0/12 nodes are available: 12 {LACK}.",
        reasons={LACK: Tally(12, tuple(f"n{i:02}" for i in range(10)))},
    )


def test_fits_on_a_node_looks_there_only() -> None:
    world = full()
    taken = world.running()["big"]
    free = {"a": "b", "b": "a"}[taken]

    here, there, nowhere = ask(
        world.engine, *(Fits(pod("x", 8), name) for name in (taken, free, "c"))
    )

    message = f"0/1 nodes are available: 1 {LACK}."
    assert here == Where(ok=False, message=message, reasons={LACK: Tally(1, (taken,))})
    assert there == Where(ok=True, node=free)
    assert nowhere == Failed(error="there is no node c")


def test_would_it_fit_there_if_another_were_preempted() -> None:
    world = full()
    taken = world.running()["big"]

    (found,) = ask(world.engine, Fits(pod("x", 8), taken, ("default/big",)))

    assert found == Where(ok=True, node=taken, victims=("default/big",))
    assert "uid-big" in world.engine.cluster.pods


def test_what_is_evicted_or_placed_stays_so_for_the_steps_after_it() -> None:
    world = full()
    large = pod("x", 8)

    answers = ask(
        world.engine,
        Place(large),
        Place(large),
        Evict(("big",)),
        Place(large),
        Evict(("default/x-2", "default/x-2", "default/x")),
        Capacity(large),
    )

    assert [each.ok for each in answers] == [True, False, True, True, True, True]
    assert [each.pod for each in answers if isinstance(each, Where) and each.ok] == [
        "default/x",
        "default/x-2",
    ]
    assert answers[2] == Changed(changed=1)
    assert answers[4] == Changed(changed=2)
    assert answers[5] == Counted(count=2)


def test_who_is_not_there_is_told_and_the_rest_still_runs() -> None:
    world = full()

    answers = ask(
        world.engine,
        Evict(("big", "prod/b")),
        steps.Unreadable("no such step"),
        Fits(pod("x", 8), None, ("prod/b",)),
        ChangeNodes(("a", "z")),
        ChangeNodes((), AddNodes("z")),
        Capacity(pod("x", 8)),
    )

    assert answers[:5] == [
        Failed(error="there is no pod prod/b"),
        Failed(error="no such step"),
        Failed(error="there is no pod prod/b"),
        Failed(error="there is no node z"),
        Failed(error="there is no node z"),
    ]
    assert answers[5] == Counted(count=1)  # nothing of a step that fails is done


def test_a_pod_that_waits_holds_nothing_and_can_be_named() -> None:
    world = World(a=1)
    world.submit("waits", 4)
    world.see(pod("gated", gates=("later",)))

    assert ask(world.engine, Evict(("waits", "gated"))) == [Changed(changed=0)]


def test_what_is_held_for_a_pod_goes_with_it_and_is_not_in_its_own_way() -> None:
    world = World(a=8)
    mine = pod("mine", 8)
    world.engine.cluster.holds.hold(mine, world.engine.cluster.rows["a"])

    answers = ask(
        world.engine,
        Fits(pod("other", 8)),
        Fits(pod("mine", 8, uid="another")),
        Fits(pod("other", 8), None, ("mine",)),
        Place(pod("mine", 8, uid="another")),
        Evict(("mine",)),
        Place(pod("other", 8)),
    )

    assert [each.ok for each in answers] == [False, True, True, True, True, True]
    assert answers[4] == Changed(changed=1)
    assert "uid-mine" in world.engine.cluster.holds.rows


def test_new_nodes_have_names_that_nobody_has() -> None:
    world = World({"a": 8, "a-new-2": 8})
    lost = pod("lost", node="a-new-3")
    world.see(lost)

    answers = ask(
        world.engine,
        ChangeNodes((), AddNodes("a", 2)),
        ChangeNodes(("a-new-1", "a"), AddNodes("a-new-1", 2)),
        Fits(pod("x", 8), "a-new-6"),
        Capacity(pod("x", 8)),
    )

    assert answers[0] == Changed(changed=2, nodes=("a-new-1", "a-new-4"))
    assert answers[1] == Changed(changed=4, nodes=("a-new-5", "a-new-6"))
    assert answers[2].ok
    assert answers[3] == Counted(count=4)


def test_a_new_node_is_well() -> None:
    sick = (Taint("node.kubernetes.io/not-ready", "", "NoSchedule"), Taint("gpu", "", "NoSchedule"))
    old = node(
        "a",
        taints=sick,
        unschedulable=True,
        images=(Image(("x:1",), 9),),
        maps={"in-use": "1"},
        **cards(1 << 10),
    )

    new = new_node(old, "a-new-1")

    assert (new.name, new.labels[HOSTNAME], new.unschedulable) == ("a-new-1", "a-new-1", False)
    assert new.taints == sick[1:]
    assert (new.images, new.maps) == ((), {})
    assert (new.pools, new.allocatable) == (old.pools, old.allocatable)
    assert new.uid != old.uid


def test_a_removed_node_takes_its_pods_along() -> None:
    world = full()
    taken = world.running()["big"]

    answers = ask(
        world.engine, ChangeNodes((taken,)), Capacity(pod("x", 8)), Evict(("default/big",))
    )

    gone = Failed(error="there is no pod default/big")
    assert answers == [Changed(changed=1), Counted(count=1), gone]


def test_a_gang_is_placed_as_a_whole_or_not_at_all() -> None:
    world = full()
    worker = pod("w", 4)

    answers = ask(
        world.engine,
        PlaceGang("train", worker, 3, 3),
        Capacity(worker),
        PlaceGang("train", worker, 3, 2),
        Capacity(worker),
        Evict(("train-0", "train-1")),
        PlaceGang("one", replace(worker, gang=Gang("default/x", 9, ("zone",))), 1, 1),
    )

    no, _, some, _, _, one = answers
    assert isinstance(no, GangWhere)
    assert (no.ok, no.placed) == (False, 2)
    assert no.message == f"2 of 3 members fit; for the next: 0/2 nodes are available: 2 {LACK}."
    assert no.reasons == {LACK: Tally(2, ("a", "b"))}
    assert isinstance(some, GangWhere)
    assert (some.ok, some.placed) == (True, 2)
    assert [each.pod for each in some.placements] == ["default/train-0", "default/train-1"]
    assert [answers[1], answers[3]] == [Counted(count=2), Counted(count=0)]
    assert answers[4] == Changed(changed=2)
    assert one.ok


def test_preempt_names_the_victims_and_changes_nothing() -> None:
    world = World(a=8)
    world.submit("low", 4, priority=1)
    world.submit("high", 4, priority=5)

    answers = ask(
        world.engine,
        Preempt(pod("x", 4, priority=3)),
        Preempt(pod("x", 8, priority=3)),
        Preempt(pod("x", 4, priority=3, preempts=False)),
        Preempt(pod("x", 0, priority=3)),
        Capacity(pod("x", 4)),
    )

    assert answers[0] == Where(ok=True, node="a", victims=("default/low",))
    no, never, fits = answers[1:4]
    assert isinstance(no, Where)
    assert isinstance(never, Where)
    lacks = f"0/1 nodes are available: 1 {LACK}. preemption: "
    assert str(no.message).startswith(f"{lacks}0/1 nodes are available: ")
    assert never.message == f"{lacks}not eligible due to preemptionPolicy=Never."
    assert no.reasons == never.reasons == {LACK: Tally(1, ("a",))}
    assert fits == Where(ok=True, node="a")
    assert answers[4] == Counted(count=0)


def test_a_victim_whose_own_terms_are_in_the_way_is_not_spared() -> None:
    world = World(a=8)
    app = Selector((Requirement("app", "In", ("x",)),))
    alone = PodTerms("default", anti_affinity=(AffinityTerm(app, HOSTNAME, ("default",)),))
    world.submit("shy", 1, terms=alone)

    (found,) = ask(world.engine, Preempt(pod("x", 1, labels={"app": "x"}, priority=5)))

    assert found == Where(ok=True, node="a", victims=("default/shy",))


def test_without_a_plugin_for_it_nobody_goes_for_anybody() -> None:
    none = PluginSet(disabled=(Enabled("*"),))
    world = World(a=8, config=ProfileConfig(plugins={"preempt": none}))
    world.submit("low", 8)

    (found,) = ask(world.engine, Preempt(pod("x", 8, priority=9)))

    assert isinstance(found, Where)
    assert found.message == f"0/1 nodes are available: 1 {LACK}."


def test_capacity_says_when_there_is_more_than_it_counts() -> None:
    world = World(a=8)

    answers = ask(world.engine, *(Capacity(pod("x", 1), limit) for limit in (7, 8, 9)))

    assert answers == [Counted(count=7, more=True), Counted(count=8), Counted(count=8)]


def test_capacity_follows_the_pods_own_terms() -> None:
    world = World(a=8, b=8, c=8)
    app = Selector((Requirement("app", "In", ("x",)),))
    alone = PodTerms("default", anti_affinity=(AffinityTerm(app, HOSTNAME, ("default",)),))

    answers = ask(world.engine, Capacity(pod("x", 1, labels={"app": "x"}, terms=alone)))

    assert answers == [Counted(count=3)]


def test_the_profile_of_the_pods_scheduler_decides_else_the_first() -> None:
    first = Profile(ProfileConfig("first", {"filter": PluginSet(disabled=(Enabled("*"),))}))
    world = World(a=1, profiles=[first, Profile(ProfileConfig("second"))])

    answers = ask(
        world.engine,
        *(Fits(pod("x", 8, scheduler=name)) for name in ("first", "second", "somebody-else")),
    )

    assert [each.ok for each in answers] == [True, False, True]


class Grudge:
    """Refuses to reserve for pods of a name."""

    name = "Grudge"

    def reserve(self, ask: Ask, placement: Placement, cluster: Cluster) -> str | None:
        return "not you" if ask.pod.name.startswith("foe") else None


def test_what_reserve_refuses_does_not_fit() -> None:
    config = ProfileConfig(plugins={"reserve": PluginSet((Enabled("Grudge"),))})
    world = World(a=8, profiles=[Profile(config, {**installed(), "Grudge": Grudge})])

    answers = ask(
        world.engine,
        *(kind(pod(name, 1)) for name in ("foe", "friend") for kind in (Fits, Place)),
        Capacity(pod("foe", 1)),
        Capacity(pod("friend", 1)),
    )

    assert [each.ok for each in answers] == [False, False, True, True, True, True]
    assert isinstance(answers[0], Where)
    assert answers[0].message == "Grudge refused to reserve: not you"
    assert answers[4:] == [Counted(count=0), Counted(count=7)]


def test_a_picker_is_asked_and_what_it_gets_wrong_is_not_counted() -> None:
    profile = Profile(ProfileConfig())
    profile.picker = lambda pod, candidates: [each.node for each in candidates].index("b")
    world = World(a=8, b=8, c=8, profiles=[profile])
    (found,) = ask(world.engine, Fits(pod("x", 1)))
    profile.picker = lambda pod, candidates: 99

    ask(world.engine, Fits(pod("x", 1)), Place(pod("x", 1)))

    assert isinstance(found, Where)
    assert found.node == "b"
    assert world.engine.picking.fallbacks == {}


def test_the_version_is_that_of_the_state() -> None:
    world = full()
    version = world.engine.cluster.version

    found = asked(world.engine, Evict(("big",)), Place(pod("x", 8)))

    assert found.version == version == world.engine.cluster.version
    assert found.ok
    assert asked(world.engine).answers == []


def test_a_question_may_not_ask_for_too_much() -> None:
    world = World(a=8)
    many = tuple(f"v{i}" for i in range(2_000))
    long = pod("x", required=(NodeTerm((Requirement("k", "In", many),)),))
    keys = [pod("x", node_selector=((f"k{i}", ""),)) for i in range(300)]
    term = AffinityTerm(Selector(), "zone")
    terms = pod("x", terms=PodTerms("default", affinity=(term,) * 40))

    for asks, words in (
        ([Fits(pod("x"))] * 1_001, "a question may have 1000 steps, not 1001"),
        ([ChangeNodes((), AddNodes("a", 6_000))] * 2, "may add 10000 nodes in all, not 12000"),
        ([PlaceGang("g", pod("x"), 6_000, 1)] * 2, "may have 10000 pods, not 12000"),
        ([Capacity(pod("x"), 100_001)], "the limit of a capacity may be 100000, not 100001"),
        ([Fits(long)], "pod default/x has 2002 containers, requests, "),
        ([Fits(each) for each in keys], "may look at 256 label keys, not 300"),
        ([Fits(terms)], "pod default/x has 40 terms about other pods"),
    ):
        with pytest.raises(TooMuch, match=words):
            ask(world.engine, *asks)


def test_a_question_that_takes_too_long_is_given_up_and_leaves_nothing() -> None:
    world = World(a=8)
    times = iter(range(100))
    limits = Limits(seconds=5)

    with pytest.raises(TooLong):
        WhatIf(world.engine, limits, lambda: next(times)).ask([Capacity(pod("x"), 90)])

    assert not world.engine.cluster.pods
    world.tell(on.Tick())
    assert next(times) < 10


PORT = (HostPort("TCP", 80, "0.0.0.0"),)
ON_A = ((HOSTNAME, "a"),)


def promised() -> World:
    """A pod that others go for is promised the node a, and will need its port 80."""
    world = World(a=2, b=0)
    world.submit("low", 2)
    world.submit("high", 2, priority=10, ports=PORT, node_selector=ON_A)
    return world


def test_a_pod_that_would_be_in_the_way_of_one_that_others_go_for_would_wait() -> None:
    world = promised()
    newcomer = pod("q", ports=PORT, node_selector=ON_A)

    found = ask(
        world.engine,
        Fits(newcomer),
        Fits(newcomer, node="a"),
        Place(newcomer),
        Preempt(newcomer),
        PlaceGang("g", newcomer, 1, 1),
        Capacity(newcomer, 3),
    )

    *answers, counted = found
    assert [answer.ok for answer in answers] == [False] * 5
    said = [answer.message for answer in answers if isinstance(answer, Where | GangWhere)]
    assert said == [KEPT] * 5
    assert counted == Counted(count=0)
    world.submit("q", ports=PORT, node_selector=ON_A)
    assert world.waiting()["q"] == KEPT


def test_a_pod_goes_where_it_is_in_nobodys_way() -> None:
    world = promised()
    newcomer = pod("q", ports=PORT)

    (found,) = ask(world.engine, Fits(newcomer))

    assert isinstance(found, Where)
    assert found.node == "b"
    world.see(newcomer)
    assert world.running()["q"] == "b"


def test_what_ran_on_a_node_that_is_removed_is_gone() -> None:
    world = World(a=2, b=2)
    world.submit("t", 1, node_selector=ON_A)

    _, evicted = ask(world.engine, ChangeNodes(remove=("a",)), Evict(("t",)))
    _, placed = ask(world.engine, ChangeNodes(remove=("a",)), Place(pod("t", 1)))

    assert evicted == Failed(error="there is no pod default/t")
    assert isinstance(placed, Where)
    assert (placed.ok, placed.pod, placed.node) == (True, "default/t", "b")


def test_a_question_does_not_move_where_the_next_search_for_victims_begins() -> None:
    world = World()
    for number in range(45):
        world.node(f"n{number:02}", 0, allocatable={"pods": 100, "cpu": 100_000})
        for at in range(80):
            bound = pod(f"p{number}-{at}", cpu=1000, started_s=1.0, node=f"n{number:02}")
            if not at:
                row = replace(bound.row, ports=PORT)
                bound = replace(bound, row=row, priority=50 if number < 44 else 0)
            world.engine.handle(on.PodSeen(bound), 0.0)
    high = pod("high", cpu=1000, priority=10, ports=PORT)

    found = [ask(world.engine, Preempt(high))[0].ok for _ in range(2)]

    assert found[0] == found[1]
