"""Maps of devices in use: what the pods say, written when it differs, and never read as truth."""

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model import events as on
from bayplan.core.model.devices import Device
from bayplan.core.model.dialects import NEURON_CORE_MAP, NEURON_DEVICE_MAP
from bayplan.core.model.nodes import Layout, Node, Pool
from bayplan.core.model.pods import Holding, Part
from bayplan.core.model.vendors import NEURON, Vendors
from bayplan.kube.client import NODES, Client
from bayplan.kube.transport import Response, TransportError
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.maps import EVERY_S, FORBIDDEN_S, LOOK_S, UsageMaps
from bayplan.scheduler.service import Options, Service
from bayplan.testing import world as core
from tests.extender.decisions import World, node, play, pod
from tests.scheduler.scripted import Scripted, Sent, ok, refused

# ---- what they say


def maps_of(engine: Engine, name: str) -> dict[str, str]:
    client = Client(Scripted(), VirtualClock(), random.Random(0))
    maps = UsageMaps(engine.cluster, client, Vendors(), Fence(client.clock))
    row = engine.cluster.rows[name]
    there = engine.cluster.nodes[row]
    assert there is not None
    return maps.maps(row, there)


def machine(indexes: tuple[int, ...], cores: int) -> Node:
    devices = tuple(Device(f"dev{i}", i, cores=cores) for i in indexes)
    pool = Pool("neuron", devices, layout=Layout(indexes, cores))
    return core.node("n", gpus=0, pools=(pool,))


machines = st.tuples(
    st.lists(st.integers(0, 9), min_size=1, unique=True).map(lambda found: tuple(sorted(found))),
    st.sampled_from((1, 2, 4)),
)


@settings(max_examples=60)
@given(machines, st.data())
def test_a_map_is_what_the_pods_hold(
    made: tuple[tuple[int, ...], int], data: st.DataObject
) -> None:
    """By index: also where some are missing between."""
    indexes, cores = made
    engine = Engine()
    engine.handle(on.NodeSeen(machine(indexes, cores)), 0.0)
    used: set[int] = set()  # core ids
    for i in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.sampled_from(indexes))
        own = range(at * cores, (at + 1) * cores)
        match data.draw(st.sampled_from(("id", "index", "core", "gone"))):
            case "id":
                part, ids = Part("neuron", f"dev{at}", whole=True), set(own)
            case "index":
                part, ids = Part("neuron", f"#{at}", whole=True), set(own)
            case "core":
                one = data.draw(st.sampled_from(own))
                part, ids = Part("neuron", f"@{one}", whole=True), {one}
            case _:
                part, ids = Part("neuron", "#77", whole=True), set()
        used |= ids
        held = Holding((part,))
        engine.handle(on.PodSeen(core.pod(f"p{i}", node="n", held=held)), 0.0)
    waiting = core.pod("expected", devices=core.asks(neurons=1))
    engine.cluster.holds.hold(waiting, 0)  # a guess is not in use
    found = maps_of(engine, "n")

    size = indexes[-1] + 1
    by_core = [i in used for i in range(size * cores)]
    by_device = [any(by_core[i * cores : (i + 1) * cores]) for i in range(size)]
    assert found == {
        NEURON_DEVICE_MAP: ",".join(str(each).lower() for each in by_device),
        NEURON_CORE_MAP: ",".join(str(each).lower() for each in by_core),
    }


def test_where_nobody_knows_what_a_pod_holds_all_is_in_use() -> None:
    engine = Engine()
    engine.handle(on.NodeSeen(machine((0, 1), 2)), 0.0)
    asked = core.asks(neurons=1)
    engine.handle(on.PodSeen(core.pod("unsaid", devices=asked, node="n")), 0.0)
    all_used = {NEURON_DEVICE_MAP: "true,true", NEURON_CORE_MAP: "true,true,true,true"}
    assert maps_of(engine, "n") == all_used
    engine.handle(on.PodGone("uid-unsaid"), 0.0)
    assert maps_of(engine, "n")[NEURON_DEVICE_MAP] == "false,false"
    odd = core.pod("odd", devices=asked, node="n", held=Holding((), ("neuron",)))
    engine.handle(on.PodSeen(odd), 0.0)
    assert maps_of(engine, "n") == all_used


