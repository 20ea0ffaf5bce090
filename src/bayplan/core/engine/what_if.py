"""What if: steps on one trial of the live state, each answered by the code that decides.

Nothing lasts. The trial is dropped, and what the question made the cluster derive (label columns,
an index over pods, demands) goes with it. There is no second way to decide here: where a pod goes,
which devices it gets, who would have to go for it and where a gang goes is asked of the engine.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count

from msgspec.structs import replace

from bayplan.core.engine import explain, gangs, placing
from bayplan.core.engine.bounds import Limits, TooLong, check
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.picking import Clock
from bayplan.core.engine.preempting import KEPT
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts, is_rejection
from bayplan.core.model import steps as ask_for
from bayplan.core.model.effects import Placement
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.model.steps import Answer, Answers, Changed, Counted, Failed, Step, Where
from bayplan.core.model.verdicts import Refusal, Tally
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.podnames import PodNames

HOSTNAME = "kubernetes.io/hostname"
# Taints that say how a node is at the moment; a new one is well.
PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
UID = "what-if:"  # no pod's, and no namespace/name, has a colon


class WhatIf:
    """Asks an engine. The clock comes from the driver; without one there is no time limit."""

    def __init__(
        self, engine: Engine, limits: Limits | None = None, clock: Clock | None = None
    ) -> None:
        self._engine, self._limits, self._clock = engine, limits or Limits(), clock
        self._names = PodNames(engine.cluster)

    def ask(self, steps: Sequence[Step]) -> Answers:
        """`TooMuch` and `TooLong` when the question is too large; nothing has happened then."""
        check(steps, self._limits)
        cluster = self._engine.cluster
        if not all(self._knows(step) for step in steps):
            self._names.refresh()
        with self._engine.asked():
            question = _Question(
                self._engine, self._names, Patience(self._clock, self._limits.seconds)
            )
            version = cluster.version
            return Answers(version, [question.answer(step) for step in steps])

    def _knows(self, step: Step) -> bool:
        """Whether the names of placed pods need not be read again for it."""
        match step:
            case ask_for.Fits(without=pods) | ask_for.Evict(pods):
                return all(self._names.find(key) is not None for key in map(full_name, pods))
            case ask_for.Place() | ask_for.PlaceGang():
                return False
        return True


def full_name(name: str) -> str:
    """A pod of the namespace `default` need not say so."""
    return name if "/" in name else f"default/{name}"


class Patience:
    """Ends a question that takes too long."""

    def __init__(self, clock: Clock | None, longest_s: float) -> None:
        self._clock, self._longest_s = clock, longest_s
        self._ends = clock() + longest_s if clock else math.inf

    def check(self) -> None:
        if self._clock is not None and self._clock() > self._ends:
            raise TooLong(f"the question takes longer than {self._longest_s:g} s")


class _Question:
    """One question, inside its trial."""

    def __init__(self, engine: Engine, names: PodNames, patience: Patience) -> None:
        self._engine, self._names, self._patience = engine, names, patience
        self._cluster, self._preempting = engine.cluster, engine.preempting
        self._picking = engine.picking.apart()
        self._own: dict[str, Verdicts] = {}  # by profile: what is kept in them ends with us
        self._placed: dict[str, str] = {}  # by name: uids of pods that are only here
        self._origins: dict[str, str] = {}  # by name: whose likes our nodes are
        self._tries: dict[str, Iterator[int]] = {}  # by origin: numbers that no node has yet
        self._numbers = count(1)

    def answer(self, step: Step) -> Answer:
        self._patience.check()
        try:
            match step:
                case ask_for.Fits(pod, node, without):
                    return self._fits(pod, node, self._named(without))
                case ask_for.Evict(pods):
                    return self._evict(self._named(pods))
                case ask_for.Place(pod):
                    return self._place(pod)
                case ask_for.PlaceGang():
                    return self._place_gang(step)
                case ask_for.ChangeNodes(remove, add):
                    return self._change_nodes(remove, add)
                case ask_for.Preempt(pod):
                    return self._preempt(pod)
                case ask_for.Capacity(pod, limit):
                    return self._capacity(pod, limit)
                case ask_for.Unreadable(why):
                    return Failed(error=why)
        except _Unknown as unknown:
            return Failed(error=str(unknown))

    # ---- the steps

    def _fits(self, pod: Pod, node: str | None, without: list[Pod]) -> Where:
        if node is not None:
            self._check_node(node)
        pod = self._guest(pod)
        gone = [*without, *self._holds_of(pod)]
        if not gone:
            return where(self._would_be(pod, node))
        with self._cluster.trial():
            self._remove(gone)
            return where(self._would_be(pod, node), tuple(each.key for each in without))

    def _evict(self, pods: list[Pod]) -> Changed:
        return Changed(changed=self._remove(pods))

    def _place(self, pod: Pod) -> Where:
        pod = self._guest(pod, self._free_name(pod.namespace, pod.name))
        with self._cluster.trial() as trial:
            self._remove(self._holds_of(pod))
            found = self._put(self._verdicts(pod), pod)
            if isinstance(found, Refusal):
                return where(found)
            trial.keep()
        self._placed[pod.key] = pod.uid
        return replace(where(found), pod=pod.key)

    def _place_gang(self, step: ask_for.PlaceGang) -> Answer:
        space, key = step.pod.namespace, f"{step.pod.namespace}/{step.name}"
        asked, group = (
            gangs.meant(self._cluster, [step.pod]) if step.pod.gang else (Gang(key), None)
        )
        why = gangs.unclear(asked, group) or gangs.gap(self._cluster, group)
        if why:
            return ask_for.GangWhere(False, 0, (), message=why)
        gang = replace(asked, key=key, minimum=step.minimum, grouped=False)
        template = replace(step.pod, gang=gang)
        names = [self._free_name(space, f"{step.name}-{i}") for i in range(step.count)]
        pods = [self._guest(template, name) for name in names]
        promised = self._preempting.promised(pods)
        with self._cluster.trial() as trial:
            placed = gangs.place(self._keeping(template), pods, step.minimum, keep=True)
            if placed.ok and not self._preempting.stand(promised):
                return ask_for.GangWhere(False, 0, (), message=KEPT)
            if placed.ok:
                trial.keep()
        members = tuple(
            ask_for.Member(each.pod.key, each.node, each.held) for each in placed.placements
        )
        found = ask_for.GangWhere(placed.ok, len(members), members)
        if placed.ok:
            self._placed |= {each.pod.key: each.pod.uid for each in placed.placements}
        if placed.refusal is None:
            return found
        said = f"{len(members)} of {step.count} members fit; for the next: {placed.refusal.message}"
        return replace(found, message=said, reasons=placed.refusal.tallies)

    def _change_nodes(self, remove: tuple[str, ...], add: ask_for.AddNodes | None) -> Changed:
        for name in (*remove, *([add.like] if add else ())):
            self._check_node(name)
        like = self._node(add.like) if add else None
        gone = dict.fromkeys(remove)
        for name in gone:
            self._patience.check()
            self._cluster.remove_node(name)
            for uid in list(self._cluster.orphans.get(name, ())):
                self._cluster.remove(uid)
        if add is None or like is None:
            return Changed(changed=len(gone))
        made = tuple(self._add_node(like) for _ in range(add.count))
        return Changed(changed=len(gone) + len(made), nodes=made)

    def _preempt(self, pod: Pod) -> Where:
        pod, verdicts = self._guest(pod), self._verdicts(pod)
        with self._cluster.trial():
            self._remove(self._holds_of(pod))
            with asking(verdicts, pod) as ask:
                found = self._decided(verdicts, ask)
                if isinstance(found, Placement) or found.message == KEPT:
                    return where(found)
                plan, _ = self._preempting.find_room(ask)
            if plan is None:
                return where(found)  # its configuration says that nobody goes for anybody
            if isinstance(plan, str):
                message = f"{found.message} preemption: {plan}"
                return Where(ok=False, message=message, reasons=found.tallies)
            self._cluster.release_below(pod, self._cluster.rows[plan.node])
            self._remove(plan.gone)
            victims = tuple(each.key for each in plan.victims)
            return where(self._put(verdicts, pod, plan.node), victims)

    def _capacity(self, pod: Pod, limit: int) -> Counted:
        verdicts = self._keeping(pod)
        with self._cluster.trial():
            for placed in range(limit):
                self._patience.check()
                if isinstance(self._put(verdicts, self._guest(pod)), Refusal):
                    return Counted(count=placed)
            one_more = self._put(verdicts, self._guest(pod))
        if isinstance(one_more, Refusal):
            return Counted(count=limit)
        return Counted(count=limit, more=True)

    # ---- deciding

    def _verdicts(self, pod: Pod) -> Verdicts:
        """Those of the pod's profile; the first one's where its scheduler is somebody else."""
        known = self._engine.verdicts
        return known.get(pod.scheduler) or next(iter(known.values()))

    def _keeping(self, pod: Pod) -> Verdicts:
        """The same, for many pods of a kind: verdicts are kept, for as long as the question."""
        profile = self._verdicts(pod).profile
        if profile.name not in self._own:
            self._own[profile.name] = Verdicts(self._cluster, profile)
        return self._own[profile.name]

    def _would_be(self, pod: Pod, node: str | None) -> Placement | Refusal:
        """Without placing it, where no plugin must see that."""
        verdicts = self._verdicts(pod)
        if verdicts.profile.reserve:
            with self._cluster.trial():
                return self._put(verdicts, pod, node)
        with asking(verdicts, pod) as ask:
            return self._decided(verdicts, ask, node)

    def _put(self, verdicts: Verdicts, pod: Pod, node: str | None = None) -> Placement | Refusal:
        """The pod where it would go, or on the node."""
        cluster, profile = self._cluster, verdicts.profile
        with asking(verdicts, pod) as ask:
            found = self._decided(verdicts, ask, node)
            if isinstance(found, Refusal):
                return found
            why = placing.reserve(cluster, profile, ask, found, cluster.rows[found.node])
        return found if why is None else Refusal(why, {}, frozenset(), cluster.version)

    def _decided(
        self, verdicts: Verdicts, ask: Ask, node: str | None = None
    ) -> Placement | Refusal:
        cluster, profile = self._cluster, verdicts.profile
        if node is not None:
            row = cluster.rows[node]
            refusal = refusal_on(verdicts, ask, row)
            if refusal is not None:
                return refusal
            placed = placing.placement(cluster, profile, ask, row)
            return self._preempting.kept() if self._preempting.spoils(placed, ()) else placed
        keeps = verdicts is self._own.get(profile.name)
        row, verdict, rows = verdicts.best(ask, keep=keeps)
        lenders = self._engine.reservations.lenders(ask.pod) if row < 0 else []
        if lenders:
            with cluster.trial():
                cluster.holds.taken(self._engine.nominations.pods_of(lenders))
                lent, _, _ = verdicts.best(ask, keep=False)
                if lent >= 0:
                    return placing.placement(cluster, profile, ask, lent)
        if row < 0:
            return explain.refusal(verdicts, ask, cluster.version)
        promised = self._preempting.promised([ask.pod])
        if promised:
            row = self._preempting.harmless(ask, (verdict, rows), promised)
            if row < 0:
                return self._preempting.kept()
        elif profile.picker is not None:
            row = self._picking.pick(profile.picker, verdicts, ask, (verdict, rows)).row
        return placing.placement(cluster, profile, ask, row)

    # ---- pods and nodes by name

    def _guest(self, pod: Pod, name: str = "") -> Pod:
        """The pod as somebody who is not there yet."""
        return replace(
            pod,
            uid=f"{UID}{next(self._numbers)}",
            name=name or pod.name,
            scheduler=self._verdicts(pod).profile.name,
            node="",
            nominated="",
        )

    def _free_name(self, space: str, name: str) -> str:
        """The name, or the first of name-2, name-3 … that no pod on a node has."""
        tries = chain((name,), (f"{name}-{i}" for i in count(2)))
        return next(each for each in tries if not self._is_taken(f"{space}/{each}"))

    def _is_taken(self, key: str) -> bool:
        return key in self._placed or self._names.find(key) is not None

    def _named(self, names: Iterable[str]) -> list[Pod]:
        return [self._find(key) for key in dict.fromkeys(map(full_name, names))]

    def _find(self, key: str) -> Pod:
        self._patience.check()
        ours = self._cluster.pods.get(self._placed.get(key, ""))
        pod = self._names.find(key) if ours is None else ours.pod
        if pod is None:
            held = self._cluster.holds.pods.values()
            waiting = (waiter.pod for waiter, _ in self._engine.waiting.pods.values())
            parked = (pod for pod, _ in self._engine.held.values())
            unplaced = (*(each for pods in held for each in pods.values()), *waiting, *parked)
            pod = next((each for each in unplaced if each.key == key), None)
        if pod is None:
            raise _Unknown(f"there is no pod {key}")
        return pod

    def _holds_of(self, pod: Pod) -> list[Pod]:
        """What is held for a pod is not in its own way."""
        held = self._cluster.holds.pods.values()
        return [each for pods in held for each in pods.values() if each.key == pod.key]

    def _remove(self, pods: Iterable[Pod]) -> int:
        """How many of them had a place, or one held for them."""
        removed = 0
        for pod in pods:
            if pod.uid in self._cluster.holds.rows:
                self._cluster.holds.release(pod.uid)
            elif pod.uid in self._cluster.pods or self._cluster.orphan(pod.uid):
                self._cluster.remove(pod.uid)
                self._placed.pop(pod.key, None)
            else:
                continue
            removed += 1
        return removed

    def _check_node(self, name: str) -> None:
        if name not in self._cluster.rows:
            raise _Unknown(f"there is no node {name}")

    def _node(self, name: str) -> Node:
        node = self._cluster.nodes[self._cluster.rows[name]]
        assert node is not None
        return node

    def _add_node(self, like: Node) -> str:
        self._patience.check()
        origin = self._origins.get(like.name, like.name)
        tries = self._tries.setdefault(origin, count(1))
        names = (f"{origin}-new-{i}" for i in tries)
        name = next(each for each in names if not self._is_known_node(each))
        self._origins[name] = origin
        self._cluster.add_node(new_node(like, name))
        return name

    def _is_known_node(self, name: str) -> bool:
        cluster = self._cluster
        known = name in cluster.rows or name in self._origins
        return known or name in cluster.orphans or name in cluster.closed


class _Unknown(Exception):
    """The step names something that is not there."""


def where(found: Placement | Refusal, victims: tuple[str, ...] = ()) -> Where:
    if isinstance(found, Refusal):
        return Where(ok=False, message=found.message, reasons=found.tallies)
    return Where(ok=True, node=found.node, devices=found.held, victims=victims)


def refusal_on(verdicts: Verdicts, ask: Ask, row: int) -> Refusal | None:
    """Why the pod does not fit on the row; None if it does."""
    cluster = verdicts.cluster
    code = verdicts.refusal(ask, row)
    if not code:
        return None
    reasons = list(explain.reasons(verdicts, ask, code))
    tallies = {reason.text: Tally(1, (cluster.name(row),)) for reason in reasons}
    rejected = is_rejection(verdicts.profile, code)
    message = explain.message(1, tallies, rejected=rejected)
    helped = frozenset(kind for reason in reasons for kind in reason.helped_by)
    return Refusal(message, tallies, helped, cluster.version)


def new_node(like: Node, name: str) -> Node:
    """A node of the same kind that is new: ready, not cordoned, with no image and nothing on it."""
    labels = {**like.labels, HOSTNAME: name} if HOSTNAME in like.labels else like.labels
    return replace(
        like,
        name=name,
        uid=f"{UID}{name}",
        labels=labels,
        taints=tuple(taint for taint in like.taints if not taint.key.startswith(PASSING)),
        unschedulable=False,
        images=(),
        maps={},
    )
