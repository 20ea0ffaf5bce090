"""What StatefulSets and Jobs say: what the API server fills in, and what it refuses.

What their controllers here could not do is refused too, with 501, and not taken and forgotten.
"""

from typing import Any

import msgspec

from bayplan.kube import wire
from bayplan.kube.terms import Wrong, label_selector
from bayplan.local import pods, problems
from bayplan.local.kinds import STATEFUL_SET, Kind
from bayplan.local.metadata import check_label
from bayplan.local.problems import Cause, forbidden, not_one_of, required, wrong
from bayplan.local.store import Json

UID_LABEL, NAME_LABEL = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
_OLD_UID_LABEL, _OLD_NAME_LABEL = "controller-uid", "job-name"
_RULE = "must be greater than or equal to 0"
_MISMATCH = "`selector` does not match template `labels`"
_SET_MAY_CHANGE = (
    *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"),
    *("persistentVolumeClaimRetentionPolicy", "minReadySeconds"),
)
_SET_CHANGES = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
    "'minReadySeconds' are forbidden"
)
_JOB_FIXED = ("completions", "selector", "completionMode", "managedBy")
_MOVABLE = ("nodeSelector", "tolerations", "schedulingGates")  # while a Job has not begun
_NOT_HERE = {
    "StatefulSet": {"volumeClaimTemplates": "makes no volume claims for StatefulSets"},
    "Job": {
        "podFailurePolicy": "has no pod failure policies",
        "successPolicy": "has no success policies",
        "backoffLimitPerIndex": "has no indexed Jobs",
        "maxFailedIndexes": "has no indexed Jobs",
    },
}


# ---- defaults


def fill(kind: Kind, value: Json) -> None:
    """With what is not said, in place."""
    spec = value["spec"] = value.get("spec") or {}
    template = spec["template"] = spec.get("template") or {}
    template["metadata"] = template.get("metadata") or {}
    inner = template["spec"] = template.get("spec") or {}
    pods.fill_template(inner)
    inner["schedulerName"] = inner.get("schedulerName") or "default-scheduler"
    for _, container in pods.containers_of(inner):
        for port in container.get("ports") or ():
            port["protocol"] = port.get("protocol") or "TCP"
    (_fill_set if kind == STATEFUL_SET else _fill_job)(spec)


def _fill_set(spec: Json) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("serviceName", "")
    spec["podManagementPolicy"] = spec.get("podManagementPolicy") or "OrderedReady"
    strategy = spec["updateStrategy"] = spec.get("updateStrategy") or {}
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and "rollingUpdate" in strategy:
        strategy["rollingUpdate"].setdefault("partition", 0)
    keeping = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    kept = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    spec["persistentVolumeClaimRetentionPolicy"] = {**kept, **keeping}


def _fill_job(spec: Json) -> None:
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)


def named_job(job: Json) -> Json:
    """A new Job, with labels by which its pods are known."""
    about, spec = job["metadata"], job["spec"]
    named = spec["template"]["metadata"]
    if not spec["manualSelector"]:
        name, uid = about.get("name") or "", about["uid"]
        own = {_OLD_NAME_LABEL: name, NAME_LABEL: name, _OLD_UID_LABEL: uid, UID_LABEL: uid}
        named["labels"] = {**own, **(named.get("labels") or {})}
        selector = spec["selector"] = spec.get("selector") or {}
        selector["matchLabels"] = {UID_LABEL: uid, **(selector.get("matchLabels") or {})}
    if named.get("labels") and not about.get("labels"):
        about["labels"] = dict(named["labels"])
    return job


# ---- checks


def check_set(spec: Json) -> list[Cause]:
    _must_be_here("StatefulSet", spec)
    policy, strategy = spec["podManagementPolicy"], spec["updateStrategy"]
    if (strategy.get("rollingUpdate") or {}).get("partition"):
        raise problems.unsupported("the embedded API updates all pods of a StatefulSet or none")
    causes = []
    if policy not in ("OrderedReady", "Parallel"):
        text = "must be 'OrderedReady' or 'Parallel'"
        causes.append(wrong("spec.podManagementPolicy", policy, text))
    if strategy["type"] not in ("RollingUpdate", "OnDelete"):
        shown = {"Type": strategy["type"], "RollingUpdate": None}
        text = "must be 'RollingUpdate' or 'OnDelete'"
        causes.append(wrong("spec.updateStrategy", shown, text))
    causes += _check_numbers(spec, "replicas", "minReadySeconds")
    start = (spec.get("ordinals") or {}).get("start") or 0
    causes += [wrong("spec.ordinals.start", start, _RULE)] if start < 0 else []
    if spec.get("serviceName"):
        causes += check_label("spec.serviceName", spec["serviceName"])
    if spec.get("selector") == {}:
        causes.append(wrong("spec.selector", {}, "empty selector is invalid for statefulset"))
    causes += _check_selector(spec)
    causes += _check_template(spec)
    restarts = spec["template"]["spec"]["restartPolicy"]
    if restarts != "Always":
        causes.append(not_one_of("spec.template.spec.restartPolicy", restarts, "Always"))
    if "activeDeadlineSeconds" in spec["template"]["spec"]:
        text = "activeDeadlineSeconds in StatefulSet is not Supported"
        causes.append(forbidden("spec.template.spec.activeDeadlineSeconds", text))
    return causes


