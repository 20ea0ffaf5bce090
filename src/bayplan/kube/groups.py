"""PodGroups of three groups of the API, read into one value.

An object that cannot be understood says why in `wrong`, and its members wait with that: it is
there, so that nobody takes them for pods without a gang. Workloads are not read: they are templates
only, and what counts of them stands in the PodGroups that are made of them.
"""

from typing import TypeVar

import msgspec
from msgspec.structs import replace

from bayplan.core.model.groups import SOURCES, PodGroup, Source, group_key
from bayplan.core.model.pods import Gang
from bayplan.core.model.quantity import counted
from bayplan.core.model.requests import is_counted
from bayplan.core.model.selectors import is_label_key
from bayplan.kube import groupwire, wire
from bayplan.kube.gangs import LONGEST_S, MOST, topology
from bayplan.kube.rows import amounts
from bayplan.kube.terms import Wrong, located, short

T = TypeVar("T")


class _Counts(msgspec.Struct):
    """What is looked at in a status: whatever is there."""

    succeeded: object = None


def source_of(api_version: str) -> Source | None:
    """Which of our groups of the API it is of, whatever the version."""
    group = api_version.partition("/")[0]
    return next((source for source in SOURCES if source == group), None)


def pod_group(
    source: Source, metadata: groupwire.GroupMetadata, seen: groupwire.PodGroup
) -> PodGroup:
    namespace = metadata.namespace or "default"
    gang = Gang(group_key(source, namespace, metadata.name or ""), grouped=True)
    group = PodGroup(source, gang, ended=_ended(source, seen.status))
    try:
        spec = _decoded(seen.spec, groupwire.GroupSpec, "spec")
        notes = metadata.annotations or groupwire.GroupAnnotations()
        near, within, spread, across = topology(
            notes.near, notes.within, notes.spread, notes.across
        )
        if source == "scheduling.k8s.io":
            minimum, timeout_s = _policy_minimum(spec), 0.0
            within = _required(spec, within)
        else:
            minimum, timeout_s = _min_member(spec), _timeout(spec)
            group = replace(group, resources=_min_resources(spec))
        gang = Gang(gang.key, minimum, near, within, spread, across, timeout_s, grouped=True)
        return replace(group, gang=gang)
    except Wrong as wrong:
        return replace(group, wrong=f"{gang.key}: {wrong}")


def _decoded(raw: msgspec.Raw, kind: type[T], field: str) -> T:
    try:
        return kind() if bytes(raw) == b"null" else msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why, at = located(error)
        raise Wrong(f"{field}.{at}" if at else field, why or type(error).__name__) from None


def _min_member(spec: groupwire.GroupSpec) -> int:
    return _count(spec.min_member, "spec.minMember")


def _count(number: int | None, field: str) -> int:
    if number is None:
        raise Wrong(field, "it is missing, so nobody knows how many members there must be")
    if not 1 <= number <= MOST:
        raise Wrong(field, f"{number} is not a whole number from 1 to {MOST}")
    return number


def _timeout(spec: groupwire.GroupSpec) -> float:
    seconds = spec.schedule_timeout_seconds or 0
    if not 0 <= seconds <= LONGEST_S:
        raise Wrong("spec.scheduleTimeoutSeconds", f"{seconds} is not a number of seconds")
    return float(seconds)


def _min_resources(spec: groupwire.GroupSpec) -> tuple[tuple[str, int], ...]:
    """As requests are counted; what is not counted cannot be short."""
    wanted = amounts(spec.min_resources, "spec.minResources")
    asked = {name: counted(name, nano) for name, nano in wanted.items() if is_counted(name)}
    return tuple(sorted((name, amount) for name, amount in asked.items() if amount))


def _policy_minimum(spec: groupwire.GroupSpec) -> int:
    """Without a gang each member starts when it can."""
    policy = spec.scheduling_policy or groupwire.SchedulingPolicy()
    if (policy.gang is None) == (policy.basic is None):
        raise Wrong("spec.schedulingPolicy", "it should be one of basic and gang")
    if policy.gang is None:
        return 1
    return _count(policy.gang.min_count, "spec.schedulingPolicy.gang.minCount")


def _required(spec: groupwire.GroupSpec, within: str) -> str:
    """The domain that the object itself asks for, or else the annotation."""
    constraints = spec.scheduling_constraints or groupwire.SchedulingConstraints()
    keys = [constraint.key or "" for constraint in constraints.topology or ()]
    field = "spec.schedulingConstraints.topology"
    if not keys:
        return within
    if len(keys) > 1:
        raise Wrong(field, "more than one constraint")
    if not is_label_key(keys[0]):
        raise Wrong(f"{field}[0].key", f"{short(keys[0])} is not a label key")
    if within not in ("", keys[0]):
        why = f"it asks for {short(keys[0])}, but the annotation {wire.GANG_WITHIN} for another"
        raise Wrong(f"{field}[0].key", why)
    return keys[0]


def _ended(source: Source, status: msgspec.Raw) -> int:
    """Members that have done their work. A status is nobody's wish: what is odd in it is not
    counted."""
    if source == "scheduling.k8s.io":
        return 0
    try:
        count = _decoded(status, _Counts, "status").succeeded
    except Wrong:
        return 0
    return count if type(count) is int and 0 <= count <= MOST else 0
