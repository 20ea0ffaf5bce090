"""The same life of a cluster (`simulation`), with elastic jobs of both kinds and their controller.

Jobs arrive, end, change and go; ordinary pods of any priority want the same GPUs; scheduler and
controller, one of each or two that take turns, are killed, the controller after any one write. A
`Ledger` judges every change. Then nothing happens any more: sizes must stop changing, whoever can
run does, and nothing is kept for anybody.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import yaml

from bayplan.cli.manifests import render
from bayplan.elastic.controller import Controller
from bayplan.elastic.planner import Settings
from bayplan.elastic.sizes import Policy
from bayplan.kube.client import PODS, Client
from bayplan.kube.elastic import GENERAL, HOROVOD, RESOURCES, horovod_names
from bayplan.kube.lease import Lease, LeaseConfig
from bayplan.kube.transport import ApiError, TransportError
from bayplan.local.controllers import Controllers
from bayplan.local.faults import Chances
from bayplan.local.transport import DirectTransport
from bayplan.scheduler.config import Configuration, LeaderElection
from bayplan.scheduler.service import Options, Service
from tests.fake import simulation
from tests.fake.ledger import JobSeen, Ledger, fit
from tests.fake.preempting import CLASS_PATH, CLASSES
from tests.fake.simulation import Cut, Json, Lawyer, Simulation, told
from tests.real.apicheck import (
    Change,
    bound_more_than_once,
    not_as_listed,
    read_node,
    read_pod,
    too_full,
    waiting_for_less,
    waiting_that_fit,
    waiting_without_a_word,
)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STORM_S, CALM_S = 150.0, 150.0
# Where nodes refused pods: as `simulation`, and the longest back-off of a job that asked in vain.
PEACE_S = 3_000.0
LAST_S = 300.0  # no pod runs longer: when nothing has happened for so long, nothing will
QUIET_S = 600.0  # at the end, in which nothing may change
SETTLE_S = 180.0
WAIT_S = 20.0  # a worker for its place, in calm: more than the longest rest of a refused pod
REST_S = 60.0  # a watch that has often been broken rests so long, when all is well again
MOST_JOBS = 6
MOST_GRANTS = 1.0  # changes of a grant for each thing that happened, on average


class Counting(Cut):
    """Dies after a number of writes, if one is given."""

    def __init__(self, inner: DirectTransport, live: int | None) -> None:
        super().__init__(inner)
        self.left = live

    async def request(self, method: str, path: str, **more: Any) -> Any:
        answer = await super().request(method, path, **more)
        if method != "GET" and "/leases/" not in path and self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.dead = True
                raise TransportError("the process is dead", sent=True)
        return answer


class Scheduler:
    def __init__(self, life: "Elastic") -> None:
        rng = random.Random(life.rng.random())
        self.transport = Cut(DirectTransport(life.api, life.clock, life.faults))
        client = Client(self.transport, life.clock, rng)
        election = LeaderElection(leader_elect=life.replicas > 1)
        config = Configuration(check_live_every=60.0, leader_election=election)
        self.service = Service(config, Options(), client)
        self.lawyer = Lawyer(self.service.engine)
        self.service.loop.recorders.append(self.lawyer)
        self.tasks = [asyncio.create_task(self.service.run(), name="scheduler")]
        if life.replicas > 1:
            lease = self.service.lease(client)
            self.tasks.append(asyncio.create_task(self.service.elector().run(lease), name="lease"))

    @property
    def leads(self) -> bool:
        loop = self.service.loop
        return loop.leads and loop.is_ready and self.service.fence.is_open

    async def kill(self) -> None:
        self.transport.dead = True
        await end(self.tasks)


class ElasticController:
    def __init__(self, life: "Elastic", live: int | None) -> None:
        rng = random.Random(life.rng.random())
        self.transport = Counting(DirectTransport(life.api, life.clock, life.faults), live)
        client = Client(self.transport, life.clock, rng)
        lease = None
        if life.replicas > 1:
            config = LeaseConfig("kube-system", "bayplan-elastic", rng.randbytes(4).hex())
            lease = Lease(client, config)
        self.controller = Controller(client, life.settings, lease)
        self.tasks = [asyncio.create_task(self.controller.run(), name="elastic controller")]

    async def kill(self) -> None:
        self.transport.dead = True
        await end(self.tasks)


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, TransportError, BaseExceptionGroup):
            await task


class Elastic(Simulation):
    def __init__(self, seed: int, steps: int = 90) -> None:
        super().__init__(seed, steps)
        self.replicas = self.rng.choice((1, 1, 2))
        policy = Policy(self.rng.choice(("best", "best", "faithful")))
        self.settings = Settings(policy)
        self.twos = self.rng.random() < 0.3  # whether workers may have two GPUs
        self.harm = self.rng.random() < 0.6  # whether nodes are lost
        self.ledger = Ledger(self.api, self.clock)
        self.schedulers: list[Scheduler] = []
        self.controllers: list[ElasticController] = []
        self.jobs: dict[str, str] = {}  # by name: kind
        self.made = self.controller_kills = 0
        self.calm_at = float("inf")  # since when nothing fails
        self.led_at = 0.0  # since when a scheduler leads
        self.quiet: Json = {}  # as it was when the last minutes began
        self.held: list[str] = []
        self.refused = False  # whether a node was told to refuse pods: it is closed for long then
        self.late: set[str] = set()  # workers that waited too long

    # ---- the whole story

    async def play(self) -> None:
        for name, value in CLASSES.items():
            await self._post(CLASS_PATH, {"metadata": {"name": name}, "value": value})
        for kind in ("crds", "elastic-crds"):
            for definition in yaml.safe_load_all(render(kind, {})):
                with suppress(ApiError):
                    await self._post(DEFINITIONS, definition)
        stops = [*self.ledger.listen(), self.api.store.listen("pods", self._hear)]
        self._tasks = [
            asyncio.create_task(self.kubelets.run(), name="pretend nodes"),
            asyncio.create_task(Controllers(self.api).run(), name="controllers"),
            asyncio.create_task(self._watch(), name="watch"),
        ]
        for _ in range(self.rng.randint(2, 4)):
            await self._add_node()
        for _ in range(self.replicas):
            self.schedulers.append(Scheduler(self))
            self._start_controller()
        try:
            await self._live()
            await self._make_peace()
        finally:
            for stop in stops:
                stop()
            await end(self._tasks)
            for scheduler in self.schedulers:
                await scheduler.kill()
            for controller in self.controllers:
                await controller.kill()

    async def _live(self) -> None:
        for step in range(self._steps):
            pause = (STORM_S + CALM_S) / self._steps
            await self.clock.sleep(self.rng.expovariate(1 / pause))
            if step == self._steps // 2:
                await self._calm_down()
            self._look()
            with suppress(ApiError):
                await self._happen()

    async def _calm_down(self) -> None:
        """Nothing fails any more, and much still happens."""
        self.faults.chances = Chances()
        for name in self._names():
            await self.kubelets.pretend(name, "")
        for process in self.controllers:
            process.transport.left = None
        while len(self.schedulers) < self.replicas:
            self.schedulers.append(Scheduler(self))
        self.calm_at = self.clock.time()

    async def _make_peace(self) -> None:
        await self.clock.sleep(PEACE_S - QUIET_S if self.refused else REST_S)
        while self.clock.time() - self.ledger.event_at < LAST_S:
            await self.clock.sleep(REST_S)
        self.quiet = self._sizes()
        await self.clock.sleep(QUIET_S)
        self._look()
        leader = next(each for each in self.schedulers if each.leads)
        engine = leader.service.engine
        self.held = sorted(engine.cluster.holds.rows)
        self.law_steps += sum(each.lawyer.steps for each in self.schedulers)

    def _sizes(self) -> Json:
        return {
            key: (len(self.ledger.living(key)), job.generation)
            for key, job in self.ledger.jobs.items()
        }

    # ---- what happens

    async def _happen(self) -> None:
        stormy = self.calm_at == float("inf")
        happenings: list[tuple[float, Callable[[], Any]]] = [
            (14, self._add_job),
            (14, self._add_pods),
            (8, self._delete_pod),
            (6, self._end_job),
            (6, self._change_job),
            (2, self._forget_history),
            (2, self._add_node),
            (4 if self.harm else 0, self._cordon),
            (4 if self.harm else 0, self._vanish),
            (3 if self.harm and stormy else 0, self._pretend),
            (6 if stormy else 0, self._kill),
            (8 if stormy else 0, self._kill_controller),
        ]
        weights = [weight for weight, _ in happenings]
        (happening,) = self.rng.choices([what for _, what in happenings], weights)
        await happening()

    async def _add_node(self) -> None:
        if len(self._names()) >= 5:
            return
        name = f"node-{len(self.nodes)}"
        self.nodes[name] = made = simulation.node(name, self.rng.choice((2, 3, 4)))
        for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
            amounts |= {"cpu": "64", "pods": "110"}
        await self.kubelets.add(made)

    async def _add_pods(self) -> None:
        (name,) = self.rng.choices(list(CLASSES), (5, 3, 2))
        for _ in range(self.rng.randint(1, 3)):
            self.pods += 1
            gpus, seconds = self.rng.choice((1, 1, 2)), self.rng.choice((5, 20, 60, 200))
            made = simulation.pod(f"pod-{self.pods}", gpus, seconds)
            made["spec"]["priorityClassName"] = name
            await self._post(PODS.path("default"), made)

    async def _add_job(self) -> None:
        if len(self.jobs) >= MOST_JOBS:
            await self._end_job()
        self.made += 1
        name, least = f"job-{self.made}", self.rng.randint(1, 3)
        most = least + self.rng.randint(0, 4)
        if self.rng.random() < 0.35:
            workers: Json = {"image": "demo", "minReplicas": least, "maxReplicas": most}
            if self.rng.random() < 0.2:
                workers["targetReplicas"] = least
            launcher = {"image": "demo", "pythonCommand": ["python", "train.py"]}
            spec: Json = {"launcherSpec": launcher, "workersSpec": workers}
            kind = HOROVOD
        else:
            seconds = self.rng.choice((None, None, None, 60, 200))
            spec = {"minWorkers": least, "maxWorkers": most, "template": self._template(seconds)}
            kind = GENERAL
        self.jobs[name] = kind
        resource = RESOURCES[kind]
        body = {
            "apiVersion": f"{resource.group}/{resource.version}",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        await self._post(resource.path("default"), body)

    def _template(self, seconds: int | None) -> Json:
        gpus = self.rng.choice((1, 2)) if self.twos else 1
        made = simulation.pod("", gpus, seconds)
        return {
            "metadata": {"annotations": made["metadata"]["annotations"]},
            "spec": {**made["spec"], "terminationGracePeriodSeconds": self.rng.choice((0, 1, 10))},
        }

    async def _end_job(self) -> None:
        """Its owner deletes it, or its work is done."""
        if not self.jobs:
            return
        name = self.rng.choice(sorted(self.jobs))
        kind = self.jobs.pop(name)
        if self.rng.random() < 0.5:
            await self.user.request("DELETE", RESOURCES[kind].path("default", name))
            return
        start = f"{name}-worker-" if kind == GENERAL else horovod_names(name)["launcher"]
        for value in list(self.api.store.values("pods")):
            if value["metadata"]["name"].startswith(start):
                self.kubelets.end_pod(value["metadata"]["uid"])

    async def _change_job(self) -> None:
        if not self.jobs:
            return
        name = self.rng.choice(sorted(self.jobs))
        kind, least = self.jobs[name], self.rng.randint(1, 3)
        most = least + self.rng.randint(0, 4)
        spec: Json = {"minWorkers": least, "maxWorkers": most}
        if kind == HOROVOD:
            spec = {"workersSpec": {"minReplicas": least, "maxReplicas": most}}
        elif self.rng.random() < 0.4:
            suspended = self.ledger.jobs[f"{kind} default/{name}"].suspended
            spec = {"suspend": not suspended}
        await self._patch(RESOURCES[kind].path("default", name), {"spec": spec})

    async def _pretend(self) -> None:
        self.refused = True
        await super()._pretend()

    async def _kill(self) -> None:
        if len(self.schedulers) < self.replicas:
            self.schedulers.append(Scheduler(self))
            return
        self.kills += 1
        process = self.schedulers.pop(self.rng.randrange(len(self.schedulers)))
        self.law_steps += process.lawyer.steps
        await process.kill()
        if self.rng.random() < 0.7:
            self.schedulers.append(Scheduler(self))

    def _start_controller(self) -> None:
        live = self.rng.randint(1, 40) if self.calm_at == float("inf") else None
        self.controllers.append(ElasticController(self, live))

    async def _kill_controller(self) -> None:
        self.controller_kills += 1
        process = self.controllers.pop(self.rng.randrange(len(self.controllers)))
        await process.kill()
        await self.clock.sleep(self.rng.choice((0.0, 1.0, 15.0)))
        self._start_controller()

    async def _watch(self) -> None:
        """Every second: who died is started again; who waits for a promised place, and how long."""
        while True:
            await self.clock.sleep(1.0)
            now, ledger = self.clock.time(), self.ledger
            for process in list(self.controllers):
                if process.transport.dead:
                    self.controllers.remove(process)
                    self.controller_kills += 1
                    await process.kill()
                    self._start_controller()
            if not any(each.leads for each in self.schedulers):
                self.led_at = now
            since = max(self.calm_at + REST_S, self.led_at, ledger.harmed_at)
            for pod, job in ledger.waiting():
                told = job.told[-1][0] if job.told else now
                waited = now - max(since, pod.born, told, job.preempted_at)
                if waited > WAIT_S and pod.name not in self.late:
                    self.late.add(pod.name)
                    ledger.blame(f"{pod.name} has waited {waited:.0f} s: {ledger.tell()}")

    def _look(self) -> None:
        running = [*self._tasks, *(task for each in self.schedulers for task in each.tasks)]
        alive = [each for each in self.controllers if not each.transport.dead]
        running += [task for each in alive for task in each.tasks]
        for task in running:
            if task.done() and not task.cancelled():
                task.result()
                raise AssertionError(f"{task.get_name()} ended by itself")

    def _hear(self) -> None:
        log = self.api.store.log("pods")
        for change in log.changes[self._read - log.first :]:
            value = plain(change.last.value)
            seen = read_pod(simulation.judged(value))
            self.history.append(Change(seen, change.after is None))
        self._read = log.end

    # ---- the judge, in the end

    def judge(self) -> list[str]:
        pods = [plain(value) for value in self.api.store.values("pods")]
        now = [read_pod(simulation.judged(value)) for value in pods]
        alone = [pod for pod in now if "-launcher-" not in pod.name]  # not without the workers
        ever = [read_node(value) for value in self.nodes.values()]
        living = [read_node(value) for value in self._living().values()]
        judged = [{**value, "spec": simulation.judged(value)["spec"]} for value in pods]
        return [
            *self.ledger.wrong,
            *bound_more_than_once(self.history),
            *too_full(self.history, ever),
            *waiting_that_fit(alone, living),
            *waiting_without_a_word(now),
            *not_as_listed(self.history, now),
            *waiting_for_less(judged, self._living().values()),
            *(f"room is kept for {uid}" for uid in self.held),
            *self._restless(),
            *(words for job in self.ledger.jobs.values() for words in self._of_job(job)),
            *(["the API failed; its log says how"] if self.api.crashes else ()),
        ]

    def _restless(self) -> list[str]:
        """Sizes that change though nothing happens, and too many changes for what happened."""
        found, ledger = [], self.ledger
        for key, now in self._sizes().items():
            before = self.quiet.get(key)
            asks = self.twos and before is not None and before[0] == now[0]
            if now != before and not asks:  # no node may have two together: it is asked again
                found.append(f"{key}: {before} became {now}")
        late = ledger.sized_at - ledger.event_at
        if late > SETTLE_S and not self.refused:
            found.append(f"a size changed {late:.0f} s after anything had happened")
        # A node that refused pods is closed to the scheduler and looks free to the controller: then
        # jobs ask for it in vain, in turns. Sizes must not follow them up and down.
        sized = ledger.counts["grown"] + ledger.counts["shrunk"]
        changes = sized if self.refused else ledger.counts["grants"]
        if changes > MOST_GRANTS * ledger.counts["events"]:
            found.append(f"too many grants: {ledger.counts}")
        return found

    def _of_job(self, job: JobSeen) -> list[str]:
        """Granted, confirmed, there; or it waits with a reason."""
        found, living = [], len(self.ledger.living(job.key))
        if job.is_over or job.suspended:
            if living or job.workers or job.passing:
                found.append(f"{job.key} is over or suspended, and has {living} workers")
            return found
        if job.passing:
            found.append(f"{job.key} keeps {job.passing} places to pass on")
        if job.generation != job.confirmed_generation or job.confirmed < job.workers:
            found.append(f"{job.key}: granted {job.workers}, confirmed {job.confirmed}")
        if living != job.workers:
            found.append(f"{job.key}: granted {job.workers}, there are {living}")
        least = job.minimum - job.workers
        if least > 0 and fit([(job.gpus, least)], self.ledger.free().values()):
            found.append(f"{job.key} has {job.workers} of {job.minimum}: {self.ledger.tell()}")
        return found


def plain(value: Json) -> Json:
    """Volumes of these jobs are nothing that a scheduler looks at."""
    return {**value, "spec": {**value["spec"], "volumes": None}}


def play(seed: int) -> Elastic:
    return told(seed, Elastic)
