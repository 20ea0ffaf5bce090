"""Random small clusters with affinity, spread, devices and priorities, and pods to ask for."""

import random
from typing import Any

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.what_if import WhatIf
from bayplan.core.model import events as on
from bayplan.core.model.effects import Bind
from bayplan.core.model.pods import AffinityTerm, HostPort, Pod, PodTerms, Spread
from bayplan.core.model.selectors import EVERYTHING, Requirement, Selector, Toleration
from bayplan.core.model.steps import Answer, Answers, Step
from bayplan.testing import World, world

APPS = tuple(Selector((Requirement("app", "In", (app,)),)) for app in "ab")
KEYS = ("zone", world.HOSTNAME, "rack")


def ask(engine: Engine, *steps: Step) -> list[Answer]:
    return asked(engine, *steps).answers


def asked(engine: Engine, *steps: Step) -> Answers:
    return WhatIf(engine).ask(steps)


def cluster(rng: random.Random) -> World:
    """Nodes, and pods that found a place or wait."""
    made = World()
    for i in range(rng.randint(1, 6)):
        labels = {"zone": f"z{rng.randint(0, 2)}", "rack": f"r{rng.randint(0, 1)}"}
        if rng.random() < 0.2:
            del labels[rng.choice(list(labels))]
        facts: dict[str, Any] = {"labels": labels}
        amounts = {"cpu": 8_000, "pods": rng.choice((3, 6, 12))}
        if rng.random() < 0.5:
            facts |= world.cards(*[16 << 10] * rng.randint(1, 4), name=f"n{i}-")
            facts["allocatable"] |= amounts
        else:
            facts["allocatable"] = amounts
        facts["unschedulable"] = rng.random() < 0.1
        facts["taints"] = world.tainted("t") if rng.random() < 0.2 else ()
        made.node(f"n{i}", rng.randint(0, 4), **facts)
    for i in range(rng.randint(0, 14)):
        made.see(pod(rng, f"p{i}"))
    return made


def pod(rng: random.Random, name: str, *, plain: bool = False) -> Pod:
    facts: dict[str, Any] = {"cpu": rng.choice((0, 1_000, 4_000)), "priority": rng.randint(0, 3)}
    wanted = rng.random()
    if wanted < 0.4:
        facts["gpus"] = rng.randint(1, 3)
    elif wanted < 0.6:
        facts["devices"] = world.asks(mib=rng.choice((4, 10)) << 10)
    facts["labels"] = {"app": rng.choice("ab")} if rng.random() < 0.8 else {}
    facts["tolerations"] = (Toleration("t", "Exists"),) if rng.random() < 0.2 else ()
    facts["ports"] = (HostPort("TCP", 80, "0.0.0.0"),) if rng.random() < 0.1 else ()
    facts["node_selector"] = (("zone", f"z{rng.randint(0, 2)}"),) if rng.random() < 0.1 else ()
    if not plain and rng.random() < 0.5:
        facts["terms"] = terms(rng)
    return world.pod(name, **facts)


def terms(rng: random.Random) -> PodTerms:
    def term() -> AffinityTerm:
        selector = rng.choice((*APPS, *APPS, EVERYTHING))
        return AffinityTerm(selector, rng.choice(KEYS), ("default",))

    def spread() -> Spread:
        return Spread(rng.randint(1, 2), rng.choice(KEYS), rng.random() < 0.7, rng.choice(APPS))

    kind = rng.randint(0, 3)
    return PodTerms(
        "default",
        spread=(spread(),) if kind == 0 else (),
        affinity=(term(),) if kind == 1 else (),
        anti_affinity=(term(),) if kind == 2 else (),
        preferred=((rng.randint(-9, 9), term()),) if kind == 3 else (),
    )


def quiet(made: World) -> None:
    """Nobody waits any more: what is decided next is about the newcomer alone."""
    for uid in [*made.engine.waiting.pods, *made.engine.held]:
        made.engine.handle(on.PodGone(uid), made.now)
    for uid in list(made.engine.nominations.doomed):
        made.engine.handle(on.VictimSpared(uid, "nobody needs it"), made.now)


def decided(engine: Engine, newcomer: Pod) -> Bind | None:
    """What the engine does with the pod when it comes."""
    engine.handle(on.PodSeen(newcomer), 1_000.0)
    effects = engine.handle(on.Tick(), 1_000.0)
    return next((each for each in effects if isinstance(each, Bind)), None)
