"""What is said of a pod, on clusters of a few nodes."""

import pytest
from msgspec.structs import replace

from bayplan.core.engine.advice import Advice
from bayplan.core.engine.profile import Enabled, PluginSet, ProfileConfig
from bayplan.core.model import events as on
from bayplan.core.model.advice import Change, Explanation, GangState, Less, Loosen, Move, UnknownPod
from bayplan.core.model.budgets import Budget
from bayplan.core.model.effects import Preempt
from bayplan.core.model.pods import AffinityTerm, Gang, HostPort, PodTerms
from bayplan.core.model.selectors import EVERYTHING, Requirement, Selector, Taint, Toleration
from bayplan.core.model.steps import AddNodes
from bayplan.testing import World
from bayplan.testing.world import GIB, GPU, HOSTNAME, asks, cards, pod, tainted

APP = Selector((Requirement("app", "In", ("web",)),))


def said(world: World, name: str) -> Explanation:
    return Advice(world.engine).explain(f"default/{name}")


def told(world: World, name: str) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in said(world, name).suggestions]


def changes(world: World, name: str, kind: str) -> list[Change]:
    return [each.change for each in said(world, name).suggestions if each.kind == kind]


# ---- where nothing is to be done


def test_a_pod_that_has_a_place() -> None:
    world = World(a=8)
    world.submit("big", 8)
    found = said(world, "big")
    assert (found.state, found.ok, found.node) == ("bound", True, "a")
    assert found.message == "default/big is on a"


def test_a_pod_on_its_way_to_its_node() -> None:
    world = World(a=8, binds="hold")
    world.submit("big", 8)
    assert said(world, "big").message == "default/big is being bound to a"


def test_a_pod_on_a_node_that_is_not_known() -> None:
    world = World(a=8)
    world.see(pod("lost", 1, node="b"))
    found = said(world, "lost")
    assert (found.ok, found.node) == (True, "b")
    assert found.message == "default/lost is bound to b, a node that is not known"


@pytest.mark.parametrize("gang", [None, Gang("default/g", 1)])
def test_a_pod_that_is_in_the_way_of_one_that_others_go_for(gang: Gang | None) -> None:
    world = World(a=1)
    port = (HostPort("TCP", 80, "0.0.0.0"),)
    world.submit("v", 1)
    world.submit("high", 1, priority=10, ports=port)
    world.submit("low", ports=port, gang=gang)
    found = said(world, "low")
    assert (found.state, found.ok) == ("waits", False)
    assert "what fits would take the room of a pod that others go for" in found.message
    assert found.suggestions == ()


def test_a_pod_that_is_leaving() -> None:
    world = World(a=8)
    world.see(pod("old", 1, node="a", terminating=True))
    found = said(world, "old")
    assert (found.state, found.ok) == ("leaving", False)
    assert found.message == "default/old is about to end on a"


def test_a_pod_with_gates() -> None:
    world = World(a=8)
    world.submit("later", 1, gates=("example.com/paid",))
    found = said(world, "later")
    assert (found.state, found.ok) == ("held", False)
    gates = "waiting for scheduling gates: [example.com/paid]"
    assert found.message == f"default/later is not to be placed yet: {gates}"


def test_a_pod_that_nobody_knows() -> None:
    world = World(a=8)
    world.submit("theirs", 1, scheduler="default-scheduler")
    with pytest.raises(UnknownPod, match=r"no pod default/theirs .* names another scheduler"):
        said(world, "theirs")


def test_a_pod_that_has_not_had_its_turn() -> None:
    world = World(a=8)
    world.engine.handle(on.PodSeen(pod("new", 1)), 0.0)
    found = said(world, "new")
    assert (found.state, found.ok, found.node) == ("fits", True, "a")


# ---- what would help


def test_suggestions_stand_by_what_they_cost() -> None:
    world = World(a=8, b=8)
    world.node("c", 8, taints=tainted("special"))
    world.submit("one", 3, priority=-1, node_selector=((HOSTNAME, "a"),))
    world.submit("two", 4, priority=-1, node_selector=((HOSTNAME, "b"),))
    world.submit("big", 8, preempts=False)
    found = said(world, "big")
    assert found.message == (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient"
        f" {GPU}. preemption: not eligible due to preemptionPolicy=Never."
    )
    assert found.reasons[f"Insufficient {GPU}"].count == 2
    assert [(each.kind, each.text, each.node) for each in found.suggestions] == [
        ("request", f"ask for 5 {GPU} instead of 8", "a"),
        ("toleration", "tolerate special:NoSchedule", "c"),
        ("end", "wait until default/one has ended", "a"),
        ("node", "add a node like a", "a-new-1"),
        ("victims", "remove default/two; it may not preempt (preemptionPolicy is Never)", "b"),
    ]
    assert changes(world, "big", "end") == [Change(evict=("default/one",))]


