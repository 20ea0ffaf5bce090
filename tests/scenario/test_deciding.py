"""The readable specification of what the engine decides."""

import pytest

from bayplan.core.engine.profile import Enabled, PluginSet, ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model.events import NodeGone, NodeSeen, PodSeen, PodUnreadable
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import AffinityTerm, HostPort, Spread
from bayplan.core.model.selectors import NodeTerm, Requirement, Selector, Toleration
from bayplan.testing.world import HOSTNAME, World, pod, tainted, terms

ZONE = "topology.kubernetes.io/zone"


def app(name: str) -> Selector:
    return Selector((Requirement("app", "In", (name,)),))


def named(name: str) -> tuple[NodeTerm, ...]:
    return (NodeTerm(name_in=(name,), named=(name,)),)


def test_a_pod_goes_to_a_node_with_room() -> None:
    world = World(a=8, b=8)
    world.submit("big", gpus=8, node_selector=((HOSTNAME, "a"),))
    world.submit("train", gpus=4)

    assert world.running() == {"big": "a", "train": "b"}


def test_a_pod_that_fits_nowhere_waits_with_kube_schedulers_sentence() -> None:
    world = World(a=8, b=8)
    world.node("c", unschedulable=True)
    world.node("d", taints=tainted("dedicated"))
    world.submit("huge", gpus=9)

    assert world.waiting() == {
        "huge": "0/4 nodes are available: 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu."
    }


def test_without_nodes_there_is_nothing_to_count() -> None:
    world = World()
    world.submit("train", gpus=1)

    assert world.waiting() == {"train": "no nodes available to schedule pods"}


def test_a_pod_that_ends_makes_room_for_one_that_waits() -> None:
    world = World(a=8)
    world.submit("first", gpus=8)
    world.submit("second", gpus=8)
    assert world.waiting() == {"second": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}

    world.wait(1)
    world.finish("first")

    assert world.running() == {"second": "a"}


def test_a_refused_pod_rests_but_its_equals_are_tried() -> None:
    world = World(a=8)
    world.submit("first", gpus=8)
    world.submit("second", gpus=8)
    world.finish("first")  # second rests for 1 s after its refusal
    assert world.running() == {}

    world.submit("third", gpus=8)
    assert world.running() == {"third": "a"}


def test_a_pod_whose_labels_changed_while_it_waited_rests_too() -> None:
    world = World(n=0)
    for waits in (pod("a", 1), pod("b", 1), pod("a", 1, labels={"x": "y"})):
        world.engine.handle(PodSeen(waits), world.now)
    world.tick()
    waiter, group = world.engine.waiting.pods["uid-a"]

    assert waiter.rested_at > world.now
    assert all(uid != "uid-a" for _, _, uid in group.awake)


@pytest.mark.parametrize(("attempts", "rest_s"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (9, 10)])
def test_back_off_doubles_from_one_to_ten_seconds(attempts: int, rest_s: int) -> None:
    world = World(a=8)
    world.submit("huge", gpus=9)
    for _ in range(attempts - 1):
        world.wait(10)
        world.node("a", 8, labels={"touched": str(world.now)})  # an event, but it does not help
        world.node("a", 8, allocatable={"cpu": 64_001 + int(world.now)})
    waiter, _ = world.engine.waiting.pods["uid-huge"]

    assert waiter.attempts == attempts
    assert waiter.rested_at == world.now + rest_s


def test_only_events_that_could_help_wake_a_pod() -> None:
    world = World(a=8)
    world.submit("picky", gpus=1, node_selector=(("disk", "ssd"),))
    waiter, _ = world.engine.waiting.pods["uid-picky"]
    world.wait(20)
    world.submit("other", gpus=1)
    world.finish("other")  # room does not make a disk
    assert waiter.attempts == 1

    world.node("a", 8, labels={"disk": "ssd"})

    assert world.running() == {"picky": "a"}


def test_after_five_minutes_a_pod_is_tried_whatever_happened() -> None:
    world = World(a=8)
    world.submit("huge", gpus=9)
    waiter, _ = world.engine.waiting.pods["uid-huge"]
    world.wait(299)
    assert waiter.attempts == 1

    world.wait(1)

    assert waiter.attempts == 2


def test_when_one_is_refused_its_equals_are_refused_with_it() -> None:
    world = World(a=8)
    world.submit("huge", gpus=9, pods=50)

    told = [effect.pod.name for effect in world.effects if isinstance(effect, do.Refuse)]
    assert len(told) == len(set(told)) == 50
    assert sum(waiter.attempts for waiter, _ in world.engine.waiting.pods.values()) == 1


def test_a_reason_is_told_again_only_when_it_changes() -> None:
    world = World(a=8)
    world.submit("huge", gpus=9)
    for seconds in range(5):
        world.wait(20)
        world.node("a", 8, allocatable={"cpu": 65_000 + seconds})
    assert len([e for e in world.effects if isinstance(e, do.Refuse)]) == 1

    world.wait(20)
    world.node("a", 8, unschedulable=True)
    world.wait(300)

    assert len([e for e in world.effects if isinstance(e, do.Refuse)]) == 2


