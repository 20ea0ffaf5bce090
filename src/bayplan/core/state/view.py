"""Some rows of the cluster, or all of them, as a plugin reads them. Nobody writes through it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayplan.core.state.arrays import Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.labels import LabelColumn
from bayplan.core.state.pools import Lines

FEW = 2  # rows; for so few, arithmetic in Python costs less than NumPy's calls do

Line = tuple[list[int], list[int]]  # of one row: free and allocatable amounts by resource


class View:
    """The rows `rows`, or every row when it is None. Arrays are gathered once and shared."""

    __slots__ = (
        "_allocatable",
        "_few",
        "_free",
        "answers",
        "cluster",
        "exact",
        "rows",
        "size",
    )

    def __init__(self, cluster: Cluster, rows: Rows | None = None) -> None:
        self.cluster = cluster
        self.rows = rows
        self.size = cluster.height if rows is None else len(rows)
        self.exact = False  # whether codes must say why; if not, any code but 0 refuses
        self.answers: dict[object, Any] = {}  # what a plugin keeps between its hooks
        self._few: list[Line] | None = None
        self._free: Ints | None = None
        self._allocatable: Ints | None = None

    def __len__(self) -> int:
        return self.size

    @property
    def free(self) -> Ints:  # resources × rows
        if self._free is None:
            if self.rows is not None:
                self._gather(self.rows)
            else:
                self._free = self.cluster.free[: self.size].T.copy()
        assert self._free is not None
        return self._free

    @property
    def allocatable(self) -> Ints:  # resources × rows
        if self._allocatable is None:
            if self.rows is not None:
                self._gather(self.rows)
            else:
                self._allocatable = self.cluster.allocatable[: self.size].T.copy()
        assert self._allocatable is not None
        return self._allocatable

    def _gather(self, rows: Rows) -> None:
        """Of some rows, what is read of one is near what is read of the other."""
        found, width = self.cluster.amounts.take(rows, axis=0).T.copy(), self.cluster.free.shape[1]
        self._free, self._allocatable = found[:width], found[width:]

    @property
    def few(self) -> list[Line] | None:
        """Row by row, where there are few of them. A plugin that looks at amounts one by one there
        must say what it says of columns."""
        if self._few is None and self.rows is not None and 0 < self.size <= FEW:
            free, allocatable = self.cluster.free, self.cluster.allocatable
            rows: list[int] = self.rows.tolist()
            self._few = [(free[row].tolist(), allocatable[row].tolist()) for row in rows]
        return self._few

    @property
    def row_numbers(self) -> Rows:
        return np.arange(self.size) if self.rows is None else self.rows

    @property
    def unschedulable(self) -> Mask:
        return self._take(self.cluster.unschedulable)

    @property
    def alive(self) -> Mask:
        return self._take(self.cluster.alive)

    @property
    def hashes(self) -> NDArray[np.uint32]:
        return self._take(self.cluster.hashes)

    @property
    def taints(self) -> NDArray[np.int32]:
        """Codes of the cluster's taint sets; 0 for none."""
        return self._take(self.cluster.taints)

    def lines(self, device_class: str) -> Lines | None:
        """What is left of the devices of a class; None where no node has a pool of them."""
        table = self.cluster.pools.tables.get(device_class)
        return None if table is None else Lines(table, self.rows, self.size)

    def labels(self, key: str) -> tuple[LabelColumn, Rows]:
        """The column of a label key, and the codes of these rows."""
        column = self.cluster.column(key)
        return column, self._take(column.codes)

    def named(self, names: tuple[str, ...]) -> Mask:
        """The rows of the nodes with these names."""
        found = [row for name in names if (row := self.cluster.rows.get(name)) is not None]
        if self.rows is None:
            mask = np.zeros(self.size, dtype=np.bool_)
            mask[found] = True
            return mask
        if len(found) == 1:
            return np.equal(self.rows, found[0])
        return np.isin(self.rows, found)

    def _take(self, array: NDArray[Any]) -> NDArray[Any]:
        if self.rows is None:
            return array[: self.size]
        return array.take(self.rows, axis=0)