def test_who_may_not_preempt_is_told_who_would_have_to_go() -> None:
    world = World(a=8)
    world.submit("old", 4, pods=2, priority=-1)
    world.submit("new", 8, preempts=False)
    words = "remove default/old-0, default/old-1; it may not preempt (preemptionPolicy is Never)"
    assert told(world, "new")[-1] == ("victims", words)


def test_the_most_cpu_that_fits_to_ten_thousandths() -> None:
    world = World(a=0)
    world.submit("old", cpu=60_005)
    world.submit("new", cpu=8_000, memory=8 * GIB)
    (found,) = changes(world, "new", "request")
    assert found == Change(requests=(Less("cpu", "8", "3990m"),))


def test_several_resources_where_one_is_not_enough() -> None:
    world = World(a=2)
    world.submit("new", 4, cpu=65_000, memory=600 * GIB)
    (found,) = changes(world, "new", "request")
    assert found.requests == (
        Less("cpu", "65", "64"),
        Less("memory", "600Gi", "512Gi"),
        Less(GPU, "4", "2", "main"),
    )


def test_less_of_the_container_that_asks_for_most() -> None:
    world = World()
    world.node("a", **cards(*[80 << 10] * 8))
    world.submit("new", devices=(*asks("small", gpus=2), *asks("large", gpus=7)))
    (found,) = said(world, "new").suggestions
    assert found.text == f"ask for 6 {GPU} in container large instead of 7"
    assert found.change.requests == (Less(GPU, "7", "6", "large"),)


def test_taints_of_a_passing_state_and_cordons_are_no_matter_of_the_pod() -> None:
    world = World()
    world.node("a", taints=tainted("node.kubernetes.io/not-ready", "NoExecute"))
    world.node("b", unschedulable=True)
    world.submit("new", 1)
    assert [kind for kind, _ in told(world, "new")] == ["node"]


def test_the_fewest_taints() -> None:
    world = World()
    world.node("a", taints=(*tainted("x"), *tainted("y")))
    world.node("b", taints=tainted("z", "NoExecute", "1"))
    world.submit("new", 1)
    (found,) = changes(world, "new", "toleration")
    assert found.tolerations == (Toleration("z", "Equal", "1", "NoExecute"),)


def test_another_value_of_a_label() -> None:
    world = World()
    world.node("a", labels={"disk": "hdd"})
    world.submit("new", 1, node_selector=(("disk", "ssd"),))
    assert told(world, "new")[0] == ("label", "select nodes with disk=hdd instead of ssd")
    (found,) = changes(world, "new", "label")
    assert found.loosen == (Loosen("nodeSelector", "disk", ("ssd",), instead="hdd"),)


def test_a_label_that_no_node_has() -> None:
    world = World(a=8)
    world.submit("new", 1, node_selector=(("disk", "ssd"),))
    assert told(world, "new")[0] == ("label", "give up the node selector disk=ssd")


def test_two_selectors_that_are_both_in_the_way() -> None:
    world = World(a=8)
    selectors = (("disk", "ssd"), ("net", "fast"))
    world.submit("new", 1, node_selector=(*selectors, (HOSTNAME, "a")))
    words = "give up the node selector disk=ssd and give up the node selector net=fast"
    assert told(world, "new")[0] == ("label", words)


def test_a_label_by_which_others_keep_the_pod_away() -> None:
    world = World(a=8)
    away = PodTerms("default", anti_affinity=(AffinityTerm(APP, HOSTNAME, ("default",)),))
    world.submit("shy", 1, terms=away)
    world.submit("new", 1, labels={"app": "web"}, preempts=False)
    words = "give up the pod's label app=web, by which others keep it away"
    assert ("label", words) in told(world, "new")


def test_a_pod_that_is_leaving_is_what_to_wait_for() -> None:
    world = World(a=8, b=8)
    world.submit("one", 8)
    world.submit("two", 8)
    gone = world.engine.cluster.pods["uid-two"].pod
    world.see(replace(gone, node=world.bound["two"], terminating=True))
    world.submit("new", 8)
    assert ("end", "wait until default/two is gone, which is terminating") in told(world, "new")


def test_several_pods_that_must_end() -> None:
    world = World(a=8)
    world.submit("old", 2, pods=4)
    world.submit("new", 4)
    (found,) = changes(world, "new", "end")
    assert len(found.evict) == 2


def test_pods_of_the_cluster_itself_are_left_alone() -> None:
    world = World(a=8)
    world.submit("system", 8, priority=2_000_000_001)
    world.submit("new", 8)
    assert [kind for kind, _ in told(world, "new")] == ["node"]


