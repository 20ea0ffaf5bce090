"""What the controller sees of elastic jobs and the cluster, and the steps that it can take.

Values only. A snapshot is what the API said; a step is one thing to ask of the API.
"""

from typing import Any, Literal

from msgspec import Struct

from bayplan.kube.elastic import HOROVOD, Grant, Job

State = Literal["waiting", "placed", "going", "lost", "succeeded", "failed"]


class Worker(Struct, frozen=True):
    """A pod of a job: a worker, or its launcher."""

    name: str
    uid: str
    index: int
    state: State  # lost: its node is no more
    node: str = ""
    ready: bool = False
    excused: bool = False  # it failed, but by no fault of its own
    waits_for: int = 0  # so many of the job start together, as it was made; 0: it does not say
    version: str = ""  # resourceVersion, of one that waits

    @property
    def lives(self) -> bool:
        return self.state in ("waiting", "placed")

    @property
    def takes(self) -> bool:
        """Whether a place is its, or meant for it."""
        return self.lives or (self.state == "going" and bool(self.node))


class Seen(Struct, frozen=True):
    job: Job
    workers: tuple[Worker, ...] = ()
    launcher: Worker | None = None
    replicas: int | None = None  # that a StatefulSet was told; None: there is none
    report: str = ""  # its throughput, as a worker tells it
    launched: Literal["", "Running", "Complete", "Failed"] = ""  # a launcher that is a Job
    lacks: bool = False  # a service or group that belongs to a StatefulSet

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lives]

    @property
    def placed(self) -> int:
        return sum(worker.state == "placed" for worker in self.workers)

    @property
    def ready(self) -> int:
        return sum(worker.state == "placed" and worker.ready for worker in self.workers)

    @property
    def used(self) -> int:
        """Places that pods take, pods that a StatefulSet is about to make among them."""
        return max(sum(worker.takes for worker in self.workers), self.replicas or 0)

    @property
    def kept(self) -> int:
        """Places that are kept for it, whoever granted them: those that the scheduler found."""
        grant, confirmed = self.job.grant, self.job.confirmed
        answered = confirmed.generation == grant.generation
        return max(min(grant.places, confirmed.workers) if answered else grant.places, self.used)

    @property
    def is_horovod(self) -> bool:
        return self.job.kind == HOROVOD

    @property
    def is_settled(self) -> bool:
        """Whether the scheduler has a place for every worker that was granted."""
        grant, confirmed = self.job.grant, self.job.confirmed
        if grant.workers == 0:
            return True
        return confirmed.generation == grant.generation and confirmed.workers >= grant.workers


class Snapshot(Struct, frozen=True):
    jobs: tuple[Seen, ...]
    capacity: dict[str, dict[str, int]]  # by resource, by node: what is not others'
    at: str = ""  # when, by the wall clock


# Steps


class Write(Struct, frozen=True):
    """A job's status: its grant, other fields, or both; refused if the job has changed since."""

    job: Job
    grant: Grant | None = None
    fields: dict[str, Any] = {}


class MakeWorkers(Struct, frozen=True):
    """Pods, after another look whether the job's grant is still this one, and confirmed."""

    job: Job
    indices: tuple[int, ...]
    together: bool = True  # none of its others runs yet


class RemovePods(Struct, frozen=True):
    job: Job
    pods: tuple[Worker, ...]
    unchanged: bool = False  # none that has been bound since it was seen


class Scale(Struct, frozen=True):
    """A StatefulSet and what belongs to it; more replicas only after another look, as above."""

    job: Job
    replicas: int


class MakeLauncher(Struct, frozen=True):
    job: Job


class TearDown(Struct, frozen=True):
    """A StatefulSet and its service, of a job that is over."""

    job: Job


Step = Write | MakeWorkers | RemovePods | Scale | MakeLauncher | TearDown
