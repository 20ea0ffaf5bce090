"""A minute or two of a cluster's life with everything going wrong, then peace: one seed, one story.

The running scheduler, the embedded API and pretend nodes are all in one process, on virtual time.
The scheduler meets faults; pods come, go and end; nodes come, go, fail, refuse and are cordoned;
the API server forgets its history; the scheduler's process is killed and started again. Then the
faults stop, and what the API has shown is judged by the checker that shares no code with us.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.state.laws import broken
from bayplan.kube.client import NODES, PODS, Client
from bayplan.kube.transport import ApiError, BeforeSend, Params, Response, TransportError
from bayplan.local.api import Api
from bayplan.local.faults import Chances, Faults
from bayplan.local.kubelets import RUN_SECONDS, Kubelets
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import Options, Service
from tests.real.apicheck import (
    Change,
    Pod,
    bound_more_than_once,
    not_as_listed,
    read_node,
    read_pod,
    too_full,
    waiting_that_fit,
    waiting_without_a_word,
)

Json = dict[str, Any]

TROUBLE_S = 60.0
# Longer than any rest: a refused pod's 10 s, a broken watch's 60 s, and the 30 minutes for which a
# node is closed whose kubelet has refused three pods.
PEACE_S = 2_000.0
IPU = "graphcore.ai/ipu"
MERGE = "application/merge-patch+json"


class Lawyer:
    """Looks at the engine's state after every step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.steps = 0

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        self.steps += 1
        wrong = broken(self._engine.cluster)
        assert not wrong, f"after {event}: {wrong}"

    def flush(self) -> None:
        pass


class Cut:
    """A transport whose process can die: from then on nothing leaves it."""

    def __init__(self, inner: DirectTransport) -> None:
        self._inner = inner
        self.dead = False

    async def request(
        self, method: str, path: str, *, before_send: BeforeSend | None = None, **more: Any
    ) -> Response:
        def check() -> None:
            if self.dead:
                raise TransportError("the process is dead", sent=False)
            if before_send is not None:
                before_send()

        return await self._inner.request(method, path, before_send=check, **more)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = 30.0
    ) -> AsyncIterator[Any]:
        if self.dead:
            raise TransportError("the process is dead", sent=False)
        async with self._inner.stream(path, params=params, timeout_s=timeout_s) as stream:
            yield stream

    async def close(self) -> None:
        pass


class Process:
    """The scheduler, as a process that can be killed."""

    def __init__(
        self,
        api: Api,
        faults: Faults,
        clock: VirtualClock,
        rng: random.Random,
        make: Callable[[Client], Service] | None = None,
    ) -> None:
        self.transport = Cut(DirectTransport(api, clock, faults))
        client = Client(self.transport, clock, rng)
        self.service = (make or _plain)(client)
        self.lawyer = Lawyer(self.service.engine)
        self.service.loop.recorders.append(self.lawyer)
        self.task = asyncio.create_task(self.service.run(), name="scheduler")

    async def kill(self) -> None:
        self.transport.dead = True
        self.task.cancel()
        with suppress(asyncio.CancelledError, TransportError):
            await self.task

    async def stop(self) -> None:
        self.service.loop.stop()
        await self.task


def _plain(client: Client) -> Service:
    return Service(Configuration(check_live_every=60.0), Options(), client)


