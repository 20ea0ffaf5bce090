"""Every suggestion is followed, on a fresh engine, which then finds a place for the pod; and it is
the smallest of its kind: with less of it the pod still waits."""

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from bayplan.core.engine.advice import RANK, Advice
from bayplan.core.model import events as on
from bayplan.core.model.advice import Change, Explanation, Suggestion, written
from bayplan.core.model.quantity import counted, parse
from bayplan.testing import World, world
from tests.explain.clusters import Facts, afterwards, binds, cluster, followed, gang, some_pod, wish

SEEDS = range(20_000 if os.environ.get("BAYPLAN_PROVE") else 200)
STEPS = {"cpu": 10, "memory": 1 << 20}


@pytest.fixture(autouse=True)
def _laws_after_every_drop() -> None:
    """Not here, where the many clusters are: test_traces.py looks after every trial."""


def asked(made: World, key: str) -> Explanation:
    found = Advice(made.engine).explain(key)
    ranks = [RANK[each.kind] for each in found.suggestions]
    assert ranks == sorted(ranks)
    return found


def helps(made: World, facts: Facts, change: Change) -> str | None:
    """The node of the pod, once the change is made."""
    changed = world.pod("new", **followed(facts, change))
    return binds(afterwards(made, change), [changed]).get("default/new")


def test_every_suggestion_helps_and_is_the_smallest() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        rng = random.Random(seed)
        made, facts = cluster(rng), wish(rng)
        made.engine.handle(on.PodSeen(world.pod("new", **facts)), 1.0)
        found = asked(made, "default/new")
        where = helps(made, facts, Change())
        assert found.ok == (where is not None), seed
        if found.ok:
            assert found.node == where, seed
            continue
        seen["waits"] += 1
        for each in found.suggestions:
            where = helps(made, facts, each.change)
            assert where is not None, (seed, each)
            if each.change.nodes is None:
                assert where == each.node, (seed, each)
            for less in smaller(each):
                assert helps(made, facts, less) is None, (seed, each, less)
            seen[each.kind] += 1
    assert min(seen[kind] for kind in RANK if kind != "gang") >= len(SEEDS) // 100, seen


def smaller(found: Suggestion) -> Iterator[Change]:
    """The change with less of it, in every way."""
    change = found.change
    for at, less in enumerate(change.requests):
        amount = counted(less.resource, parse(less.now)) + STEPS.get(less.resource, 1)
        if less.resource != "aws.amazon.com/neuron" and amount < counted(
            less.resource, parse(less.was)
        ):
            more = replace(less, now=written(less.resource, amount))
            yield replace(
                change, requests=(*change.requests[:at], more, *change.requests[at + 1 :])
            )
    for name in ("tolerations", "loosen", "moves", *(["evict"] if found.kind == "end" else [])):
        items = getattr(change, name)
        if len(items) > 1:
            for each in items:
                yield replace(change, **{name: tuple(one for one in items if one != each)})


def test_every_suggestion_for_a_gang_helps_and_is_the_smallest() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        rng = random.Random(seed)
        made, facts = cluster(rng), some_pod(rng)
        count = rng.randint(2, 6)
        facts |= {"priority": rng.choice((0, 3)), "preempts": rng.random() < 0.5}
        pods = gang(facts, count, minimum := rng.randint(1, count + 1))
        for pod in pods:
            made.engine.handle(on.PodSeen(pod), 1.0)
        found = asked(made, pods[-1].key)
        assert found.gang is not None
        started = binds(afterwards(made, Change()), pods)
        assert found.ok == (len(started) >= minimum), seed
        if found.ok:
            continue
        for each in found.suggestions:
            least = each.change.minimum or minimum
            again = gang(facts, count, least)
            started = binds(afterwards(made, each.change), again)
            assert len(started) >= least, (seed, each)
            if each.change.nodes is not None and each.change.nodes.count > 1:
                fewer = replace(each.change.nodes, count=each.change.nodes.count - 1)
                made_fewer = afterwards(made, Change(nodes=fewer))
                assert not binds(made_fewer, again), (seed, each)
            seen[each.kind] += 1
    kinds = ("gang", "node", "victims")
    assert min(seen[kind] for kind in kinds) >= len(SEEDS) // 100, seen
