"""Taints and tolerations."""

from collections.abc import Callable, Sequence

import numpy as np

from bayplan.core.model.selectors import Taint, Toleration
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Normalise, Reads, Score
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.view import View

PREFER = "PreferNoSchedule"
HARD_EFFECTS = ("NoSchedule", "NoExecute")


class TaintToleration:
    """Refuses nodes that have a NoSchedule or NoExecute taint which the pod does not tolerate.

    Scores nodes by how few PreferNoSchedule taints it does not tolerate.
    """

    name = "TaintToleration"
    reads = Reads.STATIC

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return untolerated(ask.row.tolerations, view)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        helped = frozenset({EventKind.NODE_ADDED, EventKind.NODE_CHANGED})
        return (Reason("node(s) had untolerated taint(s)", False, helped),)

    def score(self, ask: Ask, view: View) -> Ints | None:
        soft = [t for t in ask.row.tolerations if t.effect in ("", PREFER)]

        def count(taints: tuple[Taint, ...]) -> int:
            disliked = [t for t in taints if t.effect == PREFER]
            return sum(not any(s.tolerates(taint) for s in soft) for taint in disliked)

        counts = by_taint_set(view, count)
        return np.zeros(len(view), dtype=np.int64) if counts is None else counts

    def normalise(self, raw: Ints, high: int) -> Ints:
        if high == 0:
            return np.full(len(raw), MAX_SCORE, dtype=np.int64)
        return MAX_SCORE - MAX_SCORE * raw // high


def untolerated(tolerations: tuple[Toleration, ...], view: View) -> Codes | None:
    """1 where a NoSchedule or NoExecute taint is not tolerated."""

    def refused(taints: tuple[Taint, ...]) -> int:
        hard = [taint for taint in taints if taint.effect in HARD_EFFECTS]
        return int(not all(any(t.tolerates(taint) for t in tolerations) for taint in hard))

    return by_taint_set(view, refused)


def by_taint_set(view: View, ask: Callable[[tuple[Taint, ...]], int]) -> Ints | None:
    """Per row the answer for its taints, asked once per distinct set; None: nothing is tainted."""
    sets = view.cluster.taint_sets.values
    if len(sets) == 1:
        return None
    codes = view.taints
    if len(codes) == 1:  # the usual question about one node
        taints = sets[codes[0]]
        return np.array([0 if taints is None else ask(taints)], dtype=np.int64)
    table = np.array([0 if taints is None else ask(taints) for taints in sets], dtype=np.int64)
    return table[codes]


_: type[Filter] = TaintToleration
__: type[Score] = TaintToleration
___: type[Normalise] = TaintToleration
