"""Elastic jobs of both kinds, read into one value, and the pod template of their workers.

`ElasticJob` (bayplan.dev) is any pod template with a least and a greatest number of workers.
`ElasticHorovodJob` (ai.centauruscloud.io) is Alnair's. What is odd in an object is said in `wrong`
and shown to its owner; nobody else is disturbed. What others wrote into a status is nobody's wish:
a grant that cannot be read counts as none.

Nothing here decides how many workers a job gets, and nothing is written here.
"""

from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from bayplan.core.model.grants import KINDS, elastic_key
from bayplan.core.model.vendors import Vendors
from bayplan.kube import wire
from bayplan.kube.client import Resource
from bayplan.kube.defaults import Classes, default_pod
from bayplan.kube.read import Reader, Unreadable
from bayplan.kube.terms import Wrong, located

Json = dict[str, Any]
T = TypeVar("T")

JOB_LABEL, ROLE_LABEL = "bayplan.dev/elastic-job", "bayplan.dev/role"
SCHEDULER = "bayplan.dev/scheduler-name"  # on an ElasticHorovodJob, which has no field for it
DEFAULT_SCHEDULER = "bayplan"

GENERAL, HOROVOD = KINDS
RESOURCES = {
    GENERAL: Resource("bayplan.dev", "v1alpha1", "elasticjobs"),
    HOROVOD: Resource("ai.centauruscloud.io", "v1alpha1", "elastichorovodjobs"),
}
ELASTIC = wire.ELASTIC
_KNOWN = Vendors()
MOST = 10_000  # workers of one job
LAST_GENERATION = 2**53 - 1  # of a grant: no number above it is read (`_number`)
LEAST_ITEMS, MOST_ITEMS = 1e-9, 1e15  # per second: what the allocator can reckon with
# A label of a StatefulSet's pods has its name and a hash of ten characters.
LONGEST_NAME = {GENERAL: 63, HOROVOD: 63 - len("elastichorovodjob--workers-0123456789")}
GPU, SSH_PORT = "nvidia.com/gpu", 12345


class Grant(Struct, frozen=True):
    """How many workers a job may have from now on, and places that it keeps to pass them on."""

    generation: int = 0
    workers: int = 0
    passing: int = 0
    counts: dict[str, int] = {}  # by device class, of workers and passing together

    @property
    def places(self) -> int:
        return self.workers + self.passing


class Confirmed(Struct, frozen=True):
    """What the scheduler says of the newest grant that it has seen."""

    generation: int = 0
    workers: int = 0
    message: str = ""


class Status(Struct, frozen=True):
    """What the controller itself has written, as far as it reads it again."""

    phase: str = ""
    workers: int = 0
    ready: int = 0
    failures: int = 0
    message: str = ""
    start_time: str = ""
    completion_time: str = ""
    counted: tuple[str, ...] = ()  # uids of failed pods that are in `failures`


