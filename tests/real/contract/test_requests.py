"""The requests that Bayplan, the demo and kubectl make: both back ends answer the same.

A script is a list of requests. Each runs on etcd with kube-apiserver 1.36.3 and on the embedded
API, beside a watch of what it does to pods; then every answer and every event are compared.
"""

from typing import Any, NamedTuple

import pytest

from tests.real.contract.conftest import Both
from tests.real.contract.exchange import JSON_PATCH, MERGE, STRATEGIC, TABLE, Server

PODS = "/api/v1/namespaces/{ns}/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{ns}/events"
CORE_EVENTS = "/api/v1/namespaces/{ns}/events"
BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
NODES = "/api/v1/nodes"


class Ask(NamedTuple):
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "train"}},
        "spec": {"schedulerName": "bayplan", "containers": [container], **spec},
    }


def node(name: str, **status: Any) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "status": {"capacity": amounts, **status},
    }


def binding(name: str, to: str, **metadata: Any) -> Ask:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": "{ns}", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": to},
    }
    return Ask("POST", f"{PODS}/{name}/binding", body)


def lease(holder: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "bayplan", "namespace": "{ns}", **metadata},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        },
    }


def event(name: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "{ns}"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "bayplan",
        "reportingInstance": "bayplan-1",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "regarding": {"kind": "Pod", "namespace": "{ns}", "name": "a", "apiVersion": "v1"},
        "note": "Successfully assigned",
        **more,
    }


CONDITION = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient cpu.",
    "lastProbeTime": None,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
READY = {**CONDITION, "type": "Ready", "status": "True", "reason": "", "message": ""}

