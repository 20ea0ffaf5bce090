"""Random clusters with taints, selectors, affinity, spread, devices and priorities; and what it
means to follow a suggestion, written down a second time."""

import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Profile, ProfileConfig
from bayplan.core.model import events as on
from bayplan.core.model.advice import Change, Less, Loosen
from bayplan.core.model.budgets import Budget
from bayplan.core.model.effects import Bind, Effect
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import AffinityTerm, Gang, Pod, PodTerms, Spread
from bayplan.core.model.quantity import counted, parse
from bayplan.core.model.selectors import NodeTerm, Requirement, Selector, Taint, Toleration
from bayplan.testing import World, world
from bayplan.testing.world import GIB, GPU, GPU_MEMORY, HOSTNAME, NEURON

APPS = tuple(Selector((Requirement("app", "In", (app,)),)) for app in "ab")
KEYS = ("zone", HOSTNAME, "rack")
TAINTS = (
    Taint("gpu", "", "NoSchedule"),
    Taint("team", "x", "NoSchedule"),
    Taint("team", "x", "NoExecute"),
    Taint("node.kubernetes.io/not-ready", "", "NoExecute"),
)
TROUBLES = ("cpu", "memory", "devices", "selector", "affinity", "name", "terms", "toleration")
Facts = dict[str, Any]  # of a pod, as bayplan.testing.world has them
LATER = 1_000.0
PROFILE = Profile(ProfileConfig())  # to find its plugins takes longest


def cluster(rng: random.Random) -> World:
    """Nodes, some of them full."""
    made = World(profiles=[PROFILE])
    for i in range(rng.randint(1, 6)):
        name = f"n{i}"
        labels = {"zone": f"z{rng.randint(0, 2)}", "rack": f"r{rng.randint(0, 1)}"}
        if rng.random() < 0.2:
            del labels[rng.choice(list(labels))]
        facts: Facts = {"allocatable": {}}
        kind = rng.random()
        if kind < 0.4:
            facts |= world.cards(*[16 << 10] * rng.randint(1, 4), name=f"{name}-")
        elif kind < 0.55:
            facts |= world.neurons("trn1.32xlarge", devices=16)
            labels |= facts["labels"]
        facts["labels"] = labels
        facts["allocatable"] |= {"cpu": 8_000, "memory": 16 * GIB, "pods": rng.choice((3, 6, 12))}
        facts["unschedulable"] = rng.random() < 0.1
        some = rng.sample(TAINTS, rng.choice((0, 0, 1, 1, 2)))
        made.node(name, rng.randint(0, 4), taints=tuple(some), **facts)
    for i in range(rng.randint(0, 14)):
        facts = some_pod(rng)
        facts["tolerations"] = (Toleration(operator="Exists"),)
        facts |= {"controlled": rng.random() < 0.7, "terminating": rng.random() < 0.05}
        made.see(replace(world.pod(f"p{i}", **facts), started_s=float(rng.randint(1, 50))))
    for uid in [*made.engine.waiting.pods, *made.engine.held]:
        made.engine.handle(on.PodGone(uid), made.now)
    if rng.random() < 0.3:
        budget = Budget("default/b", "default", rng.choice(APPS), rng.randint(0, 1))
        made.tell(on.BudgetSeen(budget))
    return made


def some_pod(rng: random.Random) -> Facts:
    facts: Facts = {"cpu": rng.choice((0, 1_000, 4_000)), "priority": rng.randint(0, 2)}
    facts["memory"] = rng.choice((0, 0, 4 * GIB, 12 * GIB + 5))
    wanted = rng.random()
    if wanted < 0.4:
        facts["gpus"] = rng.randint(1, 4)
    elif wanted < 0.6:
        facts["devices"] = world.asks(mib=rng.choice((4, 10)) << 10)
    elif wanted < 0.7:
        facts["devices"] = world.asks(neurons=rng.choice((1, 4, 8, 16)))
    facts["labels"] = {"app": rng.choice("ab")} if rng.random() < 0.8 else {}
    if rng.random() < 0.4:
        facts["terms"] = terms(rng)
    return facts


def wish(rng: random.Random) -> Facts:
    """A pod that is hard to please."""
    facts = some_pod(rng)
    facts["priority"], facts["preempts"] = rng.randint(0, 3), rng.random() < 0.5
    for trouble in rng.sample(TROUBLES, rng.randint(1, 2)):
        match trouble:
            case "cpu":
                facts["cpu"] = rng.choice((6_005, 7_000, 9_000))
            case "memory":
                facts["memory"] = rng.choice((15 * GIB, 17 * GIB))
            case "devices" if "gpus" in facts:
                facts["gpus"] += rng.randint(0, 2)
            case "selector":
                facts["node_selector"] = (("zone", f"z{rng.randint(0, 3)}"),)
            case "affinity":
                facts["required"] = tuple(rules(rng) for _ in range(rng.randint(1, 2)))
            case "name":
                facts["required"] = (NodeTerm(name_in=("n0",), named=("n0",)),)
            case "terms":
                facts["terms"] = replace(terms(rng), anti_affinity=(near(rng), near(rng)))
            case "toleration":
                facts["tolerations"] = (Toleration("gpu", "Exists"),)
    return facts


