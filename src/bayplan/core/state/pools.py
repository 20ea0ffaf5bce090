"""Devices as columns: per class one table, one line per node, as wide as the widest pool.

A line says what is left of each device and how many hold parts of it. It follows from the node's
pool and from what the node's pods hold, and nothing else: whoever changes either calls `take` or
`write`, so the inverse of an operation of the cluster puts every line back. A device that pods hold
and that the node has no more has no position, and gets its holders back when it comes again.

A pool is one node's here, so its line has the node's row and changes stand in the cluster's log.
A device with cores has a column for each; the lines of devices that are given side by side also
have what is free as one number.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from bayplan.core.model.devices import CORE, Device
from bayplan.core.model.holdings import unsaid
from bayplan.core.model.nodes import Layout, Node, Pool
from bayplan.core.model.pods import Part, Pod
from bayplan.core.model.vendors import FULL_COMPUTE
from bayplan.core.state.arrays import Ints, Rows

NARROWEST = 8


NO_POOL, UNREADABLE = -1, 1 << 40  # in `unknown`; the second is more than there can be pods
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
        # by id, "#index" and "@core"
        self.positions: list[dict[str, tuple[int, ...]]] = [{} for _ in range(rows)]
        self.layouts: list[Layout | None] = [None] * rows
        self.free: list[int] = [0] * rows  # bits of whole columns that nobody holds, with a layout
        self.usable: list[tuple[bool, ...]] = [()] * rows
        self.pools = 0

    def has_pool(self, row: int) -> bool:
        return bool(self.unknown[row] != NO_POOL)

    def is_overdrawn(self, row: int, device: str) -> bool:
        """Whether more of a device is held than there is."""
        at = list(self.positions[row].get(device, ()))
        return bool((self.cells[row, :HOLDERS, at] < 0).any())

    def write(self, row: int, pool: Pool | None) -> None:
        """The line of a pool that nobody holds anything of."""
        self.pools += (pool is not None) - self.has_pool(row)
        devices = () if pool is None else pool.devices  # none where they are not known
        columns = [device for device in devices for _ in range(device.cores)]
        if len(columns) > self.room.shape[1]:
            self._enlarge(len(self.positions), max(len(columns), 2 * self.room.shape[1]))
        clear = Table(1, self.room.shape[1])
        for name in ARRAYS:
            getattr(self, name)[row] = getattr(clear, name)[0]
        self.unknown[row] = NO_POOL if pool is None else UNREADABLE if pool.unknown else 0
        self.layouts[row], self.free[row] = None if pool is None else pool.layout, 0
        self.usable[row] = tuple(device.healthy for device in columns)
        self.positions[row] = _positions(devices, self.layouts[row] is not None)
        for at, device in enumerate(columns):
            self.cells[row, :, at] = device.memory_mib, FULL_COMPUTE, 0, device.memory_mib
            self._settle(row, at)

    def take(self, row: int, part: Part, sign: int) -> None:
        cells = self.cells[row]
        memory, compute = part.memory_mib, part.compute
        for at in self.positions[row].get(part.id, ()):
            if part.whole:
                memory, compute = cells.item(TOTAL, at), FULL_COMPUTE
            cells[MEMORY, at] = cells.item(MEMORY, at) - sign * memory
            cells[COMPUTE, at] = cells.item(COMPUTE, at) - sign * compute
            cells[HOLDERS, at] = cells.item(HOLDERS, at) + sign * part.holders
            self._settle(row, at)

    def _settle(self, row: int, at: int) -> None:
        """A device that is given twice, or unhealthy, is not given once more."""
        cells = self.cells[row]
        memory, compute = cells.item(MEMORY, at), cells.item(COMPUTE, at)
        holders, usable = cells.item(HOLDERS, at), self.usable[row][at]
        if self.layouts[row] is not None:
            free = usable and not holders
            self.free[row] = self.free[row] | 1 << at if free else self.free[row] & ~(1 << at)
        if usable and memory >= 0 and compute >= 0:
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
        self.layouts += [None] * more
        self.free += [0] * more
        self._enlarge(rows, self.room.shape[1])

    def _enlarge(self, rows: int, width: int) -> None:
        fresh = Table(rows, width)
        for name in ARRAYS:
            old, new = getattr(self, name), getattr(fresh, name)
            new[tuple(slice(size) for size in old.shape)] = old
            setattr(self, name, new)


def _positions(devices: Sequence[Device], by_core: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    at = 0
    for device in devices:
        found[device.id] = tuple(range(at, at + device.cores))
        at += device.cores
    for device in devices:
        found.setdefault(f"#{device.index}", found[device.id])
        for core, position in enumerate(found[device.id] if by_core else ()):
            found[f"{CORE}{device.index * device.cores + core}"] = (position,)
    return found


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
    """The tables by class."""

    NOT_STATE = ("_rows",)

    def __init__(self, rows: int) -> None:
        self.tables: dict[str, Table] = {}
        self._rows = rows

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
            if name not in self.tables:
                self.tables[name] = Table(self._rows)
            table = self.tables[name]
            table.write(row, after.get(name))
            if name in after:
                for pod in residents:
                    _take(table, name, row, pod, 1)
            elif not table.pools:
                del self.tables[name]

    def take(self, row: int, pod: Pod, sign: int) -> None:
        """The pod comes to the row, or leaves it."""
        for name, table in self.tables.items():
            if table.has_pool(row):
                _take(table, name, row, pod, sign)

    def grow(self, rows: int) -> None:
        self._rows = rows
        for table in self.tables.values():
            table.grow(rows)


def _take(table: Table, name: str, row: int, pod: Pod, sign: int) -> None:
    holding = pod.held or unsaid(pod.row.devices)
    if name in holding.unknown:
        table.unknown[row] += sign
    for part in holding.parts:
        if part.device_class == name:
            table.take(row, part, sign)
