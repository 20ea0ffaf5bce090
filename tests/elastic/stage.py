"""A cluster on virtual time for elastic jobs: the embedded API, pretend nodes, the controller as a
process that can be killed, and a stand-in for the scheduler's side of grants.

The stand-in keeps places as the protocol says, and nothing else: no gangs, no scores. Every write
of the controller is judged by what stands in the API at that moment (`Judge`).
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import yaml

from bayplan.cli.manifests import render
from bayplan.elastic.controller import Controller
from bayplan.elastic.planner import Settings
from bayplan.kube.client import PODS, Client
from bayplan.kube.elastic import GENERAL, HOROVOD, RESOURCES, Job, read_job
from bayplan.kube.lease import Lease, LeaseConfig
from bayplan.kube.transport import (
    MERGE_PATCH,
    ApiError,
    BeforeSend,
    Response,
    TransportError,
)
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.faults import Faults
from bayplan.local.kubelets import Kubelets
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from tests.fake.simulation import Cut

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CYCLE_S, LOOK_S = 0.2, 5.0
ENDS = ("Finishing", "Complete", "Failed")


def node(name: str, gpus: int) -> Json:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def template(gpus: int = 1, seconds: int | None = None) -> Json:
    notes = {} if seconds is None else {"bayplan.dev/run-seconds": str(seconds)}
    container = {"name": "main", "image": "train", "resources": {"limits": {GPU: gpus}}}
    return {
        "metadata": {"annotations": notes},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


def elastic(name: str, least: int, most: int, gpus: int = 1, **spec: Any) -> Json:
    return {
        "apiVersion": "bayplan.dev/v1alpha1",
        "kind": GENERAL,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minWorkers": least, "maxWorkers": most, "template": template(gpus), **spec},
    }


def horovod(name: str, least: int, most: int, target: int | None = None) -> Json:
    workers: Json = {"image": "demo", "minReplicas": least, "maxReplicas": most}
    if target is not None:
        workers["targetReplicas"] = target
    command = ["python", "/examples/train.py --epochs=10"]
    return {
        "apiVersion": "ai.centauruscloud.io/v1alpha1",
        "kind": HOROVOD,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "launcherSpec": {"image": "demo", "pythonCommand": command},
            "workersSpec": workers,
        },
    }


class Judge(Cut):
    """A transport of the controller that looks at each write, and can be cut off after the nth."""

    def __init__(self, inner: DirectTransport, api: Api, live: int | None) -> None:
        super().__init__(inner)
        self._api, self._left = api, live
        self.died = asyncio.Event()
        self.writes: list[str] = []
        self._looked: dict[str, Job] = {}  # ElasticJobs as they were last asked for
        self.wrong: list[str] = []

    async def request(
        self, method: str, path: str, *, before_send: BeforeSend | None = None, **more: Any
    ) -> Response:
        def check() -> None:
            if before_send is not None:
                before_send()
            if method == "POST" and path.endswith("/pods"):
                self._judge_pod(json.loads(more["body"]))
            if method == "PATCH" and path.endswith("/status"):
                self._judge_grant(path, json.loads(more["body"]))

        answer = await super().request(method, path, before_send=check, **more)
        if method == "GET" and "/elasticjobs/" in path and answer.status == 200:
            self._looked[path.split("/")[-1]] = read_job(GENERAL, json.loads(answer.body))
        if method != "GET" and "/leases" not in path and "/events.k8s.io/" not in path:
            self.writes.append(f"{method} {path} {answer.status}")
            if self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    self.dead = True
                    self.died.set()
                    raise TransportError("the process is dead", sent=True)
        return answer

    def _judge_pod(self, pod: Json) -> None:
        """A worker is made only under a confirmed grant, and within it."""
        about = pod["metadata"]
        name = about["annotations"].get("bayplan.dev/elastic")
        if name is None:
            return
        job, looked = found(self._api, GENERAL, name), self._looked.get(name)
        if job is None:
            return  # gone since the writer looked; what it makes goes with it
        if looked is None or looked.grant != job.grant:
            self.wrong.append(f"{about['name']}: made without a look at the grant")
            return
        job = looked  # a place may be lost in between: a node dies
        workers = [
            each
            for each in self._api.store.values("pods")
            if (each["metadata"].get("annotations") or {}).get("bayplan.dev/elastic") == name
            and each["status"].get("phase") not in ("Succeeded", "Failed")
            and each["metadata"]["name"] != about["name"]
        ]
        if job.confirmed.generation != job.grant.generation:
            self.wrong.append(f"{about['name']}: made under a grant that is not confirmed")
        if len(workers) + 1 > min(job.grant.places, job.confirmed.workers):
            self.wrong.append(f"{about['name']}: one too many for {job.grant}, {job.confirmed}")

    def _judge_grant(self, path: str, body: Json) -> None:
        """What would be written, if the job is still what the writer believes."""
        kind = next(kind for kind, each in RESOURCES.items() if f"/{each.plural}/" in path)
        job, grant = found(self._api, kind, path.split("/")[-2]), body["status"].get("grant")
        if job is None or grant is None or job.version != body["metadata"]["resourceVersion"]:
            return
        said, workers = f"{job.key}: {job.grant} to {grant}", grant["workers"]
        most = job.maximum if job.fixed is None else min(job.fixed, job.maximum)
        least = job.minimum if job.fixed is None else most
        if grant["generation"] != job.grant.generation + 1:
            self.wrong.append(f"{said}: not the next generation")
        if workers > most and workers >= job.grant.workers:
            self.wrong.append(f"{said}: more than {most}")
        ends = body["status"].get("phase", job.said.get("phase")) in ENDS
        known = job.confirmed.generation == job.grant.generation
        short = not known or job.confirmed.workers < job.grant.workers
        grows = workers > job.grant.workers > 0
        if 0 < workers < least and not (short or grows or ends or workers == job.grant.workers):
            self.wrong.append(f"{said}: less than {least}")


class StandIn:
    """Keeps places for grants, confirms them, binds pods: workers to their places first."""

    def __init__(self, client: Client, api: Api) -> None:
        self._client, self._api = client, api
        self.holds: dict[str, list[str]] = {}  # by job: nodes
        self.serves = True
        self.overtaken: list[str] = []  # workers that waited without a place, though granted
        self._waited: Counter[str] = Counter()

    async def run(self) -> None:
        """A cycle when something has changed, a moment later."""
        changed = asyncio.Event()
        stores = [f"{each.plural}.{each.group}" for each in RESOURCES.values()]
        for store in ("nodes", "pods", *stores):
            self._api.store.listen(store, changed.set)
        while True:
            with suppress(TimeoutError):
                async with self._client.clock.timeout(LOOK_S):
                    await changed.wait()
            await self._client.clock.sleep(CYCLE_S)
            changed.clear()
            if self.serves:
                with suppress(ApiError):
                    await self.cycle()

    async def cycle(self) -> None:
        nodes = {
            each["metadata"]["name"]: int(each["status"]["allocatable"].get(GPU, 0))
            for each in self._api.store.values("nodes")
            if not (each.get("spec") or {}).get("unschedulable")
        }
        pods = [
            each
            for each in self._api.store.values("pods")
            if each["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        free = Counter(nodes)
        for pod in pods:
            if pod["spec"].get("nodeName") in nodes:
                free[pod["spec"]["nodeName"]] -= gpus_of(pod)
        jobs = sorted(all_jobs(self._api), key=lambda job: (job.arrival, job.key))
        on = {job.key: self._on_nodes(job, pods, nodes) for job in jobs}
        self._trim(jobs, on, nodes)
        for job in jobs:
            for name in self.holds.get(job.key, ()):
                free[name] -= job.counted[1]
        for job in jobs:
            self._fill(job, on[job.key], free)
            await self._confirm(job, on[job.key])
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
            if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                await self._place(pod, jobs, free)

    def _on_nodes(self, job: Job, pods: list[Json], nodes: dict[str, int]) -> int:
        return sum(mark(pod) == job.key and pod["spec"].get("nodeName") in nodes for pod in pods)

    def _trim(self, jobs: list[Job], on: dict[str, int], nodes: dict[str, int]) -> None:
        keys = {job.key for job in jobs}
        self.holds = {key: held for key, held in self.holds.items() if key in keys}
        for job in jobs:
            held = [name for name in self.holds.get(job.key, []) if name in nodes]
            if job.key not in self.holds:  # after a restart
                kept = (job.said.get("confirmed") or {}).get("kept") or []
                held = [each["node"] for each in kept for _ in range(each["workers"])]
                held = [name for name in held if name in nodes]
            self.holds[job.key] = held[: max(job.grant.places - on[job.key], 0)]

    def _fill(self, job: Job, on: int, free: Counter[str]) -> None:
        held = self.holds[job.key]
        for name in sorted(free):
            while len(held) < job.grant.places - on and free[name] >= job.counted[1]:
                held.append(name)
                free[name] -= job.counted[1]

    async def _confirm(self, job: Job, on: int) -> None:
        held = self.holds[job.key]
        workers = min(job.grant.places, on + len(held))
        short = job.grant.places - workers
        said: Json = {
            "generation": job.grant.generation,
            "workers": workers,
            "kept": [{"node": name, "workers": many} for name, many in Counter(held).items()],
            "message": f"no room for {short} more" if short else "",
        }
        before = job.said.get("confirmed") or {}
        if not job.grant.generation or said == before:
            return
        body = {"status": {"confirmed": said}}
        await patch(self._client, RESOURCES[job.kind].path("default", job.name, "status"), body)

    async def _place(self, pod: Json, jobs: list[Job], free: Counter[str]) -> None:
        name, key = pod["metadata"]["name"], mark(pod)
        target = ""
        if key:
            held = self.holds.get(key) or []
            target = held.pop(0) if held else ""
            self._waited[name] = 0 if target else self._waited[name] + 1
            if self._waited[name] == 5:
                self.overtaken.append(name)
        if not target and not key:
            fitting = [each for each in sorted(free) if free[each] >= gpus_of(pod)]
            target = fitting[0] if fitting else ""
            free[target] -= gpus_of(pod)
        if target:
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": target},
            }
            path = PODS.path("default", name, "binding")
            await self._client.request("POST", path, body=msgspec.json.encode(body))


class Process:
    def __init__(self, stage: "Stage", live: int | None, settings: Settings) -> None:
        self.judge = Judge(DirectTransport(stage.api, stage.clock, stage.faults), stage.api, live)
        client = Client(self.judge, stage.clock, stage.rng)
        lease = None
        if stage.elects:
            stage.elected += 1
            config = LeaseConfig("kube-system", "bayplan-elastic", f"replica-{stage.elected}")
            lease = Lease(client, config)
        self.controller = Controller(client, settings, lease)
        self.task = asyncio.create_task(self.controller.run(), name="elastic controller")

    async def kill(self) -> None:
        self.judge.dead = True
        self.task.cancel()
        with suppress(asyncio.CancelledError, TransportError):
            await self.task


class Stage:
    def __init__(self, settings: Settings | None = None, **gpus: int) -> None:
        self.rng, self.clock = random.Random(0), VirtualClock()
        self.settings = settings or Settings()
        self.api = Api(self.clock, random.Random(0))
        self.faults = Faults(rng=random.Random(0))
        self.user = Client(DirectTransport(self.api, self.clock), self.clock, self.rng)
        nodes = [node(name.replace("_", "-"), many) for name, many in gpus.items()]
        self.kubelets = Kubelets(self.user, nodes, self.rng)
        self.standin = StandIn(self.user, self.api)
        self.process: Process | None = None
        self.judges: list[Judge] = []
        self.elects, self.elected = False, 0  # whether processes hold a lease; how many there were
        self._tasks: list[asyncio.Task[None]] = []

    async def play(self, story: "Story") -> None:
        for definition in yaml.safe_load_all(render("elastic-crds", {})):
            await self.post(DEFINITIONS, definition)
        runs = (self.kubelets.run(), self.standin.run(), Controllers(self.api).run())
        self._tasks = [asyncio.create_task(each) for each in runs]
        await self.kubelets.registered.wait()
        self.start()
        try:
            await story(self)
            if self.process is not None:
                await self.process.kill()
            assert not self.wrong(), self.wrong()
            assert self.api.crashes == 0
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def wrong(self) -> list[str]:
        return [words for judge in self.judges for words in judge.wrong]

    def start(self, live: int | None = None) -> Process:
        self.process = Process(self, live, self.settings)
        self.judges.append(self.process.judge)
        return self.process

    async def kill(self) -> None:
        assert self.process is not None
        await self.process.kill()
        self.process = None

    # ---- what users do and see

    async def post(self, path: str, body: Json) -> None:
        await self.user.request("POST", path, body=msgspec.json.encode(body))

    async def submit(self, job: Json) -> None:
        await self.post(RESOURCES[job["kind"]].path("default"), job)

    async def change(self, name: str, spec: Json, kind: str = GENERAL) -> None:
        await patch(self.user, RESOURCES[kind].path("default", name), {"spec": spec})

    async def remove(self, name: str, kind: str = GENERAL) -> None:
        await self.user.request("DELETE", RESOURCES[kind].path("default", name))

    async def pod(self, name: str, gpus: int) -> None:
        spec = template(gpus)["spec"]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.post(PODS.path("default"), body)

    async def end_pod(self, name: str, phase: str, reason: str = "") -> None:
        """What its kubelet would say, which then counts it no more."""
        self.kubelets._running.discard(self.objects("pods")[name]["metadata"]["uid"])
        status = {"phase": phase, "reason": reason, "conditions": None}
        await patch(self.user, PODS.path("default", name, "status"), {"status": status})

    async def pass_time(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    def job(self, name: str, kind: str = GENERAL) -> Job:
        job = found(self.api, kind, name)
        assert job is not None
        return job

    def workers(self) -> dict[str, int]:
        """Workers that run, by job."""
        counts = Counter(
            (pod["metadata"].get("annotations") or {}).get("bayplan.dev/elastic")
            for pod in self.api.store.values("pods")
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        )
        return {str(name): many for name, many in counts.items() if name}

    def pods(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.api.store.values("pods"))

    def objects(self, kind: str) -> dict[str, Json]:
        return {each["metadata"]["name"]: each for each in self.api.store.values(kind)}


Story = Callable[[Stage], Awaitable[None]]


def play(story: Story, settings: Settings | None = None, **gpus: int) -> None:
    """A story, from its beginning to its end, and that nothing went wrong in it."""

    async def whole() -> None:
        await Stage(settings, **gpus).play(story)

    run(whole())


async def patch(client: Client, path: str, body: Json) -> None:
    content = msgspec.json.encode(body)
    await client.request("PATCH", path, body=content, content_type=MERGE_PATCH)


def gpus_of(pod: Json) -> int:
    containers = pod["spec"]["containers"]
    return sum(
        int(((each.get("resources") or {}).get("requests") or {}).get(GPU, 0))
        for each in containers
    )


def mark(pod: Json) -> str:
    """The key of the job that it is a worker of."""
    name = (pod["metadata"].get("annotations") or {}).get("bayplan.dev/elastic")
    if not name:
        return ""
    _, slash, horovod_name = name.partition("/")
    return f"{HOROVOD} default/{horovod_name}" if slash else f"{GENERAL} default/{name}"


def all_jobs(api: Api) -> list[Job]:
    return [
        read_job(kind, value)
        for kind, resource in RESOURCES.items()
        for value in api.store.values(f"{resource.plural}.{resource.group}")
    ]


def found(api: Api, kind: str, name: str) -> Job | None:
    return next((job for job in all_jobs(api) if (job.kind, job.name) == (kind, name)), None)
