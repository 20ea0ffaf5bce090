"""NodeResourceTopology objects, v1alpha1 and v1alpha2, read into the core's values.

Zones are those of type Node, under any name. Whatever else is odd is `Wrong`, with the field's
path: nobody should guess at a node's zones. Nothing here knows the node or its pods.
"""

import re
from collections.abc import Sequence

from msgspec import Raw, field

from bayplan.core.model.numa import (
    FAR,
    MOST_ZONES,
    Amounts,
    Policy,
    Scope,
    Topology,
    Zone,
    is_memory,
)
from bayplan.core.model.quantity import LIMIT, NANO, BadQuantity, parse_json
from bayplan.kube import wire
from bayplan.kube.terms import Wrong, seconds_of, short

FINGERPRINT = "topology.node.k8s.io/fingerprint"  # an annotation, of older exporters
_ATTRIBUTES = ("topologyManagerPolicy", "topologyManagerScope")
_SIGNED, _METHOD = "nodeTopologyPodsFingerprint", "nodeTopologyPodsFingerprintMethod"
_POLICIES: dict[str, tuple[Policy, Scope]] = {
    "SingleNUMANodeContainerLevel": ("single-numa-node", "container"),
    "SingleNUMANodePodLevel": ("single-numa-node", "pod"),
    "Restricted": ("restricted", "container"),
    "RestrictedContainerLevel": ("restricted", "container"),
    "RestrictedPodLevel": ("restricted", "pod"),
    "BestEffort": ("best-effort", "container"),
    "BestEffortContainerLevel": ("best-effort", "container"),
    "BestEffortPodLevel": ("best-effort", "pod"),
    "None": ("none", "container"),
}
_NAMES: dict[str, Policy] = {policy: policy for policy, _ in _POLICIES.values()}
_SCOPES: dict[str, Scope] = {scope: scope for _, scope in _POLICIES.values()}
_COUNTED = re.compile(r"node-([0-9]{1,9})").fullmatch
_NUMBERED = re.compile(r".*?([0-9]{1,4})", re.DOTALL).fullmatch
_MOST_RESOURCES = 64  # of a zone


class ManagedFields(wire.Wire):
    time: str | None = None
    fields: dict[str, Raw] | None = field(default=None, name="fieldsV1")


class TopologyMetadata(wire.Metadata):
    annotations: wire.Labels = None
    managed_fields: list[ManagedFields] | None = None


class Attribute(wire.Wire):
    name: str | None = None
    value: str | None = None


class Cost(wire.Wire):
    name: str | None = None
    value: Raw = Raw()


class ZoneResource(wire.Wire):
    name: str | None = None
    capacity: Raw = Raw()
    allocatable: Raw = Raw()
    available: Raw = Raw()


class WireZone(wire.Wire):
    name: str | None = None
    type: str | None = None
    costs: list[Cost] | None = None
    resources: list[ZoneResource] | None = None


class NodeResourceTopology(wire.Wire):
    metadata: TopologyMetadata | None = None
    topology_policies: wire.Strings = None
    attributes: list[Attribute] | None = None
    zones: list[WireZone] | None = None


def topology_of(seen: NodeResourceTopology, metadata: TopologyMetadata) -> Topology:
    attributes = {each.name: each.value or "" for each in seen.attributes or ()}
    policy, scope = _policy(seen.topology_policies or (), attributes)
    notes = metadata.annotations or {}
    return Topology(
        node=metadata.name or "",
        policy=policy,
        scope=scope,
        zones=_zones(seen.zones or ()),
        fingerprint=attributes.get(_SIGNED) or notes.get(FINGERPRINT) or "",
        of_exclusive=attributes.get(_METHOD) == "with-exclusive-resources",
        written_s=_written(metadata.managed_fields or ()),
    )


def _policy(older: Sequence[str], attributes: dict[str | None, str]) -> tuple[Policy, Scope]:
    """As the attributes say, else as the first of the older field does."""
    policy: Policy = "none"
    scope: Scope = "container"
    if older:
        if older[0] not in _POLICIES:
            raise Wrong("topologyPolicies[0]", f"{short(older[0])} is no policy that is known")
        policy, scope = _POLICIES[older[0]]
    said_policy, said_scope = (attributes.get(name) for name in _ATTRIBUTES)
    if said_policy is not None:
        if said_policy not in _NAMES:
            where = f"attributes[{_ATTRIBUTES[0]}]"
            raise Wrong(where, f"{short(said_policy)} is no policy that is known")
        policy = _NAMES[said_policy]
    if said_scope is not None:
        if said_scope not in _SCOPES:
            where = f"attributes[{_ATTRIBUTES[1]}]"
            raise Wrong(where, f"{short(said_scope)} is neither container nor pod")
        scope = _SCOPES[said_scope]
    return policy, scope


