"""The same life of a cluster (`simulation`), where most pods are members of PodGroups.

Each group has an owner who makes members anew, whatever became of them. Groups change, go and come
back; some must be in one rack. At no time is a gang bound in part; where binds fail or members die,
it does not stay so for longer than its time-out. In the end nobody waits for a place that is there.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import yaml
from msgspec import Struct

from bayplan.cli.manifests import render
from bayplan.kube.client import PODS, Client
from bayplan.kube.transport import ApiError
from bayplan.local.faults import Chances
from bayplan.scheduler.config import Configuration, Gangs
from bayplan.scheduler.service import Options, Service
from tests.fake import simulation
from tests.fake.simulation import Json, Simulation, told

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
LABEL, RACK = "scheduling.x-k8s.io/pod-group", "example.com/rack"
TIMEOUT_S, RESERVE_S = 20.0, 10.0
MOST_JOBS = 6
# From the time-out on until the last member is gone: a rest, an eviction, the node's grace.
SLACK_S = 90.0
CONFIG = Configuration(
    check_live_every=60.0, gangs=Gangs(timeout=TIMEOUT_S, reserve_after=RESERVE_S)
)


class Job(Struct):
    """What an owner wants."""

    name: str
    members: int
    minimum: int
    gpus: int
    seconds: int | None  # that a member runs
    within: bool
    made: int = 0
    exists: bool = True  # its PodGroup

    def group(self) -> Json:
        notes = {"bayplan.dev/gang-within": RACK} if self.within else {}
        return {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": self.name, "annotations": notes},
            "spec": {"minMember": self.minimum},
        }

    def member(self) -> Json:
        self.made += 1
        made = simulation.pod(f"{self.name}-{self.made}", self.gpus, self.seconds)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self.name}
        made["metadata"] |= {
            "labels": {LABEL: self.name},
            "ownerReferences": [owner | {"controller": True}],
        }
        return made


def service(client: Client) -> Service:
    return Service(CONFIG, Options(), client)


class Grouped(Simulation):
    def __init__(self, seed: int, steps: int = 50) -> None:
        super().__init__(seed, steps)
        self.make = service
        self.jobs: dict[str, Job] = {}
        self.made = 0
        self.started: set[str] = set()  # jobs that were bound, all that they need
        self.evicted = self.reservations = 0
        self.partial: dict[str, float] = {}  # by job: since when
        self.wrong: list[str] = []
        self._kept: set[str] = set()

    async def play(self) -> None:
        for definition in yaml.safe_load_all(render("crds", {})):
            await self._post(DEFINITIONS, definition)
        owners = asyncio.create_task(self._own(), name="owners")
        self._tasks.append(owners)
        await super().play()

    # ---- what happens

    async def _add_node(self) -> None:
        name = f"node-{len(self.nodes)}"
        self.nodes[name] = made = simulation.node(name, self.rng.choice((2, 4, 8)))
        made["metadata"]["labels"][RACK] = self.rng.choice("xy")
        await self.kubelets.add(made)

    async def _add_pods(self) -> None:
        if self.rng.random() < 0.35:
            gpus, seconds = self.rng.choice((1, 1, 2)), self.rng.choice((5, 20, 60))
            for _ in range(self.rng.randint(1, 4)):
                self.pods += 1
                await self._post(
                    PODS.path("default"), simulation.pod(f"s-{self.pods}", gpus, seconds)
                )
            return
        if len(self.jobs) >= MOST_JOBS:
            await self._end(next(iter(self.jobs.values())))
        self.made += 1
        members = self.rng.randint(2, 5)
        job = Job(
            f"job-{self.made}",
            members,
            self.rng.choice((members, members, self.rng.randint(1, members))),
            self.rng.choice((1, 1, 2, 4)),
            self.rng.choice((None, 20, 60)),
            within=self.rng.random() < 0.3,
        )
        self.jobs[job.name] = job
        if self.rng.random() < 0.8:
            await self._post(GROUPS, job.group())
        else:
            job.exists = False
        for _ in range(job.members):
            await self._post(PODS.path("default"), job.member())

    async def _delete_pod(self) -> None:
        what = self.rng.random()
        if what < 0.6 or not self.jobs:
            await super()._delete_pod()
            return
        job = self.jobs[self.rng.choice(sorted(self.jobs))]
        if what < 0.75:
            await self._end(job)
        elif what < 0.9:
            job.minimum = self.rng.randint(1, job.members)
            await self._patch(f"{GROUPS}/{job.name}", {"spec": {"minMember": job.minimum}})
        elif job.exists:
            job.exists = False
            await self.user.request("DELETE", f"{GROUPS}/{job.name}")
        else:
            await self._restore(job)

    async def _restore(self, job: Job) -> None:
        with suppress(ApiError):
            await self._post(GROUPS, job.group())
            job.exists = True

    async def _end(self, job: Job) -> None:
        """Its owner wants no more of it."""
        self.jobs.pop(job.name)
        for pod in self._members(job):
            with suppress(ApiError):
                await self.user.request("DELETE", PODS.path("default", pod["metadata"]["name"]))

    async def _own(self) -> None:
        """Owners make anew what is missing."""
        while True:
            await self.clock.sleep(1.0)
            for job in list(self.jobs.values()):
                for _ in range(job.members - len(self._members(job)) - self._done()[job.name]):
                    with suppress(ApiError):
                        await self._post(PODS.path("default"), job.member())
            self._watch()

    async def _make_peace(self) -> None:
        for job in self.jobs.values():
            if not job.exists and self.rng.random() < 0.5:
                await self._restore(job)
        await super()._make_peace()

    # ---- the judge

    def _members(self, job: Job) -> list[Json]:
        """Those that have not ended."""
        return [pod for pod in self._alive() if labels(pod).get(LABEL) == job.name]

    def _done(self) -> Counter[str]:
        """By job, members that have done their work."""
        pods = self.api.store.values("pods")
        done = (pod for pod in pods if pod["status"].get("phase") == "Succeeded")
        return Counter(labels(pod).get(LABEL, "") for pod in done)

    def _alive(self) -> Iterator[Json]:
        for pod in self.api.store.values("pods"):
            if pod["status"].get("phase") not in ("Succeeded", "Failed"):
                yield pod

    def _watch(self) -> None:
        """Once a second: who runs in part, and for how long."""
        now = self.clock.time()
        engine = self.process.service.engine if self.process is not None else None
        for owner in engine.nominations.awaited if engine else ():
            if owner not in self._kept:
                self._kept.add(owner)
                self.reservations += 1
        done, there = self._done(), self._done()
        waiting: Counter[str] = Counter()
        for pod in self._alive():
            name = labels(pod).get(LABEL, "")
            if not pod["spec"].get("nodeName"):
                waiting[name] += 1
            elif "deletionTimestamp" not in pod["metadata"]:
                there[name] += 1
        for job in self.jobs.values():
            runs = there[job.name] - done[job.name]
            short = there[job.name] < job.minimum
            in_part = job.exists and runs and short and waiting[job.name]
            if there[job.name] >= job.minimum:
                self.started.add(job.name)
            if not in_part or engine is None or not self._is_calm:
                self.partial.pop(job.name, None)
                continue
            since = self.partial.setdefault(job.name, now)
            if now - since > TIMEOUT_S + SLACK_S:
                self.partial[job.name] = now
                self.wrong.append(f"{job.name} ran in part for {now - since:.0f} s")

    @property
    def _is_calm(self) -> bool:
        return self.faults.chances == Chances()

    def judge(self) -> list[str]:
        words = [text for text in super().judge() if not self._is_of_group(text)]
        words = [text for text in words if not text.endswith(self.kept_on or ("nowhere",))]
        kept = [f"places are kept for {owner}" for owner in self.kept_at_the_end]
        return [
            *words,
            *self.wrong,
            *self._in_part(),
            *(kept if not self._somebody_waits() else ()),
        ]

    kept_at_the_end: tuple[str, ...] = ()
    kept_on: tuple[str, ...] = ()  # nodes

    def _look(self) -> None:
        super()._look()
        if self.process is not None:
            engine = self.process.service.engine
            self.kept_at_the_end = tuple(engine.nominations.awaited)
            rows = sorted(set(engine.cluster.holds.rows.values()))
            self.kept_on = tuple(engine.cluster.name(row) for row in rows)

    def _is_of_group(self, text: str) -> bool:
        """The checker does not know groups: it says of members that they would fit."""
        names = [
            pod["metadata"]["name"] for pod in self.api.store.values("pods") if LABEL in labels(pod)
        ]
        return any(f"{name} " in f"{text} " for name in names)

    def _somebody_waits(self) -> bool:
        return any(not pod["spec"].get("nodeName") for pod in self._alive())

    def _in_part(self) -> list[str]:
        """In the end."""
        found = []
        for job in self.jobs.values():
            pods = self._members(job)
            runs = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
            there = runs + self._done()[job.name]
            if job.exists and runs and there < job.minimum and runs < len(pods):
                found.append(f"{job.name}: {there} of {job.minimum} run, and others wait")
        return found


def labels(pod: Json) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def play(seed: int) -> Grouped:
    return told(seed, Grouped)
