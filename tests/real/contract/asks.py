"""Requests, and the objects that they carry. `{ns}` is the namespace of the test."""

from typing import Any, NamedTuple

PODS = "/api/v1/namespaces/{ns}/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{ns}/events"
CORE_EVENTS = "/api/v1/namespaces/{ns}/events"
BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
NODES = "/api/v1/nodes"
CLAIMS = "/api/v1/namespaces/{ns}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
NOBODY = "00000000-0000-0000-0000-000000000000"


class Ask(NamedTuple):
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    accept: str = "application/json"
    but: str = ""  # a name in DIFFERENCES
    copied: bool = True  # the watch of its collection ends with a copy of this object


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


def budget(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}, **spec},
    }


def core_event(name: str, **more: Any) -> dict[str, Any]:
    """As kubelets and older programs write them."""
    return {
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": "{ns}", "name": "a", "apiVersion": "v1"},
        "reason": "Started",
        "message": "Started container main",
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "type": "Normal",
        **more,
    }


def claim(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
            **spec,
        },
    }


def priority_class(name: str, value: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"{{ns}}-{name}"}, "value": value, **more}


def runs(name: str, ready: bool = True) -> list[Ask]:
    """A pod that is bound and running."""
    status = {"phase": "Running", "conditions": [{**READY, "status": str(ready)}]}
    return [
        Ask("POST", PODS, pod(name)),
        binding(name, "n1"),
        Ask("PATCH", f"{PODS}/{name}/status", {"status": status}, "application/merge-patch+json"),
    ]
