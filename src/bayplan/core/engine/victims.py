"""Victims in columns: on every candidate row at once, which pods must go for another.

All pods of lower priority are thought away, then spared one by one, the most important first and
those whose removal breaks a budget before all others, as kube-scheduler does on one node. Each
round is one pass over the rows. This can weigh amounts and whole devices; what else a pod asks for
is weighed on trials (`preemption`). Also: whose gangs cannot be without them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bayplan.core.devices.wanted import Wanted
from bayplan.core.engine.verdicts import merged
from bayplan.core.model.budgets import Budget
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.devices import BITS, SHORT
from bayplan.core.plugins.hooks import Ask, Plans
from bayplan.core.plugins.resources import NodeResourcesFit
from bayplan.core.state.arrays import Bits, Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.demand import NOT_ASKED
from bayplan.core.state.removable import NOBODY, Removable, start_of
from bayplan.core.state.view import View

_NOTHING = np.uint64(0)
LOWEST = 1 << 31  # priorities are counted from here, as kube-scheduler sums them


class Checks(Struct, frozen=True):
    """What refuses the pod where others are in its way, with the numbers in its profile."""

    fit: tuple[int, NodeResourcesFit] | None
    wants: tuple[Wanted, ...] = ()
    devices: int = 0


class Freed(View):
    """Rows with other amounts free than there are."""

    def __init__(self, cluster: Cluster, rows: Rows, free: Ints) -> None:
        super().__init__(cluster, rows)
        self._free = free
        self.exact = True


class Columns:
    """The rows where removing pods would help. Nothing is changed."""

    def __init__(self, ask: Ask, table: Removable, rows: Rows, checks: Checks) -> None:
        self._ask, self._table, self._checks = ask, table, checks
        self._cluster = table.cluster
        removable = table.priority[rows] < ask.pod.priority
        count = removable.sum(axis=1)
        self.without = rows[count == 0]  # rows where nobody may be removed
        self.rows, removable, count = rows[count > 0], removable[count > 0], count[count > 0]
        depth = int(count.max(initial=0))
        self.violating = self._violating(removable)
        self.order: Rows | None = None  # ranks by turn; None: as they stand
        if removable[:, 0].all() and self.violating is None:
            self.there = removable[:, :depth]
        else:
            turn = np.where(removable, 1, 2)
            if self.violating is not None:
                turn -= self.violating
            self.order = turn.argsort(axis=1, kind="stable")[:, :depth]
            self.there = np.take_along_axis(removable, self.order, 1)
        self._spare(removable)

    # ---- what follows

    def plans(self, now_s: float) -> Plans:
        table, victim = self._table, self.victim
        priority = self._by_turn(table.priority)
        highest = np.where(victim, priority, -NOBODY).max(axis=1, initial=-NOBODY)
        first = victim & (priority == highest[:, np.newaxis])
        lost = np.maximum(now_s - self._by_turn(table.saved), 0.0)
        count = victim.sum(axis=1)
        violations = np.zeros_like(count)
        if self.violating is not None:
            violations = (victim & self._by_turn(self.violating, gathered=True)).sum(axis=1)
        return Plans(
            violations,
            highest,
            (priority * victim).sum(axis=1) + LOWEST * count,
            count,
            np.where(first, self._by_turn(table.start), np.inf).min(axis=1, initial=np.inf),
            (lost * victim).sum(axis=1),
        )

    def victims(self, at: int) -> tuple[Pod, ...]:
        """The most important first."""
        pods = self._table.pods[int(self.rows[at])]
        ranks = np.flatnonzero(self.victim[at])
        if self.order is not None:
            ranks = np.sort(self.order[at][ranks])
        return tuple(pods[rank] for rank in ranks.tolist())

    # ---- working it out

    def _spare(self, removable: Mask) -> None:
        table, need = self._table, self._need()
        columns = np.flatnonzero(need != NOT_ASKED)
        takes, keys = table.takes(columns), self._by_turn(table.key)
        turns = range(self.there.shape[1])
        free = self._cluster.free[np.ix_(self.rows, columns)].T.copy()
        back = [takes[keys[:, turn]].T * self.there[:, turn] for turn in turns]
        for amounts in back:
            free += amounts
        pools = [_Pool(table, want, self.rows, removable) for want in self._checks.wants]
        held = [self._by_turn(pool.held, gathered=True) for pool in pools]
        asked = need[columns, np.newaxis]
        short = (free < asked).any(axis=0)
        for pool in pools:
            short |= ~pool.serves(_NOTHING)
        if short.any():
            self.kept_out = self.rows[short], self._codes(columns, free, pools)[short]
            self._keep(~short)
            free, back = free[:, ~short], [amounts[:, ~short] for amounts in back]
            held = [bits[~short] for bits in held]
            for pool in pools:
                pool.keep(~short)
        else:
            self.kept_out = self.rows[:0], np.zeros(0, dtype=np.int64)
        self.victim: Mask = np.zeros(self.there.shape, dtype=np.bool_)
        for turn in turns:
            there = self.there[:, turn]
            with_it = free - back[turn]
            fits = there & (with_it >= asked).all(axis=0)
            for pool, bits in zip(pools, held, strict=True):
                fits &= pool.serves(bits[:, turn])
            np.copyto(free, with_it, where=fits)
            for pool, bits in zip(pools, held, strict=True):
                np.bitwise_or(pool.busy, bits[:, turn], out=pool.busy, where=fits)
            self.victim[:, turn] = there & ~fits

    def _need(self) -> Ints:
        if self._checks.fit is None:
            return np.full(self._cluster.free.shape[1], NOT_ASKED)
        return self._checks.fit[1].needed(self._ask)

    def _codes(self, columns: Rows, free: Ints, pools: Sequence["_Pool"]) -> Ints:
        """Per row 0, or why the pod does not fit there: the number of a plugin and its reasons."""
        refused: Ints | None = None
        if self._checks.fit is not None:
            number, fit = self._checks.fit
            whole = self._cluster.free[self.rows].T.copy()
            whole[columns] = free
            view = Freed(self._cluster, self.rows, whole)
            codes = fit.refuse(self._ask, view)
            refused = None if codes is None else merged(None, number, codes)
        for at, pool in enumerate(pools):
            short = np.where(pool.serves(_NOTHING), 0, SHORT << BITS * at)
            refused = merged(refused, self._checks.devices, short)
        return np.zeros(len(self.rows), dtype=np.int64) if refused is None else refused

    def _violating(self, removable: Mask) -> Mask | None:
        """By rank, those whose removal breaks a budget; None where there are none."""
        budgets = budgets_by_namespace(self._cluster.budgets.by_key.values())
        if not budgets:
            return None
        found: Mask = np.zeros(removable.shape, dtype=np.bool_)
        for at, row in enumerate(self.rows.tolist()):
            ranks = np.flatnonzero(removable[at]).tolist()
            found[at, ranks] = violates([self._table.pods[row][rank] for rank in ranks], budgets)
        return found

    def _by_turn(self, column: NDArray[Any], *, gathered: bool = False) -> NDArray[Any]:
        """Rows × turns, of rows × ranks."""
        lines = column if gathered else column[self.rows]
        if self.order is None:
            return lines[:, : self.there.shape[1]]
        return np.take_along_axis(lines, self.order, 1)

    def _keep(self, mask: Mask) -> None:
        self.rows, self.there = self.rows[mask], self.there[mask]
        if self.order is not None:
            self.order = self.order[mask]
        if self.violating is not None:
            self.violating = self.violating[mask]


class _Pool:
    """The devices of a class on some rows, and who would still hold them."""

    def __init__(self, table: Removable, want: Wanted, rows: Rows, removable: Mask) -> None:
        name = want.device_class
        self._count = want.count
        self.held: Bits = table.held[name][rows]  # rows × ranks
        stays = np.where(removable, _NOTHING, self.held)
        self.busy: Bits = np.bitwise_or.reduce(stays, axis=1) | table.kept[name][rows]
        self._usable = table.usable[name][rows]
        self._counted = table.counted(name)[rows]  # no devices are published: they are only counted

    def serves(self, held: Bits | np.uint64) -> Mask:
        """Where enough devices are left beside those that are held too."""
        left = np.bitwise_count(self._usable & ~(self.busy | held))
        enough: Mask = (left >= self._count) | self._counted
        return enough

    def keep(self, mask: Mask) -> None:
        self.held, self.busy = self.held[mask], self.busy[mask]
        self._usable, self._counted = self._usable[mask], self._counted[mask]


def budgets_by_namespace(budgets: Iterable[Budget]) -> dict[str, list[Budget]]:
    found: dict[str, list[Budget]] = {}
    for budget in budgets:
        found.setdefault(budget.namespace, []).append(budget)
    return found


def violates(pods: Sequence[Pod], budgets: dict[str, list[Budget]]) -> list[bool]:
    """For each pod whether removing it, after those before it, breaks a budget."""
    left: dict[str, int] = {}
    found = []
    for pod in pods:
        broken = False
        for budget in budgets.get(pod.namespace, ()):
            if budget.covers(pod):
                left[budget.key] = left.get(budget.key, budget.allowed) - 1
                broken = broken or left[budget.key] < 0
        found.append(broken)
    return found


def plans_of(found: Sequence[tuple[Sequence[Pod], int]], now_s: float) -> Plans:
    """The same columns for victims that were found row by row, with the budgets they break."""
    rows = []
    for victims, violations in found:
        highest = max(pod.priority for pod in victims)
        start = min(start_of(pod) for pod in victims if pod.priority == highest)
        lost = sum(max(now_s - pod.saved_s, 0.0) for pod in victims)
        total = sum(pod.priority + LOWEST for pod in victims)
        rows.append((violations, highest, total, len(victims), start, lost))
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 6)
    violations, highest, totals, count = table[:, :4].astype(np.int64).T
    return Plans(violations, highest, totals, count, table[:, 4], table[:, 5])


def in_part(cluster: Cluster, victims: Sequence[Pod]) -> set[str]:
    """The gangs that would run with fewer than their minimum; members that terminate do not run."""
    residents, gone = cluster.pods, {pod.uid for pod in victims}
    found = set()
    for key in {pod.gang.key for pod in victims if pod.gang is not None}:
        members = [residents[uid].pod for uid in cluster.census.gangs[key]]
        minimum = max(cluster.groups.minimum(pod.gang) for pod in members if pod.gang is not None)
        going = gone.union(pod.uid for pod in members if pod.terminating)
        stay = [pod for pod in members if pod.uid not in going]
        if len(stay) < minimum and any(pod.uid not in gone for pod in members):
            found.add(key)
    return found
