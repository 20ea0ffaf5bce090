"""What is kept of one row key: its verdicts over all rows, and what it compares.

What the load plugins compare is worked out once for the key. A row that changed is asked again
through that; `verdicts` says when.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np

from bayplan.core.model.pods import RowKey
from bayplan.core.plugins.hooks import (
    Ask,
    Concerns,
    Filter,
    Normalise,
    PreparesFilter,
    PreparesScore,
    Refuser,
    Score,
    Scorer,
)
from bayplan.core.state.arrays import Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

# Constants as arrays, which NumPy need not convert on every call.
REFUSED = np.array(-(1 << 62))  # for some reason; no sum of scores lifts it to 0
SCORE_BITS = 32
SCORE_SHIFT = np.array(SCORE_BITS)
KEPT_EXTREMES = 2


class Relative:
    """A static score that is relative to the highest raw value of the feasible rows.

    A row that holds the highest is remembered: while it stays feasible and no row can be higher,
    the value stands without looking at all rows.
    """

    def __init__(self, weight: int, plugin: Normalise, raw: Ints) -> None:
        self.weight = weight
        self.plugin = plugin
        self.raw = raw
        self.most = int(raw.max())  # over all rows
        self.high = -1  # over the feasible rows
        self.high_row = -1
        self._added: dict[int, Ints] = {}  # by highest value

    def stands(self, verdict: Ints) -> bool:
        """Whether the highest value is surely still that of the feasible rows."""
        return self.high == self.most and verdict.item(self.high_row) >= 0

    def highest(self, verdict: Ints) -> tuple[int, int]:
        """The highest raw value of the feasible rows, and a row that has it."""
        raw = np.where(verdict >= 0, self.raw, -1)
        row = int(raw.argmax())
        return max(int(raw[row]), 0), row

    def added(self, high: int) -> Ints:
        """What the score adds to a verdict per row."""
        column = self._added.get(high)
        if column is None:
            if len(self._added) >= KEPT_EXTREMES:
                self._added.clear()
            raw = np.minimum(self.raw, high)  # a refused row may be higher, and must stay in range
            column = (self.weight * self.plugin.normalise(raw, high)) << SCORE_SHIFT
            self._added[high] = column
        return column


Prepared = tuple[list[Refuser], list[tuple[int, Scorer]]]


class Kept:
    """The verdicts of one row key over all rows, and how far they have read the logs.

    Refused rows have some number near REFUSED here; `Verdicts.on` tells why.
    """

    def __init__(self, ask: Ask, prepared: Prepared) -> None:
        self.ask = ask
        self.refusers, self.scorers = prepared  # of the load plugins that the key concerns
        self.base: Ints = np.zeros(0, dtype=np.int64)  # scores of static plugins
        self.scored: Ints = self.base  # with relative scores, at their present extremes
        self.verdict: Ints = self.base
        self.relatives: list[Relative] = []
        self.constants: tuple[int, ...] = ()  # of relative scores that are equal on all rows
        self.facts: tuple[Hashable, ...] = ()
        self.facts_version = -1  # the cluster's when they were found
        self.static_position = -1
        self.load_position = -1

    def load_part(self, view: View, base: Ints) -> Ints:
        """`base` with the scores of load plugins, or REFUSED."""
        verdict = with_scores(self.scorers, view, base)
        for refuse in self.refusers:
            codes: Any = refuse(view)
            if codes is not None:
                np.putmask(verdict, codes, REFUSED)
        return verdict


def with_scores(scorers: list[tuple[int, Scorer]], view: View, base: Ints) -> Ints:
    """`base` with the weighted sum of the scores on top."""
    total: Ints | None = None
    for weight, score in scorers:
        added = score(view)
        if added is not None:
            if weight != 1:
                added = weight * added
            total = added if total is None else total + added
    if total is None:
        return base.copy()
    verdict: Ints = np.left_shift(total, SCORE_SHIFT)
    return np.add(verdict, base, verdict)


def prepared(
    filters: list[tuple[int, Filter]], scores: list[tuple[int, Score]], ask: Ask, cluster: Cluster
) -> Prepared:
    """What the load plugins that the row key concerns say of a view."""
    return (
        [refuser(each, ask) for _, each in filters if concerns(each, ask.row)],
        [
            (weight, scorer(each, ask, cluster))
            for weight, each in scores
            if concerns(each, ask.row)
        ],
    )


def refuser(plugin: Filter, ask: Ask) -> Refuser:
    if isinstance(plugin, PreparesFilter):
        return plugin.refuser(ask)
    return partial(plugin.refuse, ask)


def scorer(plugin: Score, ask: Ask, cluster: Cluster) -> Scorer:
    if isinstance(plugin, PreparesScore):
        return plugin.scorer(ask, cluster)
    return partial(plugin.score, ask)


def concerns(plugin: object, row: RowKey) -> bool:
    """Whether a load plugin may have something to say about pods with this key."""
    return not isinstance(plugin, Concerns) or plugin.concerns(row)
