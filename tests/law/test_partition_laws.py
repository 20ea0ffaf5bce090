"""Partitions under any arrivals, deaths, refusals, losses and restarts: the laws hold after every
step, and once everything that is on its way has arrived, memory and controller agree.

The controller has an allocator of its own, which gives other devices than planned.
"""

import os
import random
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Assignment, write_assignment
from bayplan.core.model.effects import Placement
from bayplan.core.model.holdings import bound_holding, holding_of
from bayplan.core.model.nodes import Node
from bayplan.core.model.partitions import Estate, Partition, divided
from bayplan.core.model.pods import Pod
from bayplan.core.state.estates import union
from bayplan.core.state.laws import broken, picture
from bayplan.scheduler.steward import Place, Site, places_of
from bayplan.testing import world
from bayplan.vipu.controller import Refused
from bayplan.vipu.fake import FakeVipu, one_cluster
from tests.conftest import check_kept, differences

NAMES = ("n0", "n1", "n2")
GRACE_S = 30.0
SIZES = st.sampled_from((1, 1, 2, 2, 4, 4, 8, 16, 3))


class PartitionLaws(RuleBasedStateMachine):
    @initialize(
        choice=st.sampled_from(("first", "last", "random")),
        split=st.booleans(),
        peaceful=st.booleans(),
        seed=st.integers(0, 9),
    )
    def start(self, choice: Any, split: bool, peaceful: bool, seed: int) -> None:
        self.engine, self.twin = Engine(grace_s=GRACE_S), Engine(grace_s=GRACE_S)
        self.now, self.made, self.foreign = 0.0, 0, 0
        self.known: dict[str, Pod] = {}  # by uid, as the API has them
        self.nodes: dict[str, Node] = {}
        self.binding: dict[str, Placement] = {}  # by uid: not made yet
        self.ready: dict[str, Placement] = {}  # … and made, not bound yet
        self.to_go: list[do.Dismantle] = []
        self.pure = peaceful  # no device comes or goes, and no partition, but by us
        allocations = {"a": 2, "b": 2} if split else None
        self.fake = FakeVipu(one_cluster(16, 8, allocations), choice, random.Random(seed))
        nobody: Any = None
        site = Site("vipu", 8090, world.VIPU, nobody)
        self.places = list(places_of(site, self.fake.inventory(), "bp-"))
        for name in NAMES[:2]:
            self.see_node(name, head=True)
        self.list_all()

    def tell(self, event: on.Event) -> None:
        effects = self.engine.handle(event, self.now)
        assert effects == self.twin.handle(event, self.now)
        for effect in effects:
            match effect:
                case do.Park():
                    raise AssertionError(effect)
                case do.Bind(placement):
                    self.was_free(placement)
                    self.binding[placement.pod.uid] = placement
                case do.Dismantle(id=id):
                    assert id.startswith("bp-"), "nobody else's is deleted"
                    self.to_go.append(effect)
                case do.Preempt(victims=victims):
                    for victim in victims:
                        self.lose(victim.uid)

    def was_free(self, placement: Placement) -> None:
        """Nobody else has what was planned, and it is one block of the right size."""
        holding = holding_of(placement.pod.row.devices, placement.held)
        assert holding is not None
        assert len(holding.parts) == placement.pod.row.devices[0].amount
        estates = self.engine.cluster.estates
        for part in holding.parts:
            assert not estates.is_amiss(part.id), part

    # ---- the cluster

    @rule(name=st.sampled_from(NAMES), head=st.booleans())
    def see_node(self, name: str, head: bool) -> None:
        labels = dict([world.VIPU]) if head else {}
        self.nodes[name] = world.node(name, 0, labels=labels)
        self.tell(on.NodeSeen(self.nodes[name]))

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(name=st.sampled_from(NAMES))
    def lose_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.tell(on.NodeGone(name))

    @rule(size=SIZES, count=st.integers(1, 4), priority=st.integers(0, 2))
    def see_pods(self, size: int, count: int, priority: int) -> None:
        for _ in range(count):
            self.made += 1
            devices = world.asks(ipus=size)
            pod = world.pod(f"p{self.made}", devices=devices, priority=priority)
            self.known[pod.uid] = pod
            self.tell(on.PodSeen(pod))
        self.tell(on.Tick())

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def lose_pod(self, data: st.DataObject) -> None:
        self.lose(data.draw(st.sampled_from(sorted(self.known))))

    def lose(self, uid: str) -> None:
        self.known.pop(uid, None)
        self.binding.pop(uid, None)
        self.ready.pop(uid, None)
        self.tell(on.PodGone(uid))

    @rule(seconds=st.sampled_from((0.0, 2.0, 20.0, 400.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.tell(on.Tick())

    # ---- binds

    @precondition(lambda self: self.binding)
    @rule(data=st.data(), unwilling=st.sampled_from((False, False, False, True)))
    def make(self, data: st.DataObject, unwilling: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.binding)))
        placement = self.binding.pop(uid)
        (held,) = placement.held
        place = self.place(held.pool)
        id, size = place.estate.id_of(uid), len(held.devices)
        # what was to go before goes before
        for effect in [each for each in self.to_go if each.estate == held.pool]:
            self.delete(effect)
        try:
            if unwilling:
                raise Refused("not today")
            there = self.fake.create(id, size, cluster=place.cluster, allocation=place.allocation)
        except Refused:
            self.tell(on.PartitionRefused(held.pool, size))
            self.tell(on.BindFailed(uid, "refused"))
            return
        devices = {device.id: device for device in place.estate.devices}
        real = divided(
            placement.pod.row.devices, held.pool, [devices[ipu.name] for ipu in there.ipus]
        )
        self.tell(on.PartitionMade(uid, tuple(real)))
        self.ready[uid] = replace(placement, held=tuple(real))

    @precondition(lambda self: self.ready)
    @rule(data=st.data(), works=st.booleans())
    def bind(self, data: st.DataObject, works: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.ready)))
        placement = self.ready.pop(uid)
        if not works:
            self.tell(on.BindFailed(uid, "conflict"))
            return
        self.tell(on.BindDone(uid))
        text = write_assignment(Assignment(placement.node, placement.held))
        pod, noted = self.known[uid], {"bayplan.dev/assignment": text}
        held = bound_holding(pod.row.devices, placement.node, noted, world.VENDORS)
        assert held == holding_of(pod.row.devices, placement.held)
        self.known[uid] = replace(pod, node=placement.node, held=held)
        self.tell(on.PodSeen(self.known[uid]))

    # ---- the controller

    def place(self, estate: str) -> Place:
        return next(each for each in self.places if each.estate.name == estate)

    def delete(self, effect: do.Dismantle) -> None:
        self.to_go.remove(effect)
        self.fake.delete(effect.id)
        self.tell(on.PartitionGone(effect.estate, effect.id))

    @precondition(lambda self: self.to_go)
    @rule(lost=st.booleans())
    def carry_out(self, lost: bool) -> None:
        """The oldest deletion is carried out, or forgotten with its sender."""
        effect = self.to_go[0]
        if lost and not self.pure:
            self.to_go.remove(effect)
        else:
            self.delete(effect)

    @rule()
    def list_all(self) -> None:
        for place in self.places:
            here = [each for each in self.fake.partitions() if is_of(place, each)]
            told = (Partition(p.id, tuple(ipu.name for ipu in p.ipus)) for p in here)
            self.tell(on.EstateSeen(self.healthy(place.estate), tuple(told)))

    def healthy(self, estate: Estate) -> Estate:
        ill = {agent.id for agent in self.fake.inventory().agents if not agent.healthy}
        devices = (replace(d, healthy=d.id.split(".")[0] not in ill) for d in estate.devices)
        return replace(estate, devices=tuple(devices))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.places))
        self.tell(on.EstateLost(place.estate.name, "time-out"))

    @precondition(lambda self: not self.pure)
    @rule(size=st.sampled_from((1, 2, 4)), data=st.data())
    def somebody_else(self, size: int, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.places))
        self.foreign += 1
        try:
            self.fake.create(f"hand-{self.foreign}", size, allocation=place.allocation)
        except Refused:
            self.fake.delete(f"hand-{self.foreign - 1}")

    @precondition(lambda self: not self.pure)
    @rule(number=st.integers(1, 4), healthy=st.booleans())
    def machine(self, number: int, healthy: bool) -> None:
        self.fake.set_health(f"ag{number}", healthy)

    @precondition(lambda self: not self.pure and self.fake.partitions())
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        self.fake.lose(data.draw(st.sampled_from([p.id for p in self.fake.partitions()])))

    # ---- the laws

    @rule(size=SIZES)
    def try_and_drop(self, size: int) -> None:
        """tests/conftest.py checks the drop."""
        here = self.engine.cluster
        before = picture(here)
        with here.trial():
            for name, line in list(here.estates.lines.items()):
                here.estates.write(replace(line.estate, devices=()), line.rows)
                here.estates.close(name, "gone")
            for uid in sorted(here.pods)[:2]:
                here.remove(uid)
            here.add_node(world.node("new", 0, labels=dict([world.VIPU])))
            holding = next((r.pod.held for r in here.pods.values()), None)
            here.place(replace(world.pod("trial"), held=holding), "new")
        assert "; ".join(differences(before, picture(here))) == ""

    @rule()
    def settle(self) -> None:
        """All that is on its way arrives: then nothing of ours is left without its pod, and what is
        free here is free there."""
        for uid in list(self.binding):
            placement = self.binding.pop(uid)
            self.tell(on.BindFailed(placement.pod.uid, "stopped"))
        for uid in list(self.ready):
            self.ready.pop(uid)
            self.tell(on.BindFailed(uid, "stopped"))
        for _ in range(3):
            self.list_all()
            while self.to_go:
                self.delete(self.to_go[0])
            self.now += GRACE_S
        self.list_all()
        holders = {uid for uid, pod in self.known.items() if pod.node}
        for each in self.fake.partitions():
            assert not each.id.startswith("bp-") or each.id.removeprefix("bp-") in holders
        for place in self.places:
            line = self.engine.cluster.estates.lines[place.estate.name]
            taken = {ipu.name for p in self.fake.partitions() for ipu in p.ipus}
            for at, device in enumerate(line.estate.devices):
                if line.free >> at & 1:
                    assert device.id not in taken

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "places"):
            assert broken(self.engine.cluster) == []
            for verdicts in self.engine.verdicts.values():
                check_kept(verdicts)

    @invariant()
    def nobody_plans_with_what_another_has(self) -> None:
        if not hasattr(self, "places") or not self.pure:
            return
        holds = self.engine.cluster.holds.rows
        for line in self.engine.cluster.estates.lines.values():
            pods = self.engine.cluster.estates.holders(line)
            masks = [line.mask(pod.held) for pod in pods if pod.uid not in holds]
            assert sum(mask.bit_count() for mask in masks) == union(masks).bit_count()


def is_of(place: Place, partition: Any) -> bool:
    return (partition.cluster, partition.allocation) == (place.cluster, place.allocation)


LONG = bool(os.environ.get("BAYPLAN_PROVE"))
EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES", "3000" if LONG else "100"))
PHASES = [Phase.explicit, Phase.generate] if os.environ.get("BAYPLAN_SHRINK") == "no" else None
TestPartitionLaws = PartitionLaws.TestCase
TestPartitionLaws.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, phases=PHASES or tuple(Phase)
)
