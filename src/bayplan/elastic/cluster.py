"""What the watches have brought, and the snapshot that is made of it.

Pods of the whole cluster are followed for what they use; of workers and launchers a little more is
kept. What our own writes came back with is taken in at once, unless a watch has said more by then;
an older event that a watch still brings costs a refused write, no more.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from bayplan.core.model.quantity import counted
from bayplan.core.model.selectors import Taint, Toleration
from bayplan.elastic.curves import ANNOTATION as THROUGHPUT
from bayplan.elastic.seen import Seen, Snapshot, State, Worker
from bayplan.kube import wire
from bayplan.kube.client import NODES, POD_GROUPS, PODS, PRIORITY_CLASSES, Resource
from bayplan.kube.defaults import Classes
from bayplan.kube.elastic import (
    ELASTIC,
    GENERAL,
    HOROVOD,
    JOB_LABEL,
    RESOURCES,
    ROLE_LABEL,
    Job,
    horovod_names,
    read_job,
)
from bayplan.kube.gangs import minimum_of
from bayplan.kube.read import Reader, Unreadable
from bayplan.kube.reflector import Watched
from bayplan.kube.rows import amounts
from bayplan.kube.terms import Wrong

log = logging.getLogger("bayplan")

T = TypeVar("T")
Json = dict[str, Any]
Place = tuple[str, str]  # namespace and name

STATEFUL_SETS = Resource("apps", "v1", "statefulsets")
JOBS = Resource("batch", "v1", "jobs")
SERVICES = Resource("", "v1", "services")
GROUPS = POD_GROUPS["scheduling.sigs.k8s.io"]
_KEEPING_OFF = ("NoSchedule", "NoExecute")  # effects of taints
_GONE = 10_000  # uids that a table remembers; more are not deleted while an answer is on its way
# A node with one of these takes nobody, whatever a worker tolerates.
_DEAD = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# reasons of pods that failed by no fault of their own
_EXCUSED = ("Evicted", "Preempting", "NodeShutdown", "Terminated", "NodeLost", "Shutdown")
_REFUSED = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError")


class Table(Generic[T]):
    """The sink of one watch: what there is, by namespace and name."""

    def __init__(
        self, what: str, decode: Callable[[Raw], tuple[Place, T]], changed: asyncio.Event
    ) -> None:
        self.what, self.decode, self._changed = what, decode, changed
        self.known: dict[Place, T] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()  # uids, the latest last
        self.is_synced = False

    def replace(self, items: list[tuple[Place, T]], resource_version: str) -> None:
        before, self.known = self.known, dict(items)
        there = {_identity(value)[0] for value in self.known.values()}
        for value in before.values():
            if _identity(value)[0] not in there:
                self._forget(value)
        self._changed.set()

    def put(self, item: tuple[Place, T]) -> None:
        self._gone.pop(_identity(item[1])[0], None)  # a list may have been older than an answer
        if self.known.get(item[0]) != item[1]:
            self.known[item[0]] = item[1]
            self._changed.set()

    def take(self, item: tuple[Place, T]) -> None:
        """The answer to a write; it may be late, and the watch have said more of the object."""
        uid, version = _identity(item[1])
        uid_now, version_now = _identity(self.known.get(item[0]))
        is_older = uid == uid_now and _is_up_to(version, version_now)
        if uid not in self._gone and not is_older:
            self.put(item)

    def drop(self, item: tuple[Place, T]) -> None:
        self._forget(item[1])
        now = self.known.get(item[0])
        # another of the same name may have been taken in
        if now is not None and _identity(now)[0] == _identity(item[1])[0]:
            del self.known[item[0]]
            self._changed.set()

    def _forget(self, value: T) -> None:
        self._gone[_identity(value)[0]] = None
        if len(self._gone) > _GONE:
            self._gone.popitem(last=False)

    def synced(self) -> None:
        self.is_synced = True
        self._changed.set()

    def bad(self, line: bytes, error: Exception) -> None:
        log.warning("a %s cannot be read and is left out: %s", self.what, error)


class PodSeen(Struct, frozen=True):
    uid: str
    node: str
    phase: str
    going: bool
    requests: tuple[tuple[str, int], ...]
    elastic: str = ""  # the annotation
    role: str = ""
    owner: str = ""  # uid of its controller
    owner_name: str = ""
    ready: bool = False
    excused: bool = False
    throughput: str = ""  # the annotation
    made: str = ""  # when; of workers only
    waits_for: int = 0  # of workers that wait: so many of the job start together
    version: str = ""  # of workers that wait

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


class NodeSeen(Struct, frozen=True):
    allocatable: dict[str, int]
    takes_pods: bool
    taints: tuple[Taint, ...] = ()  # that keep pods off


class _Owner(wire.Wire):
    uid: str | None = None
    name: str | None = None
    controller: bool | None = None


class _Notes(wire.Wire):
    elastic: str | None = msgspec.field(default=None, name=ELASTIC)
    throughput: str | None = msgspec.field(default=None, name=THROUGHPUT)
    gang: str | None = msgspec.field(default=None, name=wire.GANG)
    gang_min: str | None = msgspec.field(default=None, name=wire.GANG_MIN)


class _Metadata(wire.Metadata):
    annotations: _Notes | None = None
    owner_references: list[_Owner] | None = None


class _Pod(wire.Wire):
    metadata: _Metadata
    spec: wire.PodSpec | None = None
    status: wire.PodStatus | None = None


class _NodeStatus(wire.NodeStatus):
    conditions: list[wire.Condition] | None = None


class _Node(wire.Node):
    status: _NodeStatus | None = None


_decode_pod = msgspec.json.Decoder(_Pod).decode
_decode_node = msgspec.json.Decoder(_Node).decode
_decode_class = msgspec.json.Decoder(wire.PriorityClass).decode
_decode_any = msgspec.json.Decoder(Json).decode


class Cluster:
    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._reader = Reader()
        self._jobs = {kind: Table(kind, _object, self.changed) for kind in RESOURCES}
        self.pods = Table("pod", self._pod, self.changed)
        self._nodes = Table("node", _node, self.changed)
        self._classes = Table("priority class", _class, self.changed)
        self._sets = Table("stateful set", _object, self.changed)
        self._launchers = Table("job", _object, self.changed)
        self._services = Table("service", _object, self.changed)
        self._groups = Table("pod group", _object, self.changed)
        self._read: dict[str, tuple[str, Classes, Job]] = {}  # by key

    def watched(self) -> list[tuple[Watched[Any], Table[Any]]]:
        ours: list[tuple[Resource, Table[Any], str]] = [
            (STATEFUL_SETS, self._sets, JOB_LABEL),
            (JOBS, self._launchers, JOB_LABEL),
            (SERVICES, self._services, JOB_LABEL),
            (GROUPS, self._groups, JOB_LABEL),
            (PODS, self.pods, ""),
            (NODES, self._nodes, ""),
            (PRIORITY_CLASSES, self._classes, ""),
            *((resource, self._jobs[kind], "") for kind, resource in RESOURCES.items()),
        ]
        return [
            (Watched(resource.path(), table.decode, label_selector=selector), table)
            for resource, table, selector in ours
        ]

    def take_job(self, kind: str, body: bytes) -> None:
        """An object of a kind that we wrote, as the API has it now."""
        self._jobs[kind].take(_object(Raw(body)))

    def take_pod(self, body: bytes) -> None:
        """One that we made."""
        self.pods.take(self._pod(Raw(body)))

    def take_set(self, body: bytes) -> None:
        self._sets.take(_object(Raw(body)))

    def manifest(self, job: Job) -> Json:
        return self._jobs[job.kind].known.get((job.namespace, job.name)) or {}

    def snapshot(self, at: str) -> Snapshot:
        if not any(table.known for table in self._jobs.values()):
            return Snapshot((), {}, at)  # most clusters have many pods and few elastic jobs
        priorities = {name: found for (_, name), found in self._classes.known.items()}
        classes = Classes(priorities)
        jobs = [
            self._job(kind, manifest, classes)
            for kind, table in self._jobs.items()
            for manifest in table.known.values()
        ]
        self._read = {job.key: self._read[job.key] for job in jobs}
        by_job: dict[tuple[str, str], list[tuple[str, PodSeen]]] = {}
        for (namespace, name), pod in self.pods.known.items():
            if pod.elastic or pod.role:
                by_job.setdefault((namespace, _job_named(pod)), []).append((name, pod))
        seen = [self._seen(job, by_job.get((job.namespace, _mark(job)), [])) for job in jobs]
        return Snapshot(tuple(seen), self._capacity(seen), at)

    def _job(self, kind: str, manifest: Json, classes: Classes) -> Job:
        """Read again only when it has changed."""
        about = manifest["metadata"]
        key = f"{kind} {about.get('namespace') or 'default'}/{about['name']}"
        version = str(about.get("resourceVersion"))
        if key not in self._read or self._read[key][:2] != (version, classes):
            self._read[key] = version, classes, read_job(kind, manifest, classes)
        return self._read[key][2]

    def _seen(self, job: Job, pods: Iterable[tuple[str, PodSeen]]) -> Seen:
        workers, launcher, reports = [], None, {}
        names = horovod_names(job.name)
        born = str((self.manifest(job).get("metadata") or {}).get("creationTimestamp") or "")
        at_name = self._sets.known.get((job.namespace, names["workers"]))
        own_set = _own(job, at_name)
        for name, pod in pods:
            owned = pod.owner == job.uid
            if job.kind == HOROVOD:
                owned = pod.owner_name == names["workers"]
                if own_set is not None:
                    owned = pod.owner == own_set["metadata"].get("uid")
                elif at_name is not None or pod.made < born:  # of a job that had the same name
                    owned = False
            prefix = f"{job.name}-worker-" if job.kind == GENERAL else f"{names['workers']}-"
            index = name.removeprefix(prefix)
            if not owned or (pod.role != "launcher" and not index.isdecimal()):
                continue
            worker = self._worker(name, pod, int(index) if index.isdecimal() else 0)
            if pod.role == "launcher":
                launcher = worker
            else:
                workers.append(worker)
                reports[worker.index] = pod.throughput
        report = next((reports[index] for index in sorted(reports) if reports[index]), "")
        workers.sort(key=lambda worker: worker.index)
        if job.kind == GENERAL:
            return Seen(job, tuple(workers), launcher, report=report)
        replicas = None
        if own_set is not None and not own_set["metadata"].get("deletionTimestamp"):
            given = (own_set.get("spec") or {}).get("replicas")
            replicas = given if isinstance(given, int) else 1
        found = self._launchers.known.get((job.namespace, names["launcher"]))
        launched = _launched(_own(job, found))
        lacks = any(
            table.is_synced and (job.namespace, names[what]) not in table.known
            for what, table in (("service", self._services), ("group", self._groups))
        )
        return Seen(job, tuple(workers), None, replicas, report, launched, lacks)

    def _worker(self, name: str, pod: PodSeen, index: int) -> Worker:
        state: State = "placed" if pod.node else "waiting"
        if pod.has_ended:
            state = "succeeded" if pod.phase == "Succeeded" else "failed"
        elif pod.node and self._nodes.is_synced and ("", pod.node) not in self._nodes.known:
            state = "lost"
        elif pod.going:
            state = "going"
        waits = pod.waits_for, pod.version
        return Worker(name, pod.uid, index, state, pod.node, pod.ready, pod.excused, *waits)

    def _capacity(self, jobs: list[Seen]) -> dict[str, dict[str, int]]:
        """By resource and node: what pods of others leave. A node that takes nobody, or none of
        the workers that are counted by the resource, has what our own workers have there. Of a job
        that cannot be understood nobody knows what its workers count for, so they are others, too.
        """
        uids = {worker.uid for seen in jobs if not seen.job.wrong for worker in seen.workers}
        wanted = {seen.job.counted[0] for seen in jobs}
        used: dict[tuple[str, str, bool], int] = {}  # by resource, node, and whether it is ours
        for pod in self.pods.known.values():
            if not pod.node or pod.has_ended:
                continue
            for resource, amount in pod.requests:
                if resource in wanted:
                    key = resource, pod.node, pod.uid in uids
                    used[key] = used.get(key, 0) + amount
        capacity: dict[str, dict[str, int]] = {}
        for resource in wanted:
            left = capacity[resource] = {}
            tolerated = {tolerations(seen.job) for seen in jobs if seen.job.counted[0] == resource}
            for (_, name), node in self._nodes.known.items():
                total = node.allocatable.get(resource, 0)
                if not total:
                    continue
                if not _is_open(node, tolerated):
                    left[name] = used.get((resource, name, True), 0)
                else:
                    left[name] = total - used.get((resource, name, False), 0)
        return capacity

    def _pod(self, raw: Raw) -> tuple[Place, PodSeen]:
        seen = _decode_pod(raw)
        about, status = seen.metadata, seen.status or wire.PodStatus()
        place = about.namespace or "default", about.name or ""
        try:
            requests = self._reader.pod(raw).row.requests
        except Unreadable as unreadable:
            log.warning("what a pod uses is not known: %s", unreadable)
            requests = ()
        owner = next((o for o in about.owner_references or () if o.controller), _Owner())
        conditions = {c.type: c.status for c in status.conditions or ()}
        notes = about.annotations or _Notes()
        node = (seen.spec and seen.spec.node_name) or ""
        return place, PodSeen(
            uid=about.uid or "",
            node=node,
            phase=status.phase or "",
            going=bool(about.deletion_timestamp),
            requests=requests,
            elastic=notes.elastic or "",
            role=(about.labels or {}).get(ROLE_LABEL, ""),
            owner=owner.uid or "",
            owner_name=owner.name or "",
            ready=conditions.get("Ready") == "True",
            throughput=notes.throughput or "",
            made=(about.creation_timestamp or "") if notes.elastic else "",
            waits_for=0 if node else _waits_for(notes),
            version=(about.resource_version or "") if notes.elastic and not node else "",
            excused=conditions.get("DisruptionTarget") == "True"
            or status.reason in _EXCUSED
            or (status.reason or "").startswith(_REFUSED),
        )


def _waits_for(notes: _Notes) -> int:
    """Of an ElasticJob's worker in its job's gang, which has the job's name."""
    if notes.gang_min is None or notes.gang != notes.elastic:
        return 0
    try:
        return minimum_of(notes.gang_min)
    except Wrong:  # so the scheduler does not start it either
        return 0


