"""Members of a gang spread over domains: the nodes that agree in a label."""

from collections.abc import Iterable

import numpy as np

from bayplan.core.engine import explain
from bayplan.core.engine.kept import REFUSED
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.arrays import Ints, Mask, Rows
from bayplan.core.state.view import View

NOWHERE = np.iinfo(np.int64).max  # members of a domain that takes none


class Evenly:
    """How many members each domain has. The next goes where there are the fewest.

    Where that is a must, the domains that count are those that a member could ever be in: with a
    node that refuses it, if at all, for what other pods have there. Otherwise only those count
    that take it now.
    """

    def __init__(self, verdicts: Verdicts, key: str, members: Iterable[int], must: bool) -> None:
        """`members`: the rows of those that are there."""
        self._verdicts, self._must = verdicts, must
        column, codes = View(verdicts.cluster).labels(key)
        self._codes: Rows = codes
        self._there = np.zeros(len(column.values), dtype=np.int64)
        self._open: dict[object, Mask] = {}  # by row key and rows: the domains that count
        for row in members:
            self.add(row, 1)

    def add(self, row: int, sign: int) -> None:
        self._there[self._codes[row]] += sign

    def narrowed(self, ask: Ask, verdict: Ints, within: Mask | None) -> Ints:
        """The verdict where the next member may go."""
        codes = self._codes[: len(verdict)]
        feasible = (verdict >= 0) & (codes > 0)
        if self._must:
            counts = np.where(self._domains(ask, within), self._there, NOWHERE)
        elif feasible.any():
            takes = np.bincount(codes[feasible], minlength=len(self._there)) > 0
            counts = np.where(takes, self._there, NOWHERE)
        else:
            return verdict  # anywhere, if not in a domain
        least = counts.min(initial=NOWHERE)
        fewest = (counts == least) & (least < NOWHERE)
        return np.where(feasible & fewest[codes], verdict, REFUSED)

    def _domains(self, ask: Ask, within: Mask | None) -> Mask:
        key = (ask.row, None if within is None else within.tobytes())
        if key not in self._open:
            verdicts = self._verdicts
            verdict = verdicts.refusals(ask, View(verdicts.cluster))
            rows = (verdict >= 0) | explain.preemption_helps(verdicts, ask, verdict)
            if within is not None:
                rows &= within[: len(rows)]
            found = np.bincount(self._codes[: len(rows)][rows], minlength=len(self._there)) > 0
            found[0] = False
            self._open[key] = found
        return self._open[key]