class Simulation:
    make: Callable[[Client], Service] | None = None

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.api = Api(self.clock, random.Random(self.rng.random()))
        self.user = self._client(Faults())
        self.faults = Faults(_chances(self.rng), random.Random(self.rng.random()))
        self.nodes: dict[str, Json] = {}  # all that ever were
        self.kubelets = Kubelets(self.user, (), self.rng)
        self.process: Process | None = None
        self._steps, self._tasks = steps, list[asyncio.Task[None]]()
        self.pods = self.law_steps = self.kills = 0
        log = self.api.store.log("pods")
        self.history: list[Change] = []
        self._read = log.end

    # ---- the whole story

    async def play(self) -> None:
        stop = self.api.store.listen("pods", self._hear)
        self._tasks.append(asyncio.create_task(self.kubelets.run(), name="pretend nodes"))
        for _ in range(self.rng.randint(1, 5)):
            await self._add_node()
        self._start()
        try:
            for _ in range(self._steps):
                await self.clock.sleep(self.rng.expovariate(self._steps / TROUBLE_S))
                self._look()
                with suppress(ApiError):
                    await self._happen()
            await self._make_peace()
        finally:
            stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._look()

    async def _make_peace(self) -> None:
        self.faults.chances = Chances()
        for name in self._names():
            await self.kubelets.pretend(name, "")
        if self.process is None:
            self._start()
        await self.clock.sleep(PEACE_S)
        self._look()
        assert self.process is not None
        self.law_steps += self.process.lawyer.steps
        await self.process.stop()
        self.process = None

    def judge(self) -> list[str]:
        """What is wrong, by what the API showed."""
        now = [read_pod(judged(value)) for value in self.api.store.values("pods")]
        ever = [read_node(value) for value in self.nodes.values()]
        living = [read_node(value) for value in self._living().values()]
        return [
            *bound_more_than_once(self.history),
            *too_full(self.history, ever),
            *waiting_that_fit([*now, *self._expected()], living),
            *waiting_without_a_word(now),
            *not_as_listed(self.history, now),
            *(["the API failed; its log says how"] if self.api.crashes else ()),
        ]

    def _expected(self) -> list[Pod]:
        """Pods that are not there yet, but whose room is nobody else's."""
        return []

    # ---- what happens

    async def _happen(self) -> None:
        happenings = [
            (30, self._add_pods),
            (8, self._delete_pod),
            (4, self._add_node),
            (3, self._cordon),
            (2, self._vanish),
            (3, self._pretend),
            (2, self._forget_history),
            (3, self._kill),
        ]
        (happening,) = self.rng.choices(
            [what for _, what in happenings], [weight for weight, _ in happenings]
        )
        await happening()

    async def _add_pods(self) -> None:
        gpus, seconds = self.rng.choice((0, 1, 1, 2, 4)), self.rng.choice((None, 0, 5, 30))
        for _ in range(self.rng.randint(1, 6)):
            self.pods += 1
            await self._post(PODS.path("default"), pod(f"pod-{self.pods}", gpus, seconds))

    async def _delete_pod(self) -> None:
        keys = [key for key, _ in self.api.store.items("pods")]
        if keys:
            await self.user.request("DELETE", PODS.path(*self.rng.choice(keys)))

    async def _add_node(self) -> None:
        name = f"node-{len(self.nodes)}"
        self.nodes[name] = made = node(name, self.rng.choice((0, 2, 4, 8)))
        await self.kubelets.add(made)

    async def _cordon(self) -> None:
        if names := self._names():
            name = self.rng.choice(names)
            body = {"spec": {"unschedulable": self.rng.random() < 0.5 or None}}
            await self._patch(NODES.path(name=name), body)

    async def _vanish(self) -> None:
        if len(names := self._names()) > 1:
            await self.kubelets.vanish(self.rng.choice(names))

    async def _pretend(self) -> None:
        if names := self._names():
            what = self.rng.choice(("fail", "refuse", "", ""))
            await self.kubelets.pretend(self.rng.choice(names), what)

    async def _forget_history(self) -> None:
        self.api.store.compact()

    async def _kill(self) -> None:
        if self.process is None:
            self._start()
            return
        self.kills += 1
        self.law_steps += self.process.lawyer.steps
        await self.process.kill()
        self.process = None
        if self.rng.random() < 0.7:
            self._start()

    # ---- small things

    def _start(self) -> None:
        rng = random.Random(self.rng.random())
        self.process = Process(self.api, self.faults, self.clock, rng, self.make)

    def _look(self) -> None:
        """A task that ended is a mistake, and so is a broken law."""
        running = [*self._tasks, *([self.process.task] if self.process else [])]
        for task in running:
            if task.done() and not task.cancelled():
                task.result()
                raise AssertionError(f"{task.get_name()} ended by itself")

    def _hear(self) -> None:
        log = self.api.store.log("pods")
        for change in log.changes[self._read - log.first :]:
            self.history.append(Change(read_pod(judged(change.last.value)), change.after is None))
        self._read = log.end

    def _living(self) -> dict[str, Json]:
        return {value["metadata"]["name"]: value for value in self.api.store.values("nodes")}

    def _names(self) -> list[str]:
        return sorted(self._living())

    def _client(self, faults: Faults) -> Client:
        rng = random.Random(self.rng.random())
        return Client(DirectTransport(self.api, self.clock, faults), self.clock, rng)

    async def _post(self, path: str, body: Json) -> None:
        await self.user.request("POST", path, body=json.dumps(body).encode())

    async def _patch(self, path: str, body: Json) -> None:
        await self.user.request("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE)


S = TypeVar("S", bound=Simulation)


def told(seed: int, make: Callable[[int], S]) -> S:
    """The story of one seed, judged."""

    async def story() -> S:
        played = make(seed)
        await played.play()
        return played

    played = run(story())
    wrong = played.judge()
    assert not wrong, f"seed {seed}: " + "\n".join(wrong[:10])
    return played


def play(seed: int) -> Simulation:
    return told(seed, Simulation)


def met(simulations: Iterable[Simulation]) -> dict[str, int]:
    """How often each fault was met."""
    total: dict[str, int] = {}
    for simulation in simulations:
        for name, count in simulation.faults.met.items():
            total[name] = total.get(name, 0) + count
    return total


def _chances(rng: random.Random) -> Chances:
    """Some faults are off in any one story, so that others are seen alone; some come in storms."""
    storm = rng.choice((1.0, 1.0, 4.0))

    def chance(most: float) -> float:
        return rng.random() * most * storm if rng.random() < 0.6 else 0.0

    return Chances(
        latency=chance(2.0),
        conflict=chance(0.2),
        busy=chance(0.2),
        error=chance(0.2),
        lost_answer=chance(0.2),
        refused=chance(0.2),
        hang=chance(0.05),
        expired_watch=chance(0.3),
        broken_watch=chance(0.2),
        dropped_events=chance(0.2),
        repeated_events=chance(0.2),
        late_events=chance(0.3),
    )


def judged(value: Json) -> Json:
    """Tolerations of seconds are everybody's, and none of the checker's business; partitions of
    IPUs are not a node's."""
    spec = {key: part for key, part in value["spec"].items() if key != "tolerations"}
    spec["containers"] = [_without_ipus(each) for each in spec["containers"]]
    return {**value, "spec": spec}


def _without_ipus(container: Json) -> Json:
    lists = container.get("resources", {}).items()
    kept = {
        kind: {name: amount for name, amount in amounts.items() if name != IPU}
        for kind, amounts in lists
    }
    return {**container, "resources": kept}


def pod(name: str, gpus: int, seconds: int | None) -> Json:
    annotations = {} if seconds is None else {RUN_SECONDS: str(seconds)}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "schedulerName": "bayplan",
            "containers": [{"name": "main", "image": "train:1", "resources": resources}],
        },
    }


def node(name: str, gpus: int) -> Json:
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
