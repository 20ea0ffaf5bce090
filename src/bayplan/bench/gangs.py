"""How long gangs take: on an engine alone, and on a real control plane (`live_gangs`).

The engine places them on empty nodes, and refuses as many again on full ones. The sizes are those
of kube-scheduler's own benchmarks, and of KAI's.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bayplan.bench import live_gangs
from bayplan.bench.what_if import GPUS, node, waiting
from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import Gang

Progress = Callable[[str], None]


class Size(Struct, frozen=True):
    nodes: int
    gangs: int
    size: int
    gpus: int = 1  # of a member

    def __str__(self) -> str:
        return f"{self.gangs} gangs of {self.size} on {self.nodes} nodes"


class Plan(Struct, frozen=True):
    sizes: tuple[Size, ...] = (
        Size(5_000, 1_000, 3),
        Size(5_000, 3, 1_000),
        Size(5_000, 9, 1_000),
        Size(500, 41, 10, GPUS),
        Size(512, 1, 512, GPUS),
    )
    live: live_gangs.Plan | None = live_gangs.Plan()


QUICK = Plan((Size(200, 50, 3), Size(50, 5, 10, GPUS)), live_gangs.QUICK)


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of `bayplan bench gangs`."""
    results = []
    for size in plan.sizes:
        progress(f"{size}: placing them, and as many again that do not fit")
        results.append(measure(size))
    found: dict[str, Any] = {"results": results}
    if plan.live is not None:
        found["live"] = live_gangs.run(plan.live, progress)
    return found


def measure(size: Size) -> dict[str, Any]:
    engine = Engine(max_in_flight=size.nodes * GPUS + 1)
    for number in range(size.nodes):
        engine.handle(on.NodeSeen(node(number)), 0.0)
    place_s = submit(engine, size, "fits", expect=do.Bind)
    filler = size.nodes * GPUS - size.gangs * size.size * size.gpus
    for number in range(filler):
        engine.handle(on.PodSeen(waiting(f"filler-{number}", 1)), 0.0)
    engine.handle(on.Tick(limit=filler + 1), 0.0)
    refuse_s = submit(engine, size, "refused", expect=do.Refuse)
    return {
        "nodes": size.nodes,
        "gangs": size.gangs,
        "size": size.size,
        "gpus": size.gpus,
        "place_s": place_s,
        "refuse_s": refuse_s,
    }


def submit(engine: Engine, size: Size, name: str, expect: type) -> float:
    """Seconds from the first member's arrival until all gangs are decided."""
    names = [f"{name}-{number}" for number in range(size.gangs)]
    arrivals = [
        on.PodSeen(waiting(f"{gang}-{at}", size.gpus, gang=Gang(f"default/{gang}", size.size)))
        for gang in names
        for at in range(size.size)
    ]
    gc.collect()  # what the arrivals before it left is not its own
    began = time.perf_counter()
    for arrival in arrivals:
        engine.handle(arrival, 0.0)
    effects = engine.handle(on.Tick(limit=size.gangs + 1), 0.0)
    taken_s = time.perf_counter() - began
    found = sum(isinstance(effect, expect) for effect in effects)
    assert found == size.gangs * size.size, f"{found} members of {size}: {expect.__name__}"
    return taken_s
