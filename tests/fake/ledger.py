"""What elastic jobs were told and what became of it, by nothing but what the API showed.

Hears every change of pods, nodes and elastic jobs when it is made. A place that a job was told of
is nobody else's: before and after every bind all such places fit together into what is free on
nodes that take pods. It is naive, knows GPUs only (one or two a worker), and shares no code with
scheduler and controller.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from bayplan.local.api import Api
from bayplan.local.virtual import VirtualClock

Json = dict[str, Any]
Hear = Callable[[Json, bool], None]

GPU = "nvidia.com/gpu"
STORES = {
    "ElasticJob": "elasticjobs.bayplan.dev",
    "ElasticHorovodJob": "elastichorovodjobs.ai.centauruscloud.io",
}
# After a node was lost places are looked for anew, and binds that were on their way still arrive.
GRACE_S = 60.0
LAG_S = 90.0  # that one side may be behind the other: a watch rests for a minute after a storm
NEVER = float("-inf")


class PodSeen(Struct, frozen=True):
    name: str
    job: str  # its key, of a worker
    node: str
    gpus: int
    ended: bool
    going: bool
    preempted: bool
    born: float
    priority: int = 0
    nominated: str = ""  # the node that it was told to wait for
    nominated_at: float = NEVER

    @property
    def lives(self) -> bool:
        return not (self.ended or self.going)


class JobSeen(Struct):
    key: str
    minimum: int
    maximum: int
    gpus: int  # of a worker
    suspended: bool = False
    phase: str = ""
    generation: int = 0
    workers: int = 0
    passing: int = 0
    confirmed: int = 0  # places
    confirmed_generation: int = 0
    least: int = 0  # places granted at any time since the generation that was confirmed
    taken: list[float] = []  # when more important pods took places of its
    granted: list[tuple[float, int]] = []  # when, and how many places
    told: list[tuple[float, int]] = []  # when, and how many places
    spec_at: float = NEVER
    ended_at: float = NEVER  # a worker was done: nobody is made in its place

    @property
    def preempted_at(self) -> float:
        return self.taken[-1] if self.taken else NEVER

    @property
    def lost(self) -> int:
        """Places that were taken, and of which the scheduler may not have known when it spoke."""
        since = (self.told[-1][0] if self.told else 0.0) - LAG_S
        return sum(at > since for at in self.taken)

    @property
    def is_over(self) -> bool:
        return self.phase in ("Complete", "Failed")


class Ledger:
    def __init__(self, api: Api, clock: VirtualClock) -> None:
        self._api, self._clock = api, clock
        self.pods: dict[str, PodSeen] = {}  # by uid
        self.jobs: dict[str, JobSeen] = {}  # by key
        self.nodes: dict[str, int] = {}  # GPUs of those that take pods
        self._living: set[str] = set()  # names of all nodes
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.harmed_at = NEVER  # a node was lost, closed or shrunk
        self.event_at = NEVER  # anything that may ask for other sizes
        self.sized_at = NEVER  # a job's workers became more or fewer
        self._left: list[tuple[float, PodSeen]] = []  # workers that went by themselves, and when
        self._read: dict[str, int] = {}

    def listen(self) -> list[Callable[[], None]]:
        """What ends it."""
        stops = []
        hearers: dict[str, Hear] = {"pods": self._pod, "nodes": self._node}
        hearers |= {store: self._job_hearer(kind) for kind, store in STORES.items()}
        for store, hear in hearers.items():
            self._read[store] = self._api.store.log(store).end
            stops.append(self._api.store.listen(store, self._reader(store, hear)))
        return stops

    def _reader(self, store: str, hear: Callable[[Json, bool], None]) -> Callable[[], None]:
        def read() -> None:
            log = self._api.store.log(store)
            for change in log.changes[self._read[store] - log.first :]:
                hear(change.last.value, change.after is None)
            self._read[store] = log.end

        return read

    @property
    def now(self) -> float:
        return self._clock.time()

    def blame(self, words: str) -> None:
        self.wrong.append(f"{self.now:.1f} s: {words}")

    def _event(self) -> None:
        self.event_at = self.now
        self.counts["events"] += 1

    # ---- nodes

    def _node(self, value: Json, gone: bool) -> None:
        name, spec = value["metadata"]["name"], value.get("spec") or {}
        taken = [
            taint for taint in spec.get("taints") or () if taint["effect"] != "PreferNoSchedule"
        ]
        gpus = int(value["status"]["allocatable"].get(GPU, 0))
        open_ = not (gone or spec.get("unschedulable") or taken)
        before = self.nodes.get(name)
        (self._living.discard if gone else self._living.add)(name)
        if open_:
            self.nodes[name] = gpus
        else:
            self.nodes.pop(name, None)
        if before != self.nodes.get(name):
            self._event()
        if before is not None and not open_:
            self.harmed_at = self.now
            self.counts["nodes lost or closed"] += 1

    # ---- jobs

    def _job_hearer(self, kind: str) -> Callable[[Json, bool], None]:
        def hear(value: Json, gone: bool) -> None:
            about = value["metadata"]
            key = f"{kind} {about['namespace']}/{about['name']}"
            if gone:
                self.jobs.pop(key, None)
                self._event()
                return
            job = self.jobs.get(key)
            if job is None:
                self._event()
                job = self.jobs[key] = JobSeen(key, 0, 0, 1)
            self._spec(job, value["spec"])
            self._status(job, value.get("status") or {})

        return hear

    def _spec(self, job: JobSeen, spec: Json) -> None:
        before = job.minimum, job.maximum, job.suspended
        if "workersSpec" in spec:
            workers = spec["workersSpec"]
            job.minimum, job.maximum = workers["minReplicas"], workers["maxReplicas"]
            if workers.get("targetReplicas") is not None:
                job.minimum = job.maximum = min(workers["targetReplicas"], job.maximum)
        else:
            job.minimum, job.maximum = spec["minWorkers"], spec["maxWorkers"]
            job.suspended = bool(spec.get("suspend"))
            job.gpus = gpus_of(spec["template"]["spec"])
        if before != (job.minimum, job.maximum, job.suspended):
            job.spec_at = self.now
            self._event()

    def _status(self, job: JobSeen, status: Json) -> None:
        if job.phase != status.get("phase", ""):
            job.phase = status.get("phase", "")
            if job.is_over:
                self._event()
        grant, said = status.get("grant") or {}, status.get("confirmed") or {}
        if grant.get("generation", 0) != job.generation:
            self._granted(job, grant)
        if (said.get("generation", 0), said.get("workers", 0)) != (
            job.confirmed_generation,
            job.confirmed,
        ):
            job.confirmed_generation, job.confirmed = said["generation"], said["workers"]
            if job.confirmed_generation == job.generation:
                job.least = job.workers + job.passing
            job.told.append((self.now, job.confirmed))

    def _granted(self, job: JobSeen, grant: Json) -> None:
        """A status is written for the spec that stands beside it."""
        if grant["generation"] != job.generation + 1:
            self.blame(f"{job.key}: generation {grant['generation']} after {job.generation}")
        before = job.workers
        job.generation, job.workers, job.passing = (
            grant["generation"],
            grant["workers"],
            grant["passing"],
        )
        if grant["counts"].get(GPU, 0) != (job.workers + job.passing) * job.gpus:
            self.blame(f"{job.key}: the counts of {grant} are not those of its workers")
        job.least = min(job.least, job.workers + job.passing)
        job.granted.append((self.now, job.workers + job.passing))
        self.counts["grants"] += 1
        self.counts["passed"] += bool(job.passing)
        self.counts["grown"] += job.workers > before > 0
        self.counts["shrunk"] += 0 < job.workers < before
        if job.workers > max(job.maximum, before):
            self.blame(
                f"{job.key}: granted {job.workers}, and its greatest number is {job.maximum}"
            )
        cut = 0 < job.workers < min(before, job.minimum)
        if cut and not self._has_cause(job):
            self.blame(f"{job.key}: cut from {before} to {job.workers}, below {job.minimum}")
        self.counts["below minimum"] += cut

    def _has_cause(self, job: JobSeen) -> bool:
        """Why it may have less than its least number."""
        since = max(self.harmed_at, job.preempted_at, job.spec_at, job.ended_at)
        return self.now - since < 10 * GRACE_S

    # ---- pods

    def _pod(self, value: Json, gone: bool) -> None:
        uid = value["metadata"]["uid"]
        before = self.pods.get(uid)
        pod = read_pod(value, self.now, before)
        fits = self.promises_fit()
        if gone:
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
        if before is None and pod.job and not gone:
            self._made(pod)
        self._lost(before, pod, gone)
        if not pod.job and (before is None or gone or before.node != pod.node or pod.ended):
            self._event()
        if pod.job and (before is None or gone or before.lives != pod.lives):
            self.sized_at = self.now
            if pod.ended:
                self._event()
                if (job := self.jobs.get(pod.job)) is not None:
                    job.ended_at = self.now
        if pod.node and (before is None or not before.node) and not gone:
            self.counts["binds"] += 1
            if before is not None and fits and not self.promises_fit():
                self._taken_over(before, pod.node)
            if fits and not self.promises_fit() and self.now - self.harmed_at > GRACE_S:
                self.blame(f"{pod.name} on {pod.node} has a place that was promised: {self.tell()}")

    def _lost(self, before: PodSeen | None, pod: PodSeen, gone: bool) -> None:
        """A more important pod has a worker's place now."""
        job = self.jobs.get(pod.job)
        over = before is not None and not before.ended and (gone or pod.ended)
        if job is not None and over and pod.preempted:  # perhaps on its way to its node
            self._taken(job)
        elif job is not None and gone and pod.node and not pod.ended:
            self._left.append((self.now, pod))

    def _taken(self, job: JobSeen) -> None:
        job.taken.append(self.now)
        self._event()
        self.counts["workers preempted"] += 1

    def _taken_over(self, pod: PodSeen, node: str) -> None:
        """It was to preempt workers that had gone by themselves a moment before: a scheduler that
        had read them alive gave it their places, as it may, and they bear no sign of that. Only its
        own nomination does. No more of them are taken for granted than it needs."""
        if pod.nominated != node:
            return
        needed = pod.gpus
        for left in list(self._left):
            (at, worker), job = left, self.jobs.get(left[1].job)
            is_late = worker.node == node and 0 <= pod.nominated_at - at < LAG_S
            if not is_late or worker.priority >= pod.priority or job is None:
                continue
            if needed <= 0 or self.promises_fit():
                return
            self._left.remove(left)
            needed -= worker.gpus
            self._taken(job)

    def _made(self, pod: PodSeen) -> None:
        """Never more than were granted, nor than had a place."""
        job = self.jobs.get(pod.job)
        if job is None:
            return  # it has just been deleted
        self.counts["workers made"] += 1
        living = sum(other.lives for other in self.pods.values() if other.job == pod.job)
        granted, told = (self._most(history) for history in (job.granted, job.told))
        if living > granted:
            self.blame(f"{pod.name}: {living} workers, and {granted} were granted")
        if living > told and job.key.startswith("ElasticJob "):  # a StatefulSet asks nobody
            self.blame(f"{pod.name}: {living} workers, and {told} have a place")

    def _most(self, history: list[tuple[float, int]]) -> int:
        """Of what was said in the last while."""
        late = [number for at, number in history if at > self.now - LAG_S]
        return max([*(number for _, number in history[-len(late) - 1 :])], default=0)

    # ---- promises

    def on_nodes(self, key: str) -> int:
        return sum(
            pod.job == key and pod.node in self._living and not pod.ended
            for pod in self.pods.values()
        )

    def promised(self, job: JobSeen) -> int:
        """Places that it was told of, and that no pod of its has yet."""
        return max(min(job.confirmed, job.least) - job.lost - self.on_nodes(job.key), 0)

    def free(self) -> dict[str, int]:
        free = dict(self.nodes)
        for pod in self.pods.values():
            if pod.node in free and not pod.ended:
                free[pod.node] -= pod.gpus
        return free

    def promises_fit(self) -> bool:
        places = [(job.gpus, self.promised(job)) for job in self.jobs.values()]
        return fit(places, self.free().values())

    def tell(self) -> str:
        jobs = "; ".join(
            f"{job.key} {job.workers}+{job.passing} told {job.confirmed} owed {self.promised(job)}"
            for job in self.jobs.values()
        )
        return f"{jobs}; free {self.free()}"

    def living(self, key: str) -> list[PodSeen]:
        return [pod for pod in self.pods.values() if pod.job == key and pod.lives]

    def waiting(self) -> Iterator[tuple[PodSeen, JobSeen]]:
        """Workers for whom there is a place, and who are not there."""
        for pod in self.pods.values():
            job = self.jobs.get(pod.job)
            if (
                job is None
                or pod.node
                or not pod.lives
                or job.confirmed_generation != job.generation
            ):
                continue
            if len(self.living(pod.job)) <= min(job.confirmed - job.lost, job.workers):
                yield pod, job


