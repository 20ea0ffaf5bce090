"""A real API server and kube-scheduler take `bayplan manifests extender` as it is meant."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.core.model.dialects import NEURON_CORE_MAP, NEURON_DEVICE_MAP
from bayplan.testing.api import Refused
from bayplan.testing.controlplane import ControlPlane
from tests.real.rig import Cluster, node, pod, until
from tests.real.rights import LEASES, Rights, apply, printed
from tests.real.test_manifests import BEYOND, VERBS, resources

DOCS = Path(__file__).parents[2] / "docs"
LEADER = "bayplan.dev/extender-leader"
GRANTED = {  # group/resource: verbs, in every namespace
    "/pods": {"get", "list", "watch", "delete"},
    "/nodes": {"list", "watch"},
    "/nodes/status": {"patch"},
    "/pods/binding": {"create"},
    "/pods/status": {"patch"},
    "events.k8s.io/events": {"create"},
    "policy/poddisruptionbudgets": {"list", "watch"},
}
Json = dict[str, Any]


class Installed:
    """The extender's account in a namespace of its own, with a pod and a node to change."""

    def __init__(self, plane: ControlPlane, space: str) -> None:
        self.plane, self.space = plane, space
        names = ("--namespace", space, "--name", space)
        apply(plane, printed("extender", *names, "--part", "rbac", "--part", "guard"))
        self.rights = Rights(plane, f"system:serviceaccount:{space}:{space}")
        until(lambda: self.rights.may("patch", "/nodes/status"))
        until(lambda: self.rights.may("patch", "/pods", space))
        self.token = plane.service_account_token(space, space)
        for name, labels in (("own", self.labels(space)), ("other", self.labels("other"))):
            made = pod(name)
            made["metadata"]["labels"] = labels
            plane.request("POST", f"/api/v1/namespaces/{space}/pods", made)
        plane.request("POST", "/api/v1/nodes", node(space))

    def labels(self, instance: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/instance": instance,
            "app.kubernetes.io/component": "extender",
        }

    def change_pod(self, name: str, patch: Json, options: str = "") -> None:
        path = f"/api/v1/namespaces/{self.space}/pods/{name}{options}"
        self.plane.request("PATCH", path, patch, self.token)

    def change_status(self, patch: Json, options: str = "") -> None:
        self.change_pod("other", patch, f"/status{options}")

    def delete_pod(self, options: str = "") -> None:
        path = f"/api/v1/namespaces/{self.space}/pods/other{options}"
        self.plane.request("DELETE", path, None, self.token)

    def change_node(self, patch: Json, options: str = "") -> None:
        self.plane.request(
            "PATCH", f"/api/v1/nodes/{self.space}/status{options}", patch, self.token
        )


def why_not(change: Callable[..., None], *args: Any) -> str:
    """What a refusal says; nothing if it would be done. A policy is in force a moment late."""
    try:
        change(*args, "?dryRun=All")
    except Refused as refused:
        return str(refused)
    return ""


@pytest.fixture
def installed(wiped: ControlPlane, namespace: str) -> Iterator[Installed]:
    yield Installed(wiped, namespace)
    for kind in ("policies", "policybindings"):
        for what in ("pods", "victims", "nodes"):
            group = "/apis/admissionregistration.k8s.io/v1"
            path = f"{group}/validatingadmission{kind}/{namespace}-{what}"
            wiped.request("DELETE", path)


def test_the_roles_grant_exactly_what_is_used(installed: Installed) -> None:
    plane, space, ours = installed.plane, installed.space, installed.rights
    anybody = Rights(plane, f"system:serviceaccount:{space}:another")
    found: dict[str, set[str]] = {}
    for resource in sorted({*resources(plane), "*/*", "/*", "/pods/eviction", "/secrets"}):
        for verb in (*VERBS, *BEYOND):
            if ours.may(verb, resource) and not anybody.may(verb, resource):
                found.setdefault(resource, set()).add(verb)
    here = {verb for verb in VERBS if ours.may(verb, "/pods", space)}
    mine = {verb for verb in VERBS if ours.may(verb, LEASES, space, space)}
    others = {verb for verb in VERBS if ours.may(verb, LEASES, space, "kube-scheduler")}

    assert found == GRANTED
    assert here == {"get", "list", "watch", "patch", "delete"}
    assert (mine, others) == ({"get", "update", "create"}, {"create"})


def test_it_may_label_its_own_pods_and_no_more(installed: Installed) -> None:
    lead = {"metadata": {"labels": {LEADER: "true"}}}
    cluster = Cluster(installed.plane, installed.space)
    (container,) = cluster.pod("own")["spec"]["containers"]
    image = {"spec": {"containers": [container | {"image": "registry.example/evil:1"}]}}
    elsewhere = "/api/v1/namespaces/default/pods/other"
    others = "the extender may change no pods but its own"
    until(lambda: others in why_not(installed.change_pod, "other", lead))
    what = "the extender may change the labels of its pods, not what runs in them"
    until(lambda: what in why_not(installed.change_pod, "own", image))
    installed.change_pod("own", lead)

    assert cluster.pod("own")["metadata"]["labels"][LEADER] == "true"
    with pytest.raises(Refused, match="cannot patch resource"):
        installed.plane.request("PATCH", elsewhere, lead, installed.token)


