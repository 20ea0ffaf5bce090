"""Pick: a plain function over the feasible nodes in place of the scores.

A picker that raises, gives something that is no index of a candidate, or takes too long is not
followed: the scores decide, and the reason is counted and told.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.engine.kept import SCORE_SHIFT
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.plugins.hooks import Ask, Candidate, Picker
from bayplan.core.state.arrays import Ints, Rows

Clock = Callable[[], float]
Report = Callable[[str], None]


class Pick(Struct, frozen=True):
    """The chosen row, and the index that the picker gave; None where the scores decided."""

    row: int
    index: int | None
    why_not: str | None = None


class Picking:
    """Calls pickers. The clock comes from the driver; without one there is no time-out.

    `report` hears of a reason the first time, and then ever more seldom.
    """

    def __init__(
        self, clock: Clock | None = None, limit_s: float = 0.1, report: Report | None = None
    ) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._report = report
        self.fallbacks: dict[str, int] = {}  # by reason: how often the scores decided

    def apart(self) -> "Picking":
        """For questions: the same rules, but nothing is counted or told."""
        return Picking(self._clock, self._limit_s)

    def pick(
        self, picker: Picker, verdicts: Verdicts, ask: Ask, found: tuple[Ints, Rows | None]
    ) -> Pick:
        verdict, rows = found
        feasible = np.flatnonzero(verdict >= 0)
        order = feasible[np.argsort(-verdict[feasible], kind="stable")]
        nodes = order if rows is None else rows[order]
        candidates = candidates_of(verdicts, nodes, verdict[order])
        index, why_not = self._ask(picker, ask, candidates)
        if why_not is not None:
            times = self.fallbacks[why_not] = self.fallbacks.get(why_not, 0) + 1
            if self._report is not None and times & (times - 1) == 0:
                who = f"profile {verdicts.profile.name}, pod {ask.pod.key}"
                self._report(f"{who}: the picker was not followed ({why_not}; {times} so far)")
        return Pick(int(nodes[index or 0]), index, why_not)

    def _ask(
        self, picker: Picker, ask: Ask, candidates: Sequence[Candidate]
    ) -> tuple[int | None, str | None]:
        started = self._clock() if self._clock else 0.0
        try:
            index = picker(ask.pod, candidates)
        except Exception as error:
            return None, f"exception {type(error).__name__}"
        if self._clock and self._clock() - started > self._limit_s:
            return None, "time-out"
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            return None, "not an index"
        if not 0 <= index < len(candidates):
            return None, "index outside the candidates"
        return int(index), None


def candidates_of(verdicts: Verdicts, rows: Rows, verdict: Ints) -> list[Candidate]:
    """The feasible nodes, best score first."""
    cluster = verdicts.cluster
    columns = [(name, at) for name, at in cluster.resource_columns.items()]
    found = []
    for row, value in zip(rows.tolist(), (verdict >> SCORE_SHIFT).tolist(), strict=True):
        node, free = cluster.nodes[row], cluster.free[row].tolist()
        assert node is not None  # it was just found feasible
        amounts = {name: free[at] for name, at in columns}
        found.append(Candidate(node.name, value, amounts, node.labels))
    return found
