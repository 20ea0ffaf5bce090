"""Kubernetes JSON in, the core's values out; whatever is wrong is one `Unreadable`.

A reader keeps one copy of equal row keys and terms, since pods of one template share them. It
fills in only what kube-scheduler itself takes for granted; `defaults` does the API server's part.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from sys import intern
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from bayplan.core.model import groups
from bayplan.core.model.budgets import Budget
from bayplan.core.model.dialects import NEURON_MAPS
from bayplan.core.model.grants import GENERAL, job_named
from bayplan.core.model.holdings import bound_holding
from bayplan.core.model.inventories import pools_of
from bayplan.core.model.nodes import Image, Node
from bayplan.core.model.numa import Topology
from bayplan.core.model.pods import Gang, Holding, Lifecycle, Pod, RowKey, Worker
from bayplan.core.model.quantity import counted
from bayplan.core.model.requests import is_counted
from bayplan.core.model.selectors import Taint
from bayplan.core.model.vendors import Vendors
from bayplan.core.model.volumes import Claim, StorageClass, Volume
from bayplan.kube import groupwire, wire
from bayplan.kube.gangs import (
    Words,
    checkpoint_of,
    gang_of,
    good_part,
    run_seconds_of,
    unheeded,
    words_of,
)
from bayplan.kube.groups import pod_group, source_of
from bayplan.kube.profiles import MARK, node_use, pod_use
from bayplan.kube.rows import amounts, row_key, with_partition
from bayplan.kube.terms import Wrong, label_selector, located, pod_terms, seconds_of
from bayplan.kube.topologies import NodeResourceTopology, topology_of
from bayplan.kube.volumes import claim_of, pod_claims, storage_class_of, volume_of

Source = bytes | msgspec.Raw | Mapping[str, Any]
T = TypeVar("T")
W = TypeVar("W", bound=wire.Wire)
M = TypeVar("M", bound=wire.Metadata)

_MOST_KEPT = 65_536
_MOST_SPECS = 4_096  # some kilobytes each
_MOST_VALUES = 4_096
_MOST_REMARKS = 4_096
_MOST_OF_ONE = 16  # about what profilers say of one object
_USUAL = (Lifecycle(), Lifecycle(controlled=True))
_encode = msgspec.json.Encoder().encode


class _Loose(msgspec.Struct):
    metadata: Any = None


class Unreadable(ValueError):
    """An object that cannot be understood: which one, which of its fields, and why."""

    def __init__(self, what: str, field: str, why: str) -> None:
        super().__init__(": ".join(part for part in (what, field, why) if part))
        self.what, self.field, self.why = what, field, why


class Reader:
    """`remark` hears, once, what is left out of an object that can be read all the same."""

    def __init__(
        self, vendors: Vendors | None = None, remark: Callable[[str], None] | None = None
    ) -> None:
        self._vendors = vendors or Vendors()
        self._wire_pod = wire.pod_asking(tuple(self._vendors.annotations))
        self._remark = remark
        self._remarks: set[str] = set()
        self._gangs: dict[tuple[str, Words], Gang] = {}
        self._kept: dict[Any, Any] = {}
        # by spec, whether it is bound, and its QoS class
        self._rows: dict[tuple[bytes, bool, str | None], RowKey] = {}
        self._values: dict[str, str] = {}  # of labels

    def pod(self, source: Source, newcomer: bool = False) -> Pod:
        """A pod, bound if it names a node. A newcomer that names one insists on it instead."""
        return self._pod(self.decode_pod(source), newcomer)

    def decode_pod(self, source: Source) -> wire.Pod:
        seen = decode(source, self._wire_pod, "pod")
        if seen.metadata is not None and seen.metadata.annotations is not None:
            seen.profile = profile_of(source)
        return seen

    def live_pod(self, source: Source) -> Pod | None:
        """A pod, or None when it has come to its end and holds nothing any more."""
        seen = self.decode_pod(source)
        return None if is_terminal(seen) else self._pod(seen, newcomer=False)

    def seen_pod(self, seen: wire.Pod) -> Pod:
        """A pod that was decoded already, bound if it names a node."""
        return self._pod(seen, newcomer=False)

    def node(self, source: Source) -> Node:
        seen = decode(source, wire.Node, "node")
        what, metadata = _named("node", seen.metadata, namespaced=False)
        spec, status = seen.spec or wire.NodeSpec(), seen.status or wire.NodeStatus()
        try:
            allocatable = amounts(status.allocatable, "status.allocatable")
        except Wrong as wrong:
            raise Unreadable(what, wrong.field, wrong.why) from None
        name, labels = metadata.name or "", self._labels(metadata)
        noted = {} if metadata.annotations is None else metadata.annotations.there()
        amount = {
            intern(resource): counted(resource, nano)
            for resource, nano in allocatable.items()
            if resource == "pods" or is_counted(resource)
        }
        return Node(
            name=intern(name),
            uid=metadata.uid or name,
            labels=labels,
            allocatable=amount,
            taints=tuple(
                self._keep(Taint(t.key or "", t.value or "", t.effect or ""))
                for t in spec.taints or ()
            ),
            unschedulable=bool(spec.unschedulable),
            images=tuple(
                Image(tuple(map(intern, image.names or ())), image.size_bytes or 0)
                for image in status.images or ()
            ),
            pools=pools_of(noted, self._vendors, labels, amount),
            maps={key: noted[key] for key in NEURON_MAPS if key in noted},
            use=node_use(profile_of(source) or {}, self._say_of(f"node {name}")),
        )

    def namespace(self, source: Source) -> tuple[str, dict[str, str]]:
        seen = decode(source, wire.Namespace, "namespace")
        _, metadata = _named("namespace", seen.metadata, namespaced=False)
        return metadata.name or "", self._labels(metadata)

    def claim(self, source: Source) -> Claim:
        seen = decode(source, wire.PersistentVolumeClaim, "persistentvolumeclaim")
        _, metadata = _named("persistentvolumeclaim", seen.metadata, namespaced=True)
        return claim_of(seen, metadata)

    def volume(self, source: Source) -> Volume:
        seen = decode(source, wire.PersistentVolume, "persistentvolume")
        _, metadata = _named("persistentvolume", seen.metadata, namespaced=False)
        return volume_of(seen, metadata)

    def storage_class(self, source: Source) -> StorageClass:
        seen = decode(source, wire.StorageClass, "storageclass")
        _, metadata = _named("storageclass", seen.metadata, namespaced=False)
        return storage_class_of(seen, metadata)

    def device_class(self, source: Source) -> tuple[str, str]:
        """Its name, and the extended resource that it serves, or an empty name."""
        seen = decode(source, wire.DeviceClass, "deviceclass")
        _, metadata = _named("deviceclass", seen.metadata, namespaced=False)
        return metadata.name or "", (seen.spec and seen.spec.extended_resource_name) or ""

    def budget(self, source: Source) -> Budget:
        seen = decode(source, wire.PodDisruptionBudget, "poddisruptionbudget")
        what, metadata = _named("poddisruptionbudget", seen.metadata, namespaced=True)
        spec, status = seen.spec or wire.BudgetSpec(), seen.status or wire.BudgetStatus()
        try:
            selector = label_selector(spec.selector, "spec.selector")
        except Wrong as wrong:
            raise Unreadable(what, wrong.field, wrong.why) from None
        namespace = intern(metadata.namespace or "default")
        return Budget(
            key=f"{namespace}/{metadata.name}",
            namespace=namespace,
            selector=selector,
            allowed=status.disruptions_allowed or 0,
            disrupted=frozenset(status.disrupted_pods or ()),
        )

    def topology(self, source: Source) -> Topology:
        seen = decode(source, NodeResourceTopology, "noderesourcetopology")
        what, metadata = _named("noderesourcetopology", seen.metadata, namespaced=False)
        try:
            return topology_of(seen, metadata)
        except Wrong as wrong:
            raise Unreadable(what, wrong.field, wrong.why) from None

    def pod_group(self, source: Source, of: groups.Source) -> groups.PodGroup:
        """A PodGroup of this group of the API; what is wrong with it is in it."""
        seen = decode(source, groupwire.PodGroup, "podgroup")
        _, metadata = _named("podgroup", seen.metadata, namespaced=True)
        return pod_group(of, metadata, seen)

    def any_pod_group(self, source: Source) -> groups.PodGroup | None:
        """A PodGroup of the group of the API that it names; None for one that is not ours."""
        version = decode(source, groupwire.Versioned, "podgroup").api_version
        if not version:
            raise Unreadable(_guess(source, "podgroup"), "apiVersion", "it is missing")
        of = source_of(version)
        return None if of is None else self.pod_group(source, of)

    def _pod(self, seen: wire.Pod, newcomer: bool) -> Pod:
        what, metadata = _named("pod", seen.metadata, namespaced=True)
        try:
            return self._checked_pod(seen, metadata, newcomer)
        except Wrong as wrong:
            raise Unreadable(what, wrong.field, wrong.why) from None

    def _checked_pod(self, seen: wire.Pod, metadata: wire.PodMetadata, newcomer: bool) -> Pod:
        spec, status = seen.spec or wire.PodSpec(), seen.status or wire.PodStatus()
        name, namespace = metadata.name or "", intern(metadata.namespace or "default")
        labels, key, noted = self._labels(metadata), f"{namespace}/{name}", metadata.annotations
        node = "" if newcomer else intern(spec.node_name or "")
        uid = metadata.uid or key
        row = self._row(spec, status, bound=bool(node), insists=newcomer)
        asked = noted.asked() if noted is not None else None
        if asked:
            row = self._with_partition(row, asked, spec, key, bound=bool(node))
        claims, ephemeral = pod_claims(spec, namespace, name) if spec.volumes else ([], [])
        if claims:  # the rest stays shared with the other pods of the template
            row = with_claims(row, claims, ephemeral, uid)
        about = pod_terms(spec, namespace, labels, bound=bool(node))
        words = words_of(labels, spec, noted)
        gang = words and self._gang(words, key, bound=bool(node))
        return Pod(
            uid=uid,
            namespace=namespace,
            name=name,
            labels=labels,
            row=self._keep(row) if claims else row,
            terms=about and self._keep(about),
            node=node,
            scheduler=intern(spec.scheduler_name or "default-scheduler"),
            priority=spec.priority or 0,
            created_s=seconds_of(metadata.creation_timestamp, "metadata.creationTimestamp"),
            started_s=seconds_of(status.start_time, "status.startTime"),
            terminating=metadata.deletion_timestamp is not None,
            nominated=intern(status.nominated_node_name or ""),
            held=None if noted is None or not node else self._held(row, node, noted),
            gang=gang,
            worker=None if noted is None else self._worker(noted, metadata, namespace),
            lifecycle=self._lifecycle(metadata, spec, status, key),
            use=None if seen.profile is None else pod_use(seen.profile, self._say_of(f"pod {key}")),
        )

    def _worker(
        self, noted: wire.PodAnnotations, metadata: wire.PodMetadata, namespace: str
    ) -> Worker | None:
        """Workers of one job share it."""
        if not noted.elastic:
            return None
        key = job_named(noted.elastic, namespace)
        return self._keep(Worker(key, _job_uid(metadata.owner_references or ())))

    def _lifecycle(
        self, metadata: wire.PodMetadata, spec: wire.PodSpec, status: wire.PodStatus, key: str
    ) -> Lifecycle:
        """Nearly all pods have a usual one, so that is asked first."""
        saved_s = run_s = 0.0
        if metadata.annotations is not None or spec.active_deadline_seconds is not None:
            saved_s, run_s = self._times(metadata.annotations, spec, key)
        owners, gates = metadata.owner_references, spec.scheduling_gates
        controlled = owners is not None and any(owner.controller for owner in owners)
        preempts = spec.preemption_policy != "Never"
        preempted = metadata.deletion_timestamp is not None and was_preempted(status)
        if preempts and not (preempted or gates or run_s or saved_s):
            return _USUAL[controlled]
        names = tuple(gate.name or "" for gate in gates or ())
        found = Lifecycle(names, preempts, preempted, controlled, run_s, saved_s)
        return found if saved_s else self._keep(found)  # when it has saved is each pod's own

    def _times(
        self, found: wire.PodAnnotations | None, spec: wire.PodSpec, key: str
    ) -> tuple[float, float]:
        """When the pod last saved its work, and how long it runs at most."""
        saved_s, run_s = 0.0, float(max(spec.active_deadline_seconds or 0, 0))
        if found is None:
            return saved_s, run_s
        if found.checkpoint is not None:
            try:
                saved_s = checkpoint_of(found.checkpoint)
            except Wrong as wrong:
                self._say(f"pod {key}: {wrong}")
        if found.run_seconds is not None:
            try:
                said_s = run_seconds_of(found.run_seconds)
                run_s = min(run_s or said_s, said_s or run_s)
            except Wrong as wrong:
                self._say(f"pod {key}: {wrong}")
        return saved_s, run_s

    def _with_partition(
        self, row: RowKey, asked: dict[str, str], spec: wire.PodSpec, key: str, bound: bool
    ) -> RowKey:
        """What a pod asks for by an annotation, for its first container; a limit says more."""
        try:
            return self._keep(with_partition(row, asked, spec, self._vendors))
        except Wrong as wrong:
            if not bound:
                raise
            self._say(f"pod {key}: {wrong}")
            return row

    def _gang(self, words: Words, key: str, bound: bool) -> Gang | None:
        """Members say the same, so it is worked out once."""
        namespace = key.partition("/")[0]
        known = self._gangs.get((namespace, words))
        if known is not None:
            return known
        try:
            gang = gang_of(words, namespace)
        except Wrong as wrong:
            if not bound:
                raise
            self._say(f"pod {key}: {wrong}")
            return good_part(words, namespace)
        if gang.grouped:
            for annotation in unheeded(words):
                at = f"metadata.annotations[{annotation}]"
                self._say(f"pods of {gang.key}: {at}: the PodGroup says what the gang is")
        if len(self._gangs) >= _MOST_VALUES:
            self._gangs.clear()
        self._gangs[namespace, words] = gang
        return gang

    def _say_of(self, what: str) -> Callable[[str, str], None]:
        """Of one object not without end: it may have ten thousand annotations."""
        left = _MOST_OF_ONE

        def say(field: str, why: str) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                self._say(f"{what}: {field}: {why}")
            elif left == -1:
                self._say(f"{what}: metadata.annotations: more of them cannot be read")

        return say

    def _say(self, words: str) -> None:
        if self._remark is not None and words not in self._remarks:
            if len(self._remarks) >= _MOST_REMARKS:
                self._remarks.clear()
            self._remarks.add(words)
            self._remark(f"{words}; it is left out")

    def _held(self, row: RowKey, node: str, noted: wire.PodAnnotations) -> Holding | None:
        """What a bound pod holds. What stands on a pod that is not bound says nothing."""
        said = noted.there()
        if not said:
            return None
        names = [name for name, _ in row.requests]
        return bound_holding(row.devices, node, said, self._vendors, names)

    def _row(
        self, spec: wire.PodSpec, status: wire.PodStatus, bound: bool, insists: bool
    ) -> RowKey:
        """Pods of one template say the same, so it is worked out once. What a kubelet says of a
        pod's resources is the pod's own."""
        told = status.container_statuses or status.init_container_statuses or status.resources
        if insists or told is not None:
            return self._keep(row_key(spec, status, self._vendors, bound, insists))
        node, spec.node_name = spec.node_name, None
        key = (_encode(spec), bound, status.qos_class)
        spec.node_name = node
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= _MOST_SPECS:
                self._rows.clear()
            row = self._keep(row_key(spec, status, self._vendors, bound, insists))
            self._rows[key] = row
        return row

    def _labels(self, metadata: wire.Metadata) -> dict[str, str]:
        """Pods of one template share most values. Some have one of their own each; interned, those
        would widen the interpreter's table of strings for good."""
        values = self._values
        if len(values) > _MOST_VALUES:
            values.clear()
        labels = (metadata.labels or {}).items()
        return {intern(key): values.setdefault(value, value) for key, value in labels}

    def _keep(self, value: T) -> T:
        """The first of equal values."""
        if len(self._kept) > _MOST_KEPT:
            self._kept.clear()
        kept: T = self._kept.setdefault(value, value)
        return kept


