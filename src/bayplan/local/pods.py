"""What the API server does to pods: defaults, checks, and which updates it lets pass."""

from collections.abc import Iterator
from typing import Any

from bayplan.core.model.quantity import NANO, parse_json
from bayplan.kube.defaults import SYSTEM_PRIORITIES, Classes, default_pod
from bayplan.kube.read import Unreadable
from bayplan.local.kinds import POD
from bayplan.local.metadata import check_key
from bayplan.local.problems import Cause, Problem, forbidden, not_allowed, required, wrong
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


def new_pod(value: Json, classes: Classes, now: str) -> Json:
    """As it would be stored, before it is checked."""
    given = value.get("spec") or {}
    value["spec"] = {**given, "tolerations": _with_unready(given.get("tolerations") or [])}
    try:
        pod = default_pod(value, classes)
    except Unreadable as error:
        raise _refused(value, error, classes) from None
    _must_have_runtime(pod, classes)
    _fill(pod["spec"])
    pod["metadata"]["generation"] = 1
    conditions = [_gated(now)] if pod["spec"].get("schedulingGates") else []
    pod["status"] = {"phase": "Pending", "qosClass": pod["status"]["qosClass"]}
    if conditions:
        pod["status"]["conditions"] = conditions
    return pod


def refilled(pod: Json, old: Json) -> Json:
    """A pod that is put: what it leaves out is filled in again, or stays."""
    spec, was = dict(pod.get("spec") or {}), old["spec"]
    spec["tolerations"] = _with_unready(spec.get("tolerations") or [])
    for field in ("priority", "preemptionPolicy", "priorityClassName"):
        if spec.get(field) is None and field in was:
            spec[field] = was[field]
    try:
        filled = default_pod({**pod, "spec": spec})
    except Unreadable as error:
        raise Problem(400, "BadRequest", str(error)) from None
    _fill(filled["spec"])
    return filled


def _refused(pod: Json, error: Unreadable, classes: Classes) -> Problem:
    """What the admission of priorities and runtime classes says."""
    spec, field = pod["spec"], error.field
    why = ""
    if field == "spec.priorityClassName":
        why = f"no PriorityClass with name {spec['priorityClassName']} was found"
    elif field == "spec.runtimeClassName":
        why = f'pod rejected: RuntimeClass "{spec["runtimeClassName"]}" not found'
    elif field == "spec.overhead" and spec.get("runtimeClassName"):
        why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
    elif field.startswith("spec.nodeSelector["):
        key = field.removeprefix("spec.nodeSelector[").removesuffix("]")
        scheduling = classes.runtime[spec["runtimeClassName"]].scheduling
        wanted = ((scheduling and scheduling.node_selector) or {}).get(key)
        why = (
            f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; "
            f"pod.spec.nodeSelector[{key}] = {spec['nodeSelector'][key]}"
        )
    elif field == "spec.priority":
        why = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {computed_priority(spec, classes)} from the "
            "given PriorityClass name"
        )
    if not why:
        return Problem(400, "BadRequest", str(error))
    return _forbidden(pod, why)


def computed_priority(spec: Json, classes: Classes) -> int:
    """What the class says that the pod names, or the one for all that name none."""
    name = spec.get("priorityClassName")
    if name:
        found = classes.priority.get(name) or SYSTEM_PRIORITIES.get(name)
        return (found and found.value) or 0
    values = [c.value or 0 for c in classes.priority.values() if c.global_default]
    return min(values, default=0)


def _must_have_runtime(pod: Json, classes: Classes) -> None:
    spec = pod["spec"]
    found = classes.runtime.get(spec.get("runtimeClassName") or "")
    if spec.get("overhead") and (found is None or found.overhead is None):
        text = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
        raise _forbidden(pod, text)


def _forbidden(pod: Json, why: str) -> Problem:
    return not_allowed(POD, pod["metadata"].get("name") or "", why)


def _gated(now: str) -> Json:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }


def _fill(spec: Json) -> None:
    """What has nothing to do with scheduling."""
    spec.setdefault("enableServiceLinks", True)
    fill_template(spec)


