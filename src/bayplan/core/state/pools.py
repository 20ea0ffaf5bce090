"""Devices as columns: per class one table, one line per node, as wide as the widest pool.

A line says what is left of each device and how many hold parts of it. It follows from the node's
pool and from what the node's pods hold, and nothing else: whoever changes either calls `take` or
`write`, so the inverse of an operation of the cluster puts every line back. A device that pods hold
and that the node has no more has no position, and gets its holders back when it comes again.

A pool is one node's here, so its line has the node's row and changes stand in the cluster's log.
Devices that are given side by side have a table of another kind (`ordered`).
"""

from collections.abc import Iterable

import numpy as np

from bayplan.core.model.holdings import unsaid
from bayplan.core.model.nodes import Node, Pool
from bayplan.core.model.pods import Part, Pod
from bayplan.core.model.vendors import FULL_COMPUTE
from bayplan.core.state.arrays import Ints, Rows
from bayplan.core.state.ordered import NO_POOL, UNREADABLE, Ordered

NARROWEST = 8
MEMORY, COMPUTE, HOLDERS, TOTAL = range(4)  # the planes of a table
# The models' orders of cards as one number each, so that a search is one look for the smallest:
# packing: whole cards last, then what memory and what compute is left; spreading: cards with one
# holder last, then by holders, then the most memory first.
MEMORY_BITS, COMPUTE_BITS, MOST_HOLDERS = 53, 7, 255
WHOLE = 1 << MEMORY_BITS + COMPUTE_BITS  # packing numbers of cards that nobody holds are above
ONE_HOLDER = (MOST_HOLDERS + 1) << MEMORY_BITS


class Table:
    """One class of devices. Memory and compute below 0 mean that more is held than there is."""

    def __init__(self, rows: int, width: int = NARROWEST) -> None:
        self.cells: Ints = np.zeros((rows, 4, width), dtype=np.int64)
        # rows × devices: MiB that may be given; -1 of devices that may not be given at all
        self.room: Ints = np.full((rows, width), -1, dtype=np.int64)
        self.packing: Ints = np.zeros((rows, width), dtype=np.int64)
        self.spreading: Ints = np.zeros((rows, width), dtype=np.int64)
        # pods that hold something that cannot be said, and UNREADABLE; or NO_POOL
        self.unknown: Ints = np.full(rows, NO_POOL, dtype=np.int64)
        self.positions: list[dict[str, int]] = [{} for _ in range(rows)]  # by id and "#index"
        self.usable: list[tuple[bool, ...]] = [()] * rows
        self.pools = 0

    def has_pool(self, row: int) -> bool:
        return bool(self.unknown[row] != NO_POOL)

    def free_wholes(self, row: int) -> set[int]:
        """The positions of devices that may be given and that nobody holds."""
        count = len(self.usable[row])
        idle = (self.room[row, :count] >= 0) & (self.cells[row, HOLDERS, :count] == 0)
        return set(np.flatnonzero(idle).tolist())

    def is_overdrawn(self, row: int, device: str) -> bool:
        """Whether more of a device is held than there is."""
        at = self.positions[row].get(device)
        return at is not None and bool((self.cells[row, :HOLDERS, at] < 0).any())

    def is_amiss(self, row: int, device: str) -> bool:
        """Whether it should not have been given: not there, not working, or held twice."""
        at = self.positions[row].get(device)
        return at is None or bool(self.room[row, at] < 0)

    def write(self, row: int, pool: Pool | None) -> None:
        """The line of a pool that nobody holds anything of."""
        self.pools += (pool is not None) - self.has_pool(row)
        devices = () if pool is None else pool.devices  # none where they are not known
        if len(devices) > self.room.shape[1]:
            self._enlarge(len(self.positions), max(len(devices), 2 * self.room.shape[1]))
        clear = Table(1, self.room.shape[1])
        for name in ARRAYS:
            getattr(self, name)[row] = getattr(clear, name)[0]
        self.unknown[row] = NO_POOL if pool is None else UNREADABLE if pool.unknown else 0
        self.usable[row] = tuple(device.healthy for device in devices)
        self.positions[row] = {device.id: at for at, device in enumerate(devices)}
        for at, device in enumerate(devices):
            self.positions[row].setdefault(f"#{device.index}", at)
            self.cells[row, :, at] = device.memory_mib, FULL_COMPUTE, 0, device.memory_mib
            self._settle(row, at, device.memory_mib, FULL_COMPUTE, 0)

    def take(self, row: int, part: Part, sign: int) -> None:
        at = self.positions[row].get(part.id)
        if at is None:
            return
        cells = self.cells[row]
        memory, compute = part.memory_mib, part.compute
        if part.whole:
            memory, compute = cells.item(TOTAL, at), FULL_COMPUTE
        cells[MEMORY, at] = memory = cells.item(MEMORY, at) - sign * memory
        cells[COMPUTE, at] = compute = cells.item(COMPUTE, at) - sign * compute
        cells[HOLDERS, at] = holders = cells.item(HOLDERS, at) + sign * part.holders
        self._settle(row, at, memory, compute, holders)

    def _settle(self, row: int, at: int, memory: int, compute: int, holders: int) -> None:
        """A device that is given twice, or unhealthy, is not given once more."""
        if self.usable[row][at] and memory >= 0 and compute >= 0:
            self.room[row, at] = memory
            self.packing[row, at] = (0 if holders else WHOLE) | memory << COMPUTE_BITS | compute
            crowd = min(holders, MOST_HOLDERS) << MEMORY_BITS
            self.spreading[row, at] = (ONE_HOLDER if holders == 1 else 0) + crowd - memory
        else:
            self.room[row, at] = -1
            self.packing[row, at] = self.spreading[row, at] = 0

    def grow(self, rows: int) -> None:
        more = rows - len(self.positions)
        self.positions += [{} for _ in range(more)]
        self.usable += [()] * more
        self._enlarge(rows, self.room.shape[1])

    def _enlarge(self, rows: int, width: int) -> None:
        fresh = Table(rows, width)
        for name in ARRAYS:
            old, new = getattr(self, name), getattr(fresh, name)
            new[tuple(slice(size) for size in old.shape)] = old
            setattr(self, name, new)