def _object(raw: Raw) -> tuple[Place, Json]:
    value = _decode_any(raw)
    about = value.get("metadata")
    if not isinstance(about, dict) or not isinstance(about.get("name"), str):
        raise ValueError("it has no name")
    return (str(about.get("namespace") or "default"), about["name"]), value


def _node(raw: Raw) -> tuple[Place, NodeSeen]:
    seen = _decode_node(raw)
    spec, status = seen.spec or wire.NodeSpec(), seen.status or _NodeStatus()
    found = amounts(status.allocatable, "status.allocatable")
    taints = [t for t in spec.taints or () if t.effect in _KEEPING_OFF]
    dead = any(taint.key in _DEAD for taint in spec.taints or ()) or any(
        each.type == "Ready" and each.status in ("False", "Unknown")
        for each in status.conditions or ()
    )
    allocatable = {name: counted(name, nano) for name, nano in found.items()}
    name = (seen.metadata and seen.metadata.name) or ""
    kept_off = tuple(Taint(t.key or "", t.value or "", t.effect or "") for t in taints)
    return ("", name), NodeSeen(allocatable, not (spec.unschedulable or dead), kept_off)


def tolerations(job: Job) -> tuple[Toleration, ...]:
    """Of its workers."""
    try:
        spec = msgspec.convert(job.template.get("spec") or {}, wire.PodSpec)
    except msgspec.ValidationError:
        return ()  # what is wrong with it is said elsewhere
    return tuple(
        Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "")
        for t in spec.tolerations or ()
    )