def rules(rng: random.Random) -> NodeTerm:
    some = [Requirement("rack", "In", ("r0",)), Requirement("zone", "NotIn", ("z0", "z1"))]
    return NodeTerm(tuple(rng.sample(some, rng.randint(1, 2))))


def near(rng: random.Random) -> AffinityTerm:
    return AffinityTerm(rng.choice(APPS), rng.choice(KEYS), ("default",))


def terms(rng: random.Random) -> PodTerms:
    def spread() -> Spread:
        skew, key = rng.randint(1, 2), rng.choice(KEYS)
        hard, honor = rng.random() < 0.7, rng.random() < 0.5
        return Spread(skew, key, hard, rng.choice(APPS), honor_taints=honor)

    kind = rng.randint(0, 2)
    return PodTerms(
        "default",
        spread=tuple(spread() for _ in range(rng.randint(1, 2))) if kind == 0 else (),
        affinity=(near(rng),) if kind == 1 else (),
        anti_affinity=(near(rng),) if kind == 2 else (),
    )


# ---- following a suggestion


def followed(facts: Facts, change: Change) -> Facts:
    """The pod with what the suggestion changes of it."""
    facts = dict(facts)
    for less in change.requests:
        _ask_less(facts, less)
    facts["tolerations"] = (*facts.get("tolerations", ()), *change.tolerations)
    for part in sorted(change.loosen, key=lambda part: -part.term):  # so that numbers stay
        _loosen(facts, part)
    return facts


def _ask_less(facts: Facts, less: Less) -> None:
    now = counted(less.resource, parse(less.now))
    match less.resource:
        case "cpu" | "memory":
            assert facts[less.resource] == counted(less.resource, parse(less.was))
            facts[less.resource] = now
        case name if name == GPU:
            facts["gpus"] = now
        case name if name == GPU_MEMORY:
            facts["devices"] = world.asks(mib=now)
        case name if name == NEURON:
            facts["devices"] = world.asks(neurons=now)
        case other:
            raise AssertionError(other)


def _loosen(facts: Facts, part: Loosen) -> None:
    about: PodTerms = facts.get("terms") or PodTerms("default")
    match part.where:
        case "labels":
            facts["labels"] = {k: v for k, v in facts["labels"].items() if k != part.key}
        case "nodeSelector":
            instead = () if part.instead is None else ((part.key, part.instead),)
            rest = (each for each in facts["node_selector"] if each[0] != part.key)
            facts["node_selector"] = (*rest, *instead)
        case "nodeAffinity":
            rules = list(facts["required"])
            term = rules[part.term]
            if part.key == "metadata.name":
                term = replace(term, name_in=(), name_not_in=(), named=None)
            else:
                old = Requirement(part.key, part.operator, part.values)
                left = [each for each in term.expressions if each != old]
                if part.instead is not None:
                    values = tuple(sorted((*part.values, part.instead)))
                    left.append(replace(old, values=values))
                term = replace(term, expressions=tuple(left))
            rules[part.term] = term
            facts["required"] = tuple(rules) if term != NodeTerm() else None
        case "spread":
            facts["terms"] = replace(about, spread=_without(about.spread, part.term))
        case "podAffinity":
            facts["terms"] = replace(about, affinity=_without(about.affinity, part.term))
        case "podAntiAffinity":
            left_over = _without(about.anti_affinity, part.term)
            facts["terms"] = replace(about, anti_affinity=left_over)


def _without(items: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    return (*items[:at], *items[at + 1 :])


def afterwards(made: World, change: Change) -> Engine:
    """A fresh engine, on the cluster with what the suggestion changes of it."""
    engine, old = Engine([PROFILE]), made.engine.cluster
    nodes = [node for node in old.nodes[: old.height] if node is not None]
    for node in nodes:
        engine.handle(on.NodeSeen(node), 0.0)
    if change.nodes is not None:
        like = next(node for node in nodes if node.name == change.nodes.like)
        for i in range(change.nodes.count):
            engine.handle(on.NodeSeen(one_more(like, f"more-{i}")), 0.0)
    moves = {move.pod: move for move in change.moves}
    for resident in old.pods.values():
        pod = replace(resident.pod, node=old.name(resident.row))
        if pod.key in change.evict:
            continue
        if move := moves.get(pod.key):
            assert pod.node == move.from_node != move.to_node
            held = holding_of(pod.row.devices, move.devices) if pod.row.devices else None
            pod = replace(pod, node=move.to_node, held=held)
        engine.handle(on.PodSeen(pod), 0.0)
    return engine


def one_more(like: Node, name: str) -> Node:
    labels = {**like.labels, HOSTNAME: name}
    taints = tuple(t for t in like.taints if not t.key.startswith("node.kubernetes.io/"))
    return replace(like, name=name, uid=name, labels=labels, taints=taints, unschedulable=False)


def binds(engine: Engine, pods: Sequence[Pod]) -> dict[str, str]:
    """What is bound when these pods come: by key the node."""
    for pod in pods:
        engine.handle(on.PodSeen(pod), LATER)
    effects: list[Effect] = engine.handle(on.Tick(), LATER)
    found = [each.placement for each in effects if isinstance(each, Bind)]
    return {placed.pod.key: placed.node for placed in found}


def gang(facts: Facts, count: int, minimum: int) -> list[Pod]:
    group = Gang("default/g", minimum)
    return [world.pod(f"g-{i}", **{**facts, "gang": group}) for i in range(count)]
