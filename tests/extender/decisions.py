"""The running extender without its port: the embedded API, virtual time, and a kube-scheduler that
is the test."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.state.laws import broken
from bayplan.extender import wire
from bayplan.extender.binds import Binds
from bayplan.extender.service import Extender
from bayplan.kube.client import NODES, PODS, Client, Resource
from bayplan.kube.transport import MERGE_PATCH, BeforeSend, Params, Response
from bayplan.local.api import Api
from bayplan.local.faults import Faults
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.loop import GATHER_S
from bayplan.scheduler.service import Options

Json = dict[str, Any]
Send = Callable[[], Awaitable[Response]]
Between = Callable[[str, str, Send], Awaitable[Response]]

NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
TYPE = "node.kubernetes.io/instance-type"
INF2, TRN1 = "inf2.24xlarge", "trn1.32xlarge"
DEVICES = {INF2: 6, TRN1: 16}
IDS = "AWS_NEURON_IDS"
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses")
SETTLE_S = 5 * GATHER_S  # then the loop has heard


def node(name: str, kind: str = INF2, notes: dict[str, str] | None = None) -> Json:
    room = {"pods": "110", NEURON: str(DEVICES[kind]), CORE: str(2 * DEVICES[kind])}
    return {
        "metadata": {"name": name, "labels": {TYPE: kind}, "annotations": notes or {}},
        "status": {"capacity": room, "allocatable": room},
    }


def pod(name: str, devices: int = 0, **more: Any) -> Json:
    """It wants devices, or so many of another resource; `more` is of its spec."""
    resource, facts = more.pop("resource", NEURON), more
    if priority := facts.pop("priority", 0):
        facts["priorityClassName"] = f"p{priority}"
    limits = {resource: str(devices)} if devices else {}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, "namespace": "default", **facts.pop("metadata", {})},
        "spec": {"containers": [container], **facts},
    }


class Interposed:
    """A transport with somebody in the middle, who may answer, wait or pass on."""

    def __init__(self, inner: DirectTransport) -> None:
        self._inner = inner
        self.between: Between | None = None
        self.opening: Callable[[str], Awaitable[None]] | None = None  # before each stream
        self.sent: list[tuple[str, str]] = []  # what got through to the server

    async def request(
        self, method: str, path: str, *, before_send: BeforeSend | None = None, **more: Any
    ) -> Response:
        if before_send is not None:
            before_send()

        async def send() -> Response:
            self.sent.append((method, path))
            return await self._inner.request(method, path, **more)

        return await (send() if self.between is None else self.between(method, path, send))

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = 30.0
    ) -> AsyncIterator[Any]:
        if self.opening is not None:
            await self.opening(path)
        async with self._inner.stream(path, params=params, timeout_s=timeout_s) as stream:
            yield stream

    async def close(self) -> None:
        pass


class Lawyer:
    """Looks at the engine's state after every step."""

    def __init__(self, service: Extender) -> None:
        self._engine = service.engine

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        wrong = broken(self._engine.cluster)
        assert not wrong, f"after {event}: {wrong}"

    def flush(self) -> None:
        """Nothing is held back."""