def test_nodes_without_such_devices_get_none() -> None:
    engine = Engine()
    engine.handle(on.NodeSeen(core.node("n", **core.cards(16))), 0.0)
    engine.handle(on.NodeSeen(core.node("u", gpus=0, pools=(Pool("neuron", unknown="?"),))), 0.0)
    assert maps_of(engine, "n") == maps_of(engine, "u") == {}


# ---- when they are written


class Writing:
    """The maps of one node; an API that answers as told; a watch that shows what was written."""

    def __init__(self) -> None:
        self.clock, self.api = VirtualClock(), Scripted()
        self.engine = Engine()
        self.fence = Fence(self.clock)
        client = Client(self.api, self.clock, random.Random(0))
        self.maps = UsageMaps(self.engine.cluster, client, Vendors(), self.fence)
        self.leads, self.at = True, list[float]()
        self.trouble: Response | TransportError | None = None
        self.api.answer = self._answer
        self.made = machine((0, 1), 2)
        self.engine.handle(on.NodeSeen(self.made), 0.0)

    def _answer(self, sent: Sent) -> Response | TransportError:
        assert (sent.method, sent.path) == ("PATCH", NODES.path(name="n", sub="status"))
        assert list(sent.body) == ["metadata"]
        assert list(sent.body["metadata"]) == ["annotations"]
        self.at.append(self.clock.time())
        if self.trouble is not None:
            return self.trouble
        self.stand(sent.body["metadata"]["annotations"])
        return ok(200)

    def stand(self, maps: dict[str, str]) -> None:
        """So it is on the node."""
        pools, allocatable = self.made.pools, self.made.allocatable
        seen = Node("n", self.made.uid, self.made.labels, allocatable, pools=pools, maps=maps)
        self.engine.handle(on.NodeSeen(seen), 0.0)

    @property
    def written(self) -> str:
        """The devices that the node says are in use."""
        there = self.engine.cluster.nodes[0]
        assert there is not None
        return there.maps.get(NEURON_DEVICE_MAP, "")

    def take(self, device: int) -> None:
        held = Holding((Part("neuron", f"#{device}", whole=True),))
        self.engine.handle(on.PodSeen(core.pod(f"p{device}", node="n", held=held)), 0.0)


def writing(story: Callable[[Writing], object]) -> None:
    async def whole() -> None:
        made = Writing()
        running = asyncio.create_task(made.maps.run(lambda: made.leads))
        try:
            found = story(made)
            assert asyncio.iscoroutine(found)
            await found
            assert not running.done()
        finally:
            running.cancel()

    run(whole())


def test_only_what_differs_is_written_and_not_too_often() -> None:
    async def story(made: Writing) -> None:
        await asyncio.sleep(60)
        assert (made.written, made.at) == ("false,false", [0.0])
        made.take(0)
        await asyncio.sleep(2 * LOOK_S)
        made.take(1)
        await asyncio.sleep(60)
        assert made.written == "true,true"
        assert len(made.at) == 3
        assert made.at[2] - made.at[1] >= EVERY_S
        made.engine.handle(on.PodSeen(core.pod("web", node="n")), 0.0)  # uses nothing of it
        await asyncio.sleep(60)
        assert len(made.at) == 3
        assert made.maps.writes == 3

    writing(story)


def test_what_somebody_else_wrote_is_put_right() -> None:
    async def story(made: Writing) -> None:
        await asyncio.sleep(10)
        for lie in (
            {NEURON_DEVICE_MAP: "true,true", NEURON_CORE_MAP: "true,true,true,true"},
            {NEURON_DEVICE_MAP: "false,false"},
            {NEURON_DEVICE_MAP: "", NEURON_CORE_MAP: "nonsense"},
            {},
        ):
            made.stand(lie)
            await asyncio.sleep(EVERY_S + 2 * LOOK_S)
            there = made.engine.cluster.nodes[0]
            assert there is not None
            assert there.maps == maps_of(made.engine, "n")
        assert len(made.at) == 5

    writing(story)