def fill_template(spec: Json) -> None:
    """The same, of what a template says too."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    for _, container in containers_of(spec):
        image = container.get("image") or ""
        latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("resources", {})


def tolerating(pod: Json) -> Json:
    """With the tolerations that every pod has."""
    spec = pod.get("spec") or {}
    return {**pod, "spec": {**spec, "tolerations": _with_unready(spec.get("tolerations") or [])}}


def _with_unready(tolerations: list[Json]) -> list[Json]:
    """A pod stays for a while on a node that is not ready or cannot be reached."""
    missing = [
        key
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if not any(_tolerates(toleration, key) for toleration in tolerations)
    ]
    waiting = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _UNREADY_S}
    return [*tolerations, *({"key": key, **waiting} for key in missing)]


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


def check_new(pod: Json) -> list[Cause]:
    """What is wrong with a pod's spec: what people get wrong, not all that could be."""
    spec = pod["spec"]
    causes: list[Cause] = []
    if spec.get("nodeName") and spec.get("schedulingGates"):
        text = "cannot be set until all schedulingGates have been cleared"
        causes.append(forbidden("spec.nodeName", text))
    for i, gate in enumerate(spec.get("schedulingGates") or ()):
        causes += check_key(f"spec.schedulingGates[{i}]", gate.get("name") or "")
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
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            causes += _check_amount(f"{path}.{field}[{name}]", name, amount)
            if field == "requests":
                causes += _check_limit(path, name, amount, limits.get(name))
    return causes


def _check_amount(path: str, name: str, amount: Any) -> list[Cause]:
    nano = _nano(amount)
    if nano < 0:
        return [wrong(path, str(amount), "must be greater than or equal to 0")]
    if _is_extended(name) and nano % NANO:
        return [wrong(path, str(amount), "must be an integer")]
    return []


def _check_limit(path: str, name: str, amount: Any, limit: Any) -> list[Cause]:
    if limit is None:
        if not _is_extended(name):
            return []
        return [required(f"{path}.limits", "Limit must be set for non overcommitable resources")]
    asked, most = _nano(amount), _nano(limit)
    if _is_extended(name) and asked != most:
        rule = "must be equal to"
    elif asked > most:
        rule = "must be less than or equal to"
    else:
        return []
    return [wrong(f"{path}.requests", str(amount), f"{rule} {name} limit of {limit}")]


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _nano(amount: Any) -> int:
    """What cannot be read was refused when the pod was defaulted."""
    return parse_json(encode(amount))


def check_update(old: Json, new: Json) -> list[Cause]:
    """Which changes of a pod's spec are allowed."""
    before, after = _comparable(old["spec"]), _comparable(new["spec"])
    gated = bool(old["spec"].get("schedulingGates"))
    for field in _CHANGEABLE:
        if field in ("nodeSelector", "affinity") and not gated:
            continue
        before.pop(field, None)
        after.pop(field, None)
    causes = _check_deadline(old["spec"], new["spec"])
    kept = _without_seconds(new["spec"])
    if any(toleration not in kept for toleration in _without_seconds(old["spec"])):
        text = "existing toleration can not be modified except its tolerationSeconds"
        causes.append(forbidden("spec.tolerations", text))
    was_s = old["spec"].get("terminationGracePeriodSeconds") or 0
    if was_s >= 0 or new["spec"].get("terminationGracePeriodSeconds") != 1:
        for spec, bare in ((old["spec"], before), (new["spec"], after)):
            bare["terminationGracePeriodSeconds"] = spec.get("terminationGracePeriodSeconds")
    old_gates = [gate.get("name") for gate in old["spec"].get("schedulingGates") or ()]
    for i, gate in enumerate(new["spec"].get("schedulingGates") or ()):
        if gate.get("name") not in old_gates:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            causes.append(forbidden(f"spec.schedulingGates[{i}].name", text))
    if before != after:
        field, _, text = _MAY_CHANGE.partition(": Forbidden: ")
        causes.append(forbidden(field, text))
    return causes


def _without_seconds(spec: Json) -> list[Json]:
    """The tolerations, as far as they must stay."""
    tolerations = spec.get("tolerations") or ()
    return [{**toleration, "tolerationSeconds": None} for toleration in tolerations]


def _check_deadline(old: Json, new: Json) -> list[Cause]:
    field = "activeDeadlineSeconds"
    before, after = old.get(field), new.get(field)
    if before is None or (after is not None and after <= before):
        return []
    if after is None:
        return [
            wrong(f"spec.{field}", after, "must not update from a positive integer to nil value")
        ]
    return [wrong(f"spec.{field}", after, "must be less than or equal to previous value")]


def _comparable(spec: Json) -> Json:
    """Without the images."""

    def bare(container: Any) -> Any:
        return {key: value for key, value in container.items() if key != "image"}

    lists = {field: [bare(c) for c in spec[field]] for field in _CONTAINERS if spec.get(field)}
    return {**spec, **lists}


def has_ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def grace_s(pod: Json, asked: int | None) -> int:
    """How long a pod that is deleted may go on: not at all, if it never ran or has ended."""
    if not pod["spec"].get("nodeName") or has_ended(pod):
        return 0
    if asked is None:
        asked = int(pod["spec"].get("terminationGracePeriodSeconds") or 0)
    return max(asked, 1) if asked < 0 else asked