def test_a_running_pod_moves() -> None:
    world = World(a=8)
    world.submit("small", 2, controlled=True)
    world.node("b", 2)
    world.submit("new", 8, preempts=False)
    (found,) = changes(world, "new", "move")
    assert found.moves == (Move("default/small", "a", "b", ()),)


def test_two_running_pods_move() -> None:
    world = World(a=8)
    world.submit("small", 2, pods=2, controlled=True)
    world.node("b", 4)
    world.submit("new", 8, preempts=False)
    (found,) = changes(world, "new", "move")
    assert {move.pod for move in found.moves} == {"default/small-0", "default/small-1"}


def test_nobody_moves_who_would_not_be_made_anew_or_whom_a_budget_protects() -> None:
    world = World(a=8)
    world.submit("bare", 2)
    world.submit("kept", 2, controlled=True, labels={"app": "web"})
    world.tell(on.BudgetSeen(Budget("default/b", "default", EVERYTHING, 0)))
    world.node("b", 4)
    world.submit("new", 6, preempts=False)
    assert changes(world, "new", "move") == []


def test_the_smallest_node_that_would_do() -> None:
    world = World(small=2, large=8)
    world.submit("old", 2)
    world.submit("older", 8)
    world.submit("new", 2, preempts=False)
    assert changes(world, "new", "node") == [Change(nodes=AddNodes("small"))]


def test_victims_are_those_whom_the_engine_would_delete() -> None:
    world = World(a=8)
    world.submit("old", 4, pods=2)
    world.engine.handle(on.PodSeen(pod("new", 4, priority=9)), 0.0)
    (found,) = changes(world, "new", "victims")
    effects = world.engine.handle(on.Tick(), 0.0)
    (done,) = [each for each in effects if isinstance(each, Preempt)]
    assert found.evict == tuple(victim.key for victim in done.victims)
    told_then = said(world, "new")
    assert "not eligible due to a terminating pod on the nominated node" in told_then.message


def test_a_profile_that_never_preempts() -> None:
    config = ProfileConfig(plugins={"preempt": PluginSet(disabled=(Enabled("DefaultPreemption"),))})
    world = World(config=config, a=8)
    world.submit("old", 8)
    world.submit("new", 8, priority=9)
    assert said(world, "new").message == f"0/1 nodes are available: 1 Insufficient {GPU}."
    assert "victims" not in [kind for kind, _ in told(world, "new")]


def test_no_nodes() -> None:
    world = World()
    world.submit("new", 1)
    found = said(world, "new")
    assert found.message.startswith("no nodes available to schedule pods")
    assert found.suggestions == ()


def test_a_taint_and_a_lack_together_have_no_single_remedy() -> None:
    world = World()
    world.node("a", 4, taints=(Taint("x", "", "NoSchedule"),))
    world.submit("new", 8)
    assert told(world, "new") == []


# ---- gangs


def test_a_member_speaks_for_its_gang() -> None:
    world = World(a=8, b=8)
    world.submit("old", 8)
    world.submit("train", 8, pods=3, gang=Gang("default/train", 3))
    found = said(world, "train-2")
    assert found.gang == GangState("default/train", minimum=3, bound=0, waiting=3, fit=1)
    assert found.message == (
        f"0/2 nodes are available: 2 Insufficient {GPU}. gang default/train: 1 of 3 members fit."
    )
    assert [(each.kind, each.text) for each in found.suggestions] == [
        ("gang", "start with 1 members instead of 3"),
        ("node", "add 2 nodes like a"),
    ]


def test_others_go_for_a_gang() -> None:
    world = World(a=8, b=8)
    world.submit("old", 4, pods=4)
    gang = Gang("default/train", 2)
    for i in range(2):
        world.engine.handle(on.PodSeen(pod(f"train-{i}", 8, priority=5, gang=gang)), 0.0)
    (found,) = changes(world, "train-0", "victims")
    assert sorted(found.evict) == [f"default/old-{i}" for i in range(4)]


def test_a_gang_that_is_not_complete() -> None:
    world = World(a=8)
    world.submit("train", 1, pods=2, gang=Gang("default/train", 3))
    found = said(world, "train-0")
    assert found.message == "gang default/train is not complete: 2 of 3 members are here"
    assert [each.change for each in found.suggestions] == [Change(minimum=2)]


def test_a_gang_that_fits() -> None:
    world = World(a=8)
    gang = Gang("default/train", 2)
    for i in range(2):
        world.engine.handle(on.PodSeen(pod(f"train-{i}", 4, gang=gang)), 0.0)
    found = said(world, "train-1")
    assert (found.state, found.ok, found.node) == ("fits", True, "a")
