"""Pods that other schedulers place, under anything: the laws hold after every step, no device is
given twice, and what the API says is what memory says.

First the engine alone, asked as the extender asks it, with a twin that now and then is made anew
from a snapshot. Then the running extender between two kube-schedulers and an API with faults.
"""

import asyncio
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Profile
from bayplan.core.engine.questions import fits_on
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import CORE
from bayplan.core.model.holdings import bound_holding, holding_of
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Holding, Part, Pod
from bayplan.core.model.vendors import Vendors
from bayplan.core.plugins.registry import installed
from bayplan.core.state.laws import picture
from bayplan.extender.service import profile
from bayplan.kube.client import NODES
from bayplan.kube.transport import ApiError, TransportError
from bayplan.local.faults import Chances, Faults
from bayplan.local.virtual import run
from bayplan.scheduler.assignments import annotations_of
from bayplan.scheduler.replay import broken_laws
from bayplan.scheduler.snapshot import State, restore, take
from bayplan.testing import world
from tests.conftest import check_kept, differences
from tests.extender import decisions
from tests.extender.decisions import IDS, INF2, TRN1, Json

KINDS = {"inf1.6xlarge": (4, 4), "inf2.24xlarge": (6, 2), "trn1.32xlarge": (16, 2)}
NAMES = ("n0", "n1", "n2", "n3", "n4")
VENDORS = Vendors()
PROFILE = profile("binpack")
LONG = bool(os.environ.get("BAYPLAN_PROVE"))
EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES", "1000" if LONG else "50"))


def fresh() -> Engine:
    return Engine([Profile(PROFILE, installed())])


@st.composite
def machines(draw: st.DrawFn) -> Node:
    kind = draw(st.sampled_from(sorted(KINDS)))
    devices, cores = KINDS[kind]
    cordon = draw(st.sampled_from(("", "", "", "", "1")))
    facts = world.neurons(kind, devices, devices * cores, cordon)
    name = draw(st.sampled_from(NAMES))
    uid = draw(st.sampled_from((f"uid-{name}", f"uid-{name}", "another")))
    return replace(world.node(name, gpus=0, **facts), uid=uid)


requests = st.sampled_from(
    (
        world.asks(neurons=1),
        world.asks(neurons=2),
        world.asks(neurons=4),
        world.asks(cores=1),
        world.asks(cores=4),
        world.asks("init", "init", neurons=2) + world.asks(neurons=1),
        (),
    )
)


def cells(pod: Pod, node: Node) -> Iterator[tuple[int, int]]:
    """Devices and cores that it holds."""
    cores = node.pools[0].layout.cores if node.pools and node.pools[0].layout else 1
    for part in pod.held.parts if pod.held else ():
        if part.id.startswith(CORE):
            yield divmod(int(part.id[len(CORE) :]), cores)
        else:
            yield from ((int(part.id.removeprefix("#")), core) for core in range(cores))


