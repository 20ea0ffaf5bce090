"""Pods that another scheduler places: what it was offered for them, and what it asks to be bound.

That scheduler asks where a pod fits, thinks, and asks later for a bind, often somewhere else, or
never. So a pod that was offered places is expected on the best of them for LASTS_S, and its devices
are held there. A hold is only a guess: it never keeps a bind from its node.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine import explain, placing
from bayplan.core.engine.kept import SCORE_SHIFT
from bayplan.core.engine.nominations import Nominations
from bayplan.core.engine.preemption import Plan, Preemption
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import ABSENT, Verdicts
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.model.verdicts import Refusal
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.arrays import Ints, Rows
from bayplan.core.state.nameindex import NameIndex
from bayplan.core.state.view import View

LASTS_S = 2.0
UNKNOWN_NODE = "the node is not known yet"
NOT_THERE = ABSENT  # in place of a reason, where no node is
MOST_KEPT = 64  # requests whose answers are kept


class Filtered(Struct, frozen=True):
    """Which of some nodes take a pod, and why the others do not."""

    passed: list[str]
    best: str  # of those, or empty
    refused: dict[str, str]  # by node: where other pods may be in the way
    hopeless: dict[str, str]  # by node: where they are not
    soon: bool  # nothing passed, but only for pods that are expected and may not come
    verdicts: Ints  # of those that passed

    def scores(self) -> Ints:
        """0 to 100 for each node that passed, as it was then."""
        scores: Ints = self.verdicts >> SCORE_SHIFT
        return scores


def by_devices(pod: Pod) -> Pod:
    """As far as the pod is asked about here: pods that differ in the rest share the answer."""
    return replace(pod, row=_by_devices(pod.row), terms=None)


@lru_cache(maxsize=4096)
def _by_devices(row: RowKey) -> RowKey:
    return RowKey(devices=row.devices)


class Offers:
    """Asks the first profile, which is to look at devices alone."""

    def __init__(
        self, verdicts: Verdicts, preemption: Preemption, nominations: Nominations
    ) -> None:
        self._verdicts, self._cluster = verdicts, verdicts.cluster
        self._preemption, self._nominations = preemption, nominations
        self.until: dict[str, float] = {}  # by uid: when it is expected no more; soonest first
        self.attempts = 0  # searches for pods that might go for one of these
        self._without: dict[str, int] = {}  # by uid: the verdict on its node without its own hold
        self._index, self._index_head = NameIndex({}), -1  # and as of which change of nodes
        self._kept: dict[RowKey, tuple[Ints, int]] = {}  # reasons, and how far the log was read

    def hear(
        self,
        event: on.PodExpected | on.PodNotExpected | on.PlaceWanted | on.BindAsked,
        now: float,
    ) -> list[do.Effect]:
        self.expire(now)
        match event:
            case on.PodExpected(pod, node):
                self.expect(pod, node, now)
            case on.PodNotExpected(uid):
                self.forget(uid)
            case on.PlaceWanted(pod, nodes):
                return self.make_room(pod, nodes)
            case on.BindAsked(pod, node):
                placed = self.bind(pod, node)
                if isinstance(placed, str):
                    refusal = Refusal(placed, {}, frozenset(), self._cluster.version)
                    return [do.Refuse(pod, refusal)]
                return [do.Bind(placed)]
        return []

    def expect(self, pod: Pod, node: str, now: float) -> None:
        """The pod was offered places, the best of them on the node."""
        self.forget(pod.uid)
        row = self._cluster.rows.get(node)
        if row is None or pod.uid in self._cluster.pods or self._cluster.orphan(pod.uid):
            return
        if pod.uid in self._nominations:
            return  # others go for it: its place is kept for longer
        with asking(self._verdicts, by_devices(pod)) as ask:
            verdict = int(self._all_rows(ask)[row])
            if verdict < 0:
                return
            placed = placing.placement(self._cluster, self._verdicts.profile, ask, row)
        self._cluster.holds.hold(replace(pod, held=placing.holding(placed).held), row)
        self.until[pod.uid] = now + LASTS_S
        self._without[pod.uid] = verdict

    def forget(self, uid: str) -> None:
        self._without.pop(uid, None)
        if self.until.pop(uid, None) is not None and uid in self._cluster.holds.rows:
            self._cluster.holds.release(uid)

    @property
    def next_end(self) -> float:
        """When the first hold ends."""
        return next(iter(self.until.values()), math.inf)

    def expire(self, now: float) -> None:
        while self.next_end <= now:
            self.forget(next(iter(self.until)))

    def filter(self, pod: Pod, names: Sequence[str]) -> Filtered:
        """What another scheduler is offered. Nothing is held for the pod itself."""
        rows = self._rows(names)
        with asking(self._verdicts, by_devices(pod)) as ask:
            verdict = np.where(rows >= 0, self._all_rows(ask)[rows], NOT_THERE)
            self._at_home(ask, rows, verdict)
            fits = verdict >= 0
            passed = list(names) if fits.all() else list(compress(names, fits.tolist()))
            refused, hopeless = self._reasons(ask, names, verdict)
            soon = not passed and self._fits_without_holds(ask, rows[rows >= 0])
        best = names[int(verdict.argmax())] if passed else ""
        return Filtered(passed, best, refused, hopeless, soon, verdict[fits])

    def _rows(self, names: Sequence[str]) -> Rows:
        head = self._cluster.static_log.head
        if head != self._index_head:
            self._index, self._index_head = NameIndex(self._cluster.rows), head
        return self._index.rows(names)

    def _all_rows(self, ask: Ask) -> Ints:
        """The verdicts on all rows with their reasons; kept, and brought up to date row by row."""
        cluster, log = self._cluster, self._cluster.load_log
        verdict, position = self._kept.pop(ask.row, (np.zeros(0, dtype=np.int64), -1))
        is_known = position >= 0 and len(verdict) == len(cluster.nodes)
        rows = log.since(position) if is_known else None
        if rows is None or len(rows) > cluster.height // 4:
            verdict = np.full(len(cluster.nodes), NOT_THERE, dtype=np.int64)
            verdict[: cluster.height] = self._verdicts.on(ask, View(cluster))
        elif len(rows):
            rows = np.array(sorted({*rows.tolist()}), dtype=np.intp)  # for few, the fastest way
            verdict[rows] = self._verdicts.on(ask, View(cluster, rows))
        self._kept[ask.row] = verdict, log.head
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return verdict

    def _reasons(
        self, ask: Ask, names: Sequence[str], verdict: Ints
    ) -> tuple[dict[str, str], dict[str, str]]:
        """By node, where preemption may help and where it cannot."""
        refused: dict[str, str] = {}
        hopeless: dict[str, str] = {}
        rest = verdict[verdict < 0]
        while len(rest):  # few differ, so this is faster than to sort them
            code = int(rest[0])
            rest = rest[rest != code]
            there = compress(names, (verdict == code).tolist())
            if code == NOT_THERE:
                refused |= dict.fromkeys(there, UNKNOWN_NODE)
                continue
            found = list(explain.reasons(self._verdicts, ask, code))
            where = refused if all(each.preemption_helps for each in found) else hopeless
            where |= dict.fromkeys(there, ", ".join(each.text for each in found))
        return refused, hopeless

    def _at_home(self, ask: Ask, rows: Rows, verdict: Ints) -> None:
        """Where a place is kept for the pod, that is not in its way."""
        uid = ask.pod.uid
        if uid in self._nominations:
            with self._cluster.trial():
                home = self._nominations.release(uid)
                view = View(self._cluster, np.array([home], dtype=np.intp))
                verdict[rows == home] = self._verdicts.on(ask, view)[0]

    def _guesses(self, row: int) -> list[Pod]:
        """The pods that are only expected on the row."""
        return [pod for pod in self._cluster.holds.on(row) if pod.uid in self.until]

    def _fits_without_holds(self, ask: Ask, rows: Iterable[int]) -> bool:
        asked = set(self._cluster.holds.pods) & {int(row) for row in rows}
        held = sorted(row for row in asked if self._guesses(row))
        if not held:
            return False
        with self._cluster.trial():
            for row in held:
                for pod in self._guesses(row):
                    self._cluster.holds.release(pod.uid)
            view = View(self._cluster, np.array(held, dtype=np.intp))
            return bool(self._verdicts.passes(ask, view).any())

    def scores(self, pod: Pod, names: Sequence[str]) -> Ints:
        """0 to 100 for each node; 0 where the pod does not fit. What is held for the pod itself is
        not in its way: there the score of before its hold counts."""
        rows = self._rows(names)
        with asking(self._verdicts, by_devices(pod)) as ask:
            found = np.where(rows >= 0, self._all_rows(ask)[rows], -1)
            self._at_home(ask, rows, found)
        if pod.uid in self._without:
            found[rows == self._cluster.holds.rows.get(pod.uid)] = self._without[pod.uid]
        scores: Ints = np.maximum(found, 0) >> SCORE_SHIFT
        return scores

    def victims(self, pod: Pod, node: str, given: Sequence[str]) -> list[str] | None:
        """The pods that must go for this one: those given, and more of lower priority where they
        are not enough, each needed. None where even all of them do not help. Nobody goes for pods
        that are only expected."""
        cluster = self._cluster
        row = cluster.rows.get(node)
        if row is None:
            return None
        with asking(self._verdicts, pod) as ask, cluster.trial():
            for held in cluster.holds.on(row):
                if held.uid in (pod.uid, *self.until) or held.priority < pod.priority:
                    cluster.holds.release(held.uid)
            for uid in given:
                if uid in cluster.residents[row]:
                    cluster.remove(uid)
            if not self._refused(ask, row):
                return list(given)
            classes = {each.device_class for each in pod.row.devices}
            more = sorted(
                (
                    resident.pod
                    for resident in cluster.residents[row].values()
                    if resident.pod.priority < pod.priority
                    and not classes.isdisjoint(e.device_class for e in resident.pod.row.devices)
                ),
                key=lambda each: (-each.priority, each.started_s or each.created_s, each.uid),
            )
            for each in more:
                cluster.remove(each.uid)
            if self._refused(ask, row):
                return None
            needed = []
            for each in more:  # the most important first: spared if it can be
                with cluster.trial() as trial:
                    cluster.place(each, node)
                    if not self._refused(ask, row):
                        trial.keep()
                    else:
                        needed.append(each.uid)
            return [*given, *needed]

    def home(self, uid: str) -> str:
        """The node where a place is kept for the pod; empty if there is none."""
        if uid not in self._nominations:
            return ""
        return self._cluster.name(self._cluster.holds.rows[uid])

    def make_room(self, pod: Pod, names: Sequence[str]) -> list[do.Effect]:
        """Others go for the pod from one of these nodes, and its devices are kept for it; nothing
        happens where that would not help."""
        cluster, nominations = self._cluster, self._nominations
        if pod.uid in cluster.pods or self.home(pod.uid) in names:
            return []
        self.attempts += 1
        nominations.forget(pod.uid)  # the other scheduler rules its place out
        self.forget(pod.uid)
        found = self._room(pod, names)
        if found is None:
            return []
        plan, placed = found
        row = cluster.rows[plan.node]
        for held in cluster.holds.on(row):
            if held.uid in self.until:
                self.forget(held.uid)
            elif held.priority < pod.priority:
                nominations.forget(held.uid)
        nominations.keep(placing.holding(placed), row, pod.uid)
        going = nominations.doom(plan.victims, pod.uid)
        nominations.doom(plan.leaving, pod.uid)  # told before, perhaps for a higher priority
        return [do.Preempt(pod, plan.node, going)] if going else []

    def _room(self, pod: Pod, names: Sequence[str]) -> tuple[Plan, Placement] | None:
        """Who has to go for the pod from one of these nodes, and where it would be then."""
        cluster, found = self._cluster, self._rows(names)
        within = np.zeros(cluster.height, dtype=np.bool_)
        within[found[found >= 0]] = True
        with asking(self._verdicts, by_devices(pod)) as ask, cluster.trial():
            for uid in self.until.keys() & cluster.holds.rows.keys():  # a node may have gone
                cluster.holds.release(uid)
            plan = self._preemption.plan(ask, within)
            if isinstance(plan, str):
                return None
            row = cluster.rows[plan.node]
            cluster.release_below(pod, row)
            for victim in plan.gone:
                cluster.remove(victim.uid)
            placed = placing.placement(cluster, self._verdicts.profile, ask, row)
        return plan, replace(placed, pod=pod)

    def bind(self, pod: Pod, node: str) -> Placement | str:
        """Places the pod on the node with devices chosen afresh, or says why it cannot be there."""
        cluster = self._cluster
        self.forget(pod.uid)
        self._nominations.forget(pod.uid)
        row = cluster.rows.get(node)
        if row is None:
            return f"node {node} is not known"
        with asking(self._verdicts, pod) as ask:
            if pod.row.devices and self._refused(ask, row):
                with cluster.trial() as trial:  # perhaps only for others who are not there yet
                    others = [held.uid for held in self._guesses(row)]
                    for uid in others:
                        cluster.holds.release(uid)
                    if why := self._refused(ask, row):
                        return why
                    trial.keep()
                for uid in others:
                    del self.until[uid]
                    self._without.pop(uid, None)
            placed = placing.placement(cluster, self._verdicts.profile, ask, row)
            return placing.reserve(cluster, self._verdicts.profile, ask, placed, row) or placed

    def _refused(self, ask: Ask, row: int) -> str:
        """Why the pod does not fit on the row; empty if it does."""
        code = self._verdicts.refusal(ask, row)
        if not code:
            return ""
        return ", ".join(each.text for each in explain.reasons(self._verdicts, ask, code))
