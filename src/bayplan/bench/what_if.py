"""How long hypothetical questions take: on an engine alone, and on a running scheduler (`asking`).

The engine has 10,000 nodes of 8 published devices, all held by pods of one device each. Between
two questions a pod goes and another comes, so that no answer is the one before. A question goes the
way of a `POST /v1/what-if` from where its body is read. Beside it runs the bare NumPy loop of
`bench engine`, so that machines can be compared. The garbage collector is frozen after the filling
and seldom runs, as in a live scheduler after its first list.
"""

import gc
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bayplan.bench import asking
from bayplan.bench.engine import BareLoop
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.what_if import WhatIf
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model import steps as ask_for
from bayplan.core.model.devices import Device, Held, HeldDevice
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.nodes import Node, Pool
from bayplan.core.model.pods import DeviceAsk, Gang, Pod, RowKey
from bayplan.scheduler.loop import GC_THRESHOLDS

GPU, GPUS = "nvidia.com/gpu", 8
MEMORY_MIB = 81_920
GIB = 1 << 30
BARE_DECISIONS = 2_000
Progress = Callable[[str], None]


class Plan(Struct, frozen=True):
    nodes: int = 10_000
    questions: int = 1_000
    preemptions: int = 200
    gang_nodes: int = 500
    gang_size: int = 10
    gangs: int = 20
    live: asking.Plan | None = asking.Plan()


QUICK = Plan(nodes=500, questions=200, preemptions=20, gang_nodes=100, gangs=5, live=asking.QUICK)
ENGINE_ONLY = Plan(live=None)


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of `bayplan bench what-if`."""
    found: dict[str, Any] = {"nodes": plan.nodes}
    progress(f"{plan.nodes} nodes with {GPUS} devices: filling them")
    full = Full(plan.nodes)
    progress("asking")
    gc.set_threshold(*GC_THRESHOLDS)
    found |= full.questions(plan)
    progress(f"a gang of {plan.gang_size} on {plan.gang_nodes} full nodes")
    found["gang_no_engine_ms"] = gang_no(plan)
    if plan.live is not None:
        found |= asking.run(plan.live, progress)
    return found


class Full:
    """An engine whose devices are all held."""

    def __init__(self, nodes: int) -> None:
        self.engine = Engine()
        for number in range(nodes):
            self.engine.handle(on.NodeSeen(node(number)), 0.0)
        for number in range(nodes * GPUS):
            self.engine.handle(on.PodSeen(bound(number)), 0.0)
        self._what_if = WhatIf(self.engine)
        self._nodes, self._turn = nodes, 0

    def questions(self, plan: Plan) -> dict[str, float]:
        def there(_: int) -> ask_for.Step:
            return ask_for.Fits(self._pod(1), node=f"node-{self._turn % self._nodes}")

        def without(_: int) -> ask_for.Step:
            number = self._turn % self._nodes
            return ask_for.Fits(self._pod(1), f"node-{number}", (f"default/low-{number * GPUS}",))

        def preempt(turn: int) -> ask_for.Step:
            return ask_for.Preempt(self._pod(1 + turn % GPUS))

        self._ask(preempt, 2)  # what is kept from one question to the next is made now
        bare = BareLoop(self._nodes, seed=1)
        pace: list[float] = []  # of the bare loop, beside each kind of question
        found: dict[str, float] = {}
        for what, step, count in (
            ("fits_node", there, plan.questions),
            ("fits_without", without, plan.questions),
            ("preempt_all", preempt, plan.preemptions),
        ):
            cuts = quantiles(self._ask(step, count), n=100, method="inclusive")
            found |= {f"{what}_ms_p50": cuts[49], f"{what}_ms_p99": cuts[98]}
            pace.append(1e6 / bare.run(BARE_DECISIONS))
        return found | {"bare_loop_us": median(pace)}

    def _pod(self, gpus: int) -> Pod:
        return waiting(f"ask-{self._turn}", gpus, cpu=1000 + self._turn % 7, priority=10)

    def _ask(self, step: Callable[[int], ask_for.Step], count: int) -> list[float]:
        """How long each took, in ms."""
        times = []
        gc.collect()
        gc.freeze()
        for turn in range(count):
            self._turn += 1
            asked = step(turn)
            began = time.perf_counter()
            self._what_if.ask([asked])
            times.append(1e3 * (time.perf_counter() - began))
            self.change()
        return times

    def change(self) -> None:
        """A pod goes, and the same comes again."""
        pod = bound(self._turn * 13 % (self._nodes * GPUS))
        self.engine.handle(on.PodGone(pod.uid), 0.0)
        self.engine.handle(on.PodSeen(pod), 0.0)


def gang_no(plan: Plan) -> float:
    """From the last member's arrival to the refusal of all, in ms; the median."""
    full = Full(plan.gang_nodes)
    times = []
    for number in range(plan.gangs):
        gang = Gang(f"default/gang-{number}", plan.gang_size)
        members = [waiting(f"gang-{number}-{at}", GPUS, gang=gang) for at in range(plan.gang_size)]
        for member in members[:-1]:
            full.engine.handle(on.PodSeen(member), 0.0)
            full.engine.handle(on.Tick(), 0.0)
        began = time.perf_counter()
        full.engine.handle(on.PodSeen(members[-1]), 0.0)
        effects = full.engine.handle(on.Tick(), 0.0)
        times.append(1e3 * (time.perf_counter() - began))
        refused = [effect for effect in effects if isinstance(effect, do.Refuse)]
        assert len(refused) == plan.gang_size, effects
        for member in members:
            full.engine.handle(on.PodGone(member.uid), 0.0)
        full.change()  # the next one's answer is not this one's
    return median(times)


def node(number: int) -> Node:
    name = f"node-{number}"
    devices = tuple(Device(f"GPU-{number}-{at}", at, memory_mib=MEMORY_MIB) for at in range(GPUS))
    return Node(
        name=name,
        uid=f"uid-{name}",
        labels={"kubernetes.io/hostname": name},
        allocatable={"pods": 110, "cpu": 64_000, "memory": 512 * GIB, GPU: GPUS},
        pools=(Pool("nvidia", devices),),
    )


def waiting(name: str, gpus: int, cpu: int = 1000, **facts: Any) -> Pod:
    requests = (("cpu", cpu), ("memory", GIB), (GPU, gpus))
    asks = (DeviceAsk("main", GPU, "nvidia", "whole", gpus),)
    row = RowKey(requests, requests, (cpu, GIB), devices=asks)
    return Pod(f"uid-{name}", "default", name, {}, row, scheduler="bayplan", **facts)


def bound(number: int) -> Pod:
    """The holder of one device."""
    at, device = divmod(number, GPUS)
    held = Held("main", GPU, f"node-{at}", (HeldDevice(f"GPU-{at}-{device}", device, 1),))
    pod = waiting(f"low-{number}", 1, node=f"node-{at}", started_s=1e9 + number % 977)
    return replace(pod, held=holding_of(pod.row.devices, (held,)))