ARRAYS = ("cells", "room", "packing", "spreading", "unknown")


class Lines:
    """Some lines of a table, or all of them; gathered when they are asked for."""

    def __init__(self, table: Table, rows: Rows | None, size: int) -> None:
        self._table, self._rows, self.size = table, rows, size

    def _take(self, array: Ints) -> Ints:
        return array[: self.size] if self._rows is None else array.take(self._rows, axis=0)

    @property
    def cells(self) -> Ints:  # lines × planes × devices
        return self._take(self._table.cells)

    @property
    def holders(self) -> Ints:  # lines × devices
        rows = slice(self.size) if self._rows is None else self._rows
        return self._table.cells[rows, HOLDERS]

    @property
    def room(self) -> Ints:  # lines × devices
        return self._take(self._table.room)

    @property
    def packing(self) -> Ints:  # lines × devices
        return self._take(self._table.packing)

    @property
    def spreading(self) -> Ints:  # lines × devices
        return self._take(self._table.spreading)

    @property
    def unknown(self) -> Ints:  # per line
        return self._take(self._table.unknown)


class Pools:
    """The tables by class: of devices that can be shared, and of those that are given in order."""

    NOT_STATE = ("_rows",)

    def __init__(self, rows: int) -> None:
        self.tables: dict[str, Table] = {}
        self.ordered: dict[str, Ordered] = {}
        self._rows = rows

    def every(self) -> dict[str, Table | Ordered]:
        return {**self.tables, **self.ordered}

    def write(self, row: int, old: Node | None, new: Node | None, pods: Iterable[Pod]) -> None:
        """The node's pools may be others now; `pods` are on it."""
        before = {pool.device_class: pool for pool in old.pools} if old is not None else {}
        after = {pool.device_class: pool for pool in new.pools} if new is not None else {}
        if before == after:
            return
        residents = [pod for pod in pods if pod.held is not None or pod.row.devices]
        for name in dict.fromkeys((*before, *after)):
            if before.get(name) == after.get(name):
                continue
            table = self._table(after.get(name) or before[name])
            table.write(row, after.get(name))
            if name in after:
                for pod in residents:
                    _take(table, name, row, pod, 1)
            elif not table.pools:
                self.tables.pop(name, None)
                self.ordered.pop(name, None)

    def _table(self, pool: Pool) -> Table | Ordered:
        """The one of the pool's class; made where it is the first."""
        name = pool.device_class
        if pool.layout is not None:
            if name not in self.ordered:
                self.ordered[name] = Ordered(self._rows)
            return self.ordered[name]
        if name not in self.tables:
            self.tables[name] = Table(self._rows)
        return self.tables[name]

    def take(self, row: int, pod: Pod, sign: int) -> None:
        """The pod comes to the row, or leaves it."""
        for tables in (self.tables, self.ordered):
            for name, table in tables.items():
                if table.has_pool(row):
                    _take(table, name, row, pod, sign)

    def grow(self, rows: int) -> None:
        self._rows = rows
        for table in self.every().values():
            table.grow(rows)


def _take(table: Table | Ordered, name: str, row: int, pod: Pod, sign: int) -> None:
    holding = pod.held or unsaid(pod.row.devices)
    if name in holding.unknown:
        table.unknown[row] += sign
    for part in holding.parts:
        if part.device_class == name:
            table.take(row, part, sign)