class Job(Struct, frozen=True):
    """An elastic job of either kind, as the API has it."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    version: str = ""  # resourceVersion: a write that is meant for this content names it
    arrival: float = 0.0  # seconds since 1970
    leaving: bool = False  # it is being deleted
    minimum: int = 1
    maximum: int = 1
    fixed: int | None = None  # a size that its owner insists on
    template: Json = {}  # of a worker
    launcher: Json | None = None  # of the one pod beside the workers
    requests: tuple[tuple[str, int], ...] = ()  # of one worker
    priority: int = 0
    curve: tuple[tuple[int, float], ...] = ()  # workers and throughput, ascending
    parallel: float | None = None  # Amdahl's parallel part
    measured: tuple[tuple[int, float], ...] = ()  # as the controller has noted it in the status
    backoff_limit: int = 6
    suspend: bool = False
    managed_by: str = ""
    grant: Grant = Grant()
    confirmed: Confirmed = Confirmed()
    status: Status = Status()
    said: Json = {}  # the whole status, as it stands there
    wrong: str = ""  # which field cannot be understood, and why

    @property
    def key(self) -> str:
        return elastic_key(self.kind, self.namespace, self.name)

    @property
    def counted(self) -> tuple[str, int]:
        """What its workers are counted by, and how much of it one has: devices before cpu."""
        devices = [each for each in self.requests if "/" in each[0]]
        devices.sort(key=lambda each: each[0] not in _KNOWN.resources)  # GPUs before network cards
        others = [each for each in self.requests if each[0] == "cpu"]
        return (devices or others or [("", 0)])[0]


class _Throughput(wire.Wire):
    curve: dict[str, float] | None = None
    parallel: float | None = None


class _GeneralSpec(wire.Wire):
    template: Json | None = None
    min_workers: wire.Int64 | None = None
    max_workers: wire.Int64 | None = None
    throughput: _Throughput | None = None
    managed_by: str | None = None
    suspend: bool | None = None
    launcher: Json | None = None
    backoff_limit: wire.Int64 | None = None


class _HorovodLauncher(wire.Wire):
    image: str | None = None
    python_command: list[str] | None = None


class _HorovodWorkers(wire.Wire):
    image: str | None = None
    target_replicas: wire.Int64 | None = None
    min_replicas: wire.Int64 | None = None
    max_replicas: wire.Int64 | None = None


class _HorovodSpec(wire.Wire):
    launcher_spec: _HorovodLauncher | None = None
    workers_spec: _HorovodWorkers | None = None


def path_of(key: str, sub: str = "") -> str:
    """Where the job with the key is."""
    kind, _, place = key.partition(" ")
    namespace, _, name = place.partition("/")
    return RESOURCES[kind].path(namespace, name, sub)


def read_job(kind: str, manifest: Json, classes: Classes | None = None) -> Job:
    """The job; what is odd in it is in `wrong`. `Unreadable` only for one without a name."""
    metadata = _object(manifest.get("metadata"))
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise Unreadable(kind, "metadata.name", "it is missing")
    namespace = str(metadata.get("namespace") or "default")
    status = _object(manifest.get("status"))
    job = Job(
        kind,
        namespace,
        name,
        uid=str(metadata.get("uid") or ""),
        version=str(metadata.get("resourceVersion") or ""),
        arrival=_seconds(metadata.get("creationTimestamp")),
        leaving=bool(metadata.get("deletionTimestamp")),
        grant=_read_grant(status.get("grant")),
        confirmed=_read_confirmed(status.get("confirmed")),
        status=_read_status(status),
        said=status,
        measured=_read_measured(status.get("measured")),
    )
    try:
        if max(job.grant.generation, job.confirmed.generation) >= LAST_GENERATION:
            why = f"{LAST_GENERATION} is the last, none comes after it: make the job anew"
            raise Wrong("status.grant.generation", why)
        if len(name) > LONGEST_NAME[kind]:
            raise Wrong("metadata.name", f"longer than {LONGEST_NAME[kind]} characters")
        fields = _general(manifest) if kind == GENERAL else _horovod(manifest)
        job = msgspec.structs.replace(job, **fields)
        requests, priority = _shape(kind, manifest, classes)
        return msgspec.structs.replace(job, requests=requests, priority=priority)
    except Wrong as wrong:
        return msgspec.structs.replace(job, wrong=f"{job.key}: {wrong}")
    except Unreadable as unreadable:  # it names the job itself
        return msgspec.structs.replace(job, wrong=str(unreadable))


def worker_template(kind: str, job: Json) -> Json:
    """The pod template of a worker, `Unreadable` when the job has none that is one."""
    metadata = _object(job.get("metadata"))
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "default")
    try:
        if kind == HOROVOD:
            return _horovod_worker(name, job)
        template = _pod_template(_object(job.get("spec")).get("template"), "spec.template")
        return _marked(template, name, "worker", _general_gang(name, template, job))
    except Wrong as wrong:
        raise Unreadable(f"{kind} {namespace}/{name}", wrong.field, wrong.why) from None


# What a job says


def _general(manifest: Json) -> Json:
    spec = _convert(manifest.get("spec"), _GeneralSpec, "spec")
    minimum = _count(spec.min_workers, "spec.minWorkers", 1)
    template = worker_template(GENERAL, manifest)
    throughput = spec.throughput or _Throughput()
    limit = 6 if spec.backoff_limit is None else spec.backoff_limit
    launcher = None
    if spec.launcher is not None:
        name = str(_object(manifest.get("metadata")).get("name"))
        launcher = _marked(_pod_template(spec.launcher, "spec.launcher"), name, "launcher", {})
        launcher["metadata"]["annotations"].pop(ELASTIC)  # it is no worker and has no place
    return {
        "minimum": minimum,
        "maximum": _count(spec.max_workers, "spec.maxWorkers", minimum),
        "template": template,
        "launcher": launcher,
        "curve": _curve(throughput.curve),
        "parallel": _share(throughput.parallel),
        "backoff_limit": _count(limit, "spec.backoffLimit", 0),
        "suspend": bool(spec.suspend),
        "managed_by": spec.managed_by or "",
    }


def _horovod(manifest: Json) -> Json:
    spec = _convert(manifest.get("spec"), _HorovodSpec, "spec")
    workers, launcher = spec.workers_spec, spec.launcher_spec
    if workers is None or launcher is None:
        which = "spec.workersSpec" if workers is None else "spec.launcherSpec"
        raise Wrong(which, "it is missing")
    if not launcher.image:
        raise Wrong("spec.launcherSpec.image", "it is missing")
    # the original allows 0; a job that may have no worker at all still starts with one
    minimum = max(_count(workers.min_replicas, "spec.workersSpec.minReplicas", 0), 1)
    maximum = _count(workers.max_replicas, "spec.workersSpec.maxReplicas", minimum)
    fixed = workers.target_replicas
    if fixed is not None and not 0 <= fixed <= MOST:
        raise Wrong("spec.workersSpec.targetReplicas", f"{fixed} is not from 0 to {MOST}")
    return {
        "minimum": min(minimum, fixed or minimum),  # who insists on fewer can do with fewer
        "maximum": maximum,
        "fixed": fixed,
        "template": worker_template(HOROVOD, manifest),
    }


def _count(number: int | None, field: str, least: int) -> int:
    if number is None:
        raise Wrong(field, "it is missing")
    if not least <= number <= MOST:
        raise Wrong(field, f"{number} is not a whole number from {least} to {MOST}")
    return number


def _curve(given: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    points = {}
    for key, value in (given or {}).items():
        where = f"spec.throughput.curve[{key[:20]}]"
        is_number = key.isascii() and key.isdigit() and len(key) < 10
        if not is_number or not 1 <= int(key) <= MOST:
            raise Wrong(where, f"the key is not a number of workers from 1 to {MOST}")
        if value != 0 and not LEAST_ITEMS <= value <= MOST_ITEMS:  # NaN is neither
            raise Wrong(where, f"{value} is not a throughput")
        points[int(key)] = value
    if points and not any(points.values()):
        raise Wrong("spec.throughput.curve", "no point is above 0")
    return tuple(sorted(points.items()))


def _share(parallel: float | None) -> float | None:
    if parallel is not None and not 0 <= parallel <= 1:  # NaN is neither
        raise Wrong("spec.throughput.parallel", f"{parallel} is not from 0 to 1")
    return parallel


def _shape(
    kind: str, manifest: Json, classes: Classes | None
) -> tuple[tuple[tuple[str, int], ...], int]:
    """What one worker asks for, and its priority."""
    template = worker_template(kind, manifest)
    pod = {"metadata": {**template["metadata"], "name": "worker"}, "spec": template["spec"]}
    field = "spec.template" if kind == GENERAL else "spec.workersSpec"
    try:
        read = Reader().pod(default_pod(pod, classes), newcomer=True)
    except Unreadable as unreadable:
        raise Wrong(f"{field}.{unreadable.field}".rstrip("."), unreadable.why) from None
    return read.row.requests, read.priority


# Templates


def _pod_template(given: object, field: str) -> Json:
    """A copy that shares what is not changed."""
    if not isinstance(given, dict):
        raise Wrong(field, "there is no pod template")
    for part in ("metadata", "spec"):
        if not isinstance(given.get(part) or {}, dict):
            raise Wrong(f"{field}.{part}", "it should be an object")
    metadata, spec = dict(given.get("metadata") or {}), dict(given.get("spec") or {})
    if not spec.get("containers"):
        raise Wrong(f"{field}.spec.containers", "there are none")
    for part in ("labels", "annotations"):
        notes = metadata.get(part) or {}
        if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
            raise Wrong(f"{field}.metadata.{part}", "they should be texts by name")
        metadata[part] = dict(notes)
    spec["schedulerName"] = spec.get("schedulerName") or DEFAULT_SCHEDULER
    return {"metadata": metadata, "spec": spec}


def _marked(template: Json, name: str, role: str, annotations: dict[str, str]) -> Json:
    metadata = template["metadata"]
    metadata["labels"] |= {JOB_LABEL: name, ROLE_LABEL: role}
    metadata["annotations"] |= {ELASTIC: name, **annotations}
    return template


def _general_gang(name: str, template: Json, job: Json) -> dict[str, str]:
    """The least number starts together, unless the template is of a gang of its own."""
    metadata, spec = template["metadata"], _object(job.get("spec"))
    labels = {wire.GROUP_LABEL, wire.OLD_GROUP_LABEL}
    if wire.GANG in metadata["annotations"] or labels & metadata["labels"].keys():
        return {}
    if template["spec"].get("schedulingGroup"):
        return {}
    return {wire.GANG: name, wire.GANG_MIN: str(spec.get("minWorkers"))}


def horovod_names(name: str) -> dict[str, str]:
    """Of what belongs to an ElasticHorovodJob, as the original calls it."""
    service = f"elastichorovodjob-{name}"
    return {
        "service": service,
        "workers": f"{service}-workers",
        "launcher": f"{service}-launcher",
        "group": f"podgroup-ehjob-{name}",
    }


def horovod_scheduler(job: Json) -> str:
    notes = _object(_object(job.get("metadata")).get("annotations"))
    return str(notes.get(SCHEDULER) or DEFAULT_SCHEDULER)


def _horovod_worker(name: str, job: Json) -> Json:
    """One GPU, sshd for the launcher, keys from a secret, and shared memory."""
    spec = _convert(job.get("spec"), _HorovodSpec, "spec")
    image = spec.workers_spec.image if spec.workers_spec is not None else None
    if not image:
        raise Wrong("spec.workersSpec.image", "it is missing")
    script = (
        f"/usr/sbin/sshd -p {SSH_PORT}; mkdir -p /root/.ssh; cp /etc/secrets/* /root/.ssh/; "
        "chmod 644 /root/.ssh/authorized_keys; sleep infinity"
    )
    container = {
        "name": "worker",
        "image": image,
        "command": ["/bin/sh"],
        "args": ["-c", script],
        "resources": {"limits": {GPU: "1"}},
        "volumeMounts": [
            {"name": "sshkeys", "mountPath": "/etc/secrets"},
            {"name": "dshm", "mountPath": "/dev/shm"},
        ],
    }
    keys = {"secretName": "horovod-sshkeys", "defaultMode": 0o600}
    return {
        "metadata": {
            "labels": {
                "ElasticHorovodJob": name,
                "role": "worker",
                wire.OLD_GROUP_LABEL: horovod_names(name)["group"],
            },
            "annotations": {ELASTIC: f"{HOROVOD.lower()}/{name}"},
        },
        "spec": {
            "schedulerName": horovod_scheduler(job),
            "containers": [container],
            "volumes": [
                {"name": "sshkeys", "secret": keys},
                {"name": "dshm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


# Statuses: whatever can be made of them


def _read_grant(given: object) -> Grant:
    """Number by number, so that a generation is known even where the rest is odd."""
    fields = _object(given)
    generation, workers, passing = map(
        _number, map(fields.get, ("generation", "workers", "passing"))
    )
    return Grant(generation, workers, passing, _lenient(fields.get("counts"), dict[str, int]))


def _read_confirmed(given: object) -> Confirmed:
    fields = _object(given)
    message = fields.get("message")
    return Confirmed(
        _number(fields.get("generation")),
        _number(fields.get("workers")),
        message if isinstance(message, str) else "",
    )


def _read_measured(given: object) -> tuple[tuple[int, float], ...]:
    try:
        points = _curve(_lenient(given, dict[str, float]))
        return tuple(point for point in points if point[1])
    except Wrong:
        return ()


def _number(given: object) -> int:
    return given if type(given) is int and 0 <= given <= LAST_GENERATION else 0


def _read_status(status: Json) -> Status:
    names = {
        "phase": str,
        "workers": int,
        "ready": int,
        "failures": int,
        "message": str,
        "startTime": str,
        "completionTime": str,
    }
    good = {name: status[name] for name, kind in names.items() if type(status.get(name)) is kind}
    renamed = {"startTime": "start_time", "completionTime": "completion_time"}
    fields = {renamed.get(name, name): value for name, value in good.items()}
    return Status(**fields, counted=_lenient(status.get("counted"), tuple[str, ...]))


def _lenient(given: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(given if given is not None else {}, kind)
    except (msgspec.ValidationError, RecursionError):
        return kind()


def _convert(given: object, kind: type[T], field: str) -> T:
    try:
        return msgspec.convert(given if given is not None else {}, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        why, at = located(error)
        raise Wrong(f"{field}.{at}" if at else field, why) from None


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _seconds(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
