"""Preemption: which pods to remove so that another fits, and on which node.

The order of nodes and victims is kube-scheduler's. Where only amounts and whole devices are in the
way, all nodes are weighed in columns. Otherwise (affinity, spread, ports, shares of devices,
gangs among the victims) each node with enough room is weighed on a trial, the most promising first,
until a tenth of all nodes or a hundred would do. Whatever is chosen is proven on a trial before
anybody hears of it.

A gang whose members could not be spared is removed as a whole, on whatever nodes they are.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bayplan.core.devices.wanted import wanted
from bayplan.core.engine import explain
from bayplan.core.engine.verdicts import ABSENT, Verdicts
from bayplan.core.engine.victims import (
    Checks,
    Columns,
    budgets_by_namespace,
    in_part,
    plans_of,
    violates,
)
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Tally
from bayplan.core.plugins.devices import Devices
from bayplan.core.plugins.hooks import Ask, Plans, Preempt, Reads
from bayplan.core.plugins.numa import NodeResourceTopologyMatch
from bayplan.core.plugins.partitions import Partitions
from bayplan.core.plugins.ports import NodePorts
from bayplan.core.plugins.resources import NodeResourcesFit
from bayplan.core.state.arrays import Ints, Mask, Rows, distinct
from bayplan.core.state.cluster import Resident
from bayplan.core.state.removable import WIDEST, Removable, importance
from bayplan.core.state.view import View

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
LATER = "node(s) were not looked at this time"
FEW, TENTH = 100, 10  # nodes that will do: kube-scheduler's least number, and part of all
MOST_LEAVING = 200  # pods that are about to go; with more, they count as everybody else does
LOOKED_AT = (NodePorts, Partitions, NodeResourceTopologyMatch)  # they refuse few kinds of pods
WORK = 3_000  # pods that are removed and put back on trials for one pod: some 0.1 s


class Plan(Struct, frozen=True):
    """What must go for the pod to fit on the node. Where nobody must, it fits as soon as the room
    that is held there for less important pods is given up."""

    node: str
    victims: tuple[Pod, ...] = ()  # the most important first
    violations: int = 0  # victims whose removal breaks a budget
    leaving: tuple[Pod, ...] = ()  # who are about to go already, and must

    @property
    def gone(self) -> tuple[Pod, ...]:
        """Who will not be there any more."""
        return (*self.victims, *self.leaving)


Unit = tuple[Resident, ...]  # what goes together


class Tried(Struct, frozen=True):
    """A row that was weighed on a trial."""

    row: int
    victims: tuple[Pod, ...]
    violations: int


class Preemption:
    """Asks one profile."""

    def __init__(
        self, verdicts: Verdicts, doomed: Collection[str] = (), spared: Collection[str] = ()
    ) -> None:
        """`doomed`: uids of pods that are about to go already; `spared`: of those that must not."""
        self._verdicts, self._cluster = verdicts, verdicts.cluster
        self._table = Removable(verdicts.cluster, spared)
        self._doomed = doomed
        self.turn = 0  # where the next search by trials begins, when there are many rows

    def plan(self, ask: Ask, within: Mask | None = None) -> Plan | str:
        """What to remove, or kube-scheduler's words for why nothing would help. `within`: the rows
        that come into question."""
        order = self._verdicts.profile.preempt
        if order is None or not ask.pod.preempts:
            return NEVER
        cluster = self._cluster
        with cluster.trial():
            if self._release(ask.pod) and (row := self._best_row(ask, within)) >= 0:
                return Plan(cluster.name(row))
            going = [cluster.pods[uid] for uid in self._doomed if uid in cluster.pods]
            leaving = going if len(going) <= MOST_LEAVING else []
            for resident in leaving:
                cluster.remove(resident.pod.uid)
            if leaving and (row := self._best_row(ask, within)) >= 0:
                plan: Plan | str = Plan(cluster.name(row))
            else:
                plan = self._weigh(ask, self._refusals(ask, within), order)
        if isinstance(plan, str):
            return plan
        row = cluster.rows[plan.node]
        here = tuple(each.pod for each in leaving if each.row == row)
        with cluster.trial():
            self._release(ask.pod)
            if not self._proves(ask, row, (*plan.victims, *here)):  # others matter by their terms
                here = tuple(each.pod for each in leaving)
        return replace(plan, leaving=here)

    def _refusals(self, ask: Ask, within: Mask | None) -> Ints:
        verdict = self._verdicts.refusals(ask, View(self._cluster))
        return verdict if within is None else np.where(within, verdict, ABSENT)

    def _best_row(self, ask: Ask, within: Mask | None) -> int:
        """The best row that takes the pod as things are now, or -1."""
        verdict = self._refusals(ask, within)
        if not (verdict >= 0).any():
            return -1
        scored = self._verdicts.on(ask, View(self._cluster))
        return int(np.where(verdict >= 0, scored, -1).argmax())

    def _release(self, pod: Pod) -> bool:
        """What is held for less important pods is not in the way."""
        holds = self._cluster.holds
        lower = [
            held.uid
            for pods in holds.pods.values()
            for held in pods.values()
            if held.priority < pod.priority
        ]
        for uid in lower:
            holds.release(uid)
        return bool(lower)

    def _weigh(self, ask: Ask, verdict: Ints, order: Preempt) -> Plan | str:
        said = _Said(self._verdicts, ask)
        helps = explain.preemption_helps(self._verdicts, ask, verdict)
        alive = self._cluster.alive[: len(verdict)] & (verdict != ABSENT)
        said.add(NOT_HELPFUL, np.flatnonzero(alive & ~helps))
        rows = np.flatnonzero(helps & alive)
        if not any(p < ask.pod.priority for p in self._cluster.census.priorities):
            said.add(NO_VICTIMS, rows)
            return said.message()
        self._table.refresh()
        checks, slow, columns = self._checks(ask), rows, None
        if checks is not None:
            ganged = self._table.ganged[rows]
            slow = rows[ganged]
            columns = Columns(ask, self._table, rows[~ganged], checks)
            said.columns(columns)
        # ports would be looked at first, and partitions may be held by pods of other rows
        if len(slow) and not ask.row.ports and not ask.row.partitions:
            relaxed = Columns(ask, self._table, slow, checks or Checks(self._plugins()[0]))
            said.columns(relaxed)
            slow = self._promising(ask, relaxed, order)
        tried = list(self._on_trials(ask, slow, said))
        return self._best(ask, columns, tried, order) or said.message()

    def _promising(self, ask: Ask, relaxed: Columns, order: Preempt) -> Rows:
        """The rows where there is room at all: first where it would cost the least if everybody
        could go alone, and nothing else counted."""
        keys = order.order(relaxed.plans(ask.pod.created_s))
        by_cost = np.lexsort((self._cluster.hashes[relaxed.rows], *reversed(keys)))
        promising: Rows = relaxed.rows[by_cost]
        return promising

    def _best(
        self, ask: Ask, columns: Columns | None, tried: list[Tried], order: Preempt
    ) -> Plan | None:
        """The best plan that a trial proves."""
        now_s = max(ask.pod.created_s, self._table.saved.max(initial=0.0))
        parts = [plans_of([(each.victims, each.violations) for each in tried], now_s)]
        rows: Rows = np.array([each.row for each in tried], dtype=np.intp)
        if columns is not None:
            parts.append(columns.plans(now_s))
            rows = np.concatenate((rows, columns.rows))
        keys = (*order.order(_joined(parts)), self._cluster.hashes[rows])
        for at in _from_least(keys, len(rows)):
            if at < len(tried):
                victims, violations = tried[at].victims, tried[at].violations
            else:
                assert columns is not None
                victims = columns.victims(at - len(tried))
                violations = int(parts[1].violations[at - len(tried)])
            row = int(rows[at])
            if self._proves(ask, row, victims):
                return Plan(self._cluster.name(row), victims, violations)
        return None

    def _proves(self, ask: Ask, row: int, victims: Sequence[Pod]) -> bool:
        with self._cluster.trial():
            for pod in victims:
                self._cluster.remove(pod.uid)
            return self._verdicts.takes(ask, row)

    # ---- in columns

    def _checks(self, ask: Ask) -> Checks | None:
        """What must be weighed, where columns can weigh it."""
        fit, devices, others = self._plugins()
        if self._verdicts.is_wide(ask) or others or ask.row.ports or ask.row.partitions:
            return None
        if ask.row.aligned and self._cluster.zones.topologies:
            return None
        wants = wanted(ask.row.devices) if devices else ()
        if any(want.needs_ids for want in wants):
            return None
        tables = self._cluster.pools.tables
        known = tuple(want for want in wants if want.device_class in tables)
        if any(tables[want.device_class].room.shape[1] > WIDEST for want in known):
            return None
        return Checks(fit, known, devices)

    def _plugins(self) -> tuple[tuple[int, NodeResourcesFit] | None, int, bool]:
        """Of the filters that look at what pods use: the one for amounts, the number of the one
        for devices, and whether there are others than those that are looked at by what is asked."""
        fit, devices, others = None, 0, False
        for number, plugin in self._verdicts.profile.filters:
            if isinstance(plugin, NodeResourcesFit):
                fit = (number, plugin)
            elif isinstance(plugin, Devices):
                devices = number
            elif plugin.reads is Reads.LOAD and not isinstance(plugin, LOOKED_AT):
                others = True
        return fit, devices, others

    # ---- on trials

    def _on_trials(self, ask: Ask, rows: Rows, said: "_Said") -> Iterator[Tried]:
        """Until enough would do, or WORK is done. If no row would do so far, the next search goes
        on from there."""
        enough = max(FEW, math.ceil(self._cluster.node_count / TENTH))
        begin, self.turn = self.turn % max(len(rows), 1), 0
        work = would_do = 0
        for turn, row in enumerate(np.roll(rows, -begin).tolist()):
            if would_do == enough or work > WORK:
                said.add(LATER, rows[turn:])
                self.turn = 0 if would_do else begin + turn
                return
            there = self._in_the_way(ask, row)
            work += 1 + len(there)
            found = self._weighed(ask, row, there)
            if found is None:
                said.add(NO_VICTIMS, np.array([row]))
            elif isinstance(found, Tried):
                would_do += 1
                work += len(found.victims)
                yield found
            else:
                said.codes(np.array([row]), np.array([found]))

    def _weighed(self, ask: Ask, row: int, there: Sequence[Pod]) -> Tried | int | None:
        """Who must go from the row; or the reason why not even all are enough; None: nobody may.

        A gang that would be left in part goes as a whole, or not at all.
        """
        whole: set[str] = set()
        while True:
            units = self._units(ask.pod, there, whole)
            if not units:
                return None
            found = self._on_trial(ask, row, units)
            if not isinstance(found, Tried):
                return found
            more = in_part(self._cluster, found.victims) - whole
            if not more:
                return found
            whole |= more

    def _units(self, pod: Pod, there: Sequence[Pod], whole: set[str]) -> list[Unit]:
        """What can be removed of those there, the most important first: pods, and whole gangs."""
        residents, gangs = self._cluster.pods, self._cluster.census.gangs
        units: dict[str, Unit] = {}
        for each in there:
            name, gang = each.uid, each.gang
            if gang is not None and pod.gang is not None and gang.key == pod.gang.key:
                continue
            members: Unit = (residents[each.uid],)
            if gang is not None and gang.key in whole:
                name, members = gang.key, tuple(residents[uid] for uid in gangs[gang.key])
            if all(self._yields(member.pod, pod) for member in members):
                units.setdefault(name, members)
        return list(units.values())

    def _in_the_way(self, ask: Ask, row: int) -> Sequence[Pod]:
        """The most important first."""
        if not ask.row.partitions:
            return self._table.pods[row]
        pods = (each.pod for each in self._cluster.in_the_way(ask.pod, row))
        return sorted(pods, key=importance)

    def _yields(self, victim: Pod, pod: Pod) -> bool:
        return victim.priority < pod.priority and victim.uid not in self._table.spared

    def _on_trial(self, ask: Ask, row: int, units: list[Unit]) -> Tried | int:
        """The units that cannot be spared, or the reason why not even all of them are enough."""
        cluster = self._cluster
        with cluster.trial():
            for unit in units:
                for resident in unit:
                    cluster.remove(resident.pod.uid)
            code = self._verdicts.refusal(ask, row)
            if code:
                return code
            pods = [resident.pod for unit in units for resident in unit]
            budgets = budgets_by_namespace(cluster.budgets.by_key.values())
            flags = zip(pods, violates(pods, budgets), strict=True)
            broken = {pod.uid for pod, breaks in flags if breaks}
            victims: list[Pod] = []
            for unit in sorted(units, key=lambda unit: broken.isdisjoint(r.pod.uid for r in unit)):
                if not self._spares(ask, row, unit):
                    victims += [resident.pod for resident in unit]
        violations = sum(pod.uid in broken for pod in victims)
        return Tried(row, tuple(sorted(victims, key=importance)), violations)

    def _spares(self, ask: Ask, row: int, unit: Unit) -> bool:
        with self._cluster.trial() as trial:
            for resident in unit:
                self._cluster.place(resident.pod, self._cluster.name(resident.row))
            if not self._verdicts.takes(ask, row):
                return False
            trial.keep()
        return True


class _Said:
    """Per reason the nodes that gave it."""

    def __init__(self, verdicts: Verdicts, ask: Ask) -> None:
        self._verdicts, self._ask = verdicts, ask
        self._tallies: dict[str, Tally] = {}

    def add(self, text: str, rows: Rows) -> None:
        if len(rows):
            before = self._tallies.get(text, Tally(0, ()))
            self._tallies[text] = Tally(before.count + len(rows), ())

    def columns(self, found: Columns) -> None:
        """What the rows say where removing pods does not help."""
        self.add(NO_VICTIMS, found.without)
        self.codes(*found.kept_out)

    def codes(self, rows: Rows, codes: Ints) -> None:
        for code in distinct(codes).tolist():
            for reason in explain.reasons(self._verdicts, self._ask, code):
                self.add(reason.text, rows[codes == code])

    def message(self) -> str:
        return explain.message(self._verdicts.cluster.node_count, self._tallies)


def _from_least(keys: Sequence[NDArray[Any]], count: int) -> Iterator[int]:
    """Positions by the first key, then the next …; nearly always the first is enough."""
    left = np.arange(count)
    while len(left):
        best = left
        for key in keys:
            best = best[key[best] == key[best].min()]
        yield int(best[0])
        left = left[left != best[0]]


def _joined(parts: Sequence[Plans]) -> Plans:
    names = Plans.__struct_fields__
    return Plans(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