def test_only_the_leader_writes_and_a_new_one_looks_at_everything() -> None:
    async def story(made: Writing) -> None:
        made.leads = False
        made.at.clear()
        await asyncio.sleep(10)
        made.take(0)
        await asyncio.sleep(10)
        assert made.at == []
        made.leads = True
        made.fence.deadline = lambda: 0.0
        await asyncio.sleep(10)
        assert made.at == []
        made.fence.deadline = lambda: 1e9
        await asyncio.sleep(10)
        assert made.written == "true,false"

    async def later(made: Writing) -> None:
        await asyncio.sleep(0)
        await story(made)

    made_first = Writing.__init__

    def standby(self: Writing) -> None:
        made_first(self)
        self.leads = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writing, "__init__", standby)
        writing(later)


@pytest.mark.parametrize(
    "trouble",
    [refused(409), refused(500), refused(422), TransportError("it broke", sent=True)],
    ids=["409", "500", "422", "broken"],
)
def test_trouble_is_tried_again_at_the_same_pace(trouble: Response | TransportError) -> None:
    async def story(made: Writing) -> None:
        await asyncio.sleep(10)
        made.at.clear()
        made.trouble = trouble
        made.take(0)
        await asyncio.sleep(60)
        assert 60 / (EVERY_S + LOOK_S) - 2 < len(made.at) <= 60 / EVERY_S
        made.trouble = None
        await asyncio.sleep(10)
        assert made.written == "true,false"

    writing(story)


def test_without_the_right_it_goes_on_without() -> None:
    async def story(made: Writing) -> None:
        await asyncio.sleep(10)
        made.at.clear()
        made.trouble = refused(403)
        made.take(0)
        await asyncio.sleep(FORBIDDEN_S - 10)
        assert len(made.at) == 1
        made.trouble = None
        await asyncio.sleep(20)
        assert made.written == "true,false"

    writing(story)


def test_a_node_that_is_gone_is_not_written_again() -> None:
    async def story(made: Writing) -> None:
        await asyncio.sleep(10)
        made.at.clear()
        made.trouble = refused(404)
        made.take(0)
        await asyncio.sleep(60)
        assert len(made.at) == 1
        made.engine.handle(on.NodeGone("n"), 0.0)
        await asyncio.sleep(60)
        assert len(made.at) == 1

    writing(story)


def test_a_fence_that_closes_for_a_moment_loses_no_map() -> None:
    """Between the look and the sending, and open again at the next look."""

    async def story(made: Writing) -> None:
        await asyncio.sleep(10)
        closed = iter([False, True])
        is_open = 1e9
        made.fence.deadline = lambda: 0.0 if next(closed, False) else is_open
        made.take(0)
        await asyncio.sleep(10)
        assert made.written == "true,false"

    writing(story)


# ---- in the extender


def test_the_extender_writes_them_and_believes_the_pods_alone() -> None:
    async def story(world: World) -> None:
        path = NODES.path(name="n")

        def notes() -> dict[str, str]:
            stored = world.api.store.get("nodes", ("", "n"))
            assert stored is not None
            found: dict[str, str] = stored.value["metadata"]["annotations"]
            return found

        first = await world.add(pod("first", 2))
        assert await world.place(first, "n") == ""  # whatever the map said at first
        await world.clock.sleep(10)
        assert notes()[NEURON_DEVICE_MAP] == "true,true,false,false,false,false"
        assert notes()["theirs"] == "1"
        for lie in ("true,true,true,true,true,true", None):
            await world.annotate(path, {NEURON_DEVICE_MAP: lie, NEURON_CORE_MAP: lie})
            more = await world.add(pod("more", 4))
            assert await world.place(more, "n") == ""
            await world.clock.sleep(10)
            assert notes()[NEURON_DEVICE_MAP] == ",".join(["true"] * 6)
            await world.delete("more")
            await world.clock.sleep(10)
            assert notes()[NEURON_CORE_MAP] == ",".join(["true"] * 4 + ["false"] * 8)

    falsified = {NEURON_DEVICE_MAP: ",".join(["true"] * 6), "theirs": "1"}
    play(story, node("n", notes=falsified))


def test_where_no_class_has_maps_nobody_looks_after_them() -> None:
    """A chore that ends would end the program."""

    async def story() -> int:
        client = Client(Scripted(), VirtualClock(), random.Random(0))
        plain = Configuration(devices=(replace(NEURON, dialects=()),))
        return len(Service(Configuration(), Options(), client).chores) - len(
            Service(plain, Options(), client).chores
        )

    assert run(story()) == 1