def test_higher_priority_goes_first_then_earlier_arrival() -> None:
    world = World(binds="hold")
    world.submit("low", gpus=8)
    world.submit("high", gpus=8, priority=10)
    world.submit("later", gpus=8, priority=10)
    world.wait(1)
    world.node("a", 8)

    assert world.running() == {"high": "a"}


def test_gates_keep_a_pod_out_until_they_are_gone() -> None:
    world = World(a=8)
    world.submit("gated", gpus=1, gates=("quota",))
    assert world.running() == {}
    assert world.engine.held["uid-gated"][1] == "waiting for scheduling gates: [quota]"

    world.see(pod("gated", 1))

    assert world.running() == {"gated": "a"}


def test_namespaces_share_within_a_priority() -> None:
    order = PluginSet(enabled=(Enabled("NamespaceShare"),), disabled=(Enabled("PrioritySort"),))
    world = World(config=ProfileConfig(plugins={"order": order}), binds="hold")
    world.engine.max_in_flight = 6
    world.submit("greedy", gpus=1, pods=100, namespace="greedy")
    world.submit("modest", gpus=1, pods=3, namespace="modest")
    world.submit("urgent", gpus=1, namespace="greedy", priority=5)
    world.wait(10)
    world.node("a", 200)

    in_order = ("urgent", "greedy-0", "greedy-1", "modest-0", "greedy-2", "modest-1")
    assert tuple(world.running()) == in_order


def test_a_namespace_that_comes_late_starts_at_the_present() -> None:
    order = PluginSet(enabled=(Enabled("NamespaceShare"),), disabled=(Enabled("PrioritySort"),))
    world = World(config=ProfileConfig(plugins={"order": order}), a=1000, binds="hold")
    world.engine.max_in_flight = 50
    world.submit("greedy", gpus=1, pods=100, namespace="greedy")
    assert len(world.running()) == 50
    world.engine.max_in_flight = 52
    world.submit("late", gpus=1, pods=2, namespace="late")

    assert {"late-0"} <= set(world.running())
    assert len(world.running()) == 52


def test_no_more_than_max_in_flight_are_assumed() -> None:
    world = World(a=100, binds="hold")
    world.engine.max_in_flight = 3
    world.submit("train", gpus=1, pods=10)
    assert len(world.running()) == 3

    world.answer("train-0")

    assert len(world.running()) == 4


def test_a_failed_bind_is_forgotten_and_tried_again() -> None:
    world = World(a=8, binds="hold")
    world.submit("train", gpus=8)
    world.answer("train", ok=False)
    assert world.running() == {}
    assert (
        world.engine.cluster.free[0][world.engine.cluster.resource_columns["nvidia.com/gpu"]] == 8
    )

    world.wait(1)

    assert world.running() == {"train": "a"}


def test_a_pod_deleted_while_it_is_bound_is_forgotten() -> None:
    world = World(a=8, binds="hold")
    world.submit("train", gpus=8)
    world.finish("train")
    world.submit("next", gpus=8)

    assert world.running() == {"next": "a"}
    assert list(world.engine.assumed) == ["uid-next"]


def test_pods_of_other_schedulers_count() -> None:
    world = World(a=8)
    world.see(pod("theirs", 6, scheduler="other", node="a"))
    world.submit("ours", gpus=4)

    assert world.waiting() == {"ours": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}


def test_a_pod_bound_before_its_node_is_known_counts_when_it_comes() -> None:
    world = World()
    world.see(pod("early", 6, node="a"))
    world.node("a", 8)
    world.submit("ours", gpus=4)

    assert world.running() == {}


def test_a_node_that_vanishes_and_returns_still_holds_its_pods() -> None:
    world = World(a=8)
    world.submit("train", gpus=8)
    world.tell(NodeGone("a"))
    world.submit("next", gpus=8)
    assert world.waiting() == {"next": "no nodes available to schedule pods"}

    world.wait(1)
    world.node("a", 8)

    assert world.waiting() == {"next": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}


def test_a_shrunken_node_takes_nothing_more() -> None:
    world = World(a=8)
    world.submit("train", gpus=6)
    world.node("a", 4)  # free is -2 now
    world.submit("small", cpu=100)
    world.submit("more", gpus=1)

    assert world.running() == {"train": "a", "small": "a"}


def test_a_pod_that_someone_else_bound_elsewhere_is_followed_and_reported() -> None:
    world = World(a=8, b=8)
    world.submit("train", gpus=8, node_selector=((HOSTNAME, "a"),))
    world.see(pod("train", 8, node="b"))
    world.submit("next", gpus=8)

    assert world.running()["next"] == "a"
    assert [e.text for e in world.effects if isinstance(e, do.Report)] == [
        "pod default/train was bound to b, not to a"
    ]


