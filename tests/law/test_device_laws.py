"""Devices under any arrivals, deaths, failures and restarts: the laws hold after every step.

What we give was free; what is left is what there is without what is held; a restart from what the
API says finds the same; and a twin that hears the same does the same.
"""

import os
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import asking
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import (
    Assignment,
    Device,
    Held,
    read_assignment,
    write_assignment,
)
from bayplan.core.model.holdings import bound_holding, holding_of
from bayplan.core.model.nodes import Node, Pool
from bayplan.core.model.pods import DeviceAsk, Holding, Part, Pod
from bayplan.core.model.vendors import Vendors
from bayplan.core.state.laws import broken, picture
from bayplan.scheduler.config import Configuration, profiles_of
from bayplan.testing import world
from tests.conftest import check_kept, differences

NAMES = ("n0", "n1", "n2", "n3")
SCHEDULERS = ("bayplan", "alnair-cost-saving", "alnair-high-performance")
PROFILES = profiles_of(Configuration())
VENDORS = Vendors()
GIB = 1 << 10
LINKS = ((), ((0, 1, 9, 1), (1, 0, 1, 9), (9, 1, 0, 1), (1, 9, 1, 0)))

AMOUNTS = {"pods": 12, world.GPU: 4, world.GPU_MEMORY: 64 * GIB, world.GPU_COMPUTE: 400}