def _job_uid(owners: Sequence[wire.PodOwner]) -> str:
    """Of the ElasticJob among them. A worker of an ElasticHorovodJob belongs to a StatefulSet."""
    ours = (o for o in owners if o.kind == GENERAL and (o.api_version or "").startswith(wire.OURS))
    return next((owner.uid or "" for owner in ours), "")


def was_preempted(status: wire.PodStatus) -> bool:
    """Whether a scheduler deletes the pod for another. Of several such conditions the first counts,
    as it does for kube-scheduler."""
    said = next((c for c in status.conditions or () if c.type == "DisruptionTarget"), None)
    return said is not None and (said.status, said.reason) == ("True", "PreemptionByScheduler")


def with_claims(row: RowKey, claims: list[str], ephemeral: list[str], uid: str) -> RowKey:
    owner = uid if ephemeral else ""
    return replace(row, claims=tuple(claims), ephemeral=tuple(ephemeral), claim_owner=owner)


def is_terminal(pod: wire.Pod) -> bool:
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


@cache
def _decoder(kind: type[W]) -> msgspec.json.Decoder[W]:
    return msgspec.json.Decoder(kind)


def decode(source: Source, kind: type[W], what: str) -> W:
    """An object of this kind; `what` is how to call one whose name cannot be found."""
    try:
        found: W = _decoder(kind).decode(json_of(source))
        return found
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        why, field = located(error)
        raise Unreadable(_guess(source, what), field, why or type(error).__name__) from None


