"""Jobs whose pods are gangs, and everybody who gets in their way.

One thread is the owner of the jobs, which makes anew what is missing; the nodes, which start what
is bound and end what is deleted; and somebody else, who deletes pods, PodGroups and nodes and binds
members by hand. By hand only to nodes with a taint, where nobody else binds: so the room there is
never given twice.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager

from msgspec import Struct

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import Json
from tests.real.chaos.gangs import LABEL, RACK, WITHIN, Said, untrue
from tests.real.chaos.load import node, pod
from tests.real.chaos.session import Session

TURN_S = 0.1
STEP = 0.15  # the chance of a step in a turn
JOBS = 9  # at a time: more than there is room for
VAST = "vast"  # the first job, which never fits; one of its pods is always bound by hand
RACKS = {f"{rack}-{n}": rack for rack in "xy" for n in range(3)}
SIDES = {"side-x": "x", "side-y": "y", "side-z": "z"}  # with a taint
GPUS = 4  # of a node here
AWAY_S = 1.0  # that a deleted node is away
NODES = "/api/v1/nodes"
GPU = "nvidia.com/gpu"


def make_racks(plane: ControlPlane) -> None:
    for name in (*RACKS, *SIDES):
        plane.request("POST", NODES, racked(name))


def racked(name: str) -> Json:
    made = node(name, "any", tainted=name in SIDES)
    made["metadata"]["labels"] |= {RACK: RACKS.get(name) or SIDES[name]}
    for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
        amounts |= {GPU: str(GPUS), "pods": "110"}
    return made


class Job(Struct):
    name: str
    members: int
    minimum: int
    gpus: int
    within: bool = False
    made: int = 0
    exists: bool = True  # its PodGroup

    def group(self) -> Json:
        return {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": self.name, "annotations": {WITHIN: RACK} if self.within else {}},
            "spec": {"minMember": self.minimum},
        }

    def member(self) -> Json:
        self.made += 1
        made = pod(f"{self.name}-{self.made}", self.gpus, cpu="100m", memory="64Mi")
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self.name}
        made["metadata"] |= {
            "labels": {LABEL: self.name},
            "ownerReferences": [owner | {"controller": True}],
        }
        return made


class Jobs:
    """Runs inside a `with` block, in a thread; after `calm` nobody gets in the way any more."""

    def __init__(self, plane: ControlPlane, namespace: str, rng: random.Random) -> None:
        self._plane, self._rng = plane, rng
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._groups = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups"
        self.jobs: dict[str, Job] = {}
        self.said: list[Said] = []
        self.lost: dict[str, float] = {}  # by uid: when the pod's node was deleted
        self.needs_rack: set[str] = set()  # jobs, also those that are over
        self.done: Counter[str] = Counter()  # what was done, by its name
        self._count = 0
        self._away: dict[str, float] = {}  # nodes: when they come back
        self._calm, self._stopping = threading.Event(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def __enter__(self) -> "Jobs":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def calm(self) -> None:
        self._calm.set()
        self.check()

    def check(self) -> None:
        """Raises what went wrong in the thread."""
        if self._failure is not None:
            raise self._failure

    @property
    def is_calm(self) -> bool:
        """Nothing is to come from here but what the scheduler makes necessary."""
        return self._calm.is_set() and not self._away and all(j.exists for j in self.jobs.values())

    def wrong(self, plane: ControlPlane) -> list[str]:
        """Of their PodGroups, now."""
        self.check()
        pods = plane.request("GET", self._pods)["items"]
        return list(untrue(plane.request("GET", self._groups)["items"], pods))

    def _run(self) -> None:
        try:
            with self._session() as session:
                while not self._stopping.wait(TURN_S):
                    self._turn(session)
        except BaseException as error:
            self._failure = error

    @contextmanager
    def _session(self) -> Iterator["Asking"]:
        session = Session(self._plane)
        try:
            yield Asking(session)
        finally:
            session.close()

    def _turn(self, ask: "Asking") -> None:
        pods: list[Json] = ask("GET", self._pods)["items"]
        self._be_nodes(ask, pods)
        self._own(ask, pods)
        if self._calm.is_set():
            for job in self.jobs.values():
                self._restore(ask, job)
            return
        self._bind(ask, pods, "side-z", self.jobs.keys() - {VAST})
        if self._rng.random() < STEP:
            self._step(ask, pods)

    # ---- owner and nodes

    def _own(self, ask: "Asking", pods: list[Json]) -> None:
        if VAST not in self.jobs:
            self._add(ask, Job(VAST, members=8, minimum=8, gpus=GPUS))
        while len(self.jobs) < JOBS:
            self._begin(ask)
        there = Counter(labels(pod).get(LABEL) for pod in pods)
        for job in self.jobs.values():
            for _ in range(job.members - there[job.name]):
                ask("POST", self._pods, job.member())

    def _begin(self, ask: "Asking") -> None:
        rng = self._rng
        self._count += 1
        members = rng.randint(2, 5)
        minimum = rng.choice((members, members, rng.randint(2, members)))
        job = Job(f"job-{self._count}", members, minimum, rng.choice((1, 2, 2, 4)))
        job.within = rng.random() < 0.4
        self._add(ask, job)

    def _add(self, ask: "Asking", job: Job) -> None:
        self.jobs[job.name] = job
        if job.within:
            self.needs_rack.add(job.name)
        ask("POST", self._groups, job.group())
        self._say(job, job.minimum)

    def _be_nodes(self, ask: "Asking", pods: list[Json]) -> None:
        for name, until in list(self._away.items()):
            if time.monotonic() > until:
                del self._away[name]
                ask("POST", NODES, racked(name))
        for found in pods:
            place = found["spec"].get("nodeName")
            if place in self._away:
                self.lost.setdefault(found["metadata"]["uid"], self._away[place] - AWAY_S)
                self._end(ask, found)
            elif "deletionTimestamp" in found["metadata"]:
                self._end(ask, found)
            elif place and found["status"].get("phase") == "Pending":
                path = f"{self._pods}/{found['metadata']['name']}/status"
                ask("PATCH", path, {"status": {"phase": "Running"}})

    def _end(self, ask: "Asking", found: Json) -> None:
        ask("DELETE", f"{self._pods}/{found['metadata']['name']}?gracePeriodSeconds=0")

    def _say(self, job: Job, minimum: int) -> None:
        self.said.append(Said(time.monotonic(), job.name, minimum))

    # ---- somebody else

    def _step(self, ask: "Asking", pods: list[Json]) -> None:
        steps = {
            self._delete_member: 4,
            self._bind_by_hand: 5,
            self._delete_node: 2,
            self._delete_or_restore_group: 2,
            self._change_minimum: 1,
            self._end_job: 2,
        }
        (step,) = self._rng.choices(list(steps), list(steps.values()))
        if step(ask, pods):
            self.done[step.__name__.strip("_").replace("_", " ")] += 1

    def _delete_member(self, ask: "Asking", pods: list[Json]) -> bool:
        if not pods:
            return False
        grace = self._rng.choice(("?gracePeriodSeconds=0", ""))
        ask("DELETE", f"{self._pods}/{self._rng.choice(pods)['metadata']['name']}{grace}")
        return True

    def _bind_by_hand(self, ask: "Asking", pods: list[Json]) -> bool:
        """One that waits, and needs no rack: a hand that is not seen in time could tear a gang."""
        spared = {VAST, *self.needs_rack}
        return self._bind(ask, pods, self._rng.choice(("side-x", "side-y")), spared)

    def _bind(self, ask: "Asking", pods: list[Json], place: str, spared: Set[str]) -> bool:
        free = GPUS - sum(gpus(each) for each in pods if each["spec"].get("nodeName") == place)
        waiting = [
            found["metadata"]["name"]
            for found in pods
            if "nodeName" not in found["spec"]
            and labels(found)[LABEL] not in spared
            and gpus(found) <= free
        ]
        if not waiting:
            return False
        name = self._rng.choice(waiting)
        target = {"apiVersion": "v1", "kind": "Node", "name": place}
        ask("POST", f"{self._pods}/{name}/binding", {"metadata": {"name": name}, "target": target})
        return True

    def _delete_node(self, ask: "Asking", pods: list[Json]) -> bool:
        name = self._rng.choice(list(RACKS))
        if name in self._away:
            return False
        self._away[name] = time.monotonic() + AWAY_S
        ask("DELETE", f"{NODES}/{name}")
        return True

    def _delete_or_restore_group(self, ask: "Asking", pods: list[Json]) -> bool:
        job = self._any_job()
        if not job.exists:
            self._restore(ask, job)
            return True
        self._say(job, 0)  # before: how long it takes is the API server's
        ask("DELETE", f"{self._groups}/{job.name}")
        job.exists = False
        return True

    def _restore(self, ask: "Asking", job: Job) -> None:
        if not job.exists:
            ask("POST", self._groups, job.group())
            self._say(job, job.minimum)
            job.exists = True

    def _change_minimum(self, ask: "Asking", pods: list[Json]) -> bool:
        job = self._any_job()
        if not job.exists:
            return False
        job.minimum = self._rng.randint(1, job.members)
        ask("PATCH", f"{self._groups}/{job.name}", {"spec": {"minMember": job.minimum}})
        self._say(job, job.minimum)
        return True

    def _end_job(self, ask: "Asking", pods: list[Json]) -> bool:
        job = self._any_job()
        del self.jobs[job.name]
        self._say(job, 0)
        for found in pods:
            if labels(found).get(LABEL) == job.name:
                self._end(ask, found)
        if job.exists:
            ask("DELETE", f"{self._groups}/{job.name}")
        return True

    def _any_job(self) -> Job:
        """But the vast one."""
        return self._rng.choice([job for job in self.jobs.values() if job.name != VAST])


class Asking:
    """A session that minds what nobody expects. Whoever came too late (404, 409) has no answer."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, method: str, path: str, body: Json | None = None) -> Json:
        status, answer = self._session.request(method, path, body)
        assert status < 300 or status in (404, 409), f"{method} {path}: {status}: {answer}"
        found: Json = answer
        return found


def labels(found: Json) -> dict[str, str]:
    return found["metadata"].get("labels") or {}


def gpus(found: Json) -> int:
    return int(found["spec"]["containers"][0]["resources"]["limits"][GPU])
