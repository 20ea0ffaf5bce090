"""Who could make room for a pod: others that end, move or go.

Which pods are worth a try is guessed from their amounts, on the rows that lack least; a trial
decides. So what is found is true, and on very large clusters not all is looked at.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice

import numpy as np
from msgspec import Struct

from bayplan.core.engine import explain
from bayplan.core.engine.ground import Ground, daring
from bayplan.core.engine.preemption import Plan
from bayplan.core.engine.questions import asking
from bayplan.core.model.advice import Change, Move, Suggestion
from bayplan.core.model.budgets import Budget
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.plugins.node_affinity import named_nodes
from bayplan.core.state.arrays import Ints, Rows
from bayplan.core.state.demand import NOT_ASKED
from bayplan.core.state.removable import start_of
from bayplan.core.state.view import View

MOST_ROWS = 256  # looked at for pods that end or move
MOST_TRIALS = 32  # of one kind
MOST_LOOKED_AT = 256  # pods, or pairs of them, before it is known whether they could move
MOST_PAIRED_ROWS = 32
MOST_SHARED_ROWS = 8  # where several pods would end
MOST_PER_ROW = 16  # pods of which two would move, or several end
MOST_HOMES = 16  # kinds of pods that are looked at for other places
MOST_NAMED = 8  # pods in one suggestion
SYSTEM = 2_000_000_000  # priorities from here on are the cluster's own


class Neighbour(Struct, frozen=True, gc=False):
    """A placed pod that might make room on a row: it stands there, or holds devices elsewhere that
    the row reaches."""

    pod: Pod
    row: int
    home: int  # where it stands

    @property
    def is_here(self) -> bool:
        return self.row == self.home


class Room:
    """One question's."""

    def __init__(self, ground: Ground, pod: Pod) -> None:
        self._ground, self._cluster, self._pod = ground, ground.cluster, pod
        with asking(ground.verdicts, pod) as ask:
            verdict = ground.verdicts.refusals(ask, View(self._cluster))
            helps = explain.preemption_helps(ground.verdicts, ask, verdict)
            self._asked = np.flatnonzero(ask.demand.need != NOT_ASKED)
            self._need: Ints = ask.demand.need[self._asked]
        self._rows = self._nearest(np.flatnonzero(helps))
        self._neighbours = [
            Neighbour(resident.pod, row, resident.row)
            for row in self._rows.tolist()
            for resident in self._cluster.in_the_way(pod, row)
            if resident.pod.priority < SYSTEM and named_nodes(resident.pod.row) is None
        ]
        self._takes = self._taken()
        self._singles = self._enough()
        self._homes: dict[RowKey, frozenset[int]] = {}

    def _nearest(self, rows: Rows) -> Rows:
        """Those that lack least, by their amounts."""
        at = np.ix_(rows, self._asked)
        short = np.maximum(self._need - self._cluster.free[at], 0)
        lack = (short / np.maximum(self._cluster.allocatable[at], 1)).sum(axis=1)
        return rows[np.argsort(lack, kind="stable")[:MOST_ROWS]]

    def _taken(self) -> Ints:
        """Neighbours × asked amounts."""
        kept: dict[RowKey, Ints] = {}
        lines = []
        for each in self._neighbours:
            line = kept.get(each.pod.row) if each.is_here else np.zeros_like(self._need)
            if line is None:
                line = kept[each.pod.row] = self._cluster.demand(each.pod.row).take[self._asked]
            lines.append(line)
        return np.array(lines, dtype=np.int64).reshape(len(lines), len(self._asked))

    def _enough(self) -> list[Neighbour]:
        """Those whose amounts alone would be enough."""
        rows = np.array([each.row for each in self._neighbours], dtype=np.intp)
        free = self._cluster.free[np.ix_(rows, self._asked)] + self._takes
        found = np.flatnonzero((free >= self._need).all(axis=1)).tolist()
        return [self._neighbours[at] for at in found]

    # ---- pods that end

    def ends(self) -> list[Suggestion]:
        """A pod whose end is enough; those that are on their way out, the least important and the
        oldest first. If no single one is, those that would have to end together."""
        singles = sorted(self._singles, key=lambda each: _soonest(each.pod))
        for each in singles[:MOST_TRIALS]:
            if placed := self._without((each.pod,), each.row):
                return [_ended((each.pod,), placed)]
        of_row: dict[int, list[Neighbour]] = {
            row: [] for row in self._rows[:MOST_SHARED_ROWS].tolist()
        }
        for each in self._neighbours:
            if each.row in of_row:
                of_row[each.row].append(each)
        for row, there in of_row.items():
            several = self._unspared(there, row) if len(there) <= MOST_PER_ROW else []
            placed = self._without(several, row) if 0 < len(several) <= MOST_NAMED else None
            if placed is not None:
                return [_ended(*self._fewest(several, placed))]
        return []

    def _unspared(self, there: Sequence[Neighbour], row: int) -> list[Pod]:
        """Those around the row who must end together; none: not even all of them are enough."""
        with self._cluster.trial():
            self._ground.remove(*(each.pod for each in there))
            if not self._ground.fits(self._pod, row):
                return []
            going = []
            for each in sorted(there, key=lambda each: _soonest(each.pod), reverse=True):
                with self._cluster.trial() as trial:
                    self._cluster.place(each.pod, self._cluster.name(each.home))
                    if self._ground.fits(self._pod, row):
                        trial.keep()
                    else:
                        going.append(each.pod)
        return going

    def _fewest(self, pods: Sequence[Pod], placed: Placement) -> tuple[Sequence[Pod], Placement]:
        """Without those whose end is not needed, because the pod would then go elsewhere."""
        for pod in pods:
            fewer = [each for each in pods if each is not pod]
            with self._cluster.trial():
                self._ground.remove(*fewer)
                found = self._ground.place(self._pod) if fewer else None
            if found is not None:
                pods, placed = fewer, found
        return pods, placed

    def _without(self, pods: Sequence[Pod], row: int) -> Placement | None:
        """Where the pod would go if these ended; looked at on the row first."""
        with self._cluster.trial():
            self._ground.remove(*pods)
            return self._ground.place(self._pod) if self._ground.fits(self._pod, row) else None

    # ---- pods that go for it

    def victims(self, plan: Plan | str) -> list[Suggestion]:
        """Those of the plan, or of one that the pod might not make."""
        if not self._pod.preempts:
            with asking(self._ground.verdicts, daring(self._pod)) as ask:
                plan = self._ground.preemption.plan(ask)
        if isinstance(plan, str) or not plan.victims:
            return []
        with self._cluster.trial():
            row = self._cluster.rows[plan.node]
            self._cluster.release_below(self._pod, row)
            placed = self._without(plan.victims, row)
        if placed is None:
            return []
        if self._pod.preempts:
            text = f"it may preempt {names(plan.victims)}, by itself"
        else:
            text = f"remove {names(plan.victims)}; it may not preempt (preemptionPolicy is Never)"
        if plan.violations:
            text += f"; that breaks {plan.violations} disruption budget(s)"
        evict = tuple(victim.key for victim in plan.victims)
        return [Suggestion("victims", text, placed.node, Change(evict=evict))]

    # ---- pods that move

    def moves(self) -> list[Suggestion]:
        """One pod that would do as well elsewhere, or two of one node."""
        able = (each for each in self._perhaps() if all(map(self._can_move, each)))
        tries = islice(able, MOST_TRIALS)
        moved = next(filter(None, map(self._moved, tries)), None)
        return [moved] if moved else []

    def _perhaps(self) -> Iterator[tuple[Neighbour, ...]]:
        """Those whose amounts would be enough: the lightest alone, then two of one node."""
        here = (each for each in self._singles if each.is_here)
        singles = sorted(here, key=lambda each: _lightest(each.pod))
        yield from ((each,) for each in singles[:MOST_LOOKED_AT])
        yield from islice(self._pairs(), MOST_LOOKED_AT)

    def _pairs(self) -> Iterator[tuple[Neighbour, Neighbour]]:
        of_row: dict[int, list[int]] = {}
        near = set(self._rows[:MOST_PAIRED_ROWS].tolist())
        for at, each in enumerate(self._neighbours):
            known = len(of_row.get(each.row, ()))
            if each.is_here and each.row in near and known < MOST_PER_ROW:
                of_row.setdefault(each.row, []).append(at)
        for row, members in of_row.items():
            left = self._need - self._cluster.free[row, self._asked]
            for one, other in combinations(members, 2):
                if (self._takes[one] + self._takes[other] >= left).all():
                    yield self._neighbours[one], self._neighbours[other]

    def _can_move(self, each: Neighbour) -> bool:
        """Whether somebody would make it anew, and a node has room for it now."""
        pod = each.pod
        if not pod.controlled or pod.terminating or pod.gang is not None:
            return False
        if pod.terms is not None or self._cluster.terms.concerning(pod):
            return True  # where it could go depends on where it is not
        homes = self._homes.get(pod.row)
        if homes is None:
            if len(self._homes) == MOST_HOMES:
                return False
            homes = self._homes[pod.row] = frozenset(self._ground.rows(pod).tolist())
        return bool(homes - {each.row})

    def _moved(self, several: Sequence[Neighbour]) -> Suggestion | None:
        pods, row = [each.pod for each in several], several[0].row
        if any(_forbids(budget, pods) for budget in self._cluster.budgets.by_key.values()):
            return None
        with self._cluster.trial():
            self._ground.remove(*pods)
            if not self._ground.fits(self._pod, row):
                return None
            with self._cluster.trial():  # elsewhere means: where the pod itself will not be
                if self._ground.place(self._pod, row=row) is None:
                    return None
                places = [self._ground.place(pod, avoid=row) for pod in pods]
            targets = [self._cluster.rows[placed.node] for placed in places if placed]
            if len(targets) < len(pods):
                return None
            moved = []
            for pod, target in zip(pods, targets, strict=True):
                fits = self._ground.fits(pod, target)
                placed = self._ground.place(pod, row=target) if fits else None
                if placed is None:
                    return None
                moved.append(Move(pod.key, self._cluster.name(row), placed.node, placed.held))
            placed = self._ground.place(self._pod)
        if placed is None:
            return None
        words = [f"{each.pod} from {each.from_node} to {each.to_node}" for each in moved]
        text = f"move {' and '.join(words)}"
        return Suggestion("move", text, placed.node, Change(moves=tuple(moved)))


def names(pods: Sequence[Pod]) -> str:
    shown = ", ".join(pod.key for pod in pods[:MOST_NAMED])
    more = len(pods) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _forbids(budget: Budget, pods: Iterable[Pod]) -> bool:
    """Whether the pods may not be evicted. There, unlike in preemption, an empty selector covers
    all pods of its namespace."""
    selector = budget.selector
    if selector is None:
        return False
    own = [pod for pod in pods if pod.namespace == budget.namespace]
    return sum(selector.matches(pod.labels) for pod in own) > budget.allowed


def _ended(pods: Sequence[Pod], placed: Placement) -> Suggestion:
    if all(pod.terminating for pod in pods):
        text = f"wait until {names(pods)} is gone, which is terminating"
    else:
        text = f"wait until {names(pods)} {'has' if len(pods) == 1 else 'have'} ended"
    return Suggestion("end", text, placed.node, Change(evict=tuple(pod.key for pod in pods)))


def _soonest(pod: Pod) -> tuple[object, ...]:
    return (not pod.terminating, pod.priority, start_of(pod), pod.uid)


def _lightest(pod: Pod) -> tuple[object, ...]:
    """The least important first, then the least lost work."""
    return (pod.priority, -pod.saved_s, pod.uid)
