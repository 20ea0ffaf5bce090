"""Every "yes" is true, and every "no" for a single pod agrees with trying every node: on random
clusters with affinity, spread, devices and priorities."""

import os
import random

import pytest
from msgspec.structs import replace

from bayplan.core.engine import placing, questions
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.steps import (
    AddNodes,
    Capacity,
    ChangeNodes,
    Counted,
    Evict,
    Fits,
    GangWhere,
    Place,
    PlaceGang,
    Preempt,
    Where,
)
from bayplan.core.state.laws import broken
from tests.what_if.clusters import ask, cluster, decided, pod, quiet

SEEDS = range(2_000 if os.environ.get("BAYPLAN_PROVE") else 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_fits_is_what_the_engine_then_does(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    quiet(made)
    for i in range(4):
        newcomer = pod(rng, f"new-{i}")
        everywhere = questions.fits(made.engine.verdicts["bayplan"], newcomer)
        (found,) = ask(made.engine, Fits(newcomer))
        nodes = sorted(made.engine.cluster.rows)
        on_each = ask(made.engine, *(Fits(newcomer, node) for node in nodes))
        assert isinstance(found, Where)
        assert found.ok == bool(everywhere.feasible)
        assert [n for n, each in zip(nodes, on_each, strict=True) if each.ok] == everywhere.feasible
        for node, each in zip(nodes, on_each, strict=True):
            assert isinstance(each, Where)
            if not each.ok:
                assert isinstance(each.reasons, dict)
                assert list(each.reasons) == everywhere.reasons[node]
        if not found.ok:
            assert isinstance(found.reasons, dict)
            counted = {why for each in everywhere.reasons.values() for why in each}
            assert set(found.reasons) == counted
        effect = decided(made.engine, newcomer)
        if found.ok:
            assert effect is not None
            assert (effect.placement.node, effect.placement.held) == (found.node, found.devices)
        else:
            assert effect is None
            made.engine.handle(on.PodGone(newcomer.uid), made.now)


@pytest.mark.parametrize("seed", SEEDS)
def test_fits_without_is_what_happens_once_they_are_gone(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    quiet(made)
    placed = [each.pod for each in made.engine.cluster.pods.values()]
    gone = rng.sample(placed, min(len(placed), rng.randint(0, 3)))
    newcomer = pod(rng, "new")
    names = tuple(each.key for each in gone)
    without, evicted, after = ask(
        made.engine, Fits(newcomer, None, names), Evict(names), Fits(newcomer)
    )
    for each in gone:
        made.engine.handle(on.PodGone(each.uid), made.now)
    effect = decided(made.engine, newcomer)

    assert isinstance(without, Where)
    assert isinstance(after, Where)
    assert evicted.ok
    assert without.ok == after.ok == (effect is not None)
    if effect is not None:
        assert without.node == after.node == effect.placement.node
        assert without.devices == after.devices == effect.placement.held
        assert without.victims == names


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_are_what_happens_one_after_the_other(seed: int) -> None:
    """Places, one after the other, with new nodes between them."""
    rng = random.Random(seed)
    made = cluster(rng)
    quiet(made)
    pods = [pod(rng, f"new-{i}") for i in range(8)]
    like = rng.choice(sorted(made.engine.cluster.rows))
    node = made.engine.cluster.nodes[made.engine.cluster.rows[like]]
    assert node is not None
    answers = ask(
        made.engine,
        *map(Place, pods[:4]),
        ChangeNodes((), AddNodes(like, 1)),
        *map(Place, pods[4:]),
    )
    wheres = [each for each in answers if isinstance(each, Where)]

    def check(newcomer: int) -> None:
        effect = decided(made.engine, pods[newcomer])
        found = wheres[newcomer]
        assert found.ok == (effect is not None)
        if effect is None:
            made.engine.handle(on.PodGone(pods[newcomer].uid), made.now)
        else:
            assert effect.placement.node == found.node
            assert effect.placement.held == found.devices

    for i in range(4):
        check(i)
    name = f"{like}-new-1"
    labels = {**node.labels, "kubernetes.io/hostname": name}
    new = replace(node, name=name, uid=f"what-if:{name}", labels=labels, unschedulable=False)
    made.engine.handle(on.NodeSeen(new), made.now)
    for i in range(4, 8):
        check(i)


@pytest.mark.parametrize("seed", SEEDS)
def test_capacity_is_what_repeated_places_give(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    newcomer = pod(rng, "new")
    limit = rng.choice((1, 3, 1_000))
    (counted,) = ask(made.engine, Capacity(newcomer, limit))
    places = ask(made.engine, *[Place(newcomer)] * (limit if limit < 10 else 80))
    yes = [each.ok for each in places]
    count = yes.index(False) if False in yes else len(yes)

    assert isinstance(counted, Counted)
    assert counted.count == count
    (more,) = ask(made.engine, *[Place(newcomer)] * (limit + 1))[limit:] if limit < 10 else (None,)
    assert (counted.more is True) == bool(more and more.ok)
    names = [each.pod for each in places if isinstance(each, Where) and each.ok]
    assert names == ["default/new", *(f"default/new-{i + 2}" for i in range(count - 1))][:count]


@pytest.mark.parametrize("seed", SEEDS)
def test_after_the_victims_of_a_preemption_are_gone_the_pod_is_placed(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    quiet(made)
    newcomer = replace(pod(rng, "new"), priority=rng.randint(1, 9))
    found, fits = ask(made.engine, Preempt(newcomer), Fits(newcomer))
    assert isinstance(found, Where)
    if fits.ok:
        assert found == fits
        return
    if not found.ok:
        assert isinstance(found.message, str)
        assert " preemption: 0/" in found.message
        return
    residents = {each.pod.key: each.pod for each in made.engine.cluster.pods.values()}
    assert found.victims
    for victim in found.victims:  # none can be spared
        others = tuple(name for name in found.victims if name != victim)
        if newcomer.terms is None and residents[victim].terms is None:
            (spared,) = ask(made.engine, Fits(newcomer, found.node, others))
            assert not spared.ok
    for victim in found.victims:
        assert residents[victim].priority < newcomer.priority
        made.engine.handle(on.PodGone(residents[victim].uid), made.now)
    assert found.node in questions.fits(made.engine.verdicts["bayplan"], newcomer).feasible
    effect = decided(made.engine, newcomer)
    assert effect is not None
    if effect.placement.node == found.node:
        assert effect.placement.held == found.devices


@pytest.mark.parametrize("seed", SEEDS)
def test_preempt_names_those_whom_the_engine_then_removes(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    quiet(made)
    newcomer = replace(pod(rng, "new"), priority=rng.randint(1, 9))
    (found,) = ask(made.engine, Preempt(newcomer))
    made.engine.handle(on.PodSeen(newcomer), 1_000.0)
    effects = made.engine.handle(on.Tick(), 1_000.0)
    removed = [each for each in effects if isinstance(each, do.Preempt)]

    assert isinstance(found, Where)
    assert found.victims == tuple(each.key for one in removed for each in one.victims)
    assert all(each.node == found.node for each in removed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_members_of_a_gang_can_be_where_the_answer_says(seed: int) -> None:
    rng = random.Random(seed)
    made = cluster(rng)
    quiet(made)
    member, count = pod(rng, "worker", plain=True), rng.randint(1, 6)
    minimum = rng.randint(1, count)
    (found,) = ask(made.engine, PlaceGang("train", member, count, minimum))
    alone = ask(made.engine, *[Place(member)] * count)
    assert isinstance(found, GangWhere)
    assert found.placed == len(found.placements)
    assert found.ok == (found.placed >= minimum)
    assert found.placed == sum(each.ok for each in alone)  # equal members: neither more nor fewer
    here = made.engine.cluster
    verdicts = made.engine.verdicts["bayplan"]
    for i, each in enumerate(found.placements):
        one = replace(member, name=each.pod.removeprefix("default/"), uid=f"uid-{each.pod}")
        assert each.pod == f"default/train-{i}"
        assert each.node in questions.fits(verdicts, one).feasible
        with questions.asking(verdicts, one) as ask_about:
            row = here.rows[each.node]
            placed = placing.placement(here, verdicts.profile, ask_about, row)
        assert placed.held == each.devices
        here.place(placing.holding(placed), each.node)
    assert broken(here) == []