containers = st.sampled_from(
    (
        {"gpus": 1},
        {"gpus": 2},
        {"mib": 2 * GIB},
        {"mib": 6 * GIB},
        {"mib": 10 * GIB, "percent": 40},
        {"percent": 70},
    )
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[DeviceAsk, ...]:
    found: tuple[DeviceAsk, ...] = ()
    for i in range(draw(st.sampled_from((0, 0, 0, 1, 2, 3)))):
        found += world.asks(f"i{i}", draw(st.sampled_from(("init", "sidecar"))), **draw(containers))
    for i in range(draw(st.sampled_from((1, 1, 1, 2)))):
        found += world.asks(f"main{i}", **draw(containers))
    return found


@st.composite
def device_nodes(draw: st.DrawFn) -> Node:
    name, count = draw(st.sampled_from(NAMES)), draw(st.integers(0, 4))
    devices = tuple(
        Device(
            f"{name}-{i}",
            i,
            memory_mib=draw(st.sampled_from((16, 16, 8, 0))) * GIB,
            numa=draw(st.sampled_from((-1, 0, 1))),
            healthy=draw(st.sampled_from((True, True, True, False))),
        )
        for i in range(count)
    )
    links = draw(st.sampled_from(LINKS)) if count == 4 else ()
    pools: tuple[Pool, ...] = (Pool("nvidia", devices, links),)
    match draw(st.sampled_from(("", "", "", "", "none", "unknown"))):
        case "none":
            pools = ()
        case "unknown":
            pools = (Pool("nvidia", unknown="a newer version"),)
    return world.node(name, pools=pools, allocatable=AMOUNTS)


class DeviceLaws(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.engine, self.twin = Engine(PROFILES), Engine(profiles_of(Configuration()))
        self.now, self.made = 0.0, 0
        self.known: dict[str, Pod] = {}  # by uid, as the API has them
        self.nodes: dict[str, Node] = {}
        self.binding: dict[str, do.Placement] = {}  # by uid
        for name in NAMES[:3]:
            devices = tuple(Device(f"{name}-{i}", i, 16 * GIB) for i in range(4))
            self.see_node(world.node(name, pools=(Pool("nvidia", devices),), allocatable=AMOUNTS))

    def tell(self, event: on.Event) -> None:
        before = self.rooms()
        effects = self.engine.handle(event, self.now)
        assert effects == self.twin.handle(event, self.now)
        for effect in effects:
            assert not isinstance(effect, do.Park), effect
            if isinstance(effect, do.Bind):
                self.binding[effect.placement.pod.uid] = effect.placement
                self.was_free(effect.placement, before)

    def rooms(self) -> dict[tuple[str, str], int]:
        table = self.engine.cluster.pools.tables.get("nvidia")
        if table is None:
            return {}
        return {
            (name, id): int(table.room[row, at])
            for name, row in self.engine.cluster.rows.items()
            for id, at in table.positions[row].items()
        }

    def was_free(self, placement: do.Placement, before: dict[tuple[str, str], int]) -> None:
        """We never give a device, or a part of one, that is held."""
        row = self.engine.cluster.rows[placement.node]
        node = self.engine.cluster.nodes[row]
        assert node is not None
        if not node.pools:
            assert not placement.held
            return
        table = self.engine.cluster.pools.tables["nvidia"]
        assert table.unknown[row] == 0
        holding = holding_of(placement.pod.row.devices, placement.held)
        assert holding is not None
        assert holding.unknown == ()
        for part in holding.parts:
            at = table.positions[row][part.id]
            device = node.pools[0].devices[at]
            assert device.healthy
            assert before[placement.node, part.id] >= 0
            holders = self.holders(row, device)
            assert sum(each.compute for each in holders) <= 100
            assert sum(each.memory_mib for each in holders) <= device.memory_mib
            if any(each.whole for each in holders):
                assert len(holders) == 1  # nobody beside it

    def holders(self, row: int, device: Device) -> list[Part]:
        """All that pods on the row hold of a device."""
        names = (device.id, f"#{device.index}")
        pods = (resident.pod for resident in self.engine.cluster.residents[row].values())
        held = (part for pod in pods if pod.held for part in pod.held.parts)
        return [part for part in held if part.id in names]

    @rule(node=device_nodes())
    def see_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.tell(on.NodeSeen(node))

    @precondition(lambda self: len(self.nodes) > 2)
    @rule(name=st.sampled_from(NAMES))
    def lose_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.tell(on.NodeGone(name))

    @rule(
        devices=requests(),
        scheduler=st.sampled_from(SCHEDULERS),
        pods=st.integers(1, 6),
        settled=st.booleans(),
    )
    def see_pods(
        self, devices: tuple[DeviceAsk, ...], scheduler: str, pods: int, settled: bool
    ) -> None:
        for _ in range(pods):
            self.see(devices, scheduler=scheduler)
        self.tell(on.Tick())
        for uid in list(self.binding) if settled else ():
            self.bound(uid, forged=False)

    def see(self, devices: tuple[DeviceAsk, ...], **facts: Any) -> None:
        self.made += 1
        pod = world.pod(f"p{self.made}", devices=devices, **facts)
        self.known[pod.uid] = pod
        self.tell(on.PodSeen(pod))

    @rule(
        devices=requests(),
        node=st.sampled_from(NAMES),
        held=st.sampled_from(("nothing", "own", "other")),
        at=st.integers(0, 3),
        compute=st.sampled_from((60, 60, 110)),
    )
    def see_bound(
        self, devices: tuple[DeviceAsk, ...], node: str, held: str, at: int, compute: int
    ) -> None:
        """A pod that somebody else has bound, with devices that nobody need have free."""
        parts: tuple[Part, ...] = (Part("nvidia", f"{node}-{at}", 2 * GIB, compute),)
        if held == "own":
            parts = (Part("nvidia", f"#{at}", whole=True), *parts)
        holding = None if held == "nothing" else Holding(parts)
        self.see(devices, node=node, held=holding)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def lose_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.known)))
        del self.known[uid]
        self.binding.pop(uid, None)
        self.tell(on.PodGone(uid))

    @precondition(lambda self: self.binding)
    @rule(data=st.data(), outcome=st.sampled_from(("done", "done", "failed", "forged")))
    def answer(self, data: st.DataObject, outcome: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.binding)))
        if outcome == "failed":
            del self.binding[uid]
            self.tell(on.BindFailed(uid, "conflict"))
        else:
            self.bound(uid, outcome == "forged")

    def bound(self, uid: str, forged: bool) -> None:
        placement = self.binding.pop(uid)
        self.tell(on.BindDone(uid))
        self.known[uid] = self.as_read(self.known[uid], placement, forged)
        self.tell(on.PodSeen(self.known[uid]))
        if forged and placement.held and placement.node in self.engine.cluster.rows:
            table = self.engine.cluster.pools.tables.get("nvidia")
            row = self.engine.cluster.rows[placement.node]
            assert table is None or table.unknown[row] != 0  # it holds something, nobody says what

    def as_read(self, pod: Pod, placement: do.Placement, forged: bool) -> Pod:
        """The pod as it comes back, through the text of its annotation."""
        node = "elsewhere" if forged else placement.node
        text = write_assignment(Assignment(node, placement.held))
        assert read_assignment(text) == Assignment(node, placement.held)
        noted = {"bayplan.dev/assignment": text} if placement.held else {}
        held = bound_holding(pod.row.devices, placement.node, noted, VENDORS)
        if not forged:
            assert held == holding_of(pod.row.devices, placement.held)
        return replace(pod, node=placement.node, held=held)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), at=st.integers(0, 3))
    def put_right(self, data: st.DataObject, at: int) -> None:
        """The node side says what a pod really got."""
        pod = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        if pod.node:
            parts = (Part("nvidia", f"{pod.node}-{at}", memory_mib=GIB),)
            self.known[pod.uid] = replace(pod, held=Holding(parts))
            self.tell(on.PodSeen(self.known[pod.uid]))

    @rule(seconds=st.sampled_from((0.0, 1.0, 20.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.tell(on.Tick(limit=8))

    @rule()
    def restart(self) -> None:
        """What the API says is all that there is to know."""
        for uid in list(self.binding):
            self.bound(uid, forged=False)
        fresh = Engine(PROFILES)
        for node in self.nodes.values():
            fresh.handle(on.NodeSeen(node), self.now)
        for pod in self.known.values():
            fresh.handle(on.PodSeen(pod), self.now)
        for name, row in self.engine.cluster.rows.items():
            for device_class, table in self.engine.cluster.pools.tables.items():
                other, there = fresh.cluster.pools.tables[device_class], fresh.cluster.rows[name]
                for id, at in table.positions[row].items():
                    again = other.cells[there, :, other.positions[there][id]]
                    assert table.cells[row, :, at].tolist() == again.tolist(), (name, id)
                assert table.unknown[row] == other.unknown[there]

    @rule(devices=requests(), node=device_nodes())
    def try_and_drop(self, devices: tuple[DeviceAsk, ...], node: Node) -> None:
        """tests/conftest.py checks the drop."""
        here, pod = self.engine.cluster, world.pod("trial", devices=devices)
        verdicts = self.engine.verdicts["bayplan"]
        before = picture(here)
        with here.trial():
            (here.update_node if node.name in here.rows else here.add_node)(node)
            with asking(verdicts, pod) as ask:
                row, _, _ = verdicts.best(ask)
            if row >= 0:
                held: list[Held] = []
                for plugin in verdicts.profile.choose:
                    held += plugin.choose(ask, row, here)
                here.place(replace(pod, held=holding_of(devices, held)), here.name(row))
            if here.pods:
                here.remove(sorted(here.pods)[0])
        assert "; ".join(differences(before, picture(here))) == ""

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "engine"):
            assert broken(self.engine.cluster) == []
            for verdicts in self.engine.verdicts.values():
                check_kept(verdicts)

    @invariant()
    def nothing_is_left_of_a_device_that_is_given_twice(self) -> None:
        if not hasattr(self, "engine"):
            return
        rooms = self.rooms()
        for name, node in self.nodes.items():
            for device in node.pools[0].devices if node.pools else ():
                holders = self.holders(self.engine.cluster.rows[name], device)
                compute = sum(100 if each.whole else each.compute for each in holders)
                memory = sum(0 if each.whole else each.memory_mib for each in holders)
                if compute > 100 or memory > device.memory_mib:
                    assert rooms[name, device.id] == -1


LONG = bool(os.environ.get("BAYPLAN_PROVE"))
EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES", "3000" if LONG else "100"))
PHASES = [Phase.explicit, Phase.generate] if os.environ.get("BAYPLAN_SHRINK") == "no" else None
TestDeviceLaws = DeviceLaws.TestCase
TestDeviceLaws.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, phases=PHASES or tuple(Phase)
)
