"""What the API server checks of kinds other than pods and events: what people run into."""

import re
from typing import Any

from bayplan.core.model.quantity import parse_json
from bayplan.local import workload_specs
from bayplan.local.kinds import BUDGET, JOB, NODE, PRIORITY_CLASS, STATEFUL_SET, Kind
from bayplan.local.metadata import check_key
from bayplan.local.problems import Cause, forbidden, not_one_of, required, wrong
from bayplan.local.store import Json, encode

_HIGHEST_PRIORITY = 1_000_000_000  # above are the system's
_PERCENT = re.compile(r"[0-9]+%")
_PERCENT_RULE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_new(kind: Kind, value: Json) -> list[Cause]:
    if kind == STATEFUL_SET:
        return workload_specs.check_set(value["spec"])
    if kind == JOB:
        return workload_specs.check_job(value["spec"])
    if kind == BUDGET:
        return _check_budget(value["spec"])
    if kind == PRIORITY_CLASS:
        return _check_priority(value)
    if kind == NODE:
        return _check_node(value)
    if kind.built_in == "PersistentVolumeClaim":
        return _check_claim(value["spec"])
    if kind.built_in == "StorageClass" and not value.get("provisioner"):
        return [required("provisioner")]
    return []


def check_update(kind: Kind, old: Json, new: Json) -> list[Cause]:
    causes = check_new(kind, new)
    if kind == STATEFUL_SET:
        causes += workload_specs.check_set_update(old["spec"], new["spec"])
    if kind == JOB:
        causes += workload_specs.check_job_update(old, new["spec"])
    if kind == PRIORITY_CLASS and new.get("value") != old.get("value"):
        causes.append(forbidden("value", "may not be changed in an update."))
    return causes


def _check_priority(value: Json) -> list[Cause]:
    if (value["metadata"].get("name") or "").startswith("system-"):
        return []  # the API server's own
    if (value.get("value") or 0) > _HIGHEST_PRIORITY:
        text = f"maximum allowed value of a user defined priority is {_HIGHEST_PRIORITY}"
        return [forbidden("value", text)]
    return []


def _check_node(node: Json) -> list[Cause]:
    causes = []
    for i, taint in enumerate((node.get("spec") or {}).get("taints") or ()):
        path = f"metadata.taints[{i}]"  # as the API server calls them
        effect = taint.get("effect")
        causes += check_key(f"{path}.key", taint.get("key") or "")
        if not effect:
            causes.append(required(f"{path}.effect"))
        elif effect not in _EFFECTS:
            causes.append(not_one_of(f"{path}.effect", effect, *_EFFECTS))
    return causes + check_node_status(node)


def check_node_status(node: Json) -> list[Cause]:
    status = node.get("status") or {}
    return [
        wrong(f"status.{field}.{name}", str(amount), "must be greater than or equal to 0")
        for field in ("capacity", "allocatable")
        for name, amount in (status.get(field) or {}).items()
        if parse_json(encode(amount)) < 0
    ]


def _check_budget(spec: Json) -> list[Cause]:
    causes = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        shown = {
            "MinAvailable": spec["minAvailable"],
            "Selector": spec.get("selector"),
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }
        text = "minAvailable and maxUnavailable cannot be both set"
        causes.append(wrong("spec", shown, text))
    for field in ("minAvailable", "maxUnavailable"):
        if spec.get(field) is not None:
            causes += _check_share(f"spec.{field}", spec[field])
    return causes


def _check_share(path: str, given: Any) -> list[Cause]:
    """A whole number or a percentage."""
    if isinstance(given, str):
        if not _PERCENT.fullmatch(given):
            return [wrong(path, given, _PERCENT_RULE)]
        if int(given[:-1]) > 100:
            return [wrong(path, given, "must not be greater than 100%")]
    elif given < 0:
        return [wrong(path, given, "must be greater than or equal to 0")]
    return []


def _check_claim(spec: Json) -> list[Cause]:
    causes = []
    if not spec.get("accessModes"):
        causes.append(required("spec.accessModes", "at least 1 access mode is required"))
    requests = (spec.get("resources") or {}).get("requests") or {}
    if "storage" not in requests:
        causes.append(required("spec.resources[storage]"))
    return causes
