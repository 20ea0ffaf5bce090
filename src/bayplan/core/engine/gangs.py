"""Gangs: pods that are placed together, on one trial, or not at all.

Members are tried in their order, each on the best node that is left. Where they differ from each
other, or have terms about other pods, that can miss a placement that exists: then the largest go
first on the tightest nodes, and at last a short search takes choices back. For equal members
without terms the first way is exact.

A gang may prefer nodes that agree in a label (one node, one rack, one zone). Of the domains that
have room by their amounts, the tightest are tried first, and at most MOST_DOMAINS. There is no
clock here, so what bounds the time is a count: no domain is begun after MOST_TRIES placements,
which take about 50 ms. A trial once begun is finished. Where one domain is a must, all that may
have room are tried, until many more placements were. Within all that, members can be spread
(`evenly`).
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine import explain, placing
from bayplan.core.engine.evenly import Evenly
from bayplan.core.engine.kept import REFUSED
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.groups import PodGroup
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.model.verdicts import EventKind, Refusal, Tally
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.arrays import Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster, Resident
from bayplan.core.state.demand import NOT_ASKED
from bayplan.core.state.view import View

MOST_DOMAINS = 8
MOST_TRIES = 512  # placements before the last domain is begun; 0.1 ms each
MOST_TRIES_OF_A_MUST = 4096
MOST_DOMAINS_OF_A_MUST = 64  # where others would have to go
ELSEWHERE = "node(s) didn't match the gang's topology"
MOST_STEPS = 400  # of the search
MOST_SEARCHED = 64  # members; larger gangs are not searched for
BRANCHES = 6  # nodes that it tries for each member


class Placed(Struct, frozen=True):
    """What came of a gang."""

    placements: tuple[Placement, ...]  # of the members that found a place, in the order of the pods
    refusal: Refusal | None  # why the next one did not; None: all have a place
    ok: bool  # enough have one


def place(
    verdicts: Verdicts,
    pods: Sequence[Pod],
    minimum: int,
    homes: Mapping[str, int] | None = None,
    *,
    keep: bool = False,
    gang: Gang | None = None,
    within: Mask | None = None,
    doomed: Collection[str] = (),
) -> Placed:
    """Places at least `minimum` of the pods, or none. To be called inside a trial.

    `homes`: by uid the row where a pod goes if it can. `keep`: as in Verdicts.best. `gang`: what
    its members have in common, if not each says so itself. `within`: rows that come into question.
    `doomed`: uids of pods that are about to go.
    """
    placing = _Placing(verdicts, pods, minimum, keep, gang or pods[0].gang, homes or {}, doomed)
    return placing.place(within)


def domains(
    verdicts: Verdicts,
    pods: Sequence[Pod],
    minimum: int,
    gang: Gang | None,
    doomed: Collection[str] = (),
) -> list[Mask | None]:
    """Where all members must be in one domain: the rows of each that may have room, or has less
    important pods, the roomiest first. Otherwise wherever they want (None)."""
    if gang is None or not gang.within:
        return [None]
    return list(_Placing(verdicts, pods, minimum, True, gang, {}, doomed).domains())


def allowed(
    verdicts: Verdicts,
    ask: Ask,
    gang: Gang | None,
    within: Mask | None,
    doomed: Collection[str] = (),
) -> Mask | None:
    """The rows of `within` where the next member may be, whoever is there; None: anywhere."""
    if gang is None or not (gang.within or gang.across):
        return within
    return _Placing(verdicts, [ask.pod], 1, True, gang, {}, doomed).allowed(ask, within)


def meant(cluster: Cluster, pods: Iterable[Pod]) -> tuple[Gang, PodGroup | None]:
    """The gang of the members, and the object that says what it is. Where they say so themselves,
    the word with the largest minimum counts."""
    said = max((pod.gang for pod in pods if pod.gang is not None), key=lambda each: each.minimum)
    group = cluster.groups.get(said.key) if said.grouped else None
    return (said if group is None else group.gang), group


def unclear(gang: Gang, group: PodGroup | None) -> str:
    """Why nobody can say what the gang is; empty if somebody can."""
    if group is not None:
        return group.wrong
    return f"{gang.title} does not exist" if gang.grouped else ""


def free(cluster: Cluster, key: str) -> dict[str, int]:
    """By resource what nodes that take pods have left, all together; what members of the gang have
    counts as left."""
    rows = cluster.alive[: cluster.height] & ~cluster.unschedulable[: cluster.height]
    left = np.maximum(cluster.free[: cluster.height][rows], 0).sum(axis=0)
    for uid in cluster.census.gangs.get(key, ()):
        take = cluster.demand(cluster.pods[uid].pod.row).take
        left[: len(take)] += take
    return {name: int(left[at]) for name, at in cluster.resource_columns.items()}


def staying(cluster: Cluster, key: str, doomed: Collection[str]) -> list[Resident]:
    """The members of the gang that are placed, without those that are about to go."""
    members = [cluster.pods[uid] for uid in cluster.census.gangs.get(key, ())]
    return [each for each in members if not each.pod.terminating and each.pod.uid not in doomed]


def ended(group: PodGroup | None) -> int:
    """Members that have done their work and need no place any more. Where all that are needed
    have, the next ones are another run."""
    return group.ended if group and group.ended < group.gang.minimum else 0


def gap(cluster: Cluster, group: PodGroup | None) -> str:
    """Why what is free on all nodes together is too little for the group; empty if it is not."""
    if group is None or not group.resources:
        return ""
    left, minimum = free(cluster, group.gang.key), group.gang.minimum
    short = []
    for name, all_ in group.resources:
        asked, unit = -(-all_ * (minimum - ended(group)) // minimum), "m" if name == "cpu" else ""
        if asked > left.get(name, 0):
            short.append(f"{asked}{unit} {name}, and {left.get(name, 0)}{unit} are free")
    if not short:
        return ""
    return f"{group.gang.title}: minResources asks for {'; '.join(short)} on all nodes together"


class _Room(NamedTuple):
    """What a domain has for a gang, at most."""

    times: float  # how often all members together
    members: float  # how many of them

    @property
    def order(self) -> tuple[bool, float]:
        """Those that have room for all, the tightest first, then the others, the roomiest first."""
        return (False, self.times) if self.times >= 1 else (True, -self.members)


class _Placing:
    def __init__(
        self,
        verdicts: Verdicts,
        pods: Sequence[Pod],
        minimum: int,
        keep: bool,
        gang: Gang | None,
        homes: Mapping[str, int],
        doomed: Collection[str],
    ) -> None:
        self._verdicts, self._cluster = verdicts, verdicts.cluster
        self._pods, self._minimum, self._keep = pods, minimum, keep
        self._gang, self._homes = gang or Gang(""), homes
        there = staying(self._cluster, self._gang.key, doomed)
        self._there = [resident.row for resident in there]  # rows of members
        self._evenly = self._spreading()
        self._tries = self._steps = 0
        self._enough = minimum  # of the search
        self._within: Mask | None = None
        self._refusal: Refusal | None = None  # of the first way to try
        rows = {pod.row for pod in pods}
        self._alike = len(rows) == 1 and not any(self._has_terms(pod) for pod in pods)

    def _has_terms(self, pod: Pod) -> bool:
        return pod.terms is not None or bool(self._cluster.terms.concerning(pod))

    def _spreading(self) -> Evenly | None:
        key = self._gang.across or self._gang.spread
        if not key:
            return None
        return Evenly(self._verdicts, key, self._there, must=bool(self._gang.across))

    def place(self, within: Mask | None) -> Placed:
        if self._gang.within:
            return self._placed(self._in_one(within))
        near = self._near_each_other(within)
        return self._placed(near or self._wherever(within, self._minimum, explains=True))

    def _in_one(self, within: Mask | None) -> dict[str, Placement]:
        """All in one domain: where all fit, near each other if they can be, else where enough."""
        found_in = list(self._required(within))
        domains = [rows for _, rows in found_in]
        for rows in domains:
            found = self._near_each_other(rows)
            if found:
                return found
        for enough in dict.fromkeys((len(self._pods), self._minimum)):
            for most, rows in found_in:
                if self._alike and most < enough:
                    continue
                found = self._wherever(rows, enough)
                if len(found) >= enough:
                    return found
                if self._tries >= MOST_TRIES_OF_A_MUST:
                    break
        nowhere: Mask = np.zeros(max(self._cluster.height, 1), dtype=np.bool_)
        best = domains[0] if domains else nowhere
        return self._attempt(self._pods, self._minimum, best, explains=True)

    def _near_each_other(self, within: Mask | None) -> dict[str, Placement]:
        """All of them, or none."""
        if len(self._pods) > 1 and not self._homes:
            for key in self._gang.near:
                for rows in self._near(key, within):
                    found = self._attempt(self._pods, len(self._pods), rows)
                    if len(found) == len(self._pods):
                        return found
        return {}

    def _wherever(
        self, within: Mask | None, enough: int, *, explains: bool = False
    ) -> dict[str, Placement]:
        found = self._attempt(self._pods, enough, within, explains=explains)
        if len(found) < enough and not self._alike:
            by_size = sorted(self._pods, key=self._size, reverse=True)
            found = self._attempt(by_size, enough, within, tight=True) or found
            if len(found) < enough and len(self._pods) <= MOST_SEARCHED:
                found = self._search(by_size, enough, within) or found
        return found

    def _placed(self, found: Mapping[str, Placement]) -> Placed:
        ok = len(found) >= self._minimum
        in_order = tuple(found[pod.uid] for pod in self._pods if pod.uid in found)
        left = next((pod for pod in self._pods if pod.uid not in found), None)
        if left is None:
            return Placed(in_order, None, ok)
        if self._refusal is None:
            with asking(self._verdicts, left) as ask:
                self._refusal = self._why(ask)
        return Placed(in_order, self._refusal, ok)

    def _size(self, pod: Pod) -> float:
        """The largest part that it takes of what the largest node has."""
        cluster = self._cluster
        take = cluster.demand(pod.row).take
        most = cluster.allocatable[: cluster.height, : len(take)].max(axis=0, initial=1)
        return float((take / np.maximum(most, 1)).max())

    # ---- one way to try

    def _attempt(
        self,
        pods: Sequence[Pod],
        enough: int,
        within: Mask | None,
        *,
        tight: bool = False,
        explains: bool = False,
    ) -> dict[str, Placement]:
        """Places one after the other. With fewer than `enough`, nothing is placed; what would have
        been is given all the same where it is all that there is to tell."""
        found: dict[str, Placement] = {}
        hopeless: set[object] = set()  # row keys that no node takes any more
        with self._cluster.trial() as trial:
            for left, pod in zip(range(len(pods), 0, -1), pods, strict=True):
                if len(found) + left < enough and not explains:
                    break
                if pod.row in hopeless:
                    continue
                placed = self._one(pod, within, tight, explains)
                if placed is not None:
                    found[pod.uid] = placed
                    self._count(placed, 1)
                elif not self._has_terms(pod):
                    hopeless.add(pod.row)
            if len(found) >= enough:
                trial.keep()
                return found
        for placed in found.values():
            self._count(placed, -1)
        return found if explains else {}

    def _count(self, placed: Placement, sign: int) -> None:
        if self._evenly is not None:
            self._evenly.add(self._cluster.rows[placed.node], sign)

    def _one(self, pod: Pod, within: Mask | None, tight: bool, explains: bool) -> Placement | None:
        self._tries += 1
        profile = self._verdicts.profile
        with asking(self._verdicts, pod) as ask:
            verdict = self._verdict(ask, within)
            row = self._tightest(ask, verdict)[0] if tight else int(verdict.argmax())
            home = self._homes.get(pod.uid, -1)
            if 0 <= home < len(verdict) and verdict[home] >= 0:
                row = home
            if verdict[row] >= 0:
                placed = placing.placement(self._cluster, profile, ask, row)
                if placing.reserve(self._cluster, profile, ask, placed, row) is None:
                    return placed
            if explains and self._refusal is None:
                self._refusal = self._why(ask)
        return None

    def _why(self, ask: Ask) -> Refusal:
        """With the nodes that would take it, were they where its gang is."""
        refusal = explain.refusal(self._verdicts, ask, self._cluster.version)
        verdict = self._verdicts.refusals(ask, View(self._cluster))
        rows = np.flatnonzero(verdict >= 0)
        if not len(rows):
            return refusal
        shown = tuple(sorted(map(self._cluster.name, rows[: explain.SHOWN_NODES].tolist())))
        tallies = refusal.tallies | {ELSEWHERE: Tally(len(rows), shown)}
        return Refusal(
            explain.message(self._cluster.node_count, tallies),
            tallies,
            frozenset(EventKind),
            refusal.version,
        )

    def _verdict(self, ask: Ask, within: Mask | None) -> Ints:
        """Per row of the cluster."""
        _, verdict, rows = self._verdicts.best(ask, keep=self._keep)
        if rows is not None:
            whole = np.full(max(self._cluster.height, 1), REFUSED)
            whole[rows] = verdict
            verdict = whole
        if within is not None:
            verdict = np.where(within[: len(verdict)], verdict, REFUSED)
        if self._evenly is not None:
            verdict = self._evenly.narrowed(ask, verdict, within)
        return verdict if len(verdict) else np.full(1, REFUSED)

    def _tightest(self, ask: Ask, verdict: Ints) -> list[int]:
        """The rows that take the pod, those with the least left first."""
        rows = np.flatnonzero(verdict >= 0)
        if not len(rows):
            return [0]
        asked = np.flatnonzero(ask.demand.need != NOT_ASKED)
        free, all_ = (
            a[np.ix_(rows, asked)] for a in (self._cluster.free, self._cluster.allocatable)
        )
        left = ((free - ask.demand.take[asked]) / np.maximum(all_, 1)).sum(axis=1)
        order: list[int] = rows[np.lexsort((-verdict[rows], left))].tolist()
        return order

    # ---- domains

    def _near(self, key: str, within: Mask | None) -> Iterator[Mask]:
        """The nodes that agree in a label: where members are already, then the tightest."""
        column, codes = View(self._cluster).labels(key)
        room = self._room(codes, len(column.values), within)
        here = {int(codes[row]) for row in self._there}
        enough = [code for code in range(1, len(room)) if room[code].times >= 1]
        enough.sort(key=lambda code: (code not in here, room[code].times, code))
        for code in enough[:MOST_DOMAINS]:
            if self._tries >= MOST_TRIES:
                return
            yield _both(codes == code, within)

    def domains(self) -> Iterator[Mask]:
        _, codes = View(self._cluster).labels(self._gang.within)
        some = [rows for _, rows in self._required(None)]
        yield from some
        if self._there:
            return
        priority = max(pod.priority for pod in self._pods)
        yielding = (
            each.row for each in self._cluster.pods.values() if each.pod.priority < priority
        )
        others = {int(codes[row]) for row in yielding} - {0}
        others -= {int(codes[rows.argmax()]) for rows in some}
        yield from (codes == code for code in sorted(others)[:MOST_DOMAINS_OF_A_MUST])

    def allowed(self, ask: Ask, within: Mask | None) -> Mask:
        height = max(self._cluster.height, 1)
        rows = np.ones(height, dtype=np.bool_) if within is None else within[:height].copy()
        if self._gang.within and self._there:
            rows &= next((found for _, found in self._required(None)), rows & False)
        if self._evenly is not None and self._gang.across:
            whole = np.where(rows, 0, REFUSED)
            rows = self._evenly.narrowed(ask, whole, within) >= 0
        return rows

    def _required(self, within: Mask | None) -> Iterator[tuple[float, Mask]]:
        """The nodes that agree in the label that all members must agree in, and how many members
        they take at most, in the order of their room. Where members are, or places are kept for
        them, there the others must be as well."""
        column, codes = View(self._cluster).labels(self._gang.within)
        there = Counter(int(codes[row]) for row in self._there or self._homes.values())
        del there[0]
        if self._there and there:
            yield math.inf, _both(codes == there.most_common(1)[0][0], within)
            return
        room = self._room(codes, len(column.values), within)
        some = [code for code in range(1, len(room)) if room[code].members > 0]
        some.sort(key=lambda code: (-there[code], room[code].order))
        yield from ((room[code].members, _both(codes == code, within)) for code in some)

    def _room(self, codes: Rows, count: int, within: Mask | None) -> list["_Room"]:
        """Per domain, by amounts."""
        least, members_in = np.full(count, np.inf), np.zeros(count)
        for row in dict.fromkeys(pod.row for pod in self._pods):
            members = [pod for pod in self._pods if pod.row == row]
            with asking(self._verdicts, self._alone(members)) as ask:
                feasible = self._verdict(ask, within)[: self._cluster.height] >= 0
            asked = np.flatnonzero(ask.demand.take * (ask.demand.need != NOT_ASKED) > 0)
            free = self._cluster.free[: self._cluster.height, asked]
            times = np.where(feasible, (free // ask.demand.take[asked]).min(axis=1), 0).clip(0)
            per_domain = np.bincount(codes, np.minimum(times, len(members)), minlength=count)
            least = np.minimum(least, per_domain / len(members))
            members_in += np.minimum(per_domain, len(members))
        return list(map(_Room, least.tolist(), members_in.tolist()))

    def _alone(self, members: Sequence[Pod]) -> Pod:
        """One of them; as if without terms where they may need each other, or go elsewhere then."""
        if any(map(self._has_terms, members)):
            return replace(members[0], terms=None, labels={})
        return members[0]

    # ---- taking choices back

    def _search(
        self, pods: Sequence[Pod], enough: int, within: Mask | None
    ) -> dict[str, Placement]:
        """A bounded search for places for `enough` of the pods, the largest first."""
        found: dict[str, Placement] = {}
        self._enough, self._within = enough, within
        with self._cluster.trial() as trial:
            if self._seek(tuple(pods), found, 0):
                trial.keep()
                return found
        return {}

    def _seek(self, pods: tuple[Pod, ...], found: dict[str, Placement], put_off: int) -> bool:
        """`put_off`: how many of the last pods are there because they did not fit before."""
        if len(found) >= self._enough:
            return True
        self._steps += 1
        if len(found) + len(pods) < self._enough or self._steps > MOST_STEPS:
            return False
        pod, rest, profile = pods[0], pods[1:], self._verdicts.profile
        with asking(self._verdicts, pod) as ask:
            verdict = self._verdict(ask, self._within)
            rows = [row for row in self._tightest(ask, verdict)[:BRANCHES] if verdict[row] >= 0]
            for row in rows:
                with self._cluster.trial() as trial:
                    placed = placing.placement(self._cluster, profile, ask, row)
                    if placing.reserve(self._cluster, profile, ask, placed, row) is None:
                        found[pod.uid] = placed
                        self._count(placed, 1)
                        if self._seek(rest, found, 0):
                            trial.keep()
                            return True
                        self._count(placed, -1)
                        del found[pod.uid]
        if put_off < len(rest) and self._has_terms(pod):  # it may need another beside it
            return self._seek((*rest, pod), found, put_off + 1)
        return self._seek(rest, found, put_off)


def _both(rows: Mask, within: Mask | None) -> Mask:
    return rows if within is None else rows & within[: len(rows)]
