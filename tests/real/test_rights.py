"""`bayplan run` with the rights that our manifests give, and with those that the original had."""

from pathlib import Path
from typing import Any

import yaml

from bayplan.testing.controlplane import ControlPlane
from tests.real.rig import Cluster, Scheduler, until
from tests.real.rights import grant, printed

TOY = Path(__file__).parent / "toy"
SCHEDULED = "Successfully assigned {}/{} to {}"


def start(plane: ControlPlane, space: str, account: str, *args: str, **extra: Any) -> Scheduler:
    """As a service account, by a token of its own."""
    token = plane.service_account_token(space, account)
    kubeconfig = plane.kubeconfig_for(f"{space}-{account}", token)
    return Scheduler(plane.directory, kubeconfig, *args, **extra)


def test_our_role_is_enough_to_lead_bind_and_explain(wiped: ControlPlane, namespace: str) -> None:
    options = ("--namespace", namespace, "--name", namespace)
    grant(wiped, namespace)
    shipped = {
        found["kind"]: found for found in yaml.safe_load_all(printed("deployment", *options))
    }
    config = yaml.safe_load(shipped["ConfigMap"]["data"]["config.yaml"])
    cluster = Cluster(wiped, namespace)
    cluster.add_node("rights-1", 2)
    cluster.add_pod("fits", 1)
    cluster.add_pod("waits", 4)
    with start(wiped, namespace, namespace, config=config) as scheduler:
        until(lambda: cluster.node_of("fits") == "rights-1")
        until(lambda: cluster.reasons("fits") == ["Scheduled"])
        until(lambda: cluster.condition("waits").get("reason") == "Unschedulable")
        until(lambda: cluster.reasons("waits") == ["FailedScheduling"])
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{namespace}"
        assert wiped.request("GET", lease)["spec"]["holderIdentity"]
    log = scheduler.process.log.read_text()

    assert "forbidden" not in log
    assert "going without" not in log


def test_our_role_is_enough_to_preempt(wiped: ControlPlane, namespace: str) -> None:
    grant(wiped, namespace)
    made = {"metadata": {"name": namespace}, "value": 1000}
    wiped.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", made)
    cluster = Cluster(wiped, namespace)
    cluster.add_node("rights-2", 2)
    cluster.add_pod("low", 2)
    with start(wiped, namespace, namespace) as scheduler:
        until(lambda: cluster.node_of("low") == "rights-2")
        cluster.add_pod("high", 2, priorityClassName=namespace)
        until(lambda: "deletionTimestamp" in cluster.pod("low")["metadata"])
        until(lambda: cluster.reasons("low") == ["Scheduled", "Preempted"])
        until(lambda: cluster.pod("high")["status"].get("nominatedNodeName") == "rights-2")
        cluster.delete_pod("low")  # as its kubelet would in the end
        until(lambda: cluster.node_of("high") == "rights-2")
    log = scheduler.process.log.read_text()

    assert "forbidden" not in log


def test_the_toy_schedulers_account_and_role_are_enough_to_bind_its_pods(
    wiped: ControlPlane, namespace: str
) -> None:
    wiped.kubectl("apply", "-f", str(TOY / "as-deployment.yaml"))
    cluster = Cluster(wiped, namespace)
    cluster.add_node("toy-large", 8)
    cluster.add_node("toy-small", 4)
    wiped.kubectl("apply", "-n", namespace, "-f", str(TOY / "test-pods.yaml"))
    with start(wiped, "kube-system", "toy-scheduler-sa"):
        until(lambda: len(cluster.places()) == 5)
        until(lambda: all(cluster.reasons(name) for name in cluster.places()))
    places = cluster.places()
    event = cluster.events("nginx-1")[0]

    assert sorted(places.values()) == ["toy-large", *["toy-small"] * 4]
    assert event["reason"] == "Scheduled"
    assert event["note"] == SCHEDULED.format(namespace, "nginx-1", places["nginx-1"])
    assert event["reportingController"] == "toyscheduler"
