"""How long gangs take: on an engine alone, and on a real control plane (`live_gangs`).

The engine places them on empty nodes, and refuses as many again on full ones. The sizes are those
of kube-scheduler's own benchmarks, and of KAI's.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from msgspec import Struct

from bayplan.bench import live_gangs
from bayplan.bench.bare_binder import GC_THRESHOLDS
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
    rounds: int = 3
    live: live_gangs.Plan | None = live_gangs.Plan()


QUICK = Plan((Size(200, 50, 3), Size(50, 5, 10, GPUS)), rounds=1, live=live_gangs.QUICK)


def run(plan: Plan, progress: Progress = lambda text: None) -> dict[str, Any]:
    """The figures of `bayplan bench gangs`."""
    results = []
    for size in plan.sizes:
        progress(f"{size}: placing them, and as many again that do not fit")
        results.append(measure(size, plan.rounds))
    found: dict[str, Any] = {"results": results}
    if plan.live is not None:
        found["live"] = live_gangs.run(plan.live, progress)
    return found


def measure(size: Size, rounds: int) -> dict[str, Any]:
    """Medians over the rounds; each has an engine of its own."""
    times = [one_round(size) for _ in range(rounds)]
    return {
        "nodes": size.nodes,
        "gangs": size.gangs,
        "size": size.size,
        "gpus": size.gpus,
        "place_s": median(place_s for place_s, _ in times),
        "refuse_s": median(refuse_s for _, refuse_s in times),
    }


def one_round(size: Size) -> tuple[float, float]:
    """Seconds to place them, and to refuse as many again."""
    engine = Engine(max_in_flight=size.nodes * GPUS + 1)
    for number in range(size.nodes):
        engine.handle(on.NodeSeen(node(number)), 0.0)
    place_s = submit(engine, size, "fits", expect=do.Bind)
    filler = size.nodes * GPUS - size.gangs * size.size * size.gpus
    for number in range(filler):
        engine.handle(on.PodSeen(waiting(f"filler-{number}", 1)), 0.0)
    engine.handle(on.Tick(limit=filler + 1), 0.0)
    return place_s, submit(engine, size, "refused", expect=do.Refuse)


def submit(engine: Engine, size: Size, name: str, expect: type) -> float:
    """Seconds from the first member's arrival until all gangs are decided."""
    names = [f"{name}-{number}" for number in range(size.gangs)]
    arrivals = [
        on.PodSeen(waiting(f"{gang}-{at}", size.gpus, gang=Gang(f"default/{gang}", size.size)))
        for gang in names
        for at in range(size.size)
    ]
    with collector_as_in_run():
        began = time.perf_counter()
        for arrival in arrivals:
            engine.handle(arrival, 0.0)
        effects = engine.handle(on.Tick(limit=size.gangs + 1), 0.0)
        taken_s = time.perf_counter() - began
    found = sum(isinstance(effect, expect) for effect in effects)
    assert found == size.gangs * size.size, f"{found} members of {size}: {expect.__name__}"
    return taken_s


@contextmanager
def collector_as_in_run() -> Iterator[None]:
    """Python's collector as `bayplan run` has it: what was there before is not walked again."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
