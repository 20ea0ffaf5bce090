"""Budgets on the embedded API: followed by the engine, or done without where they are forbidden."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bayplan.kube.client import BUDGETS, PODS, Client
from bayplan.kube.transport import REQUEST_S, ApiError, Params, Response, Stream
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.kubelets import Kubelets
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import Options, Service
from tests.fake.simulation import node, pod

Json = dict[str, Any]


class Forbidding(DirectTransport):
    """A role without budgets."""

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        if path == BUDGETS.path():
            status = {"code": 403, "reason": "Forbidden", "message": "budgets are forbidden"}
            return Response(403, {}, json.dumps(status).encode())
        return await super().request(method, path, **rest)

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params | None = None, timeout_s: float = REQUEST_S
    ) -> AsyncIterator[Stream]:
        if path == BUDGETS.path():
            raise ApiError(403, "Forbidden", "budgets are forbidden")
        async with super().stream(path, params=params, timeout_s=timeout_s) as stream:
            yield stream


class World:
    def __init__(self, transport: type[DirectTransport]) -> None:
        self.clock = VirtualClock()
        self.api = Api(self.clock, random.Random(1))
        self.user = Client(DirectTransport(self.api, self.clock), self.clock, random.Random(2))
        client = Client(transport(self.api, self.clock), self.clock, random.Random(3))
        self.service = Service(Configuration(), Options(), client)

    async def post(self, path: str, body: Json) -> None:
        await self.user.request("POST", path, body=json.dumps(body).encode())

    async def until(self, true: Callable[[], object]) -> None:
        began = self.clock.time()
        while not true():
            assert self.clock.time() - began < 30, "not so in time"
            await self.clock.sleep(0.1)


def in_world(
    story: Callable[[World], Awaitable[None]], transport: type[DirectTransport] = DirectTransport
) -> None:
    async def whole() -> None:
        world = World(transport)
        kubelets = Kubelets(world.user, [node("n", 8)], random.Random(4))
        tasks = [
            asyncio.create_task(task)
            for task in (kubelets.run(), Controllers(world.api).run(), world.service.run())
        ]
        try:
            await kubelets.registered.wait()
            await story(world)
        finally:
            world.service.loop.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(whole())


def labelled(name: str) -> Json:
    made = pod(name, 1, None)
    made["metadata"]["labels"] = {"app": "web"}
    return made


BUDGET: Json = {
    "metadata": {"name": "web"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
}


def test_a_budget_and_what_it_allows_are_followed() -> None:
    async def story(world: World) -> None:
        known = world.service.engine.cluster.budgets.by_key
        await world.post(BUDGETS.path("default"), BUDGET)
        for name in ("a", "b"):
            await world.post(PODS.path("default"), labelled(name))
        await world.until(lambda: "default/web" in known and known["default/web"].allowed == 1)
        (one, _) = world.service.engine.cluster.pods.values()
        assert known["default/web"].covers(one.pod)
        await world.user.request("DELETE", BUDGETS.path("default", "web"))
        await world.until(lambda: not known)

    in_world(story)


def test_where_budgets_may_not_be_read_it_goes_on_without(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        await world.post(BUDGETS.path("default"), BUDGET)
        await world.post(PODS.path("default"), labelled("a"))
        await world.until(lambda: world.service.engine.cluster.pods)
        await world.clock.sleep(3600)
        assert world.service.engine.cluster.budgets.by_key == {}

    with caplog.at_level(logging.WARNING):
        in_world(story, Forbidding)
    assert [said for said in caplog.messages if "budget" in said] == [
        "going without poddisruptionbudgets: budgets are forbidden (403)"
    ]


def test_a_pod_whose_gang_cannot_be_read_stays_where_it_is_and_has_an_event_that_says_why() -> None:
    async def story(world: World) -> None:
        def said() -> list[str]:
            return [event["message"] for event in world.api.store.values("events")]

        wrong = pod("p", 1, None)
        wrong["metadata"]["annotations"] = {
            "bayplan.dev/gang": "train",
            "bayplan.dev/gang-min": "two",
        }
        await world.post(PODS.path("default"), wrong)
        await world.until(said)
        assert said() == [
            "pod default/p: metadata.annotations[bayplan.dev/gang-min]: "
            "'two' is not a whole number from 1 on"
        ]
        stored = world.api.store.get("pods", ("default", "p"))
        assert stored is not None
        assert "nodeName" not in stored.value["spec"]

    in_world(story)
