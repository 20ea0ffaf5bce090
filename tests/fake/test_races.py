"""Races that were found once, each told again on virtual time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bayplan.kube.client import CLAIMS, LEASES, NODES, PODS, STORAGE_CLASSES, Client
from bayplan.kube.transport import Params, Response, Stream, TransportError
from bayplan.local.api import Api
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration, LeaderElection
from bayplan.scheduler.service import Options, Service
from tests.fake.simulation import node, pod

Json = dict[str, Any]
Send = Callable[[], Awaitable[Response]]
Hook = Callable[[str, str, Send, Json], Awaitable[Response]]
ELECTS = Configuration(leader_election=LeaderElection(leader_elect=True), check_live_every=0.0)
PLAIN = Configuration(check_live_every=0.0)
LEASE = LEASES.path("kube-system", "bayplan")


class Hooked:
    """A transport where `hook` may do anything in place of sending a request."""

    def __init__(self, inner: DirectTransport, hook: Hook | None) -> None:
        self._inner, self._hook = inner, hook

    async def request(self, method: str, path: str, **more: Any) -> Response:
        async def send() -> Response:
            return await self._inner.request(method, path, **more)

        return await (self._hook(method, path, send, more) if self._hook else send())

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = 30.0
    ) -> AsyncIterator[Stream]:
        async with self._inner.stream(path, params=params, timeout_s=timeout_s) as stream:
            yield stream

    async def close(self) -> None:
        pass


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.api = Api(self.clock, random.Random(1))
        self._clients = 0
        self.user = self.client(None)
        self.tasks: list[asyncio.Task[None]] = []

    def client(self, hook: Hook | None) -> Client:
        transport = Hooked(DirectTransport(self.api, self.clock), hook)
        self._clients += 1
        return Client(transport, self.clock, random.Random(self._clients))

    def start(self, config: Configuration = PLAIN, hook: Hook | None = None) -> Service:
        client = self.client(hook)
        service = Service(config, Options(), client)
        self.tasks.append(asyncio.create_task(service.run()))
        if service.elects:
            elector, lease = service.elector(), service.lease(client)
            self.tasks.append(asyncio.create_task(elector.run(lease)))
        return service

    async def post(self, path: str, body: Json) -> None:
        await self.user.request("POST", path, body=json.dumps(body).encode())

    async def add_pod(self, name: str, gpus: int = 1, **spec: Any) -> None:
        made = pod(name, gpus, None)
        made["spec"] |= spec
        await self.post(PODS.path("default"), made)

    def pod(self, name: str) -> Json:
        stored = self.api.store.get("pods", ("default", name))
        assert stored is not None
        return stored.value

    def node_of(self, name: str) -> str:
        return str(self.pod(name)["spec"].get("nodeName", ""))


def in_world(story: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World()
        try:
            await story(world)
        finally:
            for task in world.tasks:
                task.cancel()
            await asyncio.gather(*world.tasks, return_exceptions=True)

    run(whole())


def test_a_bind_is_not_given_up_while_the_server_may_still_carry_it_out() -> None:
    async def story(world: World) -> None:
        tries = 0

        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            nonlocal tries
            if not path.endswith("/first/binding"):
                return await send()
            tries += 1
            if tries > 4:
                return await send()
            more["before_send"]()
            if tries == 4:
                world.tasks.append(asyncio.create_task(carry_out(send)))
            raise TransportError("the connection broke", sent=True)

        async def carry_out(send: Send) -> None:
            await world.clock.sleep(3.9)
            await send()

        await world.post(NODES.path(), node("n1", 1))
        world.start(hook=hook)
        await world.add_pod("first")
        await world.clock.sleep(0.2)
        await world.add_pod("second")
        await world.clock.sleep(30)

        assert (world.node_of("first"), world.node_of("second")) == ("n1", "")

    in_world(story)


def test_an_exception_does_not_end_the_election() -> None:
    async def story(world: World) -> None:
        asked = 0

        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            nonlocal asked
            if path == LEASE:
                asked += 1
                if asked == 1:
                    raise RuntimeError("the credentials cannot be read")
                if asked == 2:
                    return Response(200, {}, b"no json")
            return await send()

        service = world.start(ELECTS, hook)
        await world.clock.sleep(30)

        assert asked > 2
        assert service.loop.leads

    in_world(story)


def test_pods_that_wait_for_volumes_keep_nobody_else_waiting() -> None:
    async def story(world: World) -> None:
        await world.post(NODES.path(), node("n1", 8))
        late = {"provisioner": "example.com/broken", "volumeBindingMode": "WaitForFirstConsumer"}
        await world.post(STORAGE_CLASSES.path(), {"metadata": {"name": "late"}, **late})
        world.start(Configuration(check_live_every=0.0, max_in_flight=2))
        for i in range(3):
            claim = {
                "metadata": {"name": f"data-{i}"},
                "spec": {
                    "storageClassName": "late",
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
                "status": {"phase": "Pending"},
            }
            await world.post(CLAIMS.path("default"), claim)
            source = {"persistentVolumeClaim": {"claimName": f"data-{i}"}}
            await world.add_pod(f"waits-{i}", volumes=[{"name": "data", **source}])
        await world.clock.sleep(5)
        await world.add_pod("plain")
        await world.clock.sleep(5)

        assert world.node_of("plain") == "n1"
        assert [world.node_of(f"waits-{i}") for i in range(3)] == ["", "", ""]

    in_world(story)


def test_a_bound_pod_is_not_called_unschedulable() -> None:
    async def story(world: World) -> None:
        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            if path.endswith("/status"):
                await world.clock.sleep(5)
            return await send()

        world.start(hook=hook)
        await world.add_pod("p")
        await world.clock.sleep(1)
        await world.post(NODES.path(), node("n1", 1))
        await world.clock.sleep(60)
        (condition,) = world.pod("p")["status"]["conditions"]

        assert world.node_of("p") == "n1"
        assert (condition["type"], condition["status"]) == ("PodScheduled", "True")

    in_world(story)


def test_a_condition_whose_pod_had_changed_is_written_soon() -> None:
    async def story(world: World) -> None:
        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            if path.endswith("/status") and not changed:
                changed.append(True)
                body = b'{"metadata":{"labels":{"a":"b"}}}'
                await world.user.request(
                    "PATCH",
                    PODS.path("default", "p"),
                    body=body,
                    content_type="application/merge-patch+json",
                )
            return await send()

        changed: list[bool] = []
        world.start(hook=hook)
        await world.add_pod("p")
        await world.clock.sleep(5)
        (condition,) = world.pod("p")["status"]["conditions"]

        assert changed
        assert condition["reason"] == "Unschedulable"

    in_world(story)


def test_a_lease_that_is_deleted_is_waited_out() -> None:
    async def story(world: World) -> None:
        first = world.start(ELECTS)
        await world.clock.sleep(10)
        second = world.start(ELECTS)
        await world.clock.sleep(20)
        assert (first.loop.leads, second.loop.leads) == (True, False)
        for number in range(60):
            await world.user.request("DELETE", LEASE)
            for _ in range(200 + number):
                await world.clock.sleep(0.1)
                assert not (first.fence.is_open and second.fence.is_open)

    in_world(story)


def test_a_read_that_began_under_an_earlier_lease_does_not_count() -> None:
    async def story(world: World) -> None:
        held, reads = asyncio.Event(), 0

        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            nonlocal reads
            answer = await send()
            if method == "GET" and path == PODS.path():
                reads += 1
                if reads == 1:
                    await held.wait()  # an answer from before what follows
            return answer

        service = world.start(Configuration(check_live_every=0.0), hook)
        await world.clock.sleep(1)
        service.loop.leads = False
        service.loop.lead()
        await world.clock.sleep(1)
        service.loop.step_down()
        service.loop.lead()
        held.set()
        await world.clock.sleep(5)

        assert service.loop.leads
        assert reads == 2

    in_world(story)


def test_a_stop_that_takes_a_while_is_no_hang_and_sends_nothing_late() -> None:
    async def story(world: World) -> None:
        sent: list[float] = []

        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            if path.endswith("/binding"):
                more["before_send"]()
                sent.append(world.clock.time())
                return Response(429, {"retry-after": "3"}, b"{}")
            return await send()

        await world.post(NODES.path(), node("n1", 8))
        service = world.start(ELECTS, hook)
        await world.clock.sleep(20)
        for i in range(3):
            await world.add_pod(f"p{i}")
        await world.clock.sleep(0.5)
        stopped_at = world.clock.time()
        service.loop.stop()
        await world.tasks[0]

        assert sent
        assert max(sent) < stopped_at + 10.5
        assert world.clock.time() - service.loop.ticked_at < 2

    in_world(story)