SCRIPTS: dict[str, list[Ask]] = {
    "pods are created, read, listed and deleted": [
        Ask("POST", PODS, pod("a")),
        Ask("POST", PODS, pod("a")),
        Ask("GET", f"{PODS}/a"),
        Ask("GET", f"{PODS}/nobody"),
        Ask("GET", PODS),
        Ask("DELETE", f"{PODS}/a"),
        Ask("DELETE", f"{PODS}/a"),
        Ask("GET", PODS),
    ],
    "what a pod leaves out is filled in": [
        Ask(
            "POST",
            PODS,
            {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        ),
        Ask("POST", PODS, pod("gated", schedulingGates=[{"name": "example.com/gate"}])),
        Ask("POST", PODS, pod("critical", priorityClassName="system-node-critical")),
        Ask("POST", PODS, pod("hosted", hostNetwork=True)),
        Ask("POST", PODS, pod("tolerant", tolerations=[{"operator": "Exists"}])),
    ],
    "bad pods are refused": [
        Ask("POST", PODS, {"metadata": {"name": "empty"}, "spec": {"containers": []}}),
        Ask("POST", PODS, pod("Upper_Case")),
        Ask("POST", PODS, {**pod("x"), "metadata": {}}),
        Ask("POST", PODS, pod("no-class", priorityClassName="nobody")),
        Ask("POST", PODS, pod("x", restartPolicy="Sometimes")),
        Ask("POST", PODS, {**pod("x"), "metadata": {"name": "x", "labels": {"a b": "c"}}}),
        Ask("POST", PODS, {**pod("x"), "metadata": {"name": "x", "namespace": "other"}}),
        Ask("POST", "/api/v1/namespaces/nowhere/pods", pod("x")),
    ],
    "a pod is bound once": [
        Ask("POST", NODES, node("n1")),
        Ask("POST", PODS, pod("a")),
        binding("a", "n1", annotations={"bayplan.dev/x": "y"}),
        binding("a", "n1"),
        binding("a", "n2"),
        Ask("GET", f"{PODS}/a"),
        binding("nobody", "n1"),
    ],
    "a bind that cannot be": [
        Ask("POST", PODS, pod("a")),
        Ask("POST", PODS, pod("gated", schedulingGates=[{"name": "example.com/gate"}])),
        binding("a", "n1", uid="00000000-0000-0000-0000-000000000000"),
        binding("a", ""),
        binding("gated", "n1"),
        Ask("POST", f"{PODS}/a/binding", {**binding("b", "n1").body}),
        binding("a", "nowhere"),
    ],
    "why a pod waits": [
        Ask("POST", PODS, pod("a")),
        Ask("PATCH", f"{PODS}/a/status", {"status": {"conditions": [CONDITION]}}, STRATEGIC),
        Ask("PATCH", f"{PODS}/a/status", {"status": {"conditions": [CONDITION]}}, STRATEGIC),
        Ask("PATCH", f"{PODS}/a/status", {"status": {"conditions": [READY]}}, STRATEGIC),
        Ask(
            "PATCH",
            f"{PODS}/a/status",
            {
                "metadata": {"uid": "00000000-0000-0000-0000-000000000000"},
                "status": {"phase": "Failed"},
            },
            STRATEGIC,
        ),
        Ask("PATCH", f"{PODS}/nobody/status", {"status": {}}, STRATEGIC),
        binding("a", "n1"),
        Ask("GET", f"{PODS}/a"),
    ],
    "a bound pod is deleted in two steps": [
        Ask("POST", PODS, pod("a")),
        binding("a", "n1"),
        Ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 5}),
        Ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 2}),
        binding("a", "n1"),
        Ask("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0}),
        Ask("GET", f"{PODS}/a"),
    ],
    "preconditions and finalizers of a delete": [
        Ask("POST", PODS, pod("a")),
        Ask(
            "DELETE",
            f"{PODS}/a",
            {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}},
        ),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE),
        Ask("DELETE", f"{PODS}/a"),
        Ask("GET", f"{PODS}/a"),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"finalizers": None}}, MERGE),
        Ask("GET", f"{PODS}/a"),
    ],
    "pods are changed where they may be": [
        Ask("POST", PODS, pod("a")),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"team": "x"}}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"team": None}}}, STRATEGIC),
        Ask(
            "PATCH",
            f"{PODS}/a",
            [{"op": "add", "path": "/metadata/labels/b", "value": "c"}],
            JSON_PATCH,
        ),
        Ask(
            "PATCH",
            f"{PODS}/a",
            [{"op": "test", "path": "/metadata/name", "value": "a"}],
            JSON_PATCH,
        ),
        Ask(
            "PATCH",
            f"{PODS}/a",
            {"spec": {"containers": [{"name": "main", "image": "new:2"}]}},
            STRATEGIC,
        ),
        Ask("PATCH", f"{PODS}/a", {"status": {"phase": "Running"}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"resourceVersion": "1"}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"bad key": "v"}}}, MERGE),
    ],
    "gates are opened and never added": [
        Ask("POST", PODS, pod("a", schedulingGates=[{"name": "x.io/one"}, {"name": "x.io/two"}])),
        Ask("PATCH", f"{PODS}/a", {"spec": {"schedulingGates": [{"name": "x.io/one"}]}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"schedulingGates": None}}, MERGE),
        Ask("PATCH", f"{PODS}/a", {"spec": {"schedulingGates": [{"name": "x.io/three"}]}}, MERGE),
    ],
    "selectors": [
        Ask("POST", PODS, pod("a")),
        Ask("POST", PODS, pod("b")),
        binding("b", "n1"),
        Ask("PATCH", f"{PODS}/b", {"metadata": {"labels": {"app": "web", "tier": "1"}}}, MERGE),
        Ask("GET", f"{PODS}?labelSelector=app%3Dtrain"),
        Ask("GET", f"{PODS}?labelSelector=app%21%3Dtrain"),
        Ask("GET", f"{PODS}?labelSelector=app%20in%20%28train%2Cweb%29%2Ctier"),
        Ask("GET", f"{PODS}?labelSelector=%21tier"),
        Ask("GET", f"{PODS}?fieldSelector=spec.nodeName%3Dn1"),
        Ask("GET", f"{PODS}?fieldSelector=spec.nodeName%3D"),
        Ask("GET", f"{PODS}?fieldSelector=status.phase%21%3DFailed%2Cmetadata.name%3Da"),
        Ask("GET", f"{PODS}?fieldSelector=spec.colour%3Dred"),
    ],
    "nodes": [
        Ask("POST", NODES, node("n1")),
        Ask("GET", f"{NODES}/n1"),
        Ask("PATCH", f"{NODES}/n1", {"spec": {"unschedulable": True}}, MERGE),
        Ask(
            "PATCH",
            f"{NODES}/n1",
            {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}},
            STRATEGIC,
        ),
        Ask("PATCH", f"{NODES}/n1", {"spec": {"taints": None}}, MERGE),
        Ask("PATCH", f"{NODES}/n1/status", {"status": {"conditions": [READY]}}, STRATEGIC),
        Ask("GET", f"{NODES}?fieldSelector=spec.unschedulable%3Dtrue"),
        Ask("DELETE", f"{NODES}/n1"),
        Ask("DELETE", f"{NODES}/n1"),
    ],
    "leases": [
        Ask("GET", f"{LEASES}/bayplan"),
        Ask("POST", LEASES, lease("one")),
        Ask("POST", LEASES, lease("two")),
        Ask("PUT", f"{LEASES}/bayplan", lease("two")),
        Ask("PUT", f"{LEASES}/bayplan", lease("two", resourceVersion="1")),
        Ask("PATCH", f"{LEASES}/bayplan", {"spec": {"holderIdentity": "three"}}, MERGE),
        Ask("GET", f"{LEASES}/bayplan"),
        Ask("DELETE", f"{LEASES}/bayplan"),
    ],
    "events by both names": [
        Ask("POST", EVENTS, event("a.1")),
        Ask("POST", EVENTS, event("a.1")),
        Ask("POST", EVENTS, event("a.2", action="")),
        Ask("GET", f"{EVENTS}/a.1"),
        Ask("GET", f"{CORE_EVENTS}/a.1"),
        Ask("GET", f"{CORE_EVENTS}?fieldSelector=involvedObject.name%3Da%2Creason%3DScheduled"),
        Ask("GET", f"{EVENTS}?fieldSelector=regarding.name%3Db"),
    ],
    "evictions ask the budget": [
        Ask("POST", PODS, pod("a")),
        binding("a", "n1"),
        Ask(
            "PATCH",
            f"{PODS}/a/status",
            {"status": {"phase": "Running", "conditions": [READY]}},
            STRATEGIC,
        ),
        Ask("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}}),
        Ask("POST", f"{PODS}/nobody/eviction", {"metadata": {"name": "nobody"}}),
        Ask("GET", f"{PODS}/a"),
    ],
    "namespaces": [
        Ask("GET", "/api/v1/namespaces/{ns}"),
        Ask("POST", "/api/v1/namespaces", {"metadata": {"name": "{ns}"}}),
        Ask("POST", "/api/v1/namespaces", {"metadata": {"name": "Not A Name"}}),
        Ask("GET", "/api/v1/namespaces/nowhere"),
    ],
    "config maps": [
        Ask("POST", MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}}),
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "a"}, "data": {"k": "w"}}),
        Ask("PUT", f"{MAPS}/a", {"metadata": {"name": "b"}, "data": {}}),
        Ask("PATCH", f"{MAPS}/a", {"data": {"k": None, "l": "m"}}, STRATEGIC),
        Ask("DELETE", f"{MAPS}/a"),
    ],
    "dry runs change nothing": [
        Ask("POST", f"{PODS}?dryRun=All", pod("a")),
        Ask("GET", PODS),
        Ask("POST", PODS, pod("a")),
        Ask("PATCH", f"{PODS}/a?dryRun=All", {"metadata": {"labels": {"x": "y"}}}, MERGE),
        Ask("DELETE", f"{PODS}/a?dryRun=All"),
        Ask("GET", f"{PODS}/a"),
    ],
    "paths and methods that are not there": [
        Ask("GET", "/apis/nowhere.io/v1/things"),
        Ask("GET", "/api/v1/namespaces/{ns}/zebras"),
        Ask("GET", "/api/v1/zebras/a"),
        Ask("POST", f"{PODS}/a", pod("a")),
        Ask("PUT", PODS, pod("a")),
        Ask("DELETE", "/api/v1/pods"),
        Ask("GET", f"{PODS}/a/zebra"),
    ],
    "what kubectl prints": [
        Ask("POST", PODS, pod("a")),
        Ask("POST", PODS, pod("gated", schedulingGates=[{"name": "x.io/one"}])),
        Ask("POST", PODS, pod("b")),
        binding("b", "n1"),
        Ask("POST", NODES, node("n1", conditions=[READY])),
        Ask("GET", PODS, accept=TABLE),
        Ask("GET", f"{PODS}/b", accept=TABLE),
        Ask("GET", NODES, accept=TABLE),
        Ask("GET", "/api/v1/namespaces/{ns}", accept=TABLE),
        Ask("POST", EVENTS, event("a.1")),
        Ask("GET", CORE_EVENTS, accept=TABLE),
    ],
}


def played(server: Server, script: list[Ask]) -> list[Any]:
    """Every answer, and then every event that a watch of the pods brought."""
    pods = PODS.replace("{ns}", server.namespace)
    since = server.revision(pods)
    answers: list[Any] = [server.ask(*ask) for ask in script]
    server.raw("POST", pods, pod("the-last"))
    path = f"{pods}?watch=true&resourceVersion={since}&timeoutSeconds=20"
    return [*answers, *server.watch(path, "the-last")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_answer_the_same(name: str, both: Both) -> None:
    script = SCRIPTS[name]
    real, embedded = played(both.real, script), played(both.embedded, script)

    for number, (ours, theirs) in enumerate(zip(embedded, real, strict=False)):
        what = script[number] if number < len(script) else f"event {number - len(script) + 1}"
        assert ours == theirs, f"{what}"
    assert len(embedded) == len(real)
