"""Gangs: pods that are placed together, on one trial, or not at all.

Members are tried in their order, each on the best node that is left. Where they differ from each
other, or have terms about other pods, that can miss a placement that exists: then the largest go
first on the tightest nodes, and at last a short search takes choices back. For equal members
without terms the first way is exact.

A gang may prefer nodes that agree in a label (one node, one rack, one zone). Of the domains that
have room by their amounts, the tightest are tried first, and at most MOST_DOMAINS. There is no
clock here, so what bounds the time is a count: no domain is begun after MOST_TRIES placements,
which take about 50 ms. A trial once begun is finished.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.engine import explain, placing
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import REFUSED, Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Refusal
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.arrays import Ints, Mask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.demand import NOT_ASKED
from bayplan.core.state.view import View

MOST_DOMAINS = 8
MOST_TRIES = 512  # placements before the last domain is begun; 0.1 ms each
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
) -> Placed:
    """Places at least `minimum` of the pods, or none. To be called inside a trial.

    `homes`: by uid the row where a pod goes if it can. `keep`: as in Verdicts.best.
    """
    return _Placing(verdicts, pods, minimum, keep).place(homes or {})


def here(cluster: Cluster, key: str, doomed: Collection[str]) -> int:
    """How many members of the gang are placed, without those that are about to go."""
    members = [cluster.pods[uid].pod for uid in cluster.census.gangs.get(key, ())]
    return sum(not pod.terminating and pod.uid not in doomed for pod in members)


class _Placing:
    def __init__(self, verdicts: Verdicts, pods: Sequence[Pod], minimum: int, keep: bool) -> None:
        self._verdicts, self._cluster = verdicts, verdicts.cluster
        self._pods, self._minimum, self._keep = pods, minimum, keep
        self._homes: Mapping[str, int] = {}
        self._tries = self._steps = 0
        self._refusal: Refusal | None = None  # of the first way to try
        rows = {pod.row for pod in pods}
        self._alike = len(rows) == 1 and not any(self._has_terms(pod) for pod in pods)

    def _has_terms(self, pod: Pod) -> bool:
        return pod.terms is not None or bool(self._cluster.terms.concerning(pod))

    def place(self, homes: Mapping[str, int]) -> Placed:
        self._homes = homes
        gang = self._pods[0].gang
        if gang is not None and len(self._pods) > 1 and not homes:
            for key in gang.near:
                for within in self._domains(key, gang.key):
                    found = self._attempt(self._pods, len(self._pods), within)
                    if len(found) == len(self._pods):
                        return self._placed(found)
        found = self._attempt(self._pods, self._minimum, None, explains=True)
        if len(found) < self._minimum and not self._alike:
            by_size = sorted(self._pods, key=self._size, reverse=True)
            found = self._attempt(by_size, self._minimum, None, tight=True) or found
            if len(found) < self._minimum and len(self._pods) <= MOST_SEARCHED:
                found = self._search(by_size) or found
        return self._placed(found)

    def _placed(self, found: Mapping[str, Placement]) -> Placed:
        ok = len(found) >= self._minimum
        in_order = tuple(found[pod.uid] for pod in self._pods if pod.uid in found)
        return Placed(in_order, None if len(found) == len(self._pods) else self._refusal, ok)

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
                elif not self._has_terms(pod):
                    hopeless.add(pod.row)
            if len(found) >= enough:
                trial.keep()
            elif not explains:
                return {}
        return found

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
                if placing.reserve(self._cluster, profile, ask, placed) is None:
                    return placed
            if explains and self._refusal is None:
                version = self._cluster.version
                self._refusal = explain.refusal(self._verdicts, ask, version)
        return None

    def _verdict(self, ask: Ask, within: Mask | None) -> Ints:
        """Per row of the cluster."""
        _, verdict, rows = self._verdicts.best(ask, keep=self._keep)
        if rows is not None:
            whole = np.full(max(self._cluster.height, 1), REFUSED)
            whole[rows] = verdict
            verdict = whole
        if within is not None:
            verdict = np.where(within[: len(verdict)], verdict, REFUSED)
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

    def _domains(self, key: str, gang: str) -> Iterator[Mask]:
        """The nodes that agree in a label: where members are already, then the tightest."""
        column, codes = View(self._cluster).labels(key)
        bound = self._bound(codes, len(column.values))
        members = self._cluster.census.gangs.get(gang, {})
        here = {int(codes[self._cluster.pods[uid].row]) for uid in members}
        enough = [code for code in range(1, len(bound)) if bound[code] >= 1]
        enough.sort(key=lambda code: (code not in here, bound[code], code))
        for code in enough[:MOST_DOMAINS]:
            if self._tries >= MOST_TRIES:
                return
            yield codes == code

    def _bound(self, codes: Ints, count: int) -> list[float]:
        """Per domain how many times over the members would fit at most, by their amounts."""
        least = np.full(count, np.inf)
        for row in dict.fromkeys(pod.row for pod in self._pods):
            members = [pod for pod in self._pods if pod.row == row]
            with asking(self._verdicts, members[0]) as ask:
                feasible = self._verdict(ask, None)[: self._cluster.height] >= 0
            asked = np.flatnonzero(ask.demand.take * (ask.demand.need != NOT_ASKED) > 0)
            free = self._cluster.free[: self._cluster.height, asked]
            times = np.where(feasible, (free // ask.demand.take[asked]).min(axis=1), 0)
            per_domain = np.bincount(codes, np.minimum(times, len(members)), minlength=count)
            least = np.minimum(least, per_domain / len(members))
        bounds: list[float] = least.tolist()
        return bounds

    # ---- taking choices back

    def _search(self, pods: Sequence[Pod]) -> dict[str, Placement]:
        """A bounded search for places for `minimum` of the pods, the largest first."""
        found: dict[str, Placement] = {}
        with self._cluster.trial() as trial:
            if self._seek(tuple(pods), found, 0):
                trial.keep()
                return found
        return {}

    def _seek(self, pods: tuple[Pod, ...], found: dict[str, Placement], put_off: int) -> bool:
        """`put_off`: how many of the last pods are there because they did not fit before."""
        if len(found) >= self._minimum:
            return True
        self._steps += 1
        if len(found) + len(pods) < self._minimum or self._steps > MOST_STEPS:
            return False
        pod, rest, profile = pods[0], pods[1:], self._verdicts.profile
        with asking(self._verdicts, pod) as ask:
            verdict = self._verdict(ask, None)
            rows = [row for row in self._tightest(ask, verdict)[:BRANCHES] if verdict[row] >= 0]
            for row in rows:
                with self._cluster.trial() as trial:
                    placed = placing.placement(self._cluster, profile, ask, row)
                    if placing.reserve(self._cluster, profile, ask, placed) is None:
                        found[pod.uid] = placed
                        if self._seek(rest, found, 0):
                            trial.keep()
                            return True
                        del found[pod.uid]
        if put_off < len(rest) and self._has_terms(pod):  # it may need another beside it
            return self._seek((*rest, pod), found, put_off + 1)
        return self._seek(rest, found, put_off)