def fit(places: Iterable[tuple[int, int]], free: Iterable[int]) -> bool:
    """Whether so many of one or two GPUs each fit beside each other."""
    room = [max(gpus, 0) for gpus in free]
    wanted = Counter[int]()
    for gpus, count in places:
        wanted[gpus] += count
    ones, twos = wanted[1], wanted[2]
    return sum(gpus // 2 for gpus in room) >= twos and sum(room) - 2 * twos >= ones


def gpus_of(spec: Json) -> int:
    each = [(container.get("resources") or {}) for container in spec["containers"]]
    return sum(int((part.get("limits") or part.get("requests") or {}).get(GPU, 0)) for part in each)


def read_pod(value: Json, now: float, before: PodSeen | None = None) -> PodSeen:
    about, status = value["metadata"], value.get("status") or {}
    nominated = status.get("nominatedNodeName") or ""
    said = {each["type"]: each for each in status.get("conditions") or ()}
    return PodSeen(
        about["name"],
        job_of((about.get("annotations") or {}).get("bayplan.dev/elastic", ""), about["namespace"]),
        value["spec"].get("nodeName", ""),
        gpus_of(value["spec"]),
        status.get("phase") in ("Succeeded", "Failed"),
        "deletionTimestamp" in about,
        said.get("DisruptionTarget", {}).get("reason") == "PreemptionByScheduler",
        before.born if before is not None else now,
        value["spec"].get("priority") or 0,
        nominated,
        before.nominated_at if before is not None and before.nominated == nominated else now,
    )


def job_of(mark: str, namespace: str) -> str:
    if not mark:
        return ""
    kind, slash, name = mark.rpartition("/")
    assert not slash or kind == "elastichorovodjob", mark
    return f"{'ElasticHorovodJob' if slash else 'ElasticJob'} {namespace}/{name}"
