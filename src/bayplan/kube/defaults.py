"""What the API server fills in when a pod is created, as far as scheduling depends on it.

A manifest in, a new one out, both plain JSON. Only what the API server refuses for a class's sake
is refused here; the rest of its validation is not done, and no controller's work either.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.core.model.quantity import BadQuantity, milli, parse_json
from bayplan.core.model.requests import Ask, PodAsk, total
from bayplan.kube import wire
from bayplan.kube.read import Source, Unreadable, decode, json_of
from bayplan.kube.terms import Wrong

Json = dict[str, Any]

SYSTEM_PRIORITIES = {  # every cluster has these two
    "system-node-critical": wire.PriorityClass(value=2_000_001_000),
    "system-cluster-critical": wire.PriorityClass(value=2_000_000_000),
}
_MILLI = 10**6  # in billionths


class Classes(Struct, frozen=True):
    """The classes that a pod may name. Where they are all of them, an unknown name is refused."""

    priority: Mapping[str, wire.PriorityClass] = {}
    runtime: Mapping[str, wire.RuntimeClass] = {}
    complete: bool = False


def classes_of(
    priority: Iterable[Source] = (), runtime: Iterable[Source] = (), complete: bool = False
) -> Classes:
    priorities = [decode(source, wire.PriorityClass, "PriorityClass") for source in priority]
    runtimes = [decode(source, wire.RuntimeClass, "RuntimeClass") for source in runtime]
    return Classes({_name(c): c for c in priorities}, {_name(c): c for c in runtimes}, complete)


def default_pod(manifest: Mapping[str, Any], classes: Classes | None = None) -> Json:
    """The pod as the API server would have stored it."""
    what = "pod"
    try:
        pod: Json = msgspec.json.decode(json_of(manifest))  # a copy that shares nothing
        metadata, spec = _object(pod, "metadata"), _object(pod, "spec")
        metadata["namespace"] = metadata.get("namespace") or "default"
        what = f"pod {metadata['namespace']}/{metadata.get('name')}"
        pod["metadata"], pod["spec"] = metadata, spec
        _default_spec(spec, classes or Classes())
        _merge_label_keys(spec, _object(metadata, "labels", "metadata."))
        pod["status"] = {**_object(pod, "status"), "qosClass": _quality(spec)}
    except Wrong as wrong:
        raise Unreadable(what, wrong.field, wrong.why) from None
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise Unreadable(what, "", str(error)) from None
    return pod


def _default_spec(spec: Json, classes: Classes) -> None:
    containers = list(_containers(spec))
    for resources, _, _ in containers:
        for name, limit in _object(resources, "limits").items():
            resources["requests"] = {name: limit, **_object(resources, "requests")}
    _default_pod_level(spec, containers)
    for key in ("containers", "initContainers"):
        for container in _objects(spec, key):
            _default_ports(container, bool(spec.get("hostNetwork")))
    spec["schedulerName"] = spec.get("schedulerName") or "default-scheduler"
    _apply_priority(spec, classes)
    _apply_runtime(spec, classes)
    for resources, _, path in containers:
        _round_all(resources, f"{path}.")
    _round_all(_object(spec, "resources"), "spec.resources.")
    _round(_object(spec, "overhead"), "spec.overhead")


def _containers(spec: Json) -> Iterator[tuple[Json, bool, str]]:
    """Every container's resources, made if they are not there: they, is it a sidecar, path."""
    for key in ("containers", "initContainers"):
        for i, container in enumerate(_objects(spec, key)):
            path = f"spec.{key}[{i}]."
            container["resources"] = _object(container, "resources", path)
            sidecar = key == "initContainers" and container.get("restartPolicy") == "Always"
            yield container["resources"], sidecar, f"{path}resources"


def _default_pod_level(spec: Json, containers: list[tuple[Json, bool, str]]) -> None:
    """Pod-level requests, where pod-level resources are given in part."""
    whole = _object(spec, "resources")
    limits, requests = _object(whole, "limits"), _object(whole, "requests")
    if not limits and not requests:
        return
    ordinary = len(_objects(spec, "containers"))

    def sum_of(kind: str) -> dict[str, int]:
        asks = [
            Ask(_amounts(_object(resources, kind), f"{path}.{kind}"), sidecar)
            for resources, sidecar, path in containers
        ]
        return total(PodAsk(tuple(asks[:ordinary]), tuple(asks[ordinary:])), use_status=False)

    for name, nano in sum_of("limits").items():
        if name.startswith("hugepages-") and name not in requests:
            limits.setdefault(name, _text(nano))
    if limits:
        whole["limits"] = limits
        for name, nano in sum_of("requests").items():
            if name in ("cpu", "memory"):
                requests.setdefault(name, _text(nano))
        for name, limit in limits.items():
            if name in ("cpu", "memory") or name.startswith("hugepages-"):
                requests.setdefault(name, limit)
    if requests:
        whole["requests"] = requests


def _quality(spec: Json) -> str:
    """The pod's QoS class."""
    whole = _object(spec, "resources")
    resources = [whole] if whole else [each for each, _, _ in _containers(spec)]
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
    amounts = _object(resources, kind)
    named = {name: given for name, given in amounts.items() if name in ("cpu", "memory")}
    return _amounts(named, f"resources.{kind}")


