"""Node labels as columns of value codes; a label key gets its column when it is first asked for."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from bayplan.core.model.nodes import Node
from bayplan.core.model.selectors import Requirement, base10
from bayplan.core.state.arrays import Interner, Mask, grown


class LabelColumn:
    """One label key over all rows: the code of its value, 0 where the node lacks the label."""

    NOT_STATE = ("_numbers",)

    def __init__(self, key: str, rows: int) -> None:
        self.key = key
        self.codes: NDArray[np.intp] = np.zeros(rows, dtype=np.intp)
        self.values: Interner[str] = Interner()
        self.holders = 0  # nodes that have the label
        self._numbers: tuple[int, NDArray[np.int64], Mask] | None = None

    def grow(self, rows: int) -> None:
        self.codes = grown(self.codes, rows)  # type: ignore[assignment]

    def put(self, row: int, value: str | None) -> None:
        old = int(self.codes[row])
        self.codes[row] = 0 if value is None else self.values.acquire(value)
        if old:
            self.values.release(old)
        self.holders += (value is not None) - (old != 0)

    def complete(self, nodes: int) -> bool:
        """Whether every node has the label."""
        return self.holders == nodes

    def numbers(self) -> tuple[NDArray[np.int64], Mask]:
        """Per code the value as an int64, and whether it is one."""
        if self._numbers is None or self._numbers[0] != self.values.changes:
            parsed = [None if value is None else base10(value) for value in self.values.values]
            valid = np.array([number is not None for number in parsed])
            numbers = np.array([number or 0 for number in parsed], dtype=np.int64)
            self._numbers = (self.values.changes, numbers, valid)
        return self._numbers[1:]

    def matches(self, requirement: Requirement, codes: NDArray[np.intp]) -> Mask:
        """Which of the given codes satisfy the requirement."""
        match requirement.op:
            case "Exists":
                return np.not_equal(codes, 0)
            case "DoesNotExist":
                return np.equal(codes, 0)
            case "In" | "NotIn":
                wanted = [self.values.codes.get(value, -1) for value in requirement.values]
                found: Mask = np.equal(codes, wanted[0])
                for code in wanted[1:]:
                    found |= codes == code
                return found if requirement.op == "In" else ~found
        bound = base10(requirement.values[0])
        if bound is None:
            return np.zeros(len(codes), dtype=np.bool_)
        numbers, valid = self.numbers()
        passing = numbers > bound if requirement.op == "Gt" else numbers < bound
        table = passing & valid
        return table.take(codes)


WASTE = 1024  # values that may stay without users before a column is compacted


class LabelColumns:
    """The label columns that somebody asked for."""

    NOT_STATE = ("columns",)  # derived on demand

    def __init__(self) -> None:
        self.columns: dict[str, LabelColumn] = {}

    def column(self, key: str, nodes: list[Node | None], rows: int) -> LabelColumn:
        column = self.columns.get(key)
        if column is None:
            column = self.columns[key] = LabelColumn(key, rows)
            for row, node in enumerate(nodes):
                if node is not None and (value := node.labels.get(key)) is not None:
                    column.put(row, value)
        return column

    def sizes(self) -> dict[str, int]:
        return {key: len(column.values) for key, column in self.columns.items()}

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Forgets the values that were added since; columns that are newer stay as they are."""
        for key, size in sizes.items():
            self.columns[key].values.cut(size)

    def wasteful(self, nodes: int) -> list[LabelColumn]:
        """Columns with far more values than there are nodes."""
        return [c for c in self.columns.values() if len(c.values) > 2 * nodes + WASTE]

    def grow(self, rows: int) -> None:
        for column in self.columns.values():
            column.grow(rows)

    def put(self, row: int, old: Node | None, new: Node | None) -> Iterable[tuple[str, int]]:
        """Move a row's labels from the old node's to the new one's; yields (key, code before)."""
        for key, column in self.columns.items():
            was = old.labels.get(key) if old is not None else None
            now = new.labels.get(key) if new is not None else None
            if was != now:
                before = int(column.codes[row])
                column.put(row, now)
                yield key, before
