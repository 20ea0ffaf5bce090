"""Devices side by side under any arrivals, deaths, failures and restarts.

What we give was free, goes together and works; what is left is what there is without what is held;
whoever waits has no place; a restart from what the API says finds the same; and a twin that hears
the same does the same.
"""

import os
from itertools import combinations
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.questions import asking
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Assignment, Device, Held, write_assignment
from bayplan.core.model.holdings import bound_holding, holding_of
from bayplan.core.model.nodes import Layout, Node, Pool
from bayplan.core.model.pods import DeviceAsk, Holding, Part, Pod
from bayplan.core.model.vendors import Vendors
from bayplan.core.state.laws import broken, picture
from bayplan.testing import world
from tests.conftest import check_kept, differences
from tests.devices.side_by_side import Cells, Machine, at_the_same_time, joined, legal, served

NAMES = ("n0", "n1", "n2", "n3")
VENDORS = Vendors()
KINDS = (  # type, devices, cores
    ("inf1.6xlarge", 4, 16),
    ("inf2.24xlarge", 6, 12),
    ("trn1.32xlarge", 16, 32),
    ("trn2.3xlarge", 1, 8),
    ("new.metal", 3, 0),
)
ROOM = {world.NEURON: 64, world.NEURON_CORE: 64}  # only the devices refuse
INVENTORIES = {  # as agents may say, with devices that are missing
    "rows": Machine((1, 2, 3, 4, 5, 6, 7), 2, "rows", 2),
    "ring": Machine(tuple(range(5)), 2, "ring"),
    "chain": Machine((0, 1, 3, 4, 5), 2, "chain"),
}

