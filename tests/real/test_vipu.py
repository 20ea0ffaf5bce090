"""Partitions of IPUs for pods: `bayplan run` beside a real API server and controllers over gRPC."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.testing.controlplane import ControlPlane
from bayplan.vipu.faults import Chances
from tests.embedded import Plane
from tests.real.rig import Json, Scheduler, until
from tests.real.rights import apply, printed
from tests.real.vipus import IPU, HeadNodes, Vipu, differences, pod_asking, told

LATE_S = 90.0
DOWN = "WARNING the V-IPU controller"
GRACE_S = 4.0  # of partitions and pods without each other: the lease, and a call's time-out
COUNT = 'bayplan_partitions_total{operation="%s",result="%s"}'
SIZES = (1, 2, 4, 8)
VARIABLES = {
    f"IPUOF_VIPU_API_{name}": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": f"metadata.annotations['vipu.bayplan.dev/{key}']",
        }
    }
    for name, key in (("HOST", "host"), ("PORT", "port"), ("PARTITION_ID", "partition"))
}


def cluster_of(plane: Plane) -> HeadNodes:
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return HeadNodes(plane, name)


@pytest.fixture
def cluster(wiped: ControlPlane) -> HeadNodes:
    return cluster_of(wiped)


def config(*vipus: Vipu, timeout: str = "2s") -> Json:
    times = {"leaseDuration": "2s", "renewDeadline": "1s", "retryPeriod": "500ms"}
    pools = [{"controller": vipu.pool, "timeout": timeout} for vipu in vipus]
    return {"pools": pools, "leaderElection": times}


def scheduler(cluster: HeadNodes, folder: Path, *vipus: Vipu, timeout: str = "2s") -> Scheduler:
    return Scheduler(folder, cluster.plane.kubeconfig, config=config(*vipus, timeout=timeout))


def test_pods_get_partitions_and_give_them_back(plane: Plane, tmp_path: Path) -> None:
    cluster = cluster_of(plane)
    with Vipu("one", ipus=16) as one, scheduler(cluster, tmp_path, one) as running:
        cluster.add_heads(one, 2)
        cluster.add_node("elsewhere", 0)
        asked = dict(zip("abcd", SIZES, strict=True))
        for name, size in asked.items():
            cluster.ask(name, size, by="limit" if size in (1, 4) else "annotation")
        until(lambda: set(cluster.places()) == set(asked))

        assert {name: len(told(cluster.pod(name))[2]) for name in asked} == asked
        assert set(cluster.places().values()) <= {"one-0", "one-1"}
        assert differences(cluster.all(), [one]) == []

        cluster.ask("e", 8)
        said = (
            "0/3 nodes are available: 1 node(s) reach no controller for 8 graphcore.ai/ipu, "
            "2 node(s) had no free partition of 8 graphcore.ai/ipu."
        )
        until(lambda: cluster.condition("e").get("message", "").startswith(said))
        assert cluster.condition("e")["reason"] == "Unschedulable"
        cluster.ask("odd", 3)
        never = "2 node(s) never have a partition of 3 graphcore.ai/ipu"
        until(lambda: never in cluster.condition("odd").get("message", ""))

        cluster.end("d")  # it ran to its end
        until(lambda: "e" in cluster.places())
        cluster.delete_pod("a")
        cluster.delete_pod("e")
        until(lambda: len(one.partitions()) == 2)
        assert differences(cluster.all(), [one]) == []
        until(lambda: running.metrics().get(COUNT % ("delete", "done")) == 3)
        assert running.metrics()[COUNT % ("make", "done")] == 5


def test_two_hundred_at_once_fill_two_slow_controllers(cluster: HeadNodes, tmp_path: Path) -> None:
    with (
        Vipu("one", latency_s=0.5) as one,
        Vipu("two", latency_s=0.5) as two,
        scheduler(cluster, tmp_path, one, two, timeout="30s"),
    ):
        vipus = [one, two]
        for vipu in vipus:
            cluster.add_heads(vipu, 2)
            vipu.keep_answers_back()
        for number in range(200):
            cluster.ask(f"pod-{number}", 1)
        until(lambda: sum(vipu.controller.asked for vipu in vipus) == 32)
        for number in range(20):
            cluster.add_pod(f"plain-{number}", 0)
        until(lambda: len(cluster.places()) == 20)
        assert all(name.startswith("plain-") for name in cluster.places())  # nobody was answered
        assert sum(vipu.controller.asked for vipu in vipus) == 32

        for vipu in vipus:
            vipu.answer()
        until(lambda: len(cluster.places()) == 20 + 128, LATE_S)
        until(lambda: len(refused(cluster)) == 72)
        assert [len(vipu.partitions()) for vipu in vipus] == [64, 64]
        assert [vipu.controller.most_asked for vipu in vipus] == [16, 16]
        assert differences(ipu_pods(cluster), vipus) == []


def test_pods_of_all_sizes_fill_controllers_that_choose_for_themselves(
    cluster: HeadNodes, tmp_path: Path
) -> None:
    with (
        Vipu("one", latency_s=0.1) as one,
        Vipu("two", latency_s=0.1) as two,
        scheduler(cluster, tmp_path, one, two),
    ):
        for vipu in (one, two):
            cluster.add_heads(vipu)
        for number in range(200):
            cluster.ask(f"pod-{number}", SIZES[number % 4])
        until(lambda: [used(vipu) for vipu in (one, two)] == [64, 64], LATE_S)
        until(lambda: differences(cluster.all(), [one, two]) == [])
        assert [used(vipu) for vipu in (one, two)] == [64, 64]


def used(vipu: Vipu) -> int:
    return sum(map(len, vipu.partitions().values()))


def refused(cluster: HeadNodes) -> list[str]:
    """Who waits and was told why."""
    return [
        pod["metadata"]["name"]
        for pod in cluster.all()
        if not pod["spec"].get("nodeName") and pod["status"].get("conditions")
    ]


def ipu_pods(cluster: HeadNodes) -> list[Json]:
    return [pod for pod in cluster.all() if not pod["metadata"]["name"].startswith("plain")]


def test_a_killed_scheduler_leaves_no_partition_and_no_pod_behind(
    cluster: HeadNodes, tmp_path: Path
) -> None:
    with Vipu("one", latency_s=0.2) as one:
        cluster.add_heads(one, 2)
        one.keep_answers_back()
        with scheduler(cluster, tmp_path, one, timeout="30s") as first:
            for number in range(40):
                cluster.ask(f"pod-{number}", 1)
            until(lambda: len(one.partitions()) == 16)  # made, and the scheduler was not told
            first.process.kill()
        assert cluster.places() == {}
        for pod in [pod for pod in cluster.all() if made_for(pod, one)][:5]:
            cluster.delete_pod(pod["metadata"]["name"])
        assert len(one.partitions()) == 16
        one.answer()
        with scheduler(cluster, tmp_path, one) as second:
            until(lambda: len(cluster.places()) >= 8)
            second.process.kill()  # some are bound, some are made, some are asked for
        with scheduler(cluster, tmp_path, one) as third:
            until(lambda: len(cluster.places()) == 35)
            break_off(cluster, one, third)
            until(lambda: differences(cluster.all(), [one]) == [], LATE_S)
            assert len(cluster.places()) == 36


def break_off(cluster: HeadNodes, vipu: Vipu, running: Scheduler, name: str = "late") -> None:
    """A controller is asked for all that it has every minute, and soon after a call that failed."""
    before = running.process.log.read_text().count(DOWN)
    vipu.stop()
    cluster.ask(name, 1)
    until(lambda: running.process.log.read_text().count(DOWN) > before)
    vipu.start()
    until(lambda: name in cluster.places())


def made_for(pod: Json, vipu: Vipu) -> bool:
    return any(id.endswith(pod["metadata"]["uid"]) for id in vipu.partitions())


def test_a_controller_that_is_down_makes_pods_wait(cluster: HeadNodes, tmp_path: Path) -> None:
    with Vipu("one", ipus=4) as one, scheduler(cluster, tmp_path, one) as running:
        cluster.add_heads(one)
        cluster.ask("before", 2)
        until(lambda: "before" in cluster.places())

        one.stop()
        cluster.ask("first", 1)
        failed = "binding to one-0 failed: a partition of 1 from "
        until(lambda: cluster.condition("first").get("message", "").startswith(failed))
        until(lambda: running.said(DOWN))
        cluster.ask("second", 1)
        said = "1 node(s) reach a controller for 1 graphcore.ai/ipu that does not answer"
        until(lambda: said in cluster.condition("second").get("message", ""))
        cluster.add_pod("plain", 0)
        until(lambda: "plain" in cluster.places())

        one.start()
        until(lambda: {"first", "second"} <= set(cluster.places()))
        assert differences(ipu_pods(cluster), [one]) == []


def test_a_controller_that_refuses_is_left_alone(cluster: HeadNodes, tmp_path: Path) -> None:
    with (
        Vipu("one", ipus=4) as one,
        Vipu("two", ipus=8) as two,
        scheduler(cluster, tmp_path, one, two),
    ):
        one.controller.chances = Chances(refuse=1.0)
        for vipu in (one, two):
            cluster.add_heads(vipu)
        cluster.ask("first", 4)  # it leaves no hole on the smaller one
        failed = f"binding to one-0 failed: 127.0.0.1:{one.port}:cluster refused a partition of 4"
        until(lambda: cluster.condition("first").get("message", "").startswith(failed))
        until(lambda: cluster.node_of("first") == "two-0")
        cluster.ask("second", 4)
        until(lambda: cluster.node_of("second") == "two-0")
        cluster.ask("third", 4)
        said = "1 node(s) reach a controller that refused a partition of 4 graphcore.ai/ipu"
        until(lambda: said in cluster.condition("third").get("message", ""))
        assert differences(cluster.all(), [one, two]) == []


def test_an_answer_that_comes_too_late(cluster: HeadNodes, tmp_path: Path) -> None:
    with Vipu("one", ipus=4) as one, scheduler(cluster, tmp_path, one) as running:
        cluster.add_heads(one)
        one.controller.chances = Chances(late=1.0, timeout_s=3.0, lateness_s=0.1)
        cluster.ask("late", 2)
        until(lambda: running.metrics().get(COUNT % ("make", "failed")) == 1)
        one.controller.chances = Chances()
        until(lambda: "late" in cluster.places())
        until(lambda: differences(cluster.all(), [one]) == [])


def test_pods_that_lost_their_partitions_are_replaced(cluster: HeadNodes, tmp_path: Path) -> None:
    with Vipu("one") as one, scheduler(cluster, tmp_path, one) as running:
        cluster.add_heads(one)
        cluster.ask("own", 4)
        cluster.ask("replaceable", 4, owner="ReplicaSet")
        cluster.ask("other", 4, owner="ReplicaSet")
        until(lambda: len(cluster.places()) == 3)
        for name in ("own", "replaceable"):
            one.lose(told(cluster.pod(name))[1])

        break_off(cluster, one, running, "seen")  # a list that lacks them
        time.sleep(GRACE_S)  # it has to be so for this long
        break_off(cluster, one, running, "still-so")
        until(lambda: "deletionTimestamp" in cluster.pod("replaceable")["metadata"])
        until(lambda: running.said(f"pod {cluster.namespace}/own has no controller"))
        for name in ("own", "other"):
            assert "deletionTimestamp" not in cluster.pod(name)["metadata"]


@pytest.fixture
def told_by_policy(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A namespace of a cluster where the policy of `bayplan manifests vipu` is in force."""
    policy = printed("vipu", "--name", namespace)
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"

    def in_force() -> bool:
        made = control_plane.request("POST", path, pod_asking("probe", 1))
        return "env" in made["spec"]["containers"][0]

    apply(control_plane, policy)
    try:
        until(in_force)
        assert all(line.endswith(" unchanged") for line in apply(control_plane, policy))
        yield path
    finally:
        control_plane.kubectl("delete", "-f", "-", input=policy)
        until(lambda: not in_force())