def test_a_resize_frees_what_it_gives_back() -> None:
    world = World(a=8)
    world.submit("train", cpu=60_000)
    world.submit("next", cpu=30_000)
    assert world.running() == {"train": "a"}

    world.wait(1)
    world.see(pod("train", cpu=20_000, node="a"))

    assert world.running() == {"train": "a", "next": "a"}


def test_a_node_with_an_unreadable_pod_is_closed_until_it_can_be_read() -> None:
    world = World(a=8)
    world.tell(PodUnreadable("uid-odd", "a"))
    world.submit("train", gpus=1)
    assert world.waiting() == {
        "train": "0/1 nodes are available: 1 node(s) had a pod that cannot be read."
    }

    world.wait(1)
    world.see(pod("odd", 2, node="a"))

    assert world.running() == {"train": "a"}


def test_a_pinned_pod_is_told_about_all_the_other_nodes() -> None:
    world = World(a=8, b=8, c=8)
    world.submit("daemon", gpus=9, required=named("b"))

    assert world.waiting() == {
        "daemon": "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    }


def test_a_pod_pinned_to_a_node_that_does_not_exist() -> None:
    world = World(a=8)
    world.submit("daemon", required=named("gone"))

    assert world.waiting() == {
        "daemon": "0/1 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    }


def test_host_ports_conflict_on_the_same_address_only() -> None:
    world = World(a=8)
    world.submit("one", ports=(HostPort("TCP", 80, "10.0.0.1"),))
    world.submit("two", ports=(HostPort("TCP", 80, "10.0.0.2"),))
    world.submit("udp", ports=(HostPort("UDP", 80, "0.0.0.0"),))
    world.submit("all", ports=(HostPort("TCP", 80, "0.0.0.0"),))

    assert world.running() == {"one": "a", "two": "a", "udp": "a"}


def test_anti_affinity_keeps_both_directions_apart() -> None:
    world = World(a=8, b=8)
    alone = terms(anti_affinity=(AffinityTerm(app("web"), HOSTNAME, ("default",)),))
    world.submit("web-0", labels={"app": "web"}, terms=alone)
    world.submit("web-1", labels={"app": "web"}, terms=alone)
    world.submit("web-2", labels={"app": "web"})  # it minds nobody, but they mind it

    assert set(world.running()) == {"web-0", "web-1"}
    assert world.waiting() == {
        "web-2": "0/2 nodes are available: "
        "2 node(s) didn't satisfy existing pods anti-affinity rules."
    }


def test_the_first_of_a_series_with_affinity_to_itself_may_start() -> None:
    world = World()
    for name, zone in (("a", "x"), ("b", "y"), ("c", "x")):
        world.node(name, 8, labels={ZONE: zone})
    together = terms(affinity=(AffinityTerm(app("db"), ZONE, ("default",)),))
    for i in range(4):
        world.submit(f"db-{i}", gpus=3, labels={"app": "db"}, terms=together)

    zones = {"a": "x", "b": "y", "c": "x"}
    assert len({zones[node] for node in world.running().values()}) == 1


def test_hard_spread_keeps_zones_even_and_each_pod_has_its_own_label() -> None:
    world = World()
    for i in range(6):
        world.node(f"n{i}", 8, labels={ZONE: f"z{i % 3}"})
    even = terms(spread=(Spread(1, ZONE, True, app("web")),))
    for i in range(9):
        world.submit(f"web-{i}", labels={"app": "web", "index": str(i)}, terms=even)

    zones = [int(node[1]) % 3 for node in world.running().values()]
    assert sorted(zones.count(z) for z in range(3)) == [3, 3, 3]


def test_a_taint_that_is_only_disliked_is_avoided() -> None:
    world = World()
    world.node("a", 8, taints=tainted("spot", "PreferNoSchedule"))
    world.node("b", 8)
    world.submit("train", gpus=8)
    world.submit("tolerant", gpus=8, tolerations=(Toleration("spot", "Exists"),))

    assert world.running() == {"train": "b", "tolerant": "a"}


def test_equal_nodes_are_chosen_the_same_way_after_a_restart() -> None:
    names = [f"n{i}" for i in range(20)]

    def choices(order: list[str]) -> dict[str, str]:
        world = World(dict.fromkeys(order, 8))
        world.submit("train", gpus=1, pods=20)
        return world.running()

    assert choices(names) == choices(names[::-1])


def test_a_relist_of_the_same_cluster_changes_nothing() -> None:
    world = World(a=8, b=8)
    world.submit("train", gpus=3, pods=6)
    said = len(world.effects)
    version = world.engine.cluster.version
    for name, node in world.running().items():
        world.see(pod(name, 3, node=node))
    world.node("a", 8)
    world.node("b", 8)

    assert len(world.effects) == said
    assert world.engine.cluster.version == version


def test_a_node_made_again_under_its_name_is_a_new_node() -> None:
    world = World(a=8)
    again = Node("a", "uid-second", {HOSTNAME: "a"}, {"pods": 10, "nvidia.com/gpu": 2})
    world.submit("train", gpus=8)
    world.tell(NodeSeen(again))
    world.submit("small", gpus=1)

    assert world.waiting() == {"small": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
