"""Bind on the running extender: one outcome however often it is asked for, nothing given twice, and
nothing lost, whatever the API answers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.extender.server import NotLeading
from bayplan.kube.client import NODES, PODS
from bayplan.kube.transport import Response, TransportError
from bayplan.local.virtual import run
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.loop import EVENTS_PER_ROUND, Loop
from tests.extender.decisions import Between, Send, World, node, play, pod
from tests.scheduler.scripted import refused

Act = Callable[[], None]


def is_bind(path: str) -> bool:
    return path.endswith("/binding")


class Bindings:
    """Stands between the extender and the API, and decides what becomes of Bindings."""

    def __init__(self, world: World) -> None:
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()
        self.answer: Response | TransportError | None = None  # in place of the server's
        self.carried_out = True
        world.transport.between = self

    async def __call__(self, method: str, path: str, send: Send) -> Response:
        if not is_bind(path):
            return await send()
        self.asked += 1
        await self.go.wait()
        if self.answer is None:
            return await send()
        if self.carried_out:
            await send()
        if isinstance(self.answer, TransportError):
            raise self.answer
        return self.answer


def free(world: World, name: str = "n") -> int:
    """How many columns of the node nobody has, and nobody is expected to."""
    cluster = world.engine.cluster
    return int(cluster.pools.ordered["neuron"].free[cluster.rows[name]].bit_count())


# ---- what is written


def test_a_bind_says_which_devices_and_leaves_the_rest_alone() -> None:
    async def story(world: World) -> None:
        own = {"annotations": {"theirs": "1", "AWS_NEURON_IDS": "forged"}}
        made = await world.add(pod("p", 2, metadata=own))
        assert await world.place(made, "n") == ""
        bound = await world.get("p")
        notes = bound["metadata"]["annotations"]

        assert bound["spec"]["nodeName"] == "n"
        assert notes["theirs"] == "1"
        assert notes["AWS_NEURON_IDS"] == notes["NEURON_DEVS"] == "0,1"
        assert notes["NEURON_RESOURCE_TYPE"] == "aws.amazon.com/neuron"
        assert notes["NEURON_ALLOCATED"] == "false"
        assert notes["ids.bayplan.dev/main"] == "0,1"

    play(story, node("n"))


def test_a_pod_without_devices_is_bound_too() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p"))
        assert await world.place(made, "n") == ""
        assert world.node_of("p") == "n"
        assert not (await world.get("p"))["metadata"].get("annotations")

    play(story, node("n"))


# ---- asked for again


def test_again_while_it_is_under_way_has_one_outcome() -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.go.clear()
        made = await world.add(pod("p", 2))
        await world.filter(made, "n", "m")
        asks = [asyncio.create_task(world.bind(made, "n")) for _ in range(5)]
        await world.until(lambda: bindings.asked)
        assert await world.bind(made, "m") == "pod default/p is bound to n"
        bindings.go.set()

        assert await asyncio.gather(*asks) == [""] * 5
        assert bindings.asked == 1
        assert await world.bind(made, "n") == ""  # and after it is done
        assert await world.bind(made, "m") == "pod default/p is bound to n"
        assert bindings.asked == 1
        assert dict(world.service.answers.counts) == {
            ("filter", "passed"): 1,
            ("bind", "bound"): 5,
            ("bind", "again"): 3,
        }

    play(story, node("n"), node("m"))


def test_at_once_for_a_pod_that_has_to_be_read_first() -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        made = await world.add(pod("p", 2))
        found = await asyncio.gather(*(world.bind(made, "n") for _ in range(3)))
        assert (found, bindings.asked) == ([""] * 3, 1)
        assert free(world) == 12 - 4

    play(story, node("n"))


def test_after_a_restart_it_is_known_to_be_done() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 2))
        await world.place(made, "n")
        await world.kill()
        world.start()
        await world.run()
        bindings = Bindings(world)

        assert await world.bind(made, "n") == ""
        assert await world.bind(made, "m") == "pod default/p is bound to n"
        assert bindings.asked == 0
        assert free(world) == 12 - 4

    play(story, node("n"), node("m"))


def test_again_after_it_failed_is_a_new_bind_however_much_there_is_to_hear() -> None:
    """The failure waits behind more events than are heard at once."""

    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.answer, bindings.carried_out = refused(403, "Forbidden"), False
        bindings.go.clear()
        made = await world.add(pod("p", 2))
        await world.filter(made, "n")
        failing = asyncio.create_task(world.bind(made, "n"))
        await world.until(lambda: bindings.asked)
        world.service.loop.recorders.clear()  # who would look at the laws after each
        for _ in range(50 * EVENTS_PER_ROUND):
            world.service.inbox.add(on.PodGone("another"))
        bindings.go.set()
        assert "403" in await failing
        bindings.answer = None

        assert await world.bind(made, "n") == ""
        assert world.node_of("p") == "n"

    play(story, node("n"))


# ---- a node, a pod, a name that is not what it was


def test_what_cannot_be_bound_is_said_and_costs_nothing() -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        made, other = await world.add(pod("p", 2)), await world.add(pod("other", 2))
        uid = made["metadata"]["uid"]
        assert await world.bind(made, "x") == (
            "pod default/p does not fit on node x: node x is not known"
        )
        assert await world.bind(made, "n", pod_name="gone") == "pod default/gone is gone"
        assert await world.bind(made, "n", pod_uid="old") == (
            "pod default/p was made again: its uid is not old"
        )
        for known in (False, True):  # to us, by a filter
            if known:
                await world.filter(made, "n")
            assert uid in await world.bind(made, "n", pod_name="other")
        await world.filter(other, "n")
        await world.delete("other")
        assert "404" in await world.bind(other, "n") or "gone" in await world.bind(other, "n")
        await world.clock.sleep(5)
        assert free(world) == 12
        assert world.binds.asked == {}
        assert bindings.asked <= 1

    play(story, node("n"))


def test_a_pod_that_was_made_again_after_its_filter_is_not_bound() -> None:
    async def story(world: World) -> None:
        first = await world.add(pod("p", 2))
        await world.filter(first, "n")
        await world.delete("p")
        again = await world.add(pod("p", 2))
        assert "made again" in await world.bind(first, "n")
        assert world.node_of("p") == ""
        assert await world.place(again, "n") == ""

    play(story, node("n"))


def test_a_pod_that_another_scheduler_bound_meanwhile() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 2))
        await world.filter(made, "n", "m")
        world.transport.between = lost(world, "m")
        assert "it was bound to m" in await world.bind(made, "n")
        world.transport.between = None
        await world.clock.sleep(1)
        assert await world.bind(made, "n") == "pod default/p is bound to m"
        assert await world.bind(made, "m") == ""
        assert free(world, "n") == 12
        assert (
            world.engine.cluster.pods[made["metadata"]["uid"]].row
            == (world.engine.cluster.rows["m"])
        )

    def lost(world: World, there: str) -> Between:
        async def between(method: str, path: str, send: Send) -> Response:
            if is_bind(path) and not world.node_of("p"):
                metadata = {"name": "p", "namespace": "default"}
                target = {"kind": "Node", "name": there}
                body = msgspec.json.encode({"metadata": metadata, "target": target})
                await world.user.request("POST", path, body=body)
            return await send()

        return between

    play(story, node("n"), node("m"))


def test_a_pod_that_has_ended_or_goes_is_not_bound() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 2))
        path = PODS.path("default", "p", "status")
        body = b'{"status":{"phase":"Failed"}}'
        kind = "application/merge-patch+json"
        await world.user.request("PATCH", path, body=body, content_type=kind)
        assert await world.bind(made, "n") == "pod default/p has ended"
        assert free(world) == 12

    play(story, node("n"))


def test_a_node_that_goes_while_the_bind_is_under_way() -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.go.clear()
        made = await world.add(pod("p", 2))
        await world.filter(made, "n")
        binding = asyncio.create_task(world.bind(made, "n"))
        await world.until(lambda: bindings.asked)
        await world.delete("n", NODES)
        assert (await world.filter(made, "m")).error  # it is somewhere, as far as we know
        await world.add_node(node("n"))
        bindings.go.set()
        assert await binding == ""
        await world.clock.sleep(3)
        assert free(world) == 12 - 4

    play(story, node("n"), node("m"))


# ---- what the API answers


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_after_a_bind_that_failed_the_devices_are_free(status: int) -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.answer, bindings.carried_out = refused(status, "No"), False
        made = await world.add(pod("p", 6))
        await world.filter(made, "n")
        assert "failed" in await world.bind(made, "n")
        assert world.service.answers.counts["bind", "error"] == 1
        bindings.answer = None
        other = await world.add(pod("other", 6))

        assert await world.place(other, "n") == ""
        assert "does not fit" in await world.bind(made, "n")
        assert world.service.answers.counts["bind", "refused"] == 1

    play(story, node("n"))


@pytest.mark.parametrize("carried_out", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize(
    "answer",
    [refused(500), refused(409), refused(503), TransportError("it broke", sent=True)],
    ids=["500", "409", "503", "broken"],
)
def test_while_nobody_knows_whether_it_was_carried_out_the_devices_are_taken(
    answer: Response | TransportError, carried_out: bool
) -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.answer, bindings.carried_out = answer, carried_out
        made, other = await world.add(pod("p", 6)), await world.add(pod("other", 6))
        await world.filter(made, "n")
        binding = asyncio.create_task(world.bind(made, "n"))
        while not binding.done():
            found = await world.filter(other, "n")
            if not world.binds.asked:
                break
            assert found.failed_nodes.keys() == {"n"}
            assert "does not fit" in await world.bind(other, "n")
            await world.clock.sleep(0.5)
        error = await binding
        assert (error == "") == carried_out == (world.node_of("p") == "n")
        bindings.answer = None
        await world.clock.sleep(3)
        assert free(world) == (0 if carried_out else 12)
        assert (await world.bind(made, "n")) == ""

    play(story, node("n"))


def test_a_bind_that_arrives_late_is_not_given_away() -> None:
    """The connection breaks, and the server carries it out some seconds later."""

    async def story(world: World) -> None:
        late: list[asyncio.Task[Response]] = []

        async def between(method: str, path: str, send: Send) -> Response:
            if not is_bind(path):
                return await send()
            if not late:

                async def later() -> Response:
                    await world.clock.sleep(3.5)
                    return await send()

                late.append(asyncio.create_task(later()))
                raise TransportError("it broke", sent=True)
            return refused(503)

        world.transport.between = between
        made, other = await world.add(pod("p", 6)), await world.add(pod("other", 6))
        await world.filter(made, "n")
        binding = asyncio.create_task(world.bind(made, "n"))
        await world.clock.sleep(3)
        assert "does not fit" in await world.bind(other, "n")
        assert await binding == ""
        assert world.node_of("p") == "n"
        assert (await late[0]).status == 201

    play(story, node("n"))


def test_a_client_that_leaves_ends_no_bind() -> None:
    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.go.clear()
        made = await world.add(pod("p", 2))
        await world.filter(made, "n")
        leaving = asyncio.create_task(world.bind(made, "n"))
        await world.until(lambda: bindings.asked)
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        again = asyncio.create_task(world.bind(made, "n"))
        await world.clock.sleep(0.1)
        bindings.go.set()

        assert await again == ""
        assert bindings.asked == 1
        assert world.node_of("p") == "n"

    play(story, node("n"))


def test_a_pod_whose_bind_is_under_way_is_not_offered_more_and_is_in_nobodys_way_twice() -> None:
    """kube-scheduler gave up waiting, and begins anew. Its own devices are no reason to preempt."""

    async def story(world: World) -> None:
        bindings = Bindings(world)
        bindings.go.clear()
        made = await world.add(pod("p", 6))
        await world.filter(made, "n", "m")
        first = asyncio.create_task(world.bind(made, "n"))
        await world.until(lambda: bindings.asked)
        for names in (("n",), ("m",), ("n", "m")):
            found = await world.filter(made, *names)
            assert found.error == "pod default/p is bound to n, or will be in a moment"
            assert not found.node_names
            assert not found.failed_nodes
        assert free(world, "m") == 12
        bindings.go.set()
        assert await first == ""

    play(story, node("n"), node("m"))


# ---- who may


def test_nothing_is_answered_before_everything_is_known() -> None:
    """Without an election a replica leads from the start, but not before it knows the pods."""

    async def story(world: World) -> None:
        taken, made = await world.add(pod("taken", 6)), await world.add(pod("p", 6))
        assert await world.place(taken, "n") == ""
        await world.stop()
        world.start()
        listing = asyncio.Event()

        async def opening(path: str) -> None:
            if path == PODS.path():
                await listing.wait()

        world.transport.opening = opening
        world.task = asyncio.create_task(world.service.run())
        await world.until(lambda: "n" in world.engine.cluster.rows)
        with pytest.raises(NotLeading, match="not read the cluster yet"):
            await world.filter(made, "n")
        with pytest.raises(NotLeading, match="not read the cluster yet"):
            await world.bind(made, "n")
        listing.set()
        await world.until(lambda: world.service.loop.is_ready)
        assert (await world.filter(made, "n")).failed_nodes.keys() == {"n"}
        assert "does not fit" in await world.bind(made, "n")

    play(story, node("n"))


def test_whoever_does_not_lead_answers_nothing() -> None:
    async def story(world: World) -> None:
        made = await world.add(pod("p", 2))
        await world.filter(made, "n")
        service = world.service
        for close, reopen in _reasons(service.loop, service.fence):
            close()
            with pytest.raises(NotLeading):
                await world.filter(made, "n")
            with pytest.raises(NotLeading):
                await world.prioritize(made, "n")
            with pytest.raises(NotLeading):
                await world.preempt(made, n=[made])
            with pytest.raises(NotLeading):
                await world.bind(made, "n")
            reopen()
        assert world.service.answers.counts["bind", "not leading"] == 2
        assert await world.bind(made, "n") == ""

    def _reasons(loop: Loop, fence: Fence) -> Iterator[tuple[Act, Act]]:
        def put(leads: bool) -> None:
            loop.leads = leads

        def until(deadline: float) -> None:
            fence.deadline = lambda: deadline

        yield lambda: put(False), lambda: put(True)
        yield lambda: until(0.0), lambda: until(1e9)

    play(story, node("n"))


def test_the_lease_is_lost_before_a_bind_is_sent() -> None:
    """Between the decision and the sending, and found again at once: it was another's meanwhile."""

    async def story(world: World) -> None:
        made = await world.add(pod("p", 6))
        await world.filter(made, "n")
        fence, term = world.service.fence, 0
        fence.term = lambda: term
        bind = world.binds.bind

        def decided(effect: do.Bind) -> None:
            nonlocal term
            bind(effect)
            term = 1

        world.binds.bind = decided  # type: ignore[method-assign]
        binding = asyncio.create_task(world.bind(made, "n"))
        assert "it was decided before the lease was lost" in await binding
        assert world.node_of("p") == ""
        await world.clock.sleep(1)
        assert free(world) == 12
        assert await world.bind(made, "n") == ""

    play(story, node("n"))