def _is_open(node: NodeSeen, tolerated: Iterable[tuple[Toleration, ...]]) -> bool:
    """Whether it takes workers of anybody. Of whom in particular is the scheduler's to judge."""
    return node.takes_pods and any(
        all(any(each.tolerates(taint) for each in given) for taint in node.taints)
        for given in tolerated
    )


def _class(raw: Raw) -> tuple[Place, wire.PriorityClass]:
    seen = _decode_class(raw)
    return ("", (seen.metadata and seen.metadata.name) or ""), seen


def _mark(job: Job) -> str:
    """As its workers' annotation has it."""
    return job.name if job.kind == GENERAL else f"{HOROVOD.lower()}/{job.name}"


def _job_named(pod: PodSeen) -> str:
    """A launcher has no annotation: its name is the job's, and the role's."""
    return pod.elastic or pod.owner_name


def owner_of(manifest: Json) -> str:
    """The uid of what controls it; "" if nothing does."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((str(each.get("uid")) for each in owners if each.get("controller")), "")


def _own(job: Job, found: Json | None) -> Json | None:
    """It, if it is of this very job, and not of one that had the same name before."""
    return found if found is not None and owner_of(found) == job.uid else None


def _identity(value: Any) -> tuple[str, str]:
    """Uid and version. Answers that hold pods are to their creation: no version is older."""
    if isinstance(value, PodSeen):
        return value.uid, "0"
    about = value["metadata"] if isinstance(value, dict) else {}
    return str(about.get("uid") or ""), str(about.get("resourceVersion") or "")


def _is_up_to(version: str, other: str) -> bool:
    """False where it cannot be told: versions are numbers by custom."""
    return version.isdecimal() and other.isdecimal() and int(version) <= int(other)


def _launched(job: Json | None) -> Any:
    if job is None:
        return ""
    status = job.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else []:
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return condition["type"]
    return "Running"