def test_the_policy_adds_what_is_missing_and_no_more(
    control_plane: ControlPlane, told_by_policy: str
) -> None:
    def made(pod: Json) -> dict[str, list[Json]]:
        spec = control_plane.request("POST", told_by_policy, pod)["spec"]
        every = (*spec.get("initContainers", []), *spec["containers"])
        return {each["name"]: each.get("env", []) for each in every}

    all_three = [{"name": name, "valueFrom": field} for name, field in VARIABLES.items()]
    own = [
        {"name": "ARGS", "value": "--partition $(IPUOF_VIPU_API_PARTITION_ID)"},
        {"name": "ARGS", "value": "twice"},
        {"name": "IPUOF_VIPU_API_PORT", "value": "8091"},
    ]
    image = {"image": "registry.example/train:1"}
    limits = {"resources": {"limits": {IPU: "1"}}}
    both = pod_asking("both", 1, initContainers=[{"name": "first", **image}])
    both["spec"]["containers"].append({"name": "own", "env": own, **image})
    early = pod_asking("early", 1, initContainers=[{"name": "first", **image, **limits}])
    del early["spec"]["containers"][0]["resources"]
    stranger = pod_asking("stranger", 1)
    stranger["spec"]["schedulerName"] = "somebody-else"
    gpus = pod_asking("gpus", 1)
    gpus["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}

    assert made(pod_asking("limit", 2)) == {"main": all_three}
    assert made(pod_asking("noted", 2, by="annotation")) == {"main": all_three}
    assert made(both) == {
        "first": all_three,
        "main": all_three,
        "own": [all_three[0], all_three[2], *own],
    }
    assert made(early) == {"first": all_three, "main": all_three}
    assert made(stranger) == made(gpus) == {"main": []}
