"""A part of one device: which rows have a device with room for it, and how good is the best one?

Worked out once for a request, and asked of many rows. Of one or two rows it looks at the devices in
plain Python, as `amounts` does.
"""

from typing import Any

import numpy as np
from msgspec import Struct

from bayplan.core.devices import shared
from bayplan.core.devices.shared import Policy, Request
from bayplan.core.state.arrays import Ints, Mask
from bayplan.core.state.pools import (
    COMPUTE_BITS,
    MEMORY_BITS,
    MOST_HOLDERS,
    ONE_HOLDER,
    TOTAL,
    WHOLE,
    Table,
)
from bayplan.core.state.view import FEW, View

CROWD = 4  # holders of a card: more are as bad
BAND = 50  # points for a card that is in use already, or for one that nobody else has
_MEMORY = (1 << MEMORY_BITS) - 1
# As arrays: NumPy converts a Python number anew on every call.
_REFUSED, _NONE, _SHIFT, _MASK, _WHOLE, _POINTS = (
    np.array(number) for number in (shared.REFUSED, 0, COMPUTE_BITS, _MEMORY, WHOLE, BAND)
)


class Fitting(Struct, frozen=True):
    """Per row."""

    fits: Mask
    score: Ints


class OnePart:
    """What rows say to one request."""

    def __init__(self, device_class: str, request: Request, policy: Policy) -> None:
        self._class, self._request, self._policy = device_class, request, policy
        # who asks for none of the memory asks for 1 of what is there and 1 more
        self._asked, self._more = max(request.memory, 1), int(not request.memory)

    def refused(self, view: View) -> Mask:
        found = self.of(view)
        return np.ones(view.size, dtype=np.bool_) if found is None else ~found.fits

    def score(self, view: View) -> Ints | None:
        found = self.of(view)
        return None if found is None else found.score

    def of(self, view: View) -> Fitting | None:
        """None where no node has devices of the class."""
        if self not in view.answers:
            table = view.cluster.pools.tables.get(self._class)
            view.answers[self] = None if table is None else self.looked(view, table)
        found: Fitting | None = view.answers[self]
        return found

    def looked(self, view: View, table: Table) -> Fitting:
        if view.size <= FEW and view.rows is not None:
            looks = [self._at(table, row) for row in view.rows.tolist()]
            return Fitting(
                np.array([fits for fits, _ in looks], dtype=np.bool_),
                np.array([score for _, score in looks], dtype=np.int64),
            )
        lines = view.lines(self._class)
        assert lines is not None
        number = shared.lowest(lines, self._request, self._policy)
        fits: Mask = number != _REFUSED
        fits &= lines.unknown == _NONE
        if self._policy == "binpack":
            room = number >> _SHIFT
            room &= _MASK
            score = tightness(self._asked, room + self._more if self._more else room)
            score += (number < _WHOLE) * _POINTS
            return Fitting(fits, score)
        free = np.maximum(lines.room, _NONE).sum(axis=1)
        total = np.maximum(lines.cells[:, TOTAL].sum(axis=1), 1)
        score = spread_inner(np.minimum(holders_of(number), CROWD), free, total)
        np.putmask(score, number < ONE_HOLDER, score + BAND)
        return Fitting(fits, score)

    def _at(self, table: Table, row: int) -> tuple[bool, int]:
        """The same for one row."""
        _, number = shared.best(table, row, self._request, self._policy)
        fits = number != shared.REFUSED and not table.unknown[row]
        if self._policy == "binpack":
            score = tightness(self._asked, (number >> COMPUTE_BITS & _MEMORY) + self._more)
            return fits, score + BAND * (number < WHOLE)
        free = sum(room for room in table.room[row].tolist() if room > 0)
        total = max(sum(table.cells[row, TOTAL].tolist()), 1)
        score = spread_inner(min(holders_of(number), CROWD), free, total)
        return fits, score + BAND * (number < ONE_HOLDER)


def holders_of(number: Any) -> Any:
    """Of the card that has this number where the policy is to spread."""
    return (number + _MEMORY) >> MEMORY_BITS & MOST_HOLDERS


def tightness(asked: Any, room: Any) -> Any:
    """0 to 49: the less is left over, the better; nothing is 49."""
    return 49 * asked // room


def spread_inner(holders: Any, free: Any, total: Any) -> Any:
    """0 to 49: few holders first, then much that is free in the pool."""
    return (CROWD - holders) * 10 + 9 * free // total