def _default_ports(container: Json, host_network: bool) -> None:
    for port in _objects(container, "ports"):
        port["protocol"] = port.get("protocol") or "TCP"
        if host_network and not port.get("hostPort") and "containerPort" in port:
            port["hostPort"] = port["containerPort"]


def _apply_priority(spec: Json, classes: Classes) -> None:
    name = _class_name(spec, "priorityClassName")
    if name:
        found = classes.priority.get(name) or SYSTEM_PRIORITIES.get(name)
        if found is None:
            if classes.complete:
                raise Wrong("spec.priorityClassName", f"there is no PriorityClass {name!r}")
            return
    else:
        fallbacks = [c for c in classes.priority.values() if c.global_default]
        found = min(fallbacks, key=lambda c: c.value or 0, default=wire.PriorityClass())
        if found.metadata is not None:
            spec["priorityClassName"] = _name(found)
        elif not classes.complete and spec.get("priority") is not None:
            return  # of a class that was not given to us
    _settle(spec, "priority", found.value or 0)
    _settle(spec, "preemptionPolicy", found.preemption_policy or "PreemptLowerPriority")


def _class_name(spec: Json, key: str) -> str:
    name = spec.get(key) or ""
    if not isinstance(name, str):
        raise Wrong(f"spec.{key}", f"it is {name!r}, not the name of a class")
    return name


def _settle(spec: Json, key: str, computed: object) -> None:
    if spec.get(key) not in (None, computed):
        raise Wrong(f"spec.{key}", f"it is {spec[key]!r}, but the PriorityClass says {computed!r}")
    spec[key] = computed


def _apply_runtime(spec: Json, classes: Classes) -> None:
    name = _class_name(spec, "runtimeClassName")
    if not name:
        return
    found = classes.runtime.get(name)
    if found is None:
        if classes.complete:
            raise Wrong("spec.runtimeClassName", f"there is no RuntimeClass {name!r}")
        return
    if found.overhead is not None:
        fixed, given = found.overhead.pod_fixed or {}, _object(spec, "overhead")
        if given and _amounts(given, "spec.overhead") != _amounts(fixed, "podFixed"):
            raise Wrong("spec.overhead", f"RuntimeClass {name!r} has another")
        spec["overhead"] = dict(fixed)
    if found.scheduling is not None:
        selector = _object(spec, "nodeSelector")
        for key, value in (found.scheduling.node_selector or {}).items():
            if selector.setdefault(key, value) != value:
                raise Wrong(f"spec.nodeSelector[{key}]", f"RuntimeClass {name!r} has {value!r}")
        tolerations = _objects(spec, "tolerations")
        more = [t for t in found.scheduling.tolerations or () if t not in tolerations]
        spec["nodeSelector"], spec["tolerations"] = selector, [*tolerations, *more]


def _merge_label_keys(spec: Json, labels: Json) -> None:
    """matchLabelKeys and mismatchLabelKeys become part of the label selector."""
    affinity = _object(spec, "affinity")
    holders = list(_objects(spec, "topologySpreadConstraints"))
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = _object(affinity, kind)
        holders += _objects(terms, wire.REQUIRED)
        holders += [_object(p, "podAffinityTerm") for p in _objects(terms, wire.PREFERRED)]
    for holder in holders:
        if holder.get("labelSelector") is None:
            continue  # it matches nothing, and stays so
        selector = _object(holder, "labelSelector")
        expressions = _objects(selector, "matchExpressions")
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
            for key in _list(holder, field):
                if isinstance(key, str) and key in labels:
                    merged = {"key": key, "operator": operator, "values": [labels[key]]}
                    expressions.append(merged)
        if expressions:
            selector["matchExpressions"] = expressions


def _round_all(resources: Json, path: str) -> None:
    for kind in ("limits", "requests"):
        _round(_object(resources, kind), f"{path}{kind}")


def _round(quantities: Json, path: str) -> None:
    """Up to whole thousandths, as stored quantities are."""
    for name, nano in _amounts(quantities, path).items():
        if nano % _MILLI:
            quantities[name] = _text(nano)


def _amounts(quantities: Json, path: str) -> dict[str, int]:
    try:
        return {name: parse_json(json_of(q)) for name, q in quantities.items()}
    except BadQuantity as bad:
        raise Wrong(path, str(bad)) from None


def _text(nano: int) -> str:
    thousandths = milli(nano)
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def _name(found: wire.PriorityClass | wire.RuntimeClass) -> str:
    return (found.metadata and found.metadata.name) or ""


def _object(holder: Json, key: str, path: str = "") -> Json:
    """The object in this field, a new one if there is none."""
    value = holder.get(key)
    if value is not None and not isinstance(value, dict):
        raise Wrong(f"{path}{key}", "it should be an object")
    return value if value is not None else {}


def _list(holder: Json, key: str) -> list[Any]:
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        raise Wrong(key, "it should be a list")
    return value if value is not None else []


def _objects(holder: Json, key: str) -> list[Json]:
    values = _list(holder, key)
    if not all(isinstance(value, dict) for value in values):
        raise Wrong(key, "it should be a list of objects")
    return values
