"""What is done to a pod by creating something below it: a Binding, an Eviction."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from bayplan.kube import wire
from bayplan.kube.terms import Wrong, label_selector
from bayplan.local import metadata, problems
from bayplan.local.kinds import BUDGET, POD
from bayplan.local.objects import Objects, Write, deletion_of
from bayplan.local.paths import Target
from bayplan.local.problems import Problem
from bayplan.local.store import Json, Store

_TARGET: Json = {
    "type": "DisruptionTarget",
    "status": "True",
    "lastProbeTime": None,
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}
_RETRY_S = 10  # what the API server tells those whose eviction it refuses


def bind(objects: Objects, about: Target, binding: Json, wall: float, dry_run: bool) -> None:
    """Node, annotations, labels and condition in one step; nothing is checked but what must be."""
    given = binding["metadata"]
    if given.get("name") != about.name:
        raise problems.bad_request("name in URL does not match name in Binding object")
    if given.get("namespace") not in (None, "", about.namespace):
        raise problems.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    node = binding.get("target") or {}
    if node.get("kind") not in (None, "", "Node"):
        text = (
            f'target.kind: Unsupported value: "{node["kind"]}": supported values: "Node", "<empty>"'
        )
        raise Problem(500, "", text)
    if not node.get("name"):
        raise Problem(500, "", "target.name: Required value")

    def change(pod: Json) -> Json:
        spec, found = pod["spec"], pod["metadata"]
        for what, wanted, has in (
            ("UID", given.get("uid"), found["uid"]),
            ("ResourceVersion", given.get("resourceVersion"), found["resourceVersion"]),
        ):
            if wanted and wanted != has:
                raise problems.stale(POD, about.key, what, wanted, has)
        name = about.name
        if found.get("deletionTimestamp"):
            why = f"pod {name} is being deleted, cannot be assigned to a host"
            raise problems.conflict(POD, name, why, "binding")
        if spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
            raise problems.conflict(POD, name, why, "binding")
        if spec.get("schedulingGates"):
            why = f"pod {name} has non-empty .spec.schedulingGates"
            raise problems.conflict(POD, name, why, "binding")
        spec["nodeName"] = node["name"]
        for field in ("annotations", "labels"):
            if given.get(field):
                found[field] = {**(found.get(field) or {}), **given[field]}
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        status["conditions"] = _scheduled(status.get("conditions") or [], metadata.timestamp(wall))
        return pod

    objects.rewrite(POD, about.key, change, dry_run)


def _scheduled(conditions: list[Json], now: str) -> list[Json]:
    old = next((c for c in conditions if c.get("type") == "PodScheduled"), None)
    changed = old is None or old.get("status") != "True"
    since = now if old is None or changed else old.get("lastTransitionTime")
    new = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
    if old is None:
        return [*conditions, new]
    return [new if condition is old else condition for condition in conditions]


def evict(store: Store, objects: Objects, about: Target, eviction: Json, dry_run: bool) -> None:
    """A delete that a disruption budget can refuse."""
    if eviction["metadata"].get("name") != about.name:
        raise problems.bad_request("name in URL does not match name in Eviction object")
    found = store.get(POD.store, about.key)
    if found is None:
        raise problems.not_found(POD, about.name)
    pod = found.value
    deletion = deletion_of(eviction.get("deleteOptions") or {})
    dry_run = dry_run or deletion.dry_run
    runs = (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed", "Pending")
    if runs and not pod["metadata"].get("deletionTimestamp"):
        _spend_budget(store, objects, about, pod, dry_run)
    if not dry_run:
        objects.delete(POD, about.key, replace(deletion, dry_run=True))  # may it go at all?
        objects.rewrite(POD, about.key, lambda old: _targeted(old, objects.now()))
    objects.delete(POD, about.key, replace(deletion, dry_run=dry_run))


def _targeted(pod: Json, now: str) -> Json:
    """Says why the pod ends."""
    status = pod.setdefault("status", {})
    conditions = status.get("conditions") or []
    if any(c.get("type") == _TARGET["type"] and c.get("status") == "True" for c in conditions):
        return pod
    conditions = [c for c in conditions if c.get("type") != _TARGET["type"]]
    status["conditions"] = [*conditions, {**_TARGET, "lastTransitionTime": now}]
    return pod


def _spend_budget(store: Store, objects: Objects, about: Target, pod: Json, dry_run: bool) -> None:
    budgets = []
    for key, stored in store.items(BUDGET.store, about.namespace):
        if protected(stored.value, [pod]):
            budgets.append((key, stored.value))
    if not budgets:
        return
    if len(budgets) > 1:
        text = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
        raise Problem(500, "", text)
    ((key, budget),) = budgets
    status, name = budget.get("status") or {}, key[1]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        why = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(why, _RETRY_S)
    if not is_ready(pod) and budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not is_ready(pod) and desired > 0 and healthy >= desired:
        return
    if status.get("disruptionsAllowed", 0) <= 0:
        why = f"The disruption budget {name} does not allow evicting pods currently"
        if healthy <= desired:
            why = (
                f"The disruption budget {name} needs {desired} healthy pods and has {healthy} "
                "currently"
            )
        raise _too_many(why)

    def spend(old: Json) -> Json:
        status = old["status"]
        status["disruptionsAllowed"] -= 1
        status.setdefault("disruptedPods", {})[about.name] = objects.now()
        if status["disruptionsAllowed"] == 0:
            status["conditions"] = allowed(old, 0, objects.now())
        return old

    objects.update(BUDGET, key, spend, Write("status", dry_run))


def protected(budget: Json, pods: Sequence[Json]) -> list[Json]:
    """Those of its namespace's pods that a budget is about."""
    try:
        given = msgspec.convert(budget["spec"].get("selector"), wire.LabelSelector | None)
        selector = label_selector(given, "spec.selector")
    except (Wrong, msgspec.ValidationError):
        return []
    if selector is None:
        return []
    return [pod for pod in pods if selector.matches(pod["metadata"].get("labels") or {})]


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def allowed(budget: Json, disruptions: int, now: str) -> list[Json]:
    """The conditions of a budget that allows so many."""
    conditions: list[Json] = (budget.get("status") or {}).get("conditions") or []
    new = {
        "type": "DisruptionAllowed",
        "status": "True" if disruptions else "False",
        "observedGeneration": budget["metadata"].get("generation", 1),
        "lastTransitionTime": now,
        "reason": "SufficientPods" if disruptions else "InsufficientPods",
        "message": "",
    }
    others = []
    for old in conditions:
        if old.get("type") != new["type"]:
            others.append(old)
        elif old.get("status") == new["status"]:
            new["lastTransitionTime"] = old.get("lastTransitionTime")
    return [*others, new]


def _too_many(why: str, retry_s: int = 0) -> Problem:
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_s:
        details["retryAfterSeconds"] = retry_s
    return Problem(429, "TooManyRequests", text, details, retry_s)
