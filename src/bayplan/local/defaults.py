"""What the API server fills in for the kinds other than pods: when they are new, and always."""

from base64 import b64encode

from bayplan.local import events, workload_specs
from bayplan.local.kinds import (
    BUDGET,
    DEFINITION,
    JOB,
    NAMESPACE,
    NODE,
    PRIORITY_CLASS,
    STATEFUL_SET,
    Kind,
)
from bayplan.local.metadata import NAME_LABEL
from bayplan.local.store import Json

_FIELDS: dict[str, Json] = {
    "PriorityClass": {"preemptionPolicy": "PreemptLowerPriority"},
    "StorageClass": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
    "Secret": {"type": "Opaque"},
}
_SPEC_FIELDS: dict[str, Json] = {
    "PersistentVolumeClaim": {"volumeMode": "Filesystem"},
    "PersistentVolume": {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"},
}
FIRST_STATUS: dict[str, Json] = {
    "PersistentVolumeClaim": {"phase": "Pending"},
    "PersistentVolume": {"phase": "Pending"},
    "Namespace": {"phase": "Active"},
    "PodDisruptionBudget": {
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "disruptionsAllowed": 0,
        "expectedPods": 0,
    },
    "StatefulSet": {"replicas": 0, "availableReplicas": 0},
    "Job": {},
}
_NUMBERED = (BUDGET, DEFINITION, JOB, PRIORITY_CLASS, STATEFUL_SET)
PROTECTION = {  # what holds a volume until nobody uses it
    "PersistentVolumeClaim": "kubernetes.io/pvc-protection",
    "PersistentVolume": "kubernetes.io/pv-protection",
}


def created(kind: Kind, value: Json, now: str) -> Json:
    """A new object, before it is checked."""
    if kind.built_in == "Event":
        return events.stored(kind, value)
    about = value["metadata"]
    if kind == NAMESPACE:
        value["spec"] = {"finalizers": ["kubernetes"]}
        labels = {**(about.get("labels") or {})}
        about["labels"] = {**labels, NAME_LABEL: about.get("name", "")}
    if "status" in kind.subresources and kind not in (DEFINITION, NODE):
        value.pop("status", None)
    if kind.built_in in FIRST_STATUS:
        value["status"] = dict(FIRST_STATUS[kind.kind])
    if kind.built_in == "PersistentVolume":
        value["status"]["lastPhaseTransitionTime"] = now
    held = PROTECTION.get(kind.built_in)
    if held and held not in (about.get("finalizers") or ()):
        about["finalizers"] = [*(about.get("finalizers") or ()), held]
    numbered = kind.built_in in ("DeviceClass", "ResourceSlice")
    if kind.custom or numbered or kind in _NUMBERED:
        about["generation"] = 1
    value = filled(kind, value)
    return workload_specs.named_job(value) if kind == JOB else value


def filled(kind: Kind, value: Json) -> Json:
    """With what is not said, in place."""
    if kind.custom:
        return value
    texts = value.pop("stringData", None) if kind.built_in == "Secret" else None
    if texts:
        hidden = {key: b64encode(str(text).encode()).decode() for key, text in texts.items()}
        value["data"] = {**(value.get("data") or {}), **hidden}
    for field, given in _FIELDS.get(kind.kind, {}).items():
        if not value.get(field):
            value[field] = given
    spec = value.get("spec")
    if isinstance(spec, dict):
        for field, given in _SPEC_FIELDS.get(kind.kind, {}).items():
            if not spec.get(field):
                spec[field] = given
        if kind.built_in == "PersistentVolume" and isinstance(spec.get("hostPath"), dict):
            spec["hostPath"].setdefault("type", "")
    if kind in (JOB, STATEFUL_SET):
        workload_specs.fill(kind, value)
    status = value.get("status")
    if kind == NODE and isinstance(status, dict):
        amounts = status.get("allocatable") or status.get("capacity")
        if amounts:
            status["allocatable"] = amounts
    return value