def test_a_fence_that_closes_between_tries_leaves_the_pod_where_it_is_said_to_be() -> None:
    async def story(world: World) -> None:
        bindings, fence = Bindings(world), world.service.fence
        bindings.answer = refused(503)
        made = await world.add(pod("p", 6))
        await world.filter(made, "n")
        binding = asyncio.create_task(world.bind(made, "n"))
        await world.until(lambda: bindings.asked)
        fence.deadline = lambda: 0.0
        error = await binding
        assert (error == "") == (world.node_of("p") == "n")
        assert bindings.asked == 1
        assert free(world) == 0

    play(story, node("n"))


def test_binds_are_finished_when_the_process_stops() -> None:
    async def whole() -> None:
        world = World()
        await world.add_node(node("n"))
        await world.run()
        bindings = Bindings(world)
        bindings.go.clear()
        first, second = await world.add(pod("a", 2)), await world.add(pod("b", 2))
        for made in (first, second):
            await world.filter(made, "n")
        sent = asyncio.create_task(world.bind(first, "n"))
        await world.until(lambda: bindings.asked)
        stopping = asyncio.create_task(world.stop())
        await world.clock.sleep(0.1)
        late = asyncio.create_task(world.bind(second, "n"))
        await world.clock.sleep(0.1)
        bindings.go.set()
        await stopping

        assert await sent == ""
        assert "the extender is stopping" in await late
        assert (world.node_of("a"), world.node_of("b")) == ("n", "")

    run(whole())