def _zones(given: Sequence[WireZone]) -> tuple[Zone, ...]:
    """By number. One that no kubelet could have, such as node-75, is passed over."""
    found: dict[str, tuple[int, WireZone]] = {}
    for i, zone in enumerate(given):
        if zone.type != "Node":
            continue
        if not zone.name:
            raise Wrong(f"zones[{i}].name", "it has no name")
        if zone.name in found:
            raise Wrong(f"zones[{i}].name", f"{short(zone.name)} is there twice")
        counted = _COUNTED(zone.name)
        if counted is None or int(counted[1]) < MOST_ZONES:
            found[zone.name] = i, zone
    if len(found) > MOST_ZONES:
        raise Wrong("zones", f"{len(found)} zones; a kubelet has {MOST_ZONES} at most")
    numbers = _numbers(list(found))
    names = sorted(found, key=lambda name: numbers[name])
    return tuple(
        Zone(name, numbers[name], *_amounts(zone, i), _costs(zone, i, names), _capacity(zone, i))
        for name in names
        for i, zone in (found[name],)
    )


def _numbers(names: list[str]) -> dict[str, int]:
    """What the names end in, where that tells them apart; else their order."""
    ends = [_NUMBERED(name) for name in names]
    numbers = [int(end[1]) for end in ends if end is not None]
    if len(set(numbers)) < len(names):
        numbers = list(range(len(names)))
    return dict(zip(names, numbers, strict=True))


def _amounts(zone: WireZone, i: int) -> tuple[Amounts, Amounts]:
    """What there is to allocate, and what of it is available."""
    there: dict[str, int] = {}
    free: dict[str, int] = {}
    for j, resource in enumerate(zone.resources or ()):
        where = f"zones[{i}].resources[{j}]"
        if not resource.name:
            raise Wrong(f"{where}.name", "it has no name")
        if resource.name in there:
            raise Wrong(f"{where}.name", f"{short(resource.name)} is there twice")
        if _is_absent(resource.available):
            raise Wrong(f"{where}.available", "it is not there")
        free[resource.name] = _amount(resource.name, resource.available, f"{where}.available")
        for said in ("allocatable", "capacity", "available"):
            token = getattr(resource, said)
            if not _is_absent(token):
                there[resource.name] = _amount(resource.name, token, f"{where}.{said}")
                break
    if len(there) > _MOST_RESOURCES:
        raise Wrong(f"zones[{i}].resources", f"{len(there)}; {_MOST_RESOURCES} at most")
    free = {name: min(amount, there[name]) for name, amount in free.items()}
    return tuple(sorted(there.items())), tuple(sorted(free.items()))


def _capacity(zone: WireZone, i: int) -> Amounts:
    """Of cpus and devices, where it is another amount than there is to allocate."""
    found = []
    for j, resource in enumerate(zone.resources or ()):
        name, token = resource.name or "", resource.capacity
        same = _is_absent(resource.allocatable) or bytes(token) == bytes(resource.allocatable)
        if not (same or _is_absent(token) or is_memory(name)):
            found.append((name, _amount(name, token, f"zones[{i}].resources[{j}].capacity")))
    return tuple(sorted(found))


def _is_absent(token: Raw) -> bool:
    return bytes(token) in (b"", b"null")


def _amount(name: str, token: Raw, where: str) -> int:
    """Rounded down: what is not there in whole is not there."""
    try:
        nano = parse_json(bytes(token))
    except BadQuantity as bad:
        raise Wrong(where, str(bad)) from None
    if nano < 0:
        raise Wrong(where, "it is negative")
    return min(nano // (NANO // 1000 if name == "cpu" else NANO), LIMIT)


def _costs(zone: WireZone, i: int, names: list[str]) -> tuple[int, ...]:
    if not zone.costs:
        return ()
    costs: dict[str, int] = {}
    for j, cost in enumerate(zone.costs):
        where = f"zones[{i}].costs[{j}].value"
        if _is_absent(cost.value):
            raise Wrong(where, "it is not there")
        value = _amount("", cost.value, where)
        if value > FAR:
            raise Wrong(where, f"it is {value}, above {FAR}, which stands for no distance known")
        costs[cost.name or ""] = value
    return tuple(costs.get(name, FAR) for name in names)


def _written(entries: Sequence[ManagedFields]) -> float:
    """When somebody last changed the zones; 0: nobody says."""
    times = [each.time for each in entries if "f:zones" in (each.fields or {})]
    return max((seconds_of(time, "metadata.managedFields") for time in times), default=0.0)