def profile_of(source: Source) -> dict[str, str] | None:
    """The annotations of an object that was decoded before; None of one without a profiler's."""
    data = json_of(source)
    if MARK not in (data if isinstance(data, bytes) else bytes(data)):
        return None
    try:
        seen = msgspec.json.decode(data, type=wire.Profiled)
    except msgspec.MsgspecError:  # an annotation that is no text, and that nobody else reads
        return None
    return None if seen.metadata is None else seen.metadata.annotations


def json_of(source: Source) -> bytes | msgspec.Raw:
    """The object as JSON; NaN and infinities, which JSON does not have, are a ValueError."""
    if isinstance(source, (bytes, msgspec.Raw)):  # a union would be made anew for every object
        return source
    return json.dumps(source, allow_nan=False).encode()


def _guess(source: Source, what: str) -> str:
    """The object's name, as far as it can be found in what cannot be decoded."""
    try:
        if isinstance(source, Mapping):
            metadata: Any = source.get("metadata")
        else:
            metadata = msgspec.json.decode(source, type=_Loose).metadata
        names = [metadata.get("namespace"), metadata.get("name")]
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
        return what
    parts = [part for part in names if isinstance(part, str) and part]
    return f"{what} {'/'.join(parts)}" if parts else what


def _named(kind: str, metadata: M | None, namespaced: bool) -> tuple[str, M]:
    if metadata is None or not metadata.name:
        raise Unreadable(kind, "metadata.name", "it has no name")
    namespace = f"{metadata.namespace or 'default'}/" if namespaced else ""
    return f"{kind} {namespace}{metadata.name}", metadata
