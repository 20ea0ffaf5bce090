"""`bayplan run` on a real API server and on the embedded one: what a cluster's people see of it."""

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.core.model.devices import (
    ASSIGNMENT,
    INVENTORY,
    Assignment,
    Device,
    Devices,
    Inventory,
    read_assignment,
    write_inventory,
)
from tests.embedded import Plane
from tests.real.rig import Cluster, Scheduler, until


@pytest.fixture
def cluster(plane: Plane) -> Cluster:
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return Cluster(plane, name)


@pytest.fixture
def scheduler(cluster: Cluster, tmp_path: Path) -> Iterator[Scheduler]:
    with Scheduler(tmp_path, cluster.plane.kubeconfig) as running:
        yield running


def test_a_pod_is_bound_and_its_event_is_kube_schedulers(
    cluster: Cluster, scheduler: Scheduler
) -> None:
    cluster.add_node("a")
    cluster.add_pod("p")
    until(lambda: cluster.node_of("p") == "a")
    assert cluster.condition("p")["status"] == "True"
    until(lambda: cluster.reasons("p") == ["Scheduled"])
    (event,) = cluster.events("p")
    assert event["note"] == f"Successfully assigned {cluster.namespace}/p to a"
    assert (event["type"], event["action"]) == ("Normal", "Binding")
    assert event["reportingController"] == "bayplan"
    assert event["regarding"]["uid"] == cluster.pod("p")["metadata"]["uid"]


