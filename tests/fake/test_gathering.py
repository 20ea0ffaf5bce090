"""Answers come together while binds wait to be sent, and are not waited for while none does."""

import asyncio

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.client import NODES
from bayplan.kube.transport import Response
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import Options, Service
from tests.fake.simulation import node
from tests.fake.test_races import Json, Send, World, in_world

PER_NODE = 8


class Ticks:
    """How often the engine was asked to decide."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        self.count += isinstance(event, on.Tick)

    def flush(self) -> None:
        pass


async def rounds(world: World, pods: int, in_flight: int, longest_s: float) -> int:
    """How often there were decisions until all pods were bound, which takes no longer than this.
    Binds take one to eight milliseconds, so that they end at different times."""
    binds = 0

    async def hook(method: str, path: str, send: Send, more: Json) -> Response:
        nonlocal binds
        if path.endswith("/binding"):
            binds += 1
            await world.clock.sleep(0.001 * (1 + binds % 8))
        return await send()

    for i in range(pods):
        if i % PER_NODE == 0:
            await world.post(NODES.path(), node(f"n{i}", 0))
        await world.add_pod(f"p{i}", gpus=0)
    service = world.start(Configuration(check_live_every=0.0, max_in_flight=in_flight), hook)
    ticks = Ticks()
    service.loop.recorders.append(ticks)
    while not service.loop.is_ready:
        await world.clock.sleep(0.001)
    await world.clock.sleep(longest_s)
    assert all(world.node_of(f"p{i}") for i in range(pods))
    return ticks.count


def test_answers_are_heard_together_while_binds_wait_to_be_sent() -> None:
    async def story(world: World) -> None:
        assert await rounds(world, pods=600, in_flight=200, longest_s=0.15) <= 600 / 16

    in_world(story)


def test_no_bind_waits_for_answers_to_others() -> None:
    async def story(world: World) -> None:
        await rounds(world, pods=64, in_flight=4, longest_s=0.1)  # four at a time, 4.5 ms each

    in_world(story)


def test_a_dry_run_goes_on_when_it_has_planned_as_much_as_may_be() -> None:
    async def story(world: World) -> None:
        await world.post(NODES.path(), node("n", 0))
        for i in range(5):
            await world.add_pod(f"p{i}", gpus=0)
        config = Configuration(check_live_every=0.0, max_in_flight=1)
        service = Service(config, Options(dry_run=True), world.client(None))
        world.tasks.append(asyncio.create_task(service.run()))
        await world.clock.sleep(1)
        assert service.writer.done["plan"] == 5

    in_world(story)
