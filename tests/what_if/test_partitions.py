"""Questions about partitions agree with doing it, and what is asked leaves nothing behind."""

import random
from typing import Any

import pytest

from bayplan.core.engine.advice import Advice
from bayplan.core.engine.what_if import WhatIf
from bayplan.core.model import effects as do
from bayplan.core.model import steps as ask_for
from bayplan.core.state import laws
from bayplan.testing import world
from bayplan.testing.world import VIPU, World, asks, ipus

HEAD: dict[str, Any] = {"labels": dict([VIPU])}
SIZES = (1, 2, 4, 8)


def filled(rng: random.Random) -> World:
    """Two or three head nodes of one or two controllers, with pods that hold partitions."""
    made = World()
    for i in range(rng.randint(2, 3)):
        made.node(f"head-{i}", 0, **HEAD)
    for name in ("one:1:c", "two:1:c")[: rng.randint(1, 2)]:
        made.estate(ipus(name, rng.choice((8, 16))))
    for i in range(rng.randint(2, 10)):
        size, priority = rng.choice(SIZES), rng.randint(0, 5)
        made.submit(f"p{i}", devices=asks(ipus=size), priority=priority, preempts=False)
    for name in made.waiting():  # nobody else is there to take what becomes free
        made.finish(name)
    return made


def newcomer(rng: random.Random) -> Any:
    return world.pod("a", devices=asks(ipus=rng.choice(SIZES)), priority=rng.randint(0, 6))


@pytest.mark.parametrize("seed", range(150))
def test_without_b_is_what_happens_when_b_is_gone(seed: int) -> None:
    rng = random.Random(seed)
    made = filled(rng)
    running = sorted(made.running())
    gone = rng.sample(running, min(len(running), rng.randint(0, 3)))
    pod, node = newcomer(rng), f"head-{rng.randint(0, 1)}"
    before = laws.picture(made.engine.cluster)

    step = ask_for.Fits(pod, node, tuple(f"default/{name}" for name in gone))
    (answer,) = WhatIf(made.engine).ask([step]).answers

    assert laws.picture(made.engine.cluster) == before
    for name in gone:
        made.finish(name)
    pinned = (("kubernetes.io/hostname", node),)
    made.submit("a", devices=pod.row.devices, node_selector=pinned, preempts=False)
    assert answer.ok == ("a" in made.running())


@pytest.mark.parametrize("seed", range(150))
def test_whom_it_would_preempt_is_whom_it_preempts(seed: int) -> None:
    rng = random.Random(seed)
    made = filled(rng)
    pod = newcomer(rng)
    before = laws.picture(made.engine.cluster)

    (answer,) = WhatIf(made.engine).ask([ask_for.Preempt(pod)]).answers

    assert laws.picture(made.engine.cluster) == before
    assert isinstance(answer, ask_for.Where)
    made.effects.clear()
    made.see(pod)
    plans = [each for each in made.effects if isinstance(each, do.Preempt)]
    victims = tuple(victim.key for plan in plans for victim in plan.victims)
    assert answer.victims == victims
    assert answer.ok == (bool(victims) or "a" in made.running())
    for victim in victims:  # none can be spared, and all together are enough
        rest = tuple(each for each in victims if each != victim)
        step = ask_for.Fits(world.pod("z", devices=pod.row.devices), answer.node, rest)
        (spared,) = WhatIf(made.engine).ask([step]).answers
        assert not spared.ok
    for victim in victims:
        made.finish(victim.removeprefix("default/"))
    made.wait(20)
    assert answer.ok == ("a" in made.running())


def test_how_many_more() -> None:
    made = World()
    made.node("head-1", 0, **HEAD)
    made.node("head-2", 0, **HEAD)
    made.estate(ipus(count=16))
    made.submit("p", devices=asks(ipus=2))
    like = ask_for.Capacity(world.pod("like", devices=asks(ipus=4)), 100)
    (answer,) = WhatIf(made.engine).ask([like]).answers
    assert isinstance(answer, ask_for.Counted)
    assert answer.count == 3


def explained(made: World, name: str) -> list[Any]:
    found = Advice(made.engine).explain(f"default/{name}")
    return list(found.suggestions)


def test_a_pod_that_ends_on_another_head_node_would_help() -> None:
    made = World()
    made.node("head-1", 0, **HEAD)
    made.node("head-2", 0, **HEAD)
    made.estate(ipus(count=8))
    made.submit("b", devices=asks(ipus=8), node_selector=(("kubernetes.io/hostname", "head-1"),))
    made.submit("a", devices=asks(ipus=4), node_selector=(("kubernetes.io/hostname", "head-2"),))
    found = explained(made, "a")
    assert [each.text for each in found if each.kind == "end"] == ["wait until default/b has ended"]
    made.finish("b")
    made.wait(2)
    assert made.running() == {"a": "head-2"}


def test_a_smaller_partition_would_help() -> None:
    made = World()
    made.node("head-1", 0, **HEAD)
    made.estate(ipus(count=16))
    made.submit("b", devices=asks(ipus=1))
    made.submit("a", devices=asks(ipus=16))
    found = [each for each in explained(made, "a") if each.kind == "request"]
    assert [each.text for each in found] == ["ask for 8 graphcore.ai/ipu instead of 16"]