def check_set_update(old: Json, new: Json) -> list[Cause]:
    fixed = [field for field in {**old, **new} if field not in _SET_MAY_CHANGE]
    same = all(old.get(field) == new.get(field) for field in fixed)
    return [] if same else [forbidden("spec", _SET_CHANGES)]


def check_job(spec: Json) -> list[Cause]:
    _must_be_here("Job", spec)
    amounts = ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")
    causes = _check_numbers(spec, "parallelism", "completions", *amounts)
    mode, replaced = spec["completionMode"], spec["podReplacementPolicy"]
    if mode == "Indexed":
        raise problems.unsupported("the embedded API has no indexed Jobs")
    if mode != "NonIndexed":
        causes.append(not_one_of("spec.completionMode", mode, "NonIndexed", "Indexed"))
    if replaced == "Failed":
        raise problems.unsupported("the embedded API replaces pods of a Job as soon as they end")
    if replaced != "TerminatingOrFailed":
        known = ("Failed", "TerminatingOrFailed")
        causes.append(not_one_of("spec.podReplacementPolicy", replaced, *known))
    causes += _check_template(spec)
    restarts, field = spec["template"]["spec"]["restartPolicy"], "spec.template.spec.restartPolicy"
    if restarts == "Always":
        causes.append(required(field, 'valid values: "OnFailure", "Never"'))
    elif restarts not in ("OnFailure", "Never"):
        causes.append(not_one_of(field, restarts, "Never", "OnFailure"))
    return causes + _check_selector(spec)


def check_job_update(old: Json, new: Json) -> list[Cause]:
    """`old` is the whole Job: of one that has not begun, more may change."""
    was, text = old["spec"], "field is immutable"
    causes = [
        wrong(f"spec.{field}", new.get(field), text)
        for field in _JOB_FIXED
        if was.get(field) != new.get(field)
    ]
    waits = was["suspend"] and not (old.get("status") or {}).get("startTime")
    before, after = was["template"], new["template"]
    if waits:
        before, after = _unmoved(before), _unmoved(after)
    if before != after:
        causes.append(wrong("spec.template", new["template"], text))
    return causes


def _unmoved(template: Json) -> Json:
    """Without what says where its pods go."""
    spec = {key: part for key, part in template["spec"].items() if key not in _MOVABLE}
    affinity = {**(spec.pop("affinity", None) or {})}
    affinity.pop("nodeAffinity", None)
    return {**spec, "affinity": affinity}


def _must_be_here(kind: str, spec: Json) -> None:
    for field, text in _NOT_HERE[kind].items():
        if spec.get(field):
            raise problems.unsupported(f"the embedded API {text}")


def _check_numbers(spec: Json, *fields: str) -> list[Cause]:
    given = ((field, spec.get(field) or 0) for field in fields)
    return [wrong(f"spec.{field}", number, _RULE) for field, number in given if number < 0]


def _check_selector(spec: Json) -> list[Cause]:
    """It must be there, and choose the pods that the template makes."""
    given, labels = spec.get("selector"), spec["template"]["metadata"].get("labels")
    causes = [required("spec.selector")] if given is None else []
    try:
        selector = label_selector(selected(given), "spec.selector")
    except Wrong as error:
        return [*causes, wrong(error.field, given, error.why)]
    if selector is None or not selector.matches(labels or {}):
        causes.append(wrong("spec.template.metadata.labels", labels, _MISMATCH))
    return causes


def selected(given: Any) -> wire.LabelSelector | None:
    return msgspec.convert(given, wire.LabelSelector | None)


def _check_template(spec: Json) -> list[Cause]:
    found = pods.check_new(spec["template"])
    return [Cause(cause.sort, f"spec.template.{cause.field}", cause.text) for cause in found]