def test_a_pod_that_fits_nowhere_says_why_and_is_bound_when_it_can_be(
    cluster: Cluster, scheduler: Scheduler
) -> None:
    cluster.add_node("a", gpus=2)
    cluster.add_node("tainted", gpus=8)
    cluster.patch_node(
        "tainted", {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}
    )
    cluster.add_pod("p", gpus=4)
    said = (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "1 node(s) had untolerated taint(s). "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    until(lambda: cluster.condition("p").get("message") == said)
    condition = cluster.condition("p")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert condition["observedGeneration"] == cluster.pod("p")["metadata"]["generation"]
    until(lambda: cluster.reasons("p") == ["FailedScheduling"])
    (event,) = cluster.events("p")
    assert (event["type"], event["action"]) == ("Warning", "Scheduling")
    assert event["note"].partition(" | ")[0] == said

    cluster.add_node("b", gpus=4)
    until(lambda: cluster.node_of("p") == "b")
    until(lambda: cluster.reasons("p") == ["FailedScheduling", "Scheduled"])


def test_devices_are_given_with_the_binding_and_known_after_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("a", gpus=2)
    cards = tuple(Device(f"GPU-{i}", i, 16_384) for i in range(2))
    text = write_inventory(Inventory({"nvidia": Devices(cards)}))
    cluster.patch_node("a", {"metadata": {"annotations": {INVENTORY: text}}})

    def ids(name: str) -> str:
        annotations = cluster.pod(name)["metadata"].get("annotations") or {}
        return str(annotations.get("ids.bayplan.dev/main", ""))

    with Scheduler(tmp_path, cluster.plane.kubeconfig):
        cluster.add_pod("first")
        until(lambda: cluster.node_of("first") == "a")
    with Scheduler(tmp_path, cluster.plane.kubeconfig):
        cluster.add_pod("second")
        until(lambda: cluster.node_of("second") == "a")
    assert sorted((ids("first"), ids("second"))) == ["GPU-0", "GPU-1"]
    assignment = read_assignment(cluster.pod("second")["metadata"]["annotations"][ASSIGNMENT])
    assert isinstance(assignment, Assignment)
    assert [device.id for held in assignment.held for device in held.devices] == [ids("second")]


def test_every_member_of_a_refused_set_carries_its_condition(
    cluster: Cluster, scheduler: Scheduler
) -> None:
    cluster.add_node("a", gpus=1)
    for i in range(12):
        cluster.add_pod(f"p{i}", gpus=8)
    until(
        lambda: all(cluster.condition(f"p{i}").get("reason") == "Unschedulable" for i in range(12))
    )


def test_what_ends_elsewhere_makes_room(cluster: Cluster, scheduler: Scheduler) -> None:
    """Pods of other schedulers count, and their end wakes ours."""
    cluster.add_node("a", gpus=4)
    cluster.add_pod("other", gpus=3, scheduler="somebody-else", nodeName="a")
    cluster.add_pod("p", gpus=2)
    until(lambda: cluster.condition("p").get("reason") == "Unschedulable")
    cluster.delete_pod("other")
    until(lambda: cluster.node_of("p") == "a")


def test_gates_cordons_and_relabelled_nodes_are_followed(
    cluster: Cluster, scheduler: Scheduler
) -> None:
    cluster.add_node("a")
    cluster.add_pod("gated", schedulingGates=[{"name": "example.com/wait"}])
    cluster.patch_node("a", {"spec": {"unschedulable": True}})
    cluster.add_pod("p")
    until(lambda: "unschedulable" in cluster.condition("p").get("message", ""))
    cluster.patch_node("a", {"spec": {"unschedulable": None}})
    until(lambda: cluster.node_of("p") == "a")
    assert cluster.node_of("gated") == ""
    cluster.patch_pod("gated", {"spec": {"schedulingGates": None}})
    until(lambda: cluster.node_of("gated") == "a")

    cluster.add_pod("picky", nodeSelector={"disk": "fast"})
    until(lambda: "affinity/selector" in cluster.condition("picky").get("message", ""))
    cluster.patch_node("a", {"metadata": {"labels": {"disk": "fast"}}})
    until(lambda: cluster.node_of("picky") == "a")


def test_no_node_is_given_more_than_it_has(cluster: Cluster, scheduler: Scheduler) -> None:
    for name in ("a", "b", "c"):
        cluster.add_node(name, gpus=8)
    for i in range(30):
        cluster.add_pod(f"p{i}")
    until(lambda: len(cluster.places()) == 24)
    until(lambda: scheduler.metrics()['scheduler_pending_pods{queue="unschedulable"}'] == 6)
    places = list(cluster.places().values())
    assert [places.count(name) for name in ("a", "b", "c")] == [8, 8, 8]


def test_a_node_that_vanishes_takes_nothing_more(cluster: Cluster, scheduler: Scheduler) -> None:
    cluster.add_node("a")
    cluster.add_node("b", gpus=1)
    cluster.plane.request("DELETE", "/api/v1/nodes/a")
    cluster.add_pod("p")
    cluster.add_pod("q")
    until(lambda: len(cluster.places()) == 1)
    until(lambda: scheduler.metrics()["bayplan_nodes"] == 1)
    assert set(cluster.places().values()) == {"b"}


def test_a_stopped_scheduler_leaves_nothing_half_done(cluster: Cluster, tmp_path: Path) -> None:
    """SIGTERM under load: every pod is bound or free, the lease is given up, the exit is clean."""
    cluster.add_node("a", gpus=100)
    config = {"leaderElection": {"leaderElect": True, "resourceName": "stop-test"}}
    with Scheduler(tmp_path, cluster.plane.kubeconfig, config=config) as scheduler:
        until(lambda: scheduler.said("leading"))
        for i in range(60):
            cluster.add_pod(f"p{i}")
        until(cluster.places)
        scheduler.process.signal(signal.SIGTERM)
        assert scheduler.process.wait(20.0) == 0
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/stop-test"
    assert not cluster.plane.request("GET", path)["spec"]["holderIdentity"]
    with Scheduler(tmp_path, cluster.plane.kubeconfig):
        until(lambda: len(cluster.places()) == 60)


def test_a_standby_takes_over(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node("a", gpus=100)
    times = {"leaseDuration": "5s", "renewDeadline": "3s", "retryPeriod": "500ms"}
    config = {"leaderElection": {"leaderElect": True, "resourceName": "take-over", **times}}
    kubeconfig = cluster.plane.kubeconfig
    with (
        Scheduler(tmp_path, kubeconfig, config=config) as first,
        Scheduler(tmp_path, kubeconfig, config=config) as second,
    ):
        until(lambda: first.said("leading") or second.said("leading"))
        leader, standby = (first, second) if first.said("leading") else (second, first)
        assert standby.is_ready()
        cluster.add_pod("p")
        until(lambda: cluster.node_of("p") == "a")
        assert not standby.said("leading")
        leader.process.kill()
        cluster.add_pod("q")
        until(lambda: cluster.node_of("q") == "a")
        assert standby.metrics()["bayplan_leads"] == 1


def test_a_dry_run_binds_nothing_and_tells_where_it_differs(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add_node("a", gpus=8)
    cluster.add_node("b", gpus=1)
    with Scheduler(tmp_path, cluster.plane.kubeconfig, "--dry-run") as shadow:
        cluster.add_pod("big", gpus=4, scheduler="default-scheduler")
        until(lambda: shadow.said(f"pod {cluster.namespace}/big would go to a"))
        assert cluster.node_of("big") == ""
        binding = {"metadata": {"name": "big"}, "target": {"kind": "Node", "name": "b"}}
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/big/binding"
        cluster.plane.request("POST", path, binding)
        until(lambda: shadow.said("differs"))
        assert shadow.said(f"pod {cluster.namespace}/big is on b, not on a")


def test_a_node_whose_kubelet_refuses_is_left_alone(cluster: Cluster, scheduler: Scheduler) -> None:
    """There is no kubelet here: its refusal is written by hand, as a kubelet would."""
    cluster.add_node("a", gpus=8)
    cluster.add_pod("p")
    until(lambda: cluster.node_of("p") == "a")
    status = {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node didn't have"}
    cluster.patch_pod("p", {"status": status}, "/status")
    until(lambda: "KubeletRefused" in cluster.reasons("p"))
    cluster.add_pod("q")
    until(lambda: "refused a pod" in cluster.condition("q").get("message", ""))
    cluster.add_pod("cpu-only", gpus=0)
    until(lambda: cluster.node_of("cpu-only") == "a")
    cluster.add_node("b", gpus=1)
    until(lambda: cluster.node_of("q") == "b")
    metric = 'bayplan_kubelet_refusals_total{node="a",resource="nvidia.com/gpu"}'
    assert scheduler.metrics()[metric] == 1


def test_claims_that_nobody_allocates_are_refused(cluster: Cluster, scheduler: Scheduler) -> None:
    cluster.add_node("a")
    cluster.add_pod("p", gpus=0, resourceClaims=[{"name": "c", "resourceClaimName": "gpus"}])
    until(lambda: "resourceClaims" in cluster.condition("p").get("message", ""))
    assert cluster.node_of("p") == ""


def test_a_claim_is_made_where_its_first_pod_goes(cluster: Cluster, scheduler: Scheduler) -> None:
    """The provisioner's part is played by hand."""
    plane, space = cluster.plane, cluster.namespace
    path = f"/api/v1/namespaces/{space}/persistentvolumeclaims"
    name = f"late-{space}"
    plane.request(
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses",
        {
            "metadata": {"name": name},
            "provisioner": "example.com/disk",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": name,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    cluster.add_node("a")
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster.add_pod("p", volumes=volumes)
    missing = 'persistentvolumeclaim "data" not found'
    until(lambda: missing in cluster.condition("p").get("message", ""))
    plane.request("POST", path, claim)
    chosen = "volume.kubernetes.io/selected-node"

    def annotations() -> dict[str, str]:
        found: dict[str, str] = plane.request("GET", f"{path}/data")["metadata"]["annotations"]
        return found

    until(lambda: plane.request("GET", f"{path}/data")["metadata"].get("annotations"))
    assert annotations()[chosen] == "a"
    assert cluster.node_of("p") == ""
    volume = {
        "metadata": {"name": f"pv-{space}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "hostPath": {"path": "/data"},
            "claimRef": {"namespace": space, "name": "data"},
        },
    }
    plane.request("POST", "/api/v1/persistentvolumes", volume)
    bound = {
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": f"pv-{space}"},
    }
    plane.request("PATCH", f"{path}/data", bound)
    until(lambda: cluster.node_of("p") == "a")


def test_memory_agrees_with_a_fresh_list_and_a_bundle_can_be_had(
    cluster: Cluster, scheduler: Scheduler
) -> None:
    cluster.add_node("a", gpus=2)
    for i in range(3):
        cluster.add_pod(f"p{i}")
    until(lambda: len(cluster.places()) == 2)
    said = scheduler.get("/v1/check", scheduler.api_port)
    assert said is not None
    assert json.loads(said)["counts"] == {}
    bundle = json.loads(scheduler.get("/v1/dump", scheduler.api_port) or "{}")
    assert len(bundle["decisions"]) >= 3
    assert cluster.plane.token not in json.dumps(bundle)


def test_a_journal_can_be_checked_and_replayed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add_node("a", gpus=4)
    journal = tmp_path / "journal"
    config = {"journal": {"path": str(journal)}}
    with Scheduler(tmp_path, cluster.plane.kubeconfig, config=config):
        for i in range(6):
            cluster.add_pod(f"p{i}")
        until(lambda: len(cluster.places()) == 4)
        cluster.delete_pod(next(iter(cluster.places())))
        until(lambda: len(cluster.places()) == 4)
    for command in ("check", "replay"):
        done = subprocess.run(
            [sys.executable, "-m", "bayplan", command, str(journal)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