class World:
    def __init__(self, config: Configuration | None = None, faults: Faults | None = None) -> None:
        self.clock = VirtualClock()
        self.api = Api(self.clock, random.Random(1))
        self.user = Client(DirectTransport(self.api, self.clock), self.clock, random.Random(2))
        self.config, self.faults = config or Configuration(check_live_every=0), faults or Faults()
        self.start()

    def start(self) -> None:
        """A new process of the extender; it does not run yet."""
        inner = DirectTransport(self.api, self.clock, self.faults)
        self.transport = Interposed(inner)
        client = Client(self.transport, self.clock, random.Random(3))
        self.service = Extender(self.config, Options(), client)
        self.service.loop.recorders.append(Lawyer(self.service))
        self.task: asyncio.Task[None] | None = None

    @property
    def engine(self) -> Engine:
        return self.service.engine

    @property
    def binds(self) -> Binds:
        assert isinstance(self.service.writer, Binds)
        return self.service.writer

    async def run(self) -> None:
        self.task = asyncio.create_task(self.service.run(), name="extender")
        await self.until(lambda: self.service.loop.is_ready)

    async def stop(self) -> None:
        if self.task is not None:
            self.service.loop.stop()
            task, self.task = self.task, None
            await task

    async def kill(self) -> None:
        assert self.task is not None
        task, self.task = self.task, None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def until(self, true: Callable[[], object], seconds: float = 60.0) -> None:
        began = self.clock.time()
        while not true():
            assert self.clock.time() - began < seconds, "not so in time"
            await self.clock.sleep(SETTLE_S)

    # ---- the cluster

    async def add_node(self, *made: Json) -> None:
        for each in made:
            await self.user.request("POST", NODES.path(), body=msgspec.json.encode(each))
        await self.clock.sleep(0.1)

    async def add(self, made: Json) -> Json:
        """A pod, as the API has it then."""
        path = PODS.path("default")
        body = await self.user.request("POST", path, body=msgspec.json.encode(made))
        await self.clock.sleep(SETTLE_S)
        found: Json = msgspec.json.decode(body)
        return found

    async def add_priorities(self, *values: int) -> None:
        """Classes called p1, p2 and so on."""
        for value in values:
            made = {"metadata": {"name": f"p{value}"}, "value": value}
            await self.user.request("POST", PRIORITIES.path(), body=msgspec.json.encode(made))

    async def get(self, name: str) -> Json:
        found: Json = msgspec.json.decode(
            await self.user.request("GET", PODS.path("default", name))
        )
        return found

    async def delete(self, name: str, kind: Any = PODS) -> None:
        space = "default" if kind is PODS else ""
        params = {"gracePeriodSeconds": "0"}
        await self.user.request("DELETE", kind.path(space, name), params=params)
        await self.clock.sleep(SETTLE_S)

    async def annotate(self, path: str, notes: dict[str, str | None]) -> None:
        body = msgspec.json.encode({"metadata": {"annotations": notes}})
        await self.user.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    def node_of(self, name: str) -> str:
        stored = self.api.store.get("pods", ("default", name))
        return str(stored.value["spec"].get("nodeName", "")) if stored else ""

    def ids_of(self, name: str) -> str:
        """What the API says that the pod has."""
        stored = self.api.store.get("pods", ("default", name))
        assert stored is not None
        return str((stored.value["metadata"].get("annotations") or {}).get(IDS, ""))

    # ---- kube-scheduler

    async def filter(self, pod: Json, *names: str) -> wire.FilterResult:
        return await self.service.answers.filter(args_of(pod, names))

    async def prioritize(self, pod: Json, *names: str) -> dict[str, int]:
        """As kube-scheduler takes it: a node that is left out has 0."""
        found = await self.service.answers.prioritize(score_args(pod, names))
        return dict.fromkeys(names, 0) | {each.host: each.score for each in found}

    async def preempt(self, pod: Json, **victims: list[Json]) -> dict[str, list[str]]:
        """By node the names of those who must go."""
        given = {
            name: wire.MetaVictims.of([each["metadata"]["uid"] for each in found])
            for name, found in victims.items()
        }
        answer = await self.service.answers.preempt(wire.PreemptArgs(raw(pod), given))
        return {name: sorted(found.uids) for name, found in answer.victims.items()}

    async def bind(self, pod: Json, node: str, **other: str) -> str:
        """Why not; empty if it is bound."""
        return (await self.service.answers.bind(bind_args(pod, node, **other))).error

    async def place(self, pod: Json, node: str) -> str:
        """Filtered and bound, as kube-scheduler does."""
        found = await self.filter(pod, node)
        assert found.node_names == [node], found
        return await self.bind(pod, node)


def raw(pod: Json) -> Raw:
    return Raw(msgspec.json.encode(pod))


def args_of(pod: Json, names: tuple[str, ...]) -> wire.FilterArgs:
    return wire.FilterArgs(raw(pod), list(names))


def score_args(pod: Json, names: tuple[str, ...]) -> wire.ScoreArgs:
    return wire.score_args(msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names}))


def bind_args(pod: Json, node: str, **other: str) -> wire.BindArgs:
    metadata = pod["metadata"]
    args = wire.BindArgs(metadata["name"], metadata["namespace"], metadata["uid"], node)
    return replace(args, **other)


Story = Callable[[World], Awaitable[None]]


def play(story: Story, *nodes: Json, config: Configuration | None = None) -> None:
    """The story on a cluster with these nodes, with the extender running; the laws hold after every
    step of it."""

    async def whole() -> None:
        world = World(config)
        await world.add_node(*nodes)
        await world.run()
        try:
            await story(world)
        finally:
            await world.stop()

    run(whole())
