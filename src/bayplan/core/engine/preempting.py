"""Pods go for others: whether a pod may ask for that, what is kept for it meanwhile, and whose
place is given up for it. Who goes is planned in `preemption`."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine import explain, placing
from bayplan.core.engine.nominations import Nominations
from bayplan.core.engine.picking import Picking
from bayplan.core.engine.preemption import TERMINATING, Plan, Preemption
from bayplan.core.engine.promises import Promises
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.engine.victims import in_part
from bayplan.core.model import effects as do
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import EventKind, Refusal
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.arrays import Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View
from bayplan.core.state.waiting import Waiter, Waiting

KEPT = "what fits would take the room of a pod that others go for"
HARMLESS = 16  # nodes that are looked at for one where a pod is in nobody's way
DISPLACED = "the place that was kept for the pod went to a more important one"


class Queue(Protocol):
    """What the engine does with a pod that was decided about."""

    picking: Picking

    def assume(self, waiter: Waiter) -> None: ...

    def dequeue(self, uid: str) -> Waiter: ...

    def requeue(self, waiter: Waiter, now: float) -> None: ...


class Rooms(Struct, frozen=True):
    """What decisions are made on."""

    cluster: Cluster
    waiting: Waiting
    verdicts: dict[str, Verdicts]
    preemption: dict[str, Preemption]
    nominations: Nominations
    promises: Promises
    queue: Queue


def concern(one: Pod, other: Pod) -> bool:
    """Whether either could be in the way of the other by host ports or terms, roughly."""
    ports = {(port.protocol, port.port) for port in one.row.ports}
    if any((port.protocol, port.port) in ports for port in other.row.ports):
        return True
    return _looks_at(one, other) or _looks_at(other, one)


def _looks_at(one: Pod, other: Pod) -> bool:
    terms = one.terms
    if terms is None:
        return False
    about = [each.selector for each in terms.spread]
    about += [each.selector for each in (*terms.affinity, *terms.anti_affinity)]
    return any(each is not None and each.matches(other.labels) for each in about)


class Preempting:
    def __init__(self, rooms: Rooms) -> None:
        self._cluster, self._waiting = rooms.cluster, rooms.waiting
        self._verdicts, self._preemption = rooms.verdicts, rooms.preemption
        self._nominations, self._queue = rooms.nominations, rooms.queue
        self.attempts = 0  # searches for pods that might go, whatever came of them

    def find_room(self, ask: Ask, home: int = -1) -> tuple[Plan | str | None, Placement | None]:
        """A plan that is in the way of nobody who is promised a place, and where the pod would be;
        or why there is none."""
        within = self._cluster.alive[: self._cluster.height].copy()
        for _ in range(HARMLESS):
            found = self.plan(ask, home, within)
            if not isinstance(found, Plan):
                return found, None
            row = self._cluster.rows[found.node]
            placed = self.without(ask, row, found.gone)
            if placed is not None and not self.spoils(placed, found.gone):
                return found, placed
            within[row] = False
            if not within.any():
                break
        return KEPT, None

    def plan(self, ask: Ask, home: int, within: Mask) -> Plan | str | None:
        """Who would have to go for the pod; or why that is not to be; None where nobody ever is.
        `within`: the rows that come into question."""
        pod = ask.pod
        if self._verdicts[pod.scheduler].profile.preempt is None:
            return None
        row = home if home >= 0 else self._cluster.rows.get(pod.nominated, -1)
        leaving = self._leaving(pod, row) if row >= 0 and pod.preempts else []
        if leaving and self._may_help(ask, row):
            if home < 0:
                self._claim(ask, row, leaving)
            return TERMINATING
        return self._preemption[pod.scheduler].plan(ask, None if within.all() else within)

    def _may_help(self, ask: Ask, row: int) -> bool:
        """Whether anybody's going would make the row fit."""
        verdicts = self._verdicts[ask.pod.scheduler]
        verdict = verdicts.refusals(ask, View(self._cluster))
        return bool(explain.preemption_helps(verdicts, ask, verdict)[row])

    def is_awaited(self, pod: Pod) -> bool:
        """Whether others are about to go for the pod, as far as the API server tells."""
        row = self._cluster.rows.get(pod.nominated, -1)
        return row >= 0 and pod.uid not in self._nominations and bool(self._leaving(pod, row))

    def spoils(self, placed: Placement, gone: Iterable[Pod]) -> bool:
        """Whether the pod would be in the way of somebody, not less important, who is promised a
        place, once the others are gone."""
        promised = self.promised([placed.pod])
        if not promised:
            return False
        with self._cluster.trial():
            for pod in gone:
                self._cluster.remove(pod.uid)
            self._cluster.place(placing.holding(placed), placed.node)
            return not self.stand(promised)

    def _leaving(self, pod: Pod, row: int) -> list[Pod]:
        """Less important pods in the way on the row that are about to go for another."""
        doomed = self._nominations.doomed
        return [
            each.pod
            for each in self._cluster.in_the_way(pod, row)
            if each.pod.priority < pod.priority
            and (each.pod.uid in doomed or (each.pod.terminating and each.pod.preempted))
        ]

    def _claim(self, ask: Ask, row: int, leaving: Sequence[Pod]) -> None:
        """A pod that was nominated before this engine began gets its place again."""
        placed = self.without(ask, row, leaving)
        if placed is not None:
            self._nominations.keep(placing.holding(placed), row, ask.pod.uid)
            self._nominations.doom(leaving, ask.pod.uid)

    def without(self, ask: Ask, row: int, leaving: Iterable[Pod]) -> Placement | None:
        """Where the pod would be on the row, and with which devices, were the others gone."""
        verdicts = self._verdicts[ask.pod.scheduler]
        with self._cluster.trial():
            self._cluster.release_below(ask.pod, row)
            for pod in leaving:
                self._cluster.remove(pod.uid)
            if not verdicts.takes(ask, row):
                return None
            return placing.placement(self._cluster, verdicts.profile, ask, row)

    def doom(self, pod: Pod, node: str, victims: Sequence[Pod], owner: str) -> list[do.Effect]:
        """The victims go for the pod. Nobody is deleted twice."""
        going = self._nominations.doom(victims, owner)
        return [do.Preempt(pod, node, going)] if going else []

    def promised(self, newcomers: Sequence[Pod]) -> list[Pod]:
        """The pods, not less important, that others go for, and that newcomers could be in the way
        of by terms or ports. Their amounts and devices are held."""
        if not self._nominations.owners:
            return []
        most = max(pod.priority for pod in newcomers)
        mine = {pod.uid for pod in newcomers}
        kept = [uid for uid in self._nominations.owners if uid in self._nominations]
        waiting = self._waiting.pods  # another scheduler's pods do not wait here
        pods = [waiting[uid][0].pod for uid in kept if uid in waiting and uid not in mine]
        pods = [
            each
            for each in pods
            if each.priority >= most and any(concern(each, newcomer) for newcomer in newcomers)
        ]
        return [each for each in pods if self._would_fit(each)]

    def kept(self) -> Refusal:
        """Why a pod has to wait that would be in the way of one of them."""
        return Refusal(KEPT, {}, frozenset(EventKind), self._cluster.version)

    def stand(self, promised: Sequence[Pod]) -> bool:
        """Whether they all still fit in their places."""
        return all(self._would_fit(pod) for pod in promised)

    def heir(self, uid: str) -> Pod | None:
        """A pod that needs the victim to go, still fits in its place then, and is more important.
        Whoever turns out not to need that counts on it no more. Nobody, if members of the victim's
        gang went meanwhile that it cannot be without."""
        victim, found = self._cluster.pods[uid].pod, None
        if self._leaves_in_part(victim):
            return None
        for owner in list(self._nominations.doomed.get(uid, ())):
            pods = [
                self._waiting.pods[each][0].pod
                for each in self._nominations.pods_of([owner])
                if each in self._waiting.pods and each in self._nominations
            ]
            if victim.gang is None and pods and all(self._would_fit(pod, uid) for pod in pods):
                del self._nominations.doomed[uid][owner]
            elif all(map(self._would_fit, pods)):
                higher = (pod for pod in pods if pod.priority > victim.priority)
                found = found or next(higher, None)
        return found

    def _leaves_in_part(self, victim: Pod) -> bool:
        """Whether the victim's gang would run with fewer than its minimum."""
        if victim.gang is None:
            return False
        members = self._cluster.census.gangs[victim.gang.key]
        with self._cluster.trial():
            for uid in self._nominations.doomed.keys() & members.keys() - {victim.uid}:
                self._cluster.remove(uid)
            return bool(in_part(self._cluster, [victim]))

    def _would_fit(self, pod: Pod, stays: str = "") -> bool:
        """Whether the pod fits in its place once all who go, but perhaps one, are gone: for it, or
        there for others, whose places are kept besides."""
        going = dict.fromkeys(self._nominations.in_the_way(self._nominations.owners[pod.uid]))
        verdicts = self._verdicts[pod.scheduler]
        with self._cluster.trial():
            row = self._nominations.release(pod.uid)
            there = (each.pod.uid for each in self._cluster.in_the_way(pod, row))
            going |= dict.fromkeys(uid for uid in there if uid in self._nominations.doomed)
            for uid in going:
                if uid in self._cluster.pods and uid != stays:
                    self._cluster.remove(uid)
            with asking(verdicts, pod) as ask:
                return verdicts.takes(ask, row)

    def harmless(self, ask: Ask, found: tuple[Ints, Rows | None], promised: Sequence[Pod]) -> int:
        """The best row where the pod is in the way of nobody who is promised a place."""
        verdict, rows = found
        profile = self._verdicts[ask.pod.scheduler].profile
        order = np.argsort(-verdict, kind="stable")[:HARMLESS]
        for at in order[verdict[order] >= 0].tolist():
            row = at if rows is None else int(rows[at])
            with self._cluster.trial():
                placed = placing.placement(self._cluster, profile, ask, row)
                self._cluster.place(placing.holding(placed), placed.node)
                if self.stand(promised):
                    return row
        return -1

    def displace(self, pod: Pod, row: int, now: float) -> list[do.Effect]:
        """What is kept on the row for less important pods is given up."""
        effects: list[do.Effect] = []
        for held in self._cluster.held_below(pod, row):
            if held.uid in self._nominations:
                self._nominations.forget(held.uid)
                waiter, _ = self._waiting.pods[held.uid]
                waiter.pod = replace(waiter.pod, nominated="")
                self._queue.requeue(waiter, now)
                self._waiting.rouse(held.uid, now)
                refusal = Refusal(DISPLACED, {}, frozenset(), self._cluster.version)
                effects.append(do.Refuse(waiter.pod, refusal, ""))
        if effects:  # it may have been more than the pod takes
            self._waiting.wake((EventKind.POD_GONE,), now)
        return effects
