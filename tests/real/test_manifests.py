"""A real API server accepts what `bayplan manifests` prints, and it grants just what is used."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bayplan.testing.controlplane import ControlPlane, ControlPlaneError
from tests.real.rights import LEASES, Rights, apply, grant, printed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KINDS = ("rbac", "deployment", "static-pod", "extender")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
BEYOND = ("impersonate", "bind", "escalate", "*")  # verbs that discovery does not name

GRANTED = {  # group/resource: verbs, in every namespace
    "/pods": {"get", "list", "watch", "delete"},
    "/nodes": {"list", "watch"},
    "/namespaces": {"list", "watch"},
    "/persistentvolumes": {"list", "watch"},
    "/persistentvolumeclaims": {"list", "watch", "patch"},
    "/pods/binding": {"create"},
    "/pods/eviction": {"create"},
    "/pods/status": {"patch"},
    "/nodes/status": {"patch"},
    "events.k8s.io/events": {"create"},
    "storage.k8s.io/storageclasses": {"list", "watch"},
    "resource.k8s.io/deviceclasses": {"list", "watch"},
    "policy/poddisruptionbudgets": {"list", "watch"},
    "scheduling.k8s.io/priorityclasses": {"list"},
    "node.k8s.io/runtimeclasses": {"list"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_accepted(kind: str, control_plane: ControlPlane) -> None:
    text = printed(kind)
    said = apply(control_plane, text, "--dry-run=server")

    assert len(said) == len(list(yaml.safe_load_all(text)))
    assert all(line.endswith(" created (server dry run)") for line in said)


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_can_be_made_and_applied_again(
    kind: str, control_plane: ControlPlane, namespace: str
) -> None:
    options = ["--namespace", namespace, "--name", namespace]
    first = apply(control_plane, printed(kind, *options))
    if kind == "deployment":
        options += ["--replicas", "3", "--image", "registry.example/bayplan:2"]
    again = apply(control_plane, printed(kind, *options))
    control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")

    assert all(line.endswith(" created") for line in first)
    assert all(line.endswith((" unchanged", " configured")) for line in again)
    assert (f"deployment.apps/{namespace} configured" in again) == (kind == "deployment")


def resources(plane: ControlPlane) -> Iterator[str]:
    """Every resource and subresource that the server has, as group/plural."""
    yield from (f"/{r['name']}" for r in plane.request("GET", "/api/v1")["resources"])
    for group in plane.request("GET", "/apis")["groups"]:
        for version in group["versions"]:
            found = plane.request("GET", f"/apis/{version['groupVersion']}")["resources"]
            yield from (f"{group['name']}/{r['name']}" for r in found)


def test_the_roles_grant_exactly_what_is_used(control_plane: ControlPlane, namespace: str) -> None:
    plane = control_plane
    ours = grant(plane, namespace)
    anybody = Rights(plane, f"system:serviceaccount:{namespace}:another")
    every = sorted({*resources(plane), "*/*", "/*", "/pods/eviction", "/secrets"})
    assert len(every) > 60
    found: dict[str, set[str]] = {}
    for resource in every:
        for verb in (*VERBS, *BEYOND):
            if ours.may(verb, resource) and not anybody.may(verb, resource):
                found.setdefault(resource, set()).add(verb)

    assert found == GRANTED


def test_the_lease_is_ours_by_name_and_in_our_namespace(
    control_plane: ControlPlane, namespace: str
) -> None:
    ours = grant(control_plane, namespace)
    mine = {verb for verb in VERBS if ours.may(verb, LEASES, namespace, namespace)}
    others = {verb for verb in VERBS if ours.may(verb, LEASES, namespace, "kube-scheduler")}
    elsewhere = {verb for verb in VERBS if ours.may(verb, LEASES, "kube-system", namespace)}

    assert (mine, others, elsewhere) == ({"get", "update", "create"}, {"create"}, set())


def test_kubectl_agrees(control_plane: ControlPlane, namespace: str) -> None:
    grant(control_plane, namespace)
    user = f"--as=system:serviceaccount:{namespace}:{namespace}"

    def can_i(verb: str, resource: str, *options: str) -> bool:
        try:
            said = control_plane.kubectl("auth", "can-i", verb, resource, user, "-A", *options)
        except ControlPlaneError:  # a "no" has status 1
            return False
        return said.strip() == "yes"

    assert can_i("create", "pods", "--subresource=binding")
    assert can_i("patch", "persistentvolumeclaims")
    assert can_i("create", "pods", "--subresource=eviction")
    assert can_i("delete", "pods")
    for verb, resource in (("get", "secrets"), ("patch", "pods"), ("patch", "nodes"), ("*", "*")):
        assert not can_i(verb, resource)


def test_static_pods_lead_with_the_rights_of_their_user(
    control_plane: ControlPlane, namespace: str
) -> None:
    theirs = Rights(control_plane, "system:kube-scheduler")
    before = theirs.may("update", LEASES, namespace, namespace)
    grant(control_plane, namespace, "system:kube-scheduler")

    assert not before
    assert all(theirs.may(verb, what) for what, verbs in GRANTED.items() for verb in verbs)


def test_the_flow_schemas_of_the_docs_are_accepted(control_plane: ControlPlane) -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    (schemas,) = [t for t in re.findall(r"```yaml\n(.*?)```", text, re.S) if "FlowSchema" in t]
    said = apply(control_plane, schemas, "--dry-run=server")

    assert [line.split(" ", 1)[0].split("/")[1] for line in said] == ["bayplan-lease", "bayplan"]
    assert all(line.endswith(" created (server dry run)") for line in said)


def test_the_toy_schedulers_own_manifests_are_accepted(
    control_plane: ControlPlane, namespace: str
) -> None:
    apply(control_plane, (HERE / "toy" / "as-deployment.yaml").read_text())
    apply(control_plane, (HERE / "toy" / "test-pods.yaml").read_text(), "-n", namespace)
    pods = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    amounts = [pod["spec"]["containers"][0]["resources"]["requests"] for pod in pods]

    assert amounts == [{"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}] * 5
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"toyscheduler"}
    control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
