"""Why a pod waits, and what would help.

Every suggestion was seen to work on a trial, and is the smallest of its kind: one step less of a
change, or one part of it fewer, and the pod would still wait. They stand by what they cost: a
smaller request, a toleration, another label, a smaller gang, all of which the pod's owner decides;
a pod that ends, which costs time; a move of pods, which costs them a restart; a new node, which
costs money; and victims, who lose their work.

Nothing outlives the question, and the engine decides: there is no second way to decide here.
"""

from typing import get_args

from msgspec.structs import replace

from bayplan.core.engine import explain, growing, looser, room, smaller
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.gang_advice import Members
from bayplan.core.engine.ground import Ground
from bayplan.core.engine.preempting import KEPT
from bayplan.core.engine.preemption import TERMINATING, Plan
from bayplan.core.engine.questions import asking
from bayplan.core.model.advice import Explanation, Kind, State, Suggestion, UnknownPod
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Refusal
from bayplan.core.state.podnames import PodNames

RANK = {kind: rank for rank, kind in enumerate(get_args(Kind))}


class Advice:
    """Asks an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = PodNames(engine.cluster)

    def explain(self, key: str) -> Explanation:
        """Of the pod `namespace/name`; `UnknownPod` where nothing is known of it."""
        engine = self._engine
        waiting = (waiter.pod for waiter, _ in engine.waiting.pods.values())
        pod = next((pod for pod in waiting if pod.key == key), None)
        if pod is not None:
            with engine.asked():
                found = self._waits(Ground(engine, pod.scheduler), pod)
            ranked = sorted(found.suggestions, key=lambda each: RANK[each.kind])
            return replace(found, suggestions=tuple(ranked))
        for held, why in engine.held.values():
            if held.key == key:
                return self._said(key, "held", f"{key} is not to be placed yet: {why}")
        self._names.refresh()
        bound = self._names.find(key)
        if bound is not None:
            return self._bound(bound)
        words = "it does not exist, has ended, or names another scheduler"
        raise UnknownPod(f"no pod {key} waits here or is on a node: {words}")

    def _said(self, key: str, state: State, message: str, node: str = "") -> Explanation:
        version, ok = self._engine.cluster.version, state in ("fits", "bound")
        return Explanation(version=version, pod=key, state=state, ok=ok, message=message, node=node)

    def _bound(self, pod: Pod) -> Explanation:
        resident = self._engine.cluster.pods.get(pod.uid)
        if resident is None:
            text = f"{pod.key} is bound to {pod.node}, a node that is not known"
            return self._said(pod.key, "bound", text, pod.node)
        node = self._engine.cluster.name(resident.row)
        if pod.terminating:
            return self._said(pod.key, "leaving", f"{pod.key} is about to end on {node}", node)
        assumed = pod.uid in self._engine.assumed
        text = f"{pod.key} {'is being bound to' if assumed else 'is on'} {node}"
        return self._said(pod.key, "bound", text, node)

    def _waits(self, ground: Ground, pod: Pod) -> Explanation:
        """In a trial."""
        if pod.gang is not None:
            return Members(ground, pod, pod.gang).explain(pod)
        version = ground.cluster.version
        ground.release(pod)
        with asking(ground.verdicts, pod) as ask:  # all terms stay counted until the end
            placed = ground.where(pod)
            if placed is not None and ground.yields(pod):
                return self._said(pod.key, "waits", f"{pod.key}: {KEPT}")
            if placed is not None:
                text = f"{pod.key} fits on {placed.node}: it waits for its turn"
                return self._said(pod.key, "fits", text, placed.node)
            refusal = explain.refusal(ground.verdicts, ask, version)
            plan: Plan | str = TERMINATING
            if not ground.engine.nominations.waits(pod.uid):
                plan = ground.preemption.plan(ask)
            if isinstance(plan, str) and ground.verdicts.profile.preempt is not None:
                refusal = replace(refusal, more=f"preemption: {plan}")
            return Explanation(
                version=version,
                pod=pod.key,
                state="waits",
                ok=False,
                message=refusal.sentence,
                reasons=refusal.tallies,
                suggestions=tuple(self._suggestions(ground, pod, plan)),
            )

    def _suggestions(self, ground: Ground, pod: Pod, plan: Plan | str) -> list[Suggestion]:
        around = room.Room(ground, pod)
        victims = around.victims(plan)
        going = {frozenset(each.change.evict) for each in victims}
        ends = [each for each in around.ends() if frozenset(each.change.evict) not in going]
        return [
            *smaller.requests(ground, pod),
            *looser.tolerations(ground, pod),
            *looser.labels(ground, pod),
            *ends,
            *around.moves(),
            *growing.nodes(ground, pod),
            *victims,
        ]


# ---- one hint, for an event

TOO_LITTLE = "Insufficient "
HINTS = (  # the further a node got through the filters, the less it lacks
    (TOO_LITTLE, "have too little {what} free: ask for less, or wait until a pod there ends"),
    ("Too many pods", "have as many pods as they take: wait until one there ends"),
    ("node(s) had too few free devices", "have too few free devices: ask for fewer, or wait"),
    ("node(s) had no device with enough room", "have no device with so much room: ask for less"),
    ("node(s) had no free partition", "have no such partition free: ask for less, or wait"),
    (
        "node(s) reach a controller that refused",
        "reach a controller without room: ask for less",
    ),
    ("node(s) never have a partition", "have no such partition at all: ask for less"),
    ("node(s) had no free devices side by side", "have no such row of free devices: ask for fewer"),
    ("node(s) didn't have free ports", "have no free port: wait, or take another port"),
    ("node(s) didn't match pod anti-affinity", "have pods that this one keeps away from"),
    ("node(s) didn't satisfy existing pods anti-affinity", "have pods that keep this one away"),
    ("node(s) didn't match pod affinity", "lack the pods that this one wants to be near"),
    ("node(s) didn't match pod topology spread", "would hold too many of these pods: spread less"),
    ("node(s) had untolerated taint", "would need a toleration"),
    ("node(s) didn't match Pod's node affinity", "have other labels than the pod asks for"),
    ("node(s) were unschedulable", "are cordoned"),
)


def hint(refusal: Refusal) -> str:
    """One thing to do, from what is known already; empty: nothing comes to mind.

    A node says only what the first filter said that refused it, so the reasons of late filters are
    of nodes that passed the others. Of equally late ones, most nodes count.
    """
    best: tuple[int, int] | None = None
    said = ""
    for text, tally in refusal.tallies.items():
        for rank, (start, words) in enumerate(HINTS):
            if text.startswith(start) and tally.count:
                key = (rank, -tally.count)
                if best is None or key < best:
                    what = text.removeprefix(TOO_LITTLE)
                    best, said = key, _counted(tally.count, words.format(what=what))
                break
    return said


def _counted(count: int, words: str) -> str:
    if count > 1:
        return f"{count} nodes {words}"
    for plural, singular in (("have ", "has "), ("lack ", "lacks "), ("are ", "is ")):
        if words.startswith(plural):
            return f"1 node {singular}{words.removeprefix(plural)}"
    return f"1 node {words}"
