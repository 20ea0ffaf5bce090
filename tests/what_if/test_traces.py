"""A question leaves nothing: no pod, no column, no index, no demand, no memory."""

import gc
import os
import random
import tracemalloc
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.engine.what_if import WhatIf
from bayplan.core.model.pods import AffinityTerm, Pod, PodTerms, Spread
from bayplan.core.model.selectors import NodeTerm, Requirement, Selector, Toleration
from bayplan.core.model.steps import (
    AddNodes,
    Capacity,
    ChangeNodes,
    Evict,
    Fits,
    Place,
    PlaceGang,
    Preempt,
    Step,
)
from bayplan.core.state.laws import picture
from bayplan.testing import World, world
from tests.conftest import differences
from tests.what_if.clusters import cluster, pod

ROUNDS = 20_000 if os.environ.get("BAYPLAN_PROVE") else 500
SPARE_KIB = 600


def odd_pod(rng: random.Random, name: str) -> Pod:
    """A pod whose labels, resources and selectors nobody has seen before."""

    def word() -> str:
        return f"w{rng.getrandbits(60)}"

    selector = Selector((Requirement(word(), "In", (word(),)),))
    term = AffinityTerm(selector, word(), ("default",))
    facts: dict[str, Any] = rng.choice(
        (
            {"requests": {f"{word()}/x": 1}},
            {"node_selector": ((word(), word()),)},
            {"required": (NodeTerm((Requirement(word(), "DoesNotExist"),)),)},
            {"tolerations": (Toleration(word(), "Exists"),)},
            {"terms": PodTerms("default", spread=(Spread(1, "zone", True, selector),))},
            {"terms": PodTerms("default", anti_affinity=(term,))},
            {"terms": PodTerms("default", preferred=((5, term),))},
            {"images": (word(),)},
            {"cpu": rng.getrandbits(8)},
        )
    )
    return world.pod(name, labels={word(): word(), "app": word()}, **facts)


def any_steps(rng: random.Random, made: World) -> list[Step]:
    here = made.engine.cluster
    nodes, placed = sorted(here.rows), sorted(each.pod.key for each in here.pods.values())
    found: list[Step] = []
    for _ in range(rng.randint(1, 6)):
        one = odd_pod(rng, "new") if rng.random() < 0.7 else pod(rng, "new")
        found.append(
            rng.choice(
                (
                    Fits(one),
                    Fits(one, rng.choice(nodes)),
                    Fits(one, None, tuple(rng.sample(placed, min(len(placed), 2)))),
                    Evict(tuple(rng.sample(placed, min(len(placed), 2)))),
                    Place(one),
                    Capacity(one, 5),
                    PlaceGang("g", one, 3, 2),
                    ChangeNodes((), AddNodes(rng.choice(nodes), rng.randint(1, 3))),
                    ChangeNodes((rng.choice(nodes),)),
                    Preempt(replace(one, priority=4)),
                )
            )
        )
    return found


def derived(made: World) -> tuple[Any, ...]:
    """What is not compared after a trial, because it is derived on demand."""
    here = made.engine.cluster
    return (
        set(here.labels.columns),
        set(here.index.keys),
        list(here._demands),
        {name: set(verdicts._kept) for name, verdicts in made.engine.verdicts.items()},
        made.engine.picking.fallbacks,
        list(made.engine.waiting.pods),
    )


def sums(made: World) -> Counter[tuple[PodTerms, object]]:
    """Those of spread constraints. Pods that come back after a trial may have lost theirs."""
    owns = made.engine.cluster.terms.own
    return Counter((terms, key) for terms, own in owns.items() for key in own.sums)


def test_nothing_is_left_of_any_question() -> None:
    for seed in range(12):
        rng = random.Random(seed)
        made = cluster(rng)
        questions = WhatIf(made.engine)
        for _ in range(5):
            before, kept, summed = picture(made.engine.cluster), derived(made), sums(made)
            questions.ask(any_steps(rng, made))
            assert "; ".join(differences(before, picture(made.engine.cluster))) == ""
            assert derived(made) == kept
            assert sums(made) <= summed


def test_thousands_of_odd_questions_need_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the laws after every trial, which would take most of the time
    rng = random.Random(1)
    made = cluster(rng)
    questions = WhatIf(made.engine)

    def ask_many() -> None:
        for _ in range(ROUNDS):
            questions.ask(any_steps(rng, made))
        gc.collect()

    ask_many()  # what is kept up to a bound is full
    tracemalloc.start()
    try:
        ask_many()
        before, _ = tracemalloc.get_traced_memory()
        ask_many()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < SPARE_KIB << 10
