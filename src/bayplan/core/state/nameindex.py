"""Rows by node name, for hundreds of names at once."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bayplan.core.state.arrays import Ints, Rows, distinct

UNKNOWN = -1


class NameIndex:
    """A table of hashes in place of a dict. To find a name, a dict compares it with one that lies
    somewhere in memory, and seldom in a cache when a question comes: of a question about 5,000
    nodes that was a third. Names with equal hashes are taken for one; they have 64 bits, with a key
    of this process, so one name in 10^15 that is not known passes for one of 5,000 that are.

    A slot is found by the lowest bits; whoever finds it taken goes to the next.
    """

    def __init__(self, rows: Mapping[str, int], hash_of: Callable[[str], int] = hash) -> None:
        self._hash_of = hash_of
        hashes, numbers = self._hashes([*rows]), np.array([*rows.values()], dtype=np.intp)
        # Two that are known: once in 10^12 clusters, but then with every question.
        self._exact = dict(rows) if len(distinct(hashes)) < len(rows) else None
        size = 4 << len(rows).bit_length()
        self._mask = size - 1
        self._hash: Ints = np.zeros(size, dtype=np.int64)
        self._row: Rows = np.full(size, UNKNOWN, dtype=np.intp)
        slots = hashes & self._mask
        while len(numbers):
            free = self._row[slots] == UNKNOWN
            self._row[slots[free]] = numbers[free]  # of several that want it, one gets it
            there = self._row[slots] == numbers
            self._hash[slots[there]] = hashes[there]
            hashes, numbers = hashes[~there], numbers[~there]
            slots = (slots[~there] + 1) & self._mask

    def rows(self, names: Sequence[str]) -> Rows:
        """The row of each name, or UNKNOWN."""
        if self._exact is not None:
            return np.array([self._exact.get(name, UNKNOWN) for name in names], dtype=np.intp)
        hashes = self._hashes(names)
        slots = hashes & self._mask
        found = self._row.take(slots)
        others = ((found != UNKNOWN) & (self._hash.take(slots) != hashes)).nonzero()[0]
        while len(others):
            slots[others] = there = (slots[others] + 1) & self._mask
            found[others] = rows = self._row[there]
            others = others[(rows != UNKNOWN) & (self._hash[there] != hashes[others])]
        return found

    def _hashes(self, names: Sequence[str]) -> Ints:
        return np.fromiter(map(self._hash_of, names), dtype=np.int64, count=len(names))
