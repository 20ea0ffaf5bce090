"""The loop lets answers come together while it has nothing to decide until they come."""

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.client import NODES
from bayplan.kube.transport import Response
from bayplan.scheduler.config import Configuration
from tests.fake.simulation import node
from tests.fake.test_races import Json, Send, World, in_world

PODS, IN_FLIGHT = 48, 8


class Ticks:
    """How often the engine was asked to decide."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        self.count += isinstance(event, on.Tick)

    def flush(self) -> None:
        pass


def test_answers_are_heard_together_while_as_many_binds_are_under_way_as_may_be() -> None:
    async def story(world: World) -> None:
        binds = 0

        async def hook(method: str, path: str, send: Send, more: Json) -> Response:
            nonlocal binds
            if path.endswith("/binding"):
                binds += 1
                await world.clock.sleep(0.001 * (binds % IN_FLIGHT))  # no two at a time
            return await send()

        for i in range(PODS):
            await world.post(NODES.path(), node(f"n{i}", 1))
            await world.add_pod(f"p{i}")
        service = world.start(Configuration(check_live_every=0.0, max_in_flight=IN_FLIGHT), hook)
        ticks = Ticks()
        service.loop.recorders.append(ticks)
        await world.clock.sleep(1)

        assert all(world.node_of(f"p{i}") for i in range(PODS))
        assert ticks.count <= 2 * PODS / IN_FLIGHT

    in_world(story)
