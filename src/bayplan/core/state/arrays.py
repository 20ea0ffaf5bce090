"""Small array tools: typed names for arrays, a ring of changed rows, interned values.

Nothing here knows what the rows mean.
"""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.signedinteger[Any]]  # per row a bit set over a plugin's reasons; 0 passes
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Times = NDArray[np.float64]  # seconds
Bits = NDArray[np.uint64]

T = TypeVar("T", bound=Hashable)
S = TypeVar("S", bound=np.generic)


def grown(array: NDArray[np.generic], rows: int) -> NDArray[np.generic]:
    """The same array with room for more rows; the new ones are zero."""
    wider = np.zeros((rows, *array.shape[1:]), dtype=array.dtype)
    wider[: array.shape[0]] = array
    return wider


def distinct(values: NDArray[S]) -> NDArray[S]:
    """The different values, sorted. NumPy's own `unique` loads masked arrays the first time, which
    takes longer than a hundred decisions."""
    found = np.sort(values)
    first = np.ones(len(found), dtype=np.bool_)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]


class RowLog:
    """The rows that changed, in order, as a ring. A reader remembers how far it has read."""

    SIZE = 1 << 14

    def __init__(self) -> None:
        self.head = 0
        self._rows: Rows = np.zeros(self.SIZE, dtype=np.intp)

    def append(self, row: int) -> None:
        self._rows[self.head & (self.SIZE - 1)] = row
        self.head += 1

    def extend(self, rows: Rows) -> None:
        at = self.head + np.arange(len(rows)) & (self.SIZE - 1)
        self._rows[at] = rows
        self.head += len(rows)

    def since(self, position: int) -> Rows | None:
        """The rows after `position`, with repeats, or None when the ring has moved past it."""
        count = self.head - position
        if count > self.SIZE:
            return None
        at = position & (self.SIZE - 1)
        end = at + count
        if end <= self.SIZE:
            return self._rows[at:end]
        return np.concatenate((self._rows[at:], self._rows[: end - self.SIZE]))


class Interner(Generic[T]):
    """Values as small numbers, counted. Code 0 means "none" and is never given out.

    A value that nobody uses keeps its number, so that undoing a change restores the numbering
    exactly; a trial that ends cuts what it added, and `compact` gives numbers anew.
    """

    NOT_STATE = ("changes",)

    def __init__(self) -> None:
        self.codes: dict[T, int] = {}
        self.values: list[T | None] = [None]
        self.users: list[int] = [0]
        self.changes = 0  # rises when a value gets or loses its number

    def acquire(self, value: T) -> int:
        code = self.codes.get(value)
        if code is None:
            code = self.codes[value] = len(self.values)
            self.values.append(value)
            self.users.append(0)
            self.changes += 1
        self.users[code] += 1
        return code

    def release(self, code: int) -> None:
        self.users[code] -= 1

    def cut(self, size: int) -> None:
        """Forgets the newest values, which nobody uses, down to the given size."""
        if len(self.values) == size:
            return
        for value in self.values[size:]:
            del self.codes[value]  # type: ignore[arg-type]
            self.changes += 1
        del self.values[size:], self.users[size:]

    def compact(self) -> Rows:
        """Forgets all values that nobody uses. Gives the new code of each old one."""
        moved = np.zeros(len(self.values), dtype=np.intp)
        kept = [code for code, users in enumerate(self.users) if users]
        moved[kept] = np.arange(1, len(kept) + 1)
        self.values = [None, *(self.values[code] for code in kept)]
        self.users = [0, *(self.users[code] for code in kept)]
        self.codes = {v: code for code, v in enumerate(self.values) if v is not None}
        self.changes += 1
        return moved

    def __len__(self) -> int:
        return len(self.values)
