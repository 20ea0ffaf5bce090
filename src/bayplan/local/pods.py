"""What the API server does to pods: defaults, checks, and which updates it lets pass."""

from collections.abc import Iterator
from typing import Any

from bayplan.core.model.quantity import BadQuantity, parse_json
from bayplan.kube.defaults import Classes, default_pod
from bayplan.kube.read import Unreadable
from bayplan.local.problems import Cause, Problem, forbidden, required, wrong
from bayplan.local.store import Json, encode

_CONTAINERS = ("initContainers", "containers")
_UNREADY_S = 300  # how long a pod stays on a node that is not ready or cannot be reached
_MAY_CHANGE = (
    "spec: Forbidden: pod updates may not change fields other than "
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_CHANGEABLE = (
    "activeDeadlineSeconds",
    "tolerations",
    "terminationGracePeriodSeconds",
    "schedulingGates",
    "nodeSelector",
    "affinity",
)


def new_pod(value: Json, classes: Classes) -> Json:
    """As it would be stored, before it is checked."""
    try:
        pod = default_pod(value, classes)
    except Unreadable as error:
        name = value.get("metadata", {}).get("name", "")
        if error.field in ("spec.priorityClassName", "spec.runtimeClassName"):
            what = "PriorityClass" if "priority" in error.field else "RuntimeClass"
            named = value["spec"][error.field.removeprefix("spec.")]
            raise Problem(
                403,
                "Forbidden",
                f'pods "{name}" is forbidden: no {what} with name {named} was found',
                {"name": name, "kind": "pods"},
            ) from None
        raise Problem(400, "BadRequest", str(error)) from None
    _fill(pod["spec"])
    pod["metadata"]["generation"] = 1
    conditions = [_gated()] if pod["spec"].get("schedulingGates") else []
    pod["status"] = {"phase": "Pending", "qosClass": quality(pod["spec"])}
    if conditions:
        pod["status"]["conditions"] = conditions
    return pod


def _gated() -> Json:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": None,
        "lastTransitionTime": None,
    }


def _fill(spec: Json) -> None:
    """What has nothing to do with scheduling."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    for _, container in containers_of(spec):
        image = container.get("image") or ""
        latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("resources", {})
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _UNREADY_S,
                }
            )


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in (
        "",
        "NoExecute",
    )


def containers_of(spec: Json) -> Iterator[tuple[str, Json]]:
    """Each with its path."""
    for field in _CONTAINERS:
        for i, container in enumerate(spec.get(field) or ()):
            yield f"spec.{field}[{i}]", container


def quality(spec: Json) -> str:
    """The pod's QoS class."""
    whole = spec.get("resources") or {}
    resources = [whole] if whole else [c.get("resources") or {} for _, c in containers_of(spec)]
    asked, guaranteed = False, bool(resources)
    for each in resources:
        requests, limits = _cpu_and_memory(each, "requests"), _cpu_and_memory(each, "limits")
        asked = asked or any(requests.values()) or any(limits.values())
        full = limits.keys() == {"cpu", "memory"} and all(limits.values())
        guaranteed = guaranteed and full and all(limits[k] == v for k, v in requests.items())
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _cpu_and_memory(resources: Json, kind: str) -> dict[str, int]:
    amounts = resources.get(kind) or {}
    return {
        name: parse_json(encode(amounts[name])) for name in ("cpu", "memory") if name in amounts
    }


def check_new(pod: Json) -> list[Cause]:
    """What is wrong with a pod's spec: what people get wrong, not all that could be."""
    spec = pod["spec"]
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required("spec.containers"))
    names: set[str] = set()
    for path, container in containers_of(spec):
        name = container.get("name")
        if not name:
            causes.append(required(f"{path}.name"))
        elif name in names:
            text = f'Duplicate value: "{name}"'
            causes.append(Cause("Duplicate", f"{path}.name", text))
        names.add(name or "")
        if not container.get("image"):
            causes.append(required(f"{path}.image"))
        causes += _check_resources(f"{path}.resources", container.get("resources") or {})
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        shown = spec["restartPolicy"]
        text = f'Unsupported value: "{shown}": supported values: "Always", "OnFailure", "Never"'
        causes.append(Cause("Unsupported", "spec.restartPolicy", text))
    return causes


def _check_resources(path: str, resources: Json) -> list[Cause]:
    causes = []
    limits = resources.get("limits") or {}
    for name, amount in (resources.get("requests") or {}).items():
        try:
            asked, limit = parse_json(encode(amount)), parse_json(encode(limits.get(name, "0")))
        except BadQuantity:
            continue  # said when the pod was defaulted
        if asked < 0:
            text = "must be greater than or equal to 0"
            causes.append(wrong(f"{path}.requests[{name}]", str(amount), text))
        if name in limits and asked > limit:
            text = f"must be less than or equal to {name} limit of {limits[name]}"
            causes.append(wrong(f"{path}.requests", str(amount), text))
        is_extended = "/" in name and "kubernetes.io/" not in name
        if is_extended and (name not in limits or asked != limit):
            if name not in limits:
                causes.append(
                    required(f"{path}.limits", "Limit must be set for non overcommitable resources")
                )
            else:
                text = f"must be equal to {name} limit of {limits[name]}"
                causes.append(wrong(f"{path}.requests", str(amount), text))
        if is_extended and asked % 10**9:
            causes.append(wrong(f"{path}.requests[{name}]", str(amount), "must be an integer"))
    return causes


def check_update(old: Json, new: Json) -> list[Cause]:
    """Which changes of a pod's spec are allowed."""
    before, after = _comparable(old["spec"]), _comparable(new["spec"])
    gated = bool(old["spec"].get("schedulingGates"))
    for field in _CHANGEABLE:
        if field in ("nodeSelector", "affinity") and not gated:
            continue
        before.pop(field, None)
        after.pop(field, None)
    causes = []
    old_gates = [gate["name"] for gate in old["spec"].get("schedulingGates") or ()]
    added = [
        g["name"] for g in new["spec"].get("schedulingGates") or () if g["name"] not in old_gates
    ]
    if added:
        text = f"only deletion is allowed, but found new scheduling gate '{added[0]}'"
        causes.append(forbidden("spec.schedulingGates", text))
    if before != after:
        field, _, text = _MAY_CHANGE.partition(": Forbidden: ")
        causes.append(forbidden(field, text))
    return causes


def _comparable(spec: Json) -> Json:
    """Without the images."""

    def bare(container: Any) -> Any:
        return {key: value for key, value in container.items() if key != "image"}

    lists = {field: [bare(c) for c in spec[field]] for field in _CONTAINERS if spec.get(field)}
    return {**spec, **lists}


def grace_s(pod: Json, asked: int | None) -> int:
    """How long a pod that is deleted may go on: not at all, if it never ran or has ended."""
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if not pod["spec"].get("nodeName") or ended:
        return 0
    if asked is None:
        asked = int(pod["spec"].get("terminationGracePeriodSeconds") or 0)
    return max(asked, 1) if asked < 0 else asked
