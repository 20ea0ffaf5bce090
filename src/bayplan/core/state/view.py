"""Some rows of the cluster, or all of them, as a plugin reads them. Nobody writes through a view."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bayplan.core.state.arrays import Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.labels import LabelColumn


class View:
    """The rows `rows`, or every row when it is None. Arrays are gathered once and shared."""

    def __init__(self, cluster: Cluster, rows: Rows | None = None) -> None:
        self.cluster = cluster
        self.rows = rows
        self.size = cluster.height if rows is None else len(rows)
        self.feasible: Mask | None = None  # for scores of cluster plugins: the rows that passed

    def __len__(self) -> int:
        return self.size

    @cached_property
    def free(self) -> Ints:  # rows × resources
        return self._take(self.cluster.free)

    @cached_property
    def allocatable(self) -> Ints:  # rows × resources
        return self._take(self.cluster.allocatable)

    @cached_property
    def row_numbers(self) -> Rows:
        return np.arange(self.size) if self.rows is None else self.rows

    @cached_property
    def unschedulable(self) -> Mask:
        return self._take(self.cluster.unschedulable)

    @cached_property
    def alive(self) -> Mask:
        return self._take(self.cluster.alive)

    @cached_property
    def taints(self) -> NDArray[np.int32]:
        """Codes of the cluster's taint sets; 0 for none."""
        return self._take(self.cluster.taints)

    def labels(self, key: str) -> tuple[LabelColumn, NDArray[np.int32]]:
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
        return np.isin(self.rows, found)

    def _take(self, array):  # type: ignore[no-untyped-def]
        if self.rows is None:
            return array[: self.size]
        return array.take(self.rows, axis=0)