class OfferLaws(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.engine, self.twin = fresh(), fresh()
        self.now, self.made = 0.0, 0
        self.known: dict[str, Pod] = {}  # by uid, as the API has them
        self.nodes: dict[str, Node] = {}
        self.binding: dict[str, do.Placement] = {}  # by uid
        for name in NAMES[:4]:
            self.see_node(world.node(name, gpus=0, **world.neurons("inf2.24xlarge", 6, 12)))

    def tell(self, event: on.Event) -> list[do.Effect]:
        effects = self.engine.handle(event, self.now)
        assert effects == self.twin.handle(event, self.now)
        assert not any(isinstance(effect, do.Park) for effect in effects)
        return effects

    def see_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.tell(on.NodeSeen(node))

    @rule(node=machines(), goes=st.booleans())
    def change_node(self, node: Node, goes: bool) -> None:
        if goes and node.name in self.nodes:
            del self.nodes[node.name]
            self.tell(on.NodeGone(node.name))
        else:
            self.see_node(node)

    def one(self, data: st.DataObject) -> Pod:
        return self.known[data.draw(st.sampled_from(sorted(self.known)))]

    def newcomer(self, data: st.DataObject) -> Pod:
        """A pod that waits: one that was there, or another."""
        waiting = [uid for uid, pod in self.known.items() if not self.is_somewhere(pod)]
        uid = data.draw(st.sampled_from(["", *sorted(waiting)]))
        if uid:
            return self.known[uid]
        self.made += 1
        devices, priority = data.draw(requests), data.draw(st.integers(0, 2))
        pod = world.pod(f"p{self.made}", scheduler="k", devices=devices, priority=priority)
        if data.draw(st.booleans()):  # else the filter is faster than the watch
            self.tell(on.PodSeen(pod))
        self.known[pod.uid] = pod
        return pod

    def is_somewhere(self, pod: Pod) -> bool:
        cluster = self.engine.cluster
        return pod.uid in cluster.pods or pod.uid in cluster.orphan_nodes

    @rule(data=st.data(), names=st.permutations(NAMES), bind=st.booleans())
    def filter(self, data: st.DataObject, names: list[str], bind: bool) -> None:
        pod = self.newcomer(data)
        if not pod.row.devices:
            return
        offers = self.engine.offers
        if offers.until:
            self.tell(on.PodNotExpected(pod.uid))
        found = offers.filter(pod, names)
        assert all(0 <= score <= 100 for score in offers.scores(pod, names))
        verdicts, rows = self.engine.verdicts[""], self.engine.cluster.rows
        assert found.passed == [n for n in names if n in rows and fits_on(verdicts, pod, n)]
        if not found.best:
            assert pod.uid not in offers.until
            return
        self.tell(on.PodExpected(pod, found.best))
        assert offers.until[pod.uid] == self.now + 2.0
        assert self.engine.cluster.name(self.engine.cluster.holds.rows[pod.uid]) == found.best
        if bind:
            (effect,) = self.bind(pod, found.passed[0])
            assert isinstance(effect, do.Bind), effect  # it was offered, so it is to be had

    @rule(data=st.data(), names=st.permutations(NAMES))
    def filter_without_bind(self, data: st.DataObject, names: list[str]) -> None:
        self.filter(data, names, bind=False)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def bind_anywhere(self, data: st.DataObject, name: str) -> None:
        self.bind(self.newcomer(data), name)

    def bind(self, pod: Pod, name: str) -> list[do.Effect]:
        before = set(self.engine.cluster.pods)
        effects = self.tell(on.BindAsked(pod, name))
        (effect,) = effects
        if isinstance(effect, do.Bind):
            self.binding[pod.uid] = effect.placement
            self.was_free(effect.placement)
        else:
            assert set(self.engine.cluster.pods) == before
        assert pod.uid not in self.engine.offers.until
        return effects

    def was_free(self, placement: do.Placement) -> None:
        """Nobody else on the node has any of it."""
        node = self.nodes[placement.node]
        mine = replace(placement.pod, held=holding_of(placement.pod.row.devices, placement.held))
        wanted = set(cells(mine, node))
        assert bool(wanted) == bool(placement.pod.row.devices)
        cluster = self.engine.cluster
        row = cluster.rows[placement.node]
        others = [r.pod for uid, r in cluster.residents[row].items() if uid != mine.uid]
        for other in (*others, *cluster.holds.on(row)):
            assert not wanted & set(cells(other, node))

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        node=st.sampled_from(NAMES),
        said=st.sampled_from(("nothing", "some", "no devices")),
        at=st.integers(0, 3),
    )
    def bound_by_another(self, data: st.DataObject, node: str, said: str, at: int) -> None:
        """Whoever it was says what it gave, or nothing."""
        pod = self.one(data)
        if pod.node:
            return
        parts = (Part("neuron", f"#{at}", whole=True),)
        held = {"nothing": None, "some": Holding(parts), "no devices": Holding(())}[said]
        self.known[pod.uid] = replace(pod, node=node, held=held)
        self.tell(on.PodSeen(self.known[pod.uid]))
        if pod.uid in self.binding:
            del self.binding[pod.uid]
            self.tell(on.BindFailed(pod.uid, f"it was bound to {node}"))

    @precondition(lambda self: self.binding)
    @rule(data=st.data(), outcome=st.sampled_from(("done", "seen first", "failed")))
    def answer(self, data: st.DataObject, outcome: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.binding)))
        placement = self.binding.pop(uid)
        if outcome == "failed":
            self.tell(on.BindFailed(uid, "conflict"))
            assert uid not in self.engine.cluster.pods
            return
        pod, noted = self.known[uid], annotations_of(placement, VENDORS, 1.0)
        held = bound_holding(pod.row.devices, placement.node, noted, VENDORS)
        if noted:
            assert held == holding_of(pod.row.devices, placement.held)
        self.known[uid] = replace(pod, node=placement.node, held=held)
        told: list[on.Event] = [on.BindDone(uid), on.PodSeen(self.known[uid])]
        for event in told if outcome == "done" else reversed(told):
            self.tell(event)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def lose_pod(self, data: st.DataObject) -> None:
        uid = self.one(data).uid
        del self.known[uid]
        self.binding.pop(uid, None)
        self.tell(on.PodGone(uid))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def preempt(self, data: st.DataObject, name: str) -> None:
        pod, cluster = self.one(data), self.engine.cluster
        row = cluster.rows.get(name)
        given = sorted(cluster.residents[row])[:1] if row is not None else []
        before, until = picture(cluster), dict(self.engine.offers.until)
        if not self.is_somewhere(pod):
            self.engine.offers.victims(pod, name, given)
        assert "; ".join(differences(before, picture(cluster))) == ""
        assert self.engine.offers.until == until

    @rule(seconds=st.sampled_from((0.0, 0.5, 0.5, 2.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.tell(on.Tick())
        assert all(end > self.now for end in self.engine.offers.until.values())

    @rule()
    def snapshot(self) -> None:
        """The twin goes on from what was written down."""
        state = State()
        for part in take(self.engine):
            state.add(part)
        self.twin = restore(state, [Profile(PROFILE, installed())])
        held = self.engine.cluster.holds.rows
        assert self.twin.cluster.holds.rows == held
        assert self.twin.offers.until == {u: self.engine.offers.until[u] for u in held}

    @rule()
    def restart(self) -> None:
        """What the API says is all that there is to know."""
        again = fresh()
        for node in self.nodes.values():
            again.handle(on.NodeSeen(node), self.now)
        for pod in self.known.values():
            again.handle(on.PodSeen(pod), self.now)
        for uid, placement in self.binding.items():
            pod = replace(
                self.known[uid],
                node=placement.node,
                held=holding_of(placement.pod.row.devices, placement.held),
            )
            again.handle(on.PodSeen(pod), self.now)
        cluster = self.engine.cluster
        with cluster.trial():
            for uid in list(cluster.holds.rows):
                cluster.holds.release(uid)
            for name, row in cluster.rows.items():
                for device_class, table in cluster.pools.ordered.items():
                    other, there = (
                        again.cluster.pools.ordered[device_class],
                        again.cluster.rows[name],
                    )
                    assert table.free[row] == other.free[there]
                    assert table.unknown[row] == other.unknown[there]

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "engine"):
            assert broken_laws(self.engine) == []
            held, cluster = self.engine.cluster.holds.rows.keys(), self.engine.cluster
            assert held <= self.engine.offers.until.keys()
            assert held <= self.known.keys() - cluster.pods.keys() - cluster.orphan_nodes.keys()
            for verdicts in self.engine.verdicts.values():
                check_kept(verdicts)


TestOfferLaws = OfferLaws.TestCase
TestOfferLaws.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)


# ---- the running extender


SIZES = (1, 1, 2, 3, 4, 4, 8)


class Scheduler:
    """As kube-scheduler does it: filter, prioritize, bind, each pod again until it is bound. It
    gives up waiting for an answer after a while, as its client does."""

    def __init__(self, world: decisions.World, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.pods: list[Json] = []

    async def work(self) -> None:
        while True:
            await self.world.clock.sleep(self.rng.random() * 0.3)
            waiting = [each for each in self.pods if self.is_waiting(each)]
            if waiting:
                pod = self.rng.choice(waiting)
                try:
                    async with asyncio.timeout(5):
                        await self.place(pod)
                except TimeoutError:
                    continue

    def is_waiting(self, pod: Json) -> bool:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        stored = self.world.api.store.get("pods", ("default", name))
        there = stored is not None and stored.value["metadata"]["uid"] == uid
        return there and not self.world.node_of(name)

    async def place(self, pod: Json) -> None:
        world = self.world
        names = [value["metadata"]["name"] for value in world.api.store.values("nodes")]
        found = (await world.filter(pod, *names)).node_names or []
        if found:
            await world.clock.sleep(self.rng.random() * 0.5)
            scores = await world.prioritize(pod, *found)
            best = max(found, key=lambda name: (scores[name], name))
            await world.bind(pod, self.rng.choice([best, best, best, self.rng.choice(found)]))


def given_twice(world: decisions.World) -> list[str]:
    """By what the API says."""
    owners: dict[tuple[str, int], str] = {}
    found = []
    for value in world.api.store.values("pods"):
        node, name = value["spec"].get("nodeName"), value["metadata"]["name"]
        notes = value["metadata"].get("annotations") or {}
        if not node:
            continue
        ids = [int(number) for number in notes[IDS].split(",")]
        if ids != list(range(ids[0], ids[0] + len(ids))):
            found.append(f"{name} has {ids}")
        for number in ids:
            other = owners.setdefault((node, number), name)
            if other != name:
                found.append(f"device {number} of {node} is {other}'s and {name}'s")
    return found


@pytest.mark.parametrize("seed", range(30 if LONG else 3))
def test_two_schedulers_and_an_api_with_faults_give_no_device_twice(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        chances = Chances(
            latency=0.3,
            conflict=0.05,
            busy=0.05,
            error=0.05,
            lost_answer=0.1,
            refused=0.05,
            broken_watch=0.05,
            late_events=0.1,
            repeated_events=0.1,
        )
        world = decisions.World(faults=Faults(chances, random.Random(seed)))
        kinds = (INF2, TRN1, INF2)
        await world.add_node(*(decisions.node(f"n{i}", kind) for i, kind in enumerate(kinds)))
        await world.run()
        schedulers = [Scheduler(world, seed + i) for i in range(2)]
        working = [asyncio.create_task(each.work()) for each in schedulers]
        try:
            for i in range(40):
                made = await world.add(decisions.pod(f"p{i}", rng.choice(SIZES)))
                for scheduler in rng.choice((schedulers, schedulers[:1], schedulers[1:])):
                    scheduler.pods.append(made)
                await world.clock.sleep(rng.random())
                await happen(world, rng, i)
                assert given_twice(world) == []
                assert not any(task.done() for task in working)
            world.faults.chances = Chances()
            await world.clock.sleep(60)
            assert given_twice(world) == []
            audit = await world.service.live._compare()
            kinds_of_difference = {each.kind for each in audit.differences}
            assert kinds_of_difference <= {"namespace_missing"}, audit.differences
            assert nothing_waits_that_fits(world, schedulers) == []
        finally:
            for task in working:
                task.cancel()
            ended = await asyncio.gather(*working, return_exceptions=True)
            await world.stop()
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    run(story())


async def happen(world: decisions.World, rng: random.Random, number: int) -> None:
    """Somebody deletes pods; a node goes and comes back; the extender is killed."""
    try:
        if rng.random() < 0.3:
            await world.delete(f"p{rng.randrange(number + 1)}")
    except (ApiError, TransportError):
        pass  # it was deleted before
    if number == 20:
        await world.delete("n2", NODES)
        await world.clock.sleep(1)
        await world.add_node(decisions.node("n2", INF2))


def nothing_waits_that_fits(world: decisions.World, schedulers: list[Scheduler]) -> list[str]:
    cluster, found = world.engine.cluster, []
    for pod in [each for scheduler in schedulers for each in scheduler.pods]:
        name = pod["metadata"]["name"]
        stored = world.api.store.get("pods", ("default", name))
        if stored is None or world.node_of(name):
            continue
        seen = world.service.watches.reader.pod(decisions.raw(stored.value))
        if world.engine.offers.filter(seen, list(cluster.rows)).passed:
            found.append(name)
    return found