def test_it_may_mark_victims_and_delete_no_others(installed: Installed) -> None:
    nothing_else = "mark a pod as the target of a disruption, and change nothing else"
    ready = {"type": "Ready", "status": "True"}
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    path = f"/api/v1/namespaces/{installed.space}/pods/other"
    theirs = {"type": "ContainersReady", "status": "True"}
    status = {"status": {"conditions": [theirs], "podIP": "10.0.0.1"}}
    installed.plane.request("PATCH", f"{path}/status", status)
    forbidden: list[Json] = [
        {"metadata": {"labels": {"app": "mine"}}},
        {"metadata": {"annotations": {"bayplan.dev/assignment": "{}"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"status": {"phase": "Failed"}},
        {"status": {"podIP": "10.9.9.9"}},
        {"status": {"nominatedNodeName": installed.space}},
        {"status": {"conditions": [theirs, ready]}},
        {"status": {"conditions": [theirs | {"status": "False"}]}},
        {"status": {"conditions": [mark]}},
    ]
    until(lambda: nothing_else in why_not(installed.change_status, forbidden[0]))
    for patch in forbidden:
        assert nothing_else in why_not(installed.change_status, patch), patch
    assert "only pods that are marked as preempted" in why_not(installed.delete_pod)
    installed.change_status({"status": {"conditions": [theirs, mark]}})
    installed.delete_pod()

    with pytest.raises(Refused, match="404"):
        installed.plane.request("GET", path)


def test_it_may_write_the_maps_of_nodes_and_nothing_else(installed: Installed) -> None:
    others = "NEURON_DEV_USAGE_MAP and NEURON_CORE_USAGE_MAP of nodes, and nothing else"
    path = f"/api/v1/nodes/{installed.space}"
    theirs = {"metadata": {"annotations": {"theirs": "1", NEURON_CORE_MAP: "stale"}}}
    installed.plane.request("PATCH", path, theirs)
    forbidden: list[Json] = [
        {"metadata": {"labels": {"pool": "mine"}}},
        {"status": {"allocatable": {"cpu": "1"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"annotations": {"bayplan.dev/devices": "{}"}}},
        {"metadata": {"annotations": {"theirs": "2"}}},
        {"metadata": {"annotations": {"theirs": None}}},
    ]
    until(lambda: others in why_not(installed.change_node, forbidden[0]))
    for patch in forbidden:
        assert others in why_not(installed.change_node, patch)
    maps = {"annotations": {NEURON_DEVICE_MAP: "true,false", NEURON_CORE_MAP: None}}
    installed.change_node({"metadata": maps, "spec": {"unschedulable": True}})  # of no effect
    node = installed.plane.request("GET", path)
    found = node["metadata"]["annotations"]

    assert "unschedulable" not in node["spec"]
    assert found == {"theirs": "1", NEURON_DEVICE_MAP: "true,false"}


def test_kube_scheduler_takes_the_configuration_and_has_the_rights(
    wiped: ControlPlane, namespace: str
) -> None:
    """It leads and binds; a pod without Neuron resources never comes to the extender."""
    names = ("--namespace", namespace, "--name", namespace, "--part", "kube-scheduler")
    text = printed("extender", *names)
    account = f"{namespace}-kube-scheduler"
    apply(wiped, text)
    rights = Rights(wiped, f"system:serviceaccount:{namespace}:{account}")
    until(lambda: rights.may("update", LEASES, namespace, account))
    until(lambda: rights.may("create", "/pods/binding"))
    maps = [each for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap"]
    config = yaml.safe_load(maps[0]["data"]["config.yaml"])
    token = wiped.service_account_token(namespace, account)
    config["clientConnection"] = {"kubeconfig": str(wiped.kubeconfig_for(account, token))}
    cluster = Cluster(wiped, namespace)
    cluster.add_node("asked-1", 2)
    cluster.add_pod("plain", 1, "neuron-scheduler")
    scheduler = wiped.start_kube_scheduler(config)
    try:
        until(lambda: cluster.node_of("plain") == "asked-1")
    finally:
        scheduler.stop()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{account}"

    assert "renewTime" in wiped.request("GET", lease)["spec"]
    assert "forbidden" not in scheduler.log.read_text()


def in_docs(page: str, kind: str) -> list[str]:
    """The YAML of a page that is about a kind of object."""
    text = (DOCS / page).read_text()
    return [found for found in re.findall(r"```yaml\n(.*?)```", text, re.S) if kind in found]


def test_the_network_policy_of_the_docs_is_accepted(control_plane: ControlPlane) -> None:
    (policy,) = in_docs("extender.md", "NetworkPolicy")
    said = apply(control_plane, policy, "--dry-run=server")

    assert said == ["networkpolicy.networking.k8s.io/bayplan-extender created (server dry run)"]
