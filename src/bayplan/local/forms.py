"""The form in which the API server gives an object back.

Its types print nothing that is null or empty, but for a few fields that they always print. What
this module knows of those types is in its tables; the rest of an object stays as it came.
"""

from typing import Any

from bayplan.local.defaults import FIRST_STATUS
from bayplan.local.events import ALWAYS, ALWAYS_V1
from bayplan.local.kinds import CORE_EVENT, Kind
from bayplan.local.problems import bad_request
from bayplan.local.store import Json

DEEPEST = 200  # levels of an object; the API server reads 10,000, which Python could not walk
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_MAPS = ("data", "binaryData", "parameters", "labels", "annotations")
_TEXTS = frozenset({"data", "binaryData", "labels", "annotations", "nodeSelector", "matchLabels"})
_AMOUNTS = ("requests", "limits", "overhead", "capacity", "allocatable", "nodeSelector")
_PLAIN_FLAGS = frozenset(  # that are not printed when they are false
    {"hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "unschedulable", "readOnly"}
)
_POINTERS = frozenset({"runtimeClassName", "storageClassName", "volumeMode", "preemptionPolicy"})
_NODE_FACTS = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)
# Of each kind's conditions: what is printed although it is not set.
_CONDITION_TIMES = {
    "Pod": ("lastProbeTime", "lastTransitionTime"),
    "Node": ("lastHeartbeatTime", "lastTransitionTime"),
}
_ALWAYS_SPEC = ("Node", "Lease", "PodDisruptionBudget", "PersistentVolume", "PersistentVolumeClaim")
_BLANK_SPEC: Json = {"template": {"metadata": {}, "spec": {"containers": None}}}
_BLANK_SET: Json = {
    **_BLANK_SPEC,
    "replicas": 0,
    "selector": None,
    "serviceName": "",
    "updateStrategy": {},
}
_BLANK: dict[str, Json] = {
    "Pod": {"spec": {"containers": None}, "status": {}},
    "Namespace": {"spec": {}, "status": {}},
    "Service": {"spec": {}, "status": {"loadBalancer": {}}},
    "Lease": {"spec": {}},
    "PodDisruptionBudget": {"spec": {}, "status": FIRST_STATUS["PodDisruptionBudget"]},
    "StatefulSet": {"spec": _BLANK_SET, "status": FIRST_STATUS["StatefulSet"]},
    "Job": {"spec": _BLANK_SPEC, "status": {}},
    "PriorityClass": {"value": 0},
    "RuntimeClass": {"handler": ""},
    "StorageClass": {"provisioner": ""},
    "PersistentVolume": {"spec": {}, "status": {}},
    "PersistentVolumeClaim": {"spec": {"resources": {}}, "status": {}},
    "DeviceClass": {"spec": {}},
    "ResourceSlice": {
        "spec": {"driver": "", "pool": {"name": "", "generation": 0, "resourceSliceCount": 0}}
    },
}
_ALWAYS_STATUS = ("PersistentVolume", "PersistentVolumeClaim", "ResourceQuota", "ResourceClaim")


def blank(kind: Kind) -> Json:
    """What stands in an object of which nothing is known but its metadata: a bookmark's."""
    if kind.custom:
        return {}
    if kind.built_in == "Event":
        return dict(ALWAYS_V1 if kind == CORE_EVENT else ALWAYS)
    if kind.built_in == "Node":
        node: Json = {"spec": {}}
        _settle_node(node)
        return node
    return _BLANK.get(kind.kind, {})


def settle(kind: Kind, value: Json) -> Json:
    """The object as it would be printed, a new one."""
    check_depth(value)
    if kind.custom:
        return value
    value = _slim(without_nulls(value))
    if kind.built_in == "Event":
        return {**ALWAYS_V1, **value}
    value["metadata"] = _without_empty(value.get("metadata") or {})
    if kind.built_in in _ALWAYS_SPEC:
        value.setdefault("spec", {})
    if kind.built_in in _ALWAYS_STATUS:
        value.setdefault("status", {})
    if kind.built_in == "Pod":
        _settle_pod(value)
    elif kind.built_in in ("StatefulSet", "Job"):
        template = value["spec"]["template"]
        template["metadata"] = _slim(template.get("metadata") or {})
        _settle_pod(template)
    elif kind.built_in == "Node":
        _settle_node(value)
    status = value.get("status")
    if isinstance(status, dict) and kind.built_in in _CONDITION_TIMES:
        always = dict.fromkeys(_CONDITION_TIMES[kind.kind])
        conditions = status.get("conditions")
        if conditions:
            status["conditions"] = [_ordered(always, _without_empty(c)) for c in conditions]
        elif conditions is not None:
            del status["conditions"]
    return value


def _ordered(always: Json, condition: Json) -> Json:
    first: Json = {key: condition[key] for key in ("type", "status") if key in condition}
    return {**first, **always, **condition}


def _settle_pod(pod: Json) -> None:
    spec = pod["spec"] = _slim(pod.get("spec") or {})
    for field in _CONTAINERS:
        if field in spec:
            spec[field] = [_container(container) for container in spec[field]]
    if "tolerations" in spec:
        spec["tolerations"] = [_without_empty(toleration) for toleration in spec["tolerations"]]
    if "status" in pod:
        pod["status"] = _slim(pod["status"])


def _container(container: Json) -> Json:
    slim = _slim(container)
    if isinstance(slim.get("resources"), dict):
        slim["resources"] = _slim(slim["resources"])
    if "env" in slim:
        slim["env"] = [_without_empty(variable) for variable in slim["env"]]
    return slim


def _settle_node(node: Json) -> None:
    spec = node["spec"] = _slim(node["spec"])
    if "taints" in spec:
        spec["taints"] = [_without_empty(taint, but=("effect",)) for taint in spec["taints"]]
    status = node["status"] = _slim(node.get("status") or {})
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = {**dict.fromkeys(_NODE_FACTS, ""), **(status.get("nodeInfo") or {})}


def _slim(part: Json) -> Json:
    """Without empty texts, lists and amounts, and without flags that are down."""
    return {key: value for key, value in part.items() if not _is_nothing(key, value)}


def _is_nothing(key: str, value: Any) -> bool:
    if value == "":
        return key not in _POINTERS
    if value == {}:
        return key in _AMOUNTS or key in _MAPS
    return value == [] or (value is False and key in _PLAIN_FLAGS)


def _without_empty(part: Any, but: tuple[str, ...] = ()) -> Any:
    if not isinstance(part, dict):
        return part
    return {key: value for key, value in part.items() if key in but or value not in ("", [], {})}


def without_nulls(value: Any, field: str = "") -> Any:
    """What is null is left out; in a map of texts it is the empty one."""
    if isinstance(value, dict):
        if field in _TEXTS:
            return {key: "" if part is None else part for key, part in value.items()}
        return {key: without_nulls(part, key) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value


def check_depth(value: Any) -> None:
    """A `Problem` when it is nested too deeply."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for part in level
            for inner in (part.values() if isinstance(part, dict) else part)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise bad_request(f"exceeded max depth: more than {DEEPEST} levels of objects and lists")
