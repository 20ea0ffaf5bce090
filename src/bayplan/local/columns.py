"""The columns that `kubectl get` shows of each kind, as the API server makes them."""

from typing import Any

from bayplan.local.metadata import seconds
from bayplan.local.other_columns import NONE, OTHERS, Cells, Columns, age, plain
from bayplan.local.scale import text
from bayplan.local.since import duration, since
from bayplan.local.store import Json

_ROLE = "node-role.kubernetes.io/"


def _status(value: Json) -> Json:
    found: Json = value.get("status") or {}
    return found


def _pod(value: Json, wall: float) -> list[Any]:
    spec, status = value["spec"], _status(value)
    told = status.get("containerStatuses") or []
    ready = sum(1 for c in told if c.get("ready") and "running" in (c.get("state") or {}))
    restarts = sum(c.get("restartCount") or 0 for c in told)
    gates = spec.get("readinessGates") or ()
    return [
        value["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or ())}",
        _pod_state(value, told),
        str(restarts),
        age(value, wall),
        status.get("podIP") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"0/{len(gates)}" if gates else NONE,
    ]


def _pod_state(value: Json, told: list[Json]) -> str:
    """The one word for how a pod is doing."""
    status = _status(value)
    state = str(status.get("reason") or status.get("phase") or "")
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            state = "SchedulingGated"
    for container in reversed(told):
        now = container.get("state") or {}
        waiting, ended = now.get("waiting") or {}, now.get("terminated") or {}
        if waiting.get("reason"):
            state = waiting["reason"]
        elif ended.get("reason"):
            state = ended["reason"]
        elif ended:
            signal = ended.get("signal")
            state = f"Signal:{signal}" if signal else f"ExitCode:{ended.get('exitCode', 0)}"
    if value["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        return state if status.get("phase") in ("Failed", "Succeeded") else "Terminating"
    return state


def _node(value: Json, wall: float) -> list[Any]:
    status, labels = _status(value), value["metadata"].get("labels") or {}
    ready = [c["status"] for c in status.get("conditions") or () if c["type"] == "Ready"]
    words = [{"True": "Ready"}.get(state, "NotReady") for state in ready] or ["Unknown"]
    if (value.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)}
    roles |= {labels["kubernetes.io/role"]} if labels.get("kubernetes.io/role") else set()
    told, info = status.get("addresses") or (), status.get("nodeInfo") or {}
    addresses = {address["type"]: address["address"] for address in reversed(told)}
    return [
        value["metadata"]["name"],
        ",".join(words),
        ",".join(sorted(roles)) or NONE,
        age(value, wall),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _event(value: Json, wall: float) -> list[Any]:
    first = since(value.get("firstTimestamp") or value.get("eventTime"), wall)
    last = since(value["lastTimestamp"], wall) if value.get("lastTimestamp") else first
    series, about, source = value.get("series"), value["involvedObject"], value.get("source") or {}
    count = value.get("count") or 1
    if series:
        last, count = since(series.get("lastObservedTime"), wall), series.get("count", 0)
    named = about.get("name")
    kind = str(about.get("kind", "")).lower()
    component = source.get("component") or value.get("reportingComponent") or ""
    instance = source.get("host") or value.get("reportingInstance") or ""
    return [
        last,
        value.get("type", ""),
        value.get("reason", ""),
        f"{kind}/{named}" if named else kind,
        about.get("fieldPath", ""),
        f"{component}, {instance}" if instance else component,
        str(value.get("message", "")).strip(),
        first,
        count,
        value["metadata"]["name"],
    ]


def _namespace(value: Json, wall: float) -> list[Any]:
    return [value["metadata"]["name"], _status(value).get("phase", ""), age(value, wall)]


def _lease(value: Json, wall: float) -> list[Any]:
    holder = (value.get("spec") or {}).get("holderIdentity") or ""
    return [value["metadata"]["name"], holder, age(value, wall)]


def _budget(value: Json, wall: float) -> list[Any]:
    spec = value.get("spec") or {}
    return [
        value["metadata"]["name"],
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        _status(value).get("disruptionsAllowed", 0),
        age(value, wall),
    ]


def _stateful_set(value: Json, wall: float) -> list[Any]:
    ready = f"{_status(value).get('readyReplicas', 0)}/{value['spec']['replicas']}"
    return [value["metadata"]["name"], ready, age(value, wall), *_containers(value)]


def _job(value: Json, wall: float) -> list[Any]:
    spec, status = value["spec"], _status(value)
    done, parallel, took = status.get("succeeded", 0), spec["parallelism"], ""
    of = f"{spec['completions']}" if "completions" in spec else "1"
    if "completions" not in spec and parallel > 1:
        of = f"1 of {parallel}"
    if status.get("startTime"):
        ended = status.get("completionTime")
        end = seconds(ended) if ended else wall
        took = duration(max(int(end - seconds(status["startTime"])), 0))
    state = _job_state(value)
    shown = [*_containers(value), text(spec.get("selector") or {})]
    return [value["metadata"]["name"], state, f"{done}/{of}", took, age(value, wall), *shown]


def _job_state(value: Json) -> str:
    conditions = _status(value).get("conditions") or ()
    said = {c["type"] for c in conditions if c["status"] == "True"}
    leaving = {"Terminating"} if value["metadata"].get("deletionTimestamp") else set()
    words = ("Complete", "Failed", "Terminating", "Suspended", "FailureTarget")
    return next((w for w in (*words, "SuccessCriteriaMet") if w in said | leaving), "Running")


def _containers(value: Json) -> list[str]:
    """The names and images of a template's."""
    found = value["spec"]["template"]["spec"].get("containers") or ()
    return [",".join(one.get(field, "") for one in found) for field in ("name", "image")]


def _priority_class(value: Json, wall: float) -> list[Any]:
    return [
        value["metadata"]["name"],
        value.get("value", 0),
        bool(value.get("globalDefault")),
        age(value, wall),
        value.get("preemptionPolicy", ""),
    ]


def _config_map(value: Json, wall: float) -> list[Any]:
    count = len(value.get("data") or {}) + len(value.get("binaryData") or {})
    return [value["metadata"]["name"], count, age(value, wall)]


COLUMNS: dict[str, tuple[Columns, Cells]] = {
    "Pod": (
        plain(
            "Name",
            "Ready",
            "Status",
            "Restarts",
            "Age",
            wide=("IP", "Node", "Nominated Node", "Readiness Gates"),
        ),
        _pod,
    ),
    "Node": (
        plain(
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            wide=("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        _node,
    ),
    "Event": (
        (
            *plain("Last Seen", "Type", "Reason", "Object", wide=("Subobject", "Source")),
            ("Message", "string", 0),
            ("First Seen", "string", 1),
            ("Count", "string", 1),
            ("Name", "string", 1),
        ),
        _event,
    ),
    "Namespace": (plain("Name", "Status", "Age"), _namespace),
    "Lease": (plain("Name", "Holder", "Age"), _lease),
    "PodDisruptionBudget": (
        (
            *plain("Name", "Min Available", "Max Unavailable"),
            ("Allowed Disruptions", "integer", 0),
            ("Age", "string", 0),
        ),
        _budget,
    ),
    "StatefulSet": (plain("Name", "Ready", "Age", wide=("Containers", "Images")), _stateful_set),
    "Job": (
        plain(
            *("Name", "Status", "Completions", "Duration", "Age"),
            wide=("Containers", "Images", "Selector"),
        ),
        _job,
    ),
    "PriorityClass": (
        (
            ("Name", "string", 0),
            ("Value", "integer", 0),
            ("Global-Default", "boolean", 0),
            *plain("Age", "PreemptionPolicy"),
        ),
        _priority_class,
    ),
    "ConfigMap": (plain("Name", "Data", "Age"), _config_map),
    **OTHERS,
}
