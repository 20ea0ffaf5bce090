"""`bayplan extender` with the rights that our manifests give, and nothing more."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.core.model.dialects import NEURON_DEVICE_MAP
from bayplan.extender.label import LABEL
from bayplan.testing.controlplane import ControlPlane, Process, free_ports
from tests.real.extender import rig as neuron
from tests.real.extender.rules import TRN1
from tests.real.rig import Cluster, pod, until
from tests.real.rights import apply, printed

NODE = "rights-trn1"


class Replica:
    """One, as a pod of the shipped Deployment would run."""

    def __init__(self, plane: ControlPlane, space: str, directory: Path, name: str) -> None:
        self.port, health = free_ports(2)
        token = plane.service_account_token(space, space)
        config = {
            "apiVersion": "bayplan.dev/v1alpha1",
            "kind": "BayplanConfiguration",
            "leaderElection": {
                "leaderElect": True,
                "resourceName": space,
                "resourceNamespace": space,
            },
        }
        path = directory / f"{name}.json"
        path.write_text(json.dumps(config))
        kubeconfig = plane.kubeconfig_for(f"{space}-{name}", token)
        own = (f"POD_NAME={name}", f"POD_NAMESPACE={space}")
        ports = (f"--port={self.port}", f"--listen=127.0.0.1:{health}", "--api=127.0.0.1:0")
        program = (sys.executable, "-m", "bayplan", "extender")
        files = (f"--config={path}", f"--kubeconfig={kubeconfig}")
        command = ["/usr/bin/env", *own, *program, *files, *ports]
        self.process = Process(name, command, directory / f"{name}.log")

    def ask(self, verb: str, body: Any) -> tuple[int, Any]:
        status, said = neuron._http(self.port, "POST", f"/{verb}", json.dumps(body))
        return status, json.loads(said) if status == 200 else said


@pytest.fixture
def replica(wiped: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Replica]:
    options = ("--namespace", namespace, "--name", namespace)
    apply(wiped, printed("extender", *options, "--part", "rbac", "--part", "guard"))
    labels = {
        "app.kubernetes.io/instance": namespace,
        "app.kubernetes.io/component": "extender",
    }
    for name, more in (("own", {}), ("killed", {LABEL: "true"})):
        made = pod(name)
        made["metadata"]["labels"] = labels | more
        wiped.request("POST", f"/api/v1/namespaces/{namespace}/pods", made)
    wiped.request("POST", "/api/v1/nodes", neuron.node(NODE, TRN1))
    started = Replica(wiped, namespace, tmp_path, "own")
    yield started
    if started.process.running:
        started.process.stop(20.0)


@pytest.fixture
def urgent(wiped: ControlPlane, namespace: str) -> Iterator[str]:
    """The name of a class of higher priority."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    wiped.request("POST", classes, {"metadata": {"name": namespace}, "value": 1000})
    yield namespace
    wiped.request("DELETE", f"{classes}/{namespace}")


def test_our_role_is_enough_to_lead_and_to_bind(
    replica: Replica, wiped: ControlPlane, namespace: str
) -> None:
    cluster = Cluster(wiped, namespace)
    asked = wiped.request(
        "POST", f"/api/v1/namespaces/{namespace}/pods", neuron.pod("train", TRN1, 8)
    )
    until(lambda: cluster.pod("own")["metadata"]["labels"].get(LABEL) == "true")
    until(lambda: LABEL not in cluster.pod("killed")["metadata"]["labels"])
    until(lambda: replica.ask("filter", {"Pod": asked, "NodeNames": [NODE]})[0] == 200)
    bind = {"PodName": "train", "PodNamespace": namespace, "Node": NODE}
    status, said = replica.ask("bind", bind | {"PodUID": asked["metadata"]["uid"]})

    assert (status, said) == (200, {"Error": ""})
    notes = cluster.pod("train")["metadata"]["annotations"]
    assert notes["AWS_NEURON_IDS"] == "0,1,2,3,4,5,6,7"
    used = ",".join(["true"] * 8 + ["false"] * 8)
    path = f"/api/v1/nodes/{NODE}"

    def maps() -> dict[str, str]:
        return wiped.request("GET", path)["metadata"].get("annotations") or {}

    until(lambda: maps().get(NEURON_DEVICE_MAP) == used)
    assert_nothing_was_forbidden(replica)


def test_our_role_is_enough_to_preempt(
    replica: Replica, wiped: ControlPlane, namespace: str, urgent: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    low = wiped.request("POST", pods, neuron.pod("low", TRN1, 16))
    asked = neuron.pod("high", TRN1, 16)
    asked["spec"]["priorityClassName"] = urgent
    high = wiped.request("POST", pods, asked)
    until(lambda: replica.ask("filter", {"Pod": low, "NodeNames": [NODE]})[0] == 200)
    bind = {"PodName": "low", "PodNamespace": namespace, "Node": NODE}
    assert replica.ask("bind", bind | {"PodUID": low["metadata"]["uid"]}) == (200, {"Error": ""})

    def goes() -> bool:
        said = replica.ask("filter", {"Pod": high, "NodeNames": [NODE]})[1]
        assert said["NodeNames"] == []
        return "deletionTimestamp" in wiped.request("GET", f"{pods}/low")["metadata"]

    until(goes)
    conditions = wiped.request("GET", f"{pods}/low")["status"]["conditions"]
    assert "DisruptionTarget" in {each["type"] for each in conditions}
    events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    until(lambda: [e["reason"] for e in wiped.request("GET", events)["items"]] == ["Preempted"])
    wiped.request("DELETE", f"{pods}/low?gracePeriodSeconds=0")
    until(
        lambda: replica.ask("filter", {"Pod": high, "NodeNames": [NODE]})[1]["NodeNames"] == [NODE]
    )
    assert_nothing_was_forbidden(replica)


def assert_nothing_was_forbidden(replica: Replica) -> None:
    replica.process.stop(20.0)
    log = replica.process.log.read_text()

    assert "forbidden" not in log.lower()
    assert "going without" not in log