wants = st.sampled_from(
    (
        {"neurons": 1},
        {"neurons": 1},
        {"neurons": 2},
        {"neurons": 3},
        {"neurons": 4},
        {"neurons": 8},
        {"cores": 1},
        {"cores": 2},
        {"cores": 3},
        {"neurons": 1, "cores": 1},
    )
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[DeviceAsk, ...]:
    found: tuple[DeviceAsk, ...] = ()
    for i in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        found += world.asks(f"i{i}", draw(st.sampled_from(("init", "sidecar"))), **draw(wants))
    for i in range(draw(st.sampled_from((1, 1, 1, 2)))):
        found += world.asks(f"main{i}", **draw(wants))
    return found


@st.composite
def neuron_nodes(draw: st.DrawFn) -> Node:
    kind = draw(st.sampled_from((*KINDS, *KINDS, *INVENTORIES, *INVENTORIES, "unknown", "none")))
    out = draw(st.sampled_from(("", "", "0", "1,2", "5,4,0")))
    pools: tuple[Pool, ...] = ()
    if isinstance(kind, tuple):
        machine, devices, cores = kind
        (pool,) = world.neurons(machine, devices, cores, out)["pools"]
        pools = (sickened(pool, draw(st.sampled_from((-1, -1, 0, 3)))),)
    elif kind in INVENTORIES:
        pools = (inventory(INVENTORIES[kind]),)
    elif kind == "unknown":
        pools = (Pool("neuron", unknown="a newer version", layout=Layout(())),)
    return world.node(draw(st.sampled_from(NAMES)), gpus=0, pools=pools, allocatable=ROOM)


def inventory(machine: Machine) -> Pool:
    devices = tuple(Device(str(i), i, cores=machine.cores) for i in machine.indexes)
    return Pool("neuron", devices, layout=machine.layout)


def sickened(pool: Pool, index: int) -> Pool:
    devices = tuple(replace(d, healthy=d.healthy and d.index != index) for d in pool.devices)
    return replace(pool, devices=devices)


def machine_of(layout: Layout) -> Machine:
    return Machine(layout.indexes, layout.cores, layout.shape, layout.row)


class ContiguousLaws(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.engine, self.twin = Engine(), Engine()
        self.now, self.made = 0.0, 0
        self.known: dict[str, Pod] = {}  # by uid, as the API has them
        self.nodes: dict[str, Node] = {}
        self.binding: dict[str, do.Placement] = {}  # by uid
        for name, kind in zip(NAMES, KINDS[1:3], strict=False):
            facts = world.neurons(*kind) | {"allocatable": ROOM}
            self.see_node(world.node(name, gpus=0, **facts))
        rows = (inventory(INVENTORIES["rows"]),)
        self.see_node(world.node("n2", gpus=0, pools=rows, allocatable=ROOM))

    def tell(self, event: on.Event) -> None:
        before = {name: self.free(name) for name in self.engine.cluster.rows}
        effects = self.engine.handle(event, self.now)
        assert effects == self.twin.handle(event, self.now)
        for effect in effects:
            assert not isinstance(effect, do.Park), effect
            if isinstance(effect, do.Bind):
                self.binding[effect.placement.pod.uid] = effect.placement
                given = self.given(effect.placement)
                assert given <= before[effect.placement.node]
                before[effect.placement.node] -= given

    def pool(self, name: str) -> Pool | None:
        node = self.engine.cluster.nodes[self.engine.cluster.rows[name]]
        return node.pools[0] if node is not None and node.pools else None

    def free(self, name: str) -> Cells:
        """What of a node's devices works and is not held, from its pods alone."""
        pool = self.pool(name)
        residents = self.engine.cluster.residents[self.engine.cluster.rows[name]]
        pods = [resident.pod for resident in residents.values()]
        if pool is None or pool.unknown or pool.layout is None:
            return frozenset()
        if any(p.row.devices and (p.held is None or p.held.unknown) for p in pods):
            return frozenset()  # nobody knows
        machine = machine_of(pool.layout)
        taken = {part.id for p in pods if p.held is not None for part in p.held.parts}
        every = joined([machine.device(each.index) for each in pool.devices])
        numbers = {n for i, c in every for n in (f"#{i}", f"@{i * machine.cores + c}")}
        if any(id[0] in "#@" and id not in numbers for id in taken):
            return frozenset()  # a number that the node has not
        found = [machine.device(each.index) for each in pool.devices if each.healthy]
        names = {(i, c): (str(i), f"#{i}", f"@{i * machine.cores + c}") for i, c in joined(found)}
        return frozenset(cell for cell in names if taken.isdisjoint(names[cell]))

    def given(self, placement: do.Placement) -> Cells:
        """What a pod was given: sets that go together, and nothing twice at the same time."""
        asks, pool = placement.pod.row.devices, self.pool(placement.node)
        assert pool is not None
        assert pool.layout is not None
        machine = machine_of(pool.layout)
        sets: list[Cells] = []
        for ask, held in zip(asks, placement.held, strict=True):
            assert (held.container, held.resource) == (ask.container, ask.resource)
            numbers = {device.index for device in held.devices}
            assert len(numbers) == len(held.devices) == ask.amount
            units = machine.units(ask.kind)
            sets.append(joined([cells for number, cells in units if number in numbers]))
            assert sets[-1] in legal(machine, ask.kind, ask.amount)
        for i, j in combinations(range(len(sets)), 2):
            assert not (at_the_same_time(asks, i, j) and sets[i] & sets[j])
        return joined(sets)

    @rule(node=neuron_nodes())
    def see_node(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.tell(on.NodeSeen(node))

    @rule(name=st.sampled_from(NAMES), index=st.integers(0, 5))
    def sicken(self, name: str, index: int) -> None:
        """A device fails; or it is well again, as see_node says."""
        if name in self.nodes and self.nodes[name].pools:
            pool = sickened(self.nodes[name].pools[0], index)
            self.see_node(replace(self.nodes[name], pools=(pool,)))

    @precondition(lambda self: len(self.nodes) > 2)
    @rule(name=st.sampled_from(NAMES))
    def lose_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.tell(on.NodeGone(name))

    @rule(devices=requests(), pods=st.integers(1, 5), settled=st.booleans())
    def see_pods(self, devices: tuple[DeviceAsk, ...], pods: int, settled: bool) -> None:
        for _ in range(pods):
            self.see(devices)
        self.tell(on.Tick())
        for uid in list(self.binding) if settled else ():
            self.bound(uid, forged=False)

    def see(self, devices: tuple[DeviceAsk, ...], **facts: Any) -> None:
        self.made += 1
        none = {world.NEURON: 0, world.NEURON_CORE: 0}  # counting is not what is tried here
        pod = world.pod(f"p{self.made}", devices=devices, requests=none, **facts)
        self.known[pod.uid] = pod
        self.tell(on.PodSeen(pod))

    @rule(
        node=st.sampled_from(NAMES),
        noted=st.sampled_from(("", "0", "2,3", "3,2", "1,x", "40,41", "0,1,2,3")),
        cores=st.booleans(),
        amount=st.sampled_from((1, 2, 4)),
    )
    def see_bound(self, node: str, noted: str, cores: bool, amount: int) -> None:
        """A pod that Neuron's own extension has bound, with devices that nobody need have free."""
        devices = world.asks(cores=amount) if cores else world.asks(neurons=amount)
        written = {"AWS_NEURON_IDS": noted} if noted else {}
        held = bound_holding(devices, node, written, VENDORS)
        self.see(devices, node=node, held=held)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), most=st.integers(1, 4))
    def lose_pods(self, data: st.DataObject, most: int) -> None:
        for _ in range(min(most, len(self.known))):
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
        """The pod comes back, through the text of its annotation."""
        placement = self.binding.pop(uid)
        self.tell(on.BindDone(uid))
        where = "elsewhere" if forged else placement.node
        noted = {"bayplan.dev/assignment": write_assignment(Assignment(where, placement.held))}
        asks = self.known[uid].row.devices
        held = bound_holding(asks, placement.node, noted, VENDORS)
        assert held == (None if forged else holding_of(asks, placement.held))
        self.known[uid] = replace(self.known[uid], node=placement.node, held=held)
        self.tell(on.PodSeen(self.known[uid]))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), at=st.integers(0, 3))
    def put_right(self, data: st.DataObject, at: int) -> None:
        """The node side says what a pod really got."""
        pod = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        if pod.node:
            parts = (Part("neuron", f"@{at}", whole=True), Part("neuron", "#2", whole=True))
            self.known[pod.uid] = replace(pod, held=Holding(parts))
            self.tell(on.PodSeen(self.known[pod.uid]))

    @rule(seconds=st.sampled_from((0.0, 1.0, 20.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.tell(on.Tick(limit=8))

    @rule()
    def relist(self) -> None:
        """All that the API has is told once more, and nothing changes."""
        before = picture(self.engine.cluster)
        for node in self.nodes.values():
            self.tell(on.NodeSeen(node))
        for pod in self.known.values():
            self.tell(on.PodSeen(pod))
        assert "; ".join(differences(before, picture(self.engine.cluster))) == ""

    @rule()
    def restart(self) -> None:
        """What the API says is all that there is to know."""
        for uid in list(self.binding):
            self.bound(uid, forged=False)
        fresh = Engine()
        for node in self.nodes.values():
            fresh.handle(on.NodeSeen(node), self.now)
        for pod in self.known.values():
            fresh.handle(on.PodSeen(pod), self.now)
        tables = self.engine.cluster.pools.ordered
        assert tables.keys() == fresh.cluster.pools.ordered.keys()
        for name, row in self.engine.cluster.rows.items():
            for device_class, table in tables.items():
                other, there = fresh.cluster.pools.ordered[device_class], fresh.cluster.rows[name]
                assert table.free[row] == other.free[there]
                assert table.layouts[row] == other.layouts[there]
                assert table.unknown[row] == other.unknown[there]

    @rule(devices=requests())
    def nobody_waits_who_has_a_place(self, devices: tuple[DeviceAsk, ...]) -> None:
        """A newcomer is refused only where there is no way at all."""
        if "trial" in self.known or self.engine.is_full:
            return
        pod = world.pod("trial", devices=devices, requests={world.NEURON: 0, world.NEURON_CORE: 0})
        verdicts = self.engine.verdicts["bayplan"]
        with asking(verdicts, pod) as ask:
            row, _, _ = verdicts.best(ask, keep=False)

        def clash(i: int, j: int) -> bool:
            return devices[i].kind != devices[j].kind or at_the_same_time(devices, i, j)

        places = [
            name
            for name in self.engine.cluster.rows
            if (pool := self.pool(name)) is not None and pool.layout is not None
            if served(machine_of(pool.layout), self.free(name), devices, clash)
        ]
        assert (row >= 0) == bool(places), places
        assert row < 0 or self.engine.cluster.name(row) in places

    @rule(devices=requests(), node=neuron_nodes())
    def try_and_drop(self, devices: tuple[DeviceAsk, ...], node: Node) -> None:
        """tests/conftest.py checks the drop."""
        here, pod = self.engine.cluster, world.pod("trial", devices=devices)
        verdicts = self.engine.verdicts["bayplan"]
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

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "engine"):
            assert broken(self.engine.cluster) == []
            for verdicts in self.engine.verdicts.values():
                check_kept(verdicts)


LONG = bool(os.environ.get("BAYPLAN_PROVE"))
EXAMPLES = int(os.environ.get("BAYPLAN_EXAMPLES", "2000" if LONG else "100"))
PHASES = [Phase.explicit, Phase.generate] if os.environ.get("BAYPLAN_SHRINK") == "no" else None
TestContiguousLaws = ContiguousLaws.TestCase
TestContiguousLaws.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, phases=PHASES or tuple(Phase)
)
