"""Devices that are given side by side: per class one table, one line per node.

A line has a column for each core, since cores are what can be given; a device is the columns of its
cores. What is free is one number, a bit per column: whoever looks for a window compares masks. Like
every line of a pool it follows from the node's pool and from what the node's pods hold.
"""

from collections.abc import Sequence

from bayplan.core.model.devices import CORE, Device
from bayplan.core.model.nodes import Layout, Pool
from bayplan.core.model.pods import Part

NO_POOL, UNREADABLE = -1, 1 << 40  # in `unknown`; the second is more than there can be pods


class Ordered:
    """One class of devices."""

    def __init__(self, rows: int) -> None:
        # pods that hold something that cannot be said, and UNREADABLE; or NO_POOL
        self.unknown: list[int] = [NO_POOL] * rows
        # by id, "#index" and "@core": the columns
        self.positions: list[dict[str, tuple[int, ...]]] = [{} for _ in range(rows)]
        self.layouts: list[Layout | None] = [None] * rows
        self.holders: list[list[int]] = [[] for _ in range(rows)]  # by column
        self.usable: list[int] = [0] * rows  # bits of columns that work
        self.free: list[int] = [0] * rows  # bits of those that nobody holds
        self.pools = 0

    def has_pool(self, row: int) -> bool:
        return self.unknown[row] != NO_POOL

    def is_overdrawn(self, row: int, device: str) -> bool:
        """Whether a device, or a core of it, is held twice."""
        return any(self.holders[row][at] > 1 for at in self.positions[row].get(device, ()))

    def is_amiss(self, row: int, device: str) -> bool:
        """Whether it should not have been given: not there, not working, or held twice."""
        columns = self.positions[row].get(device, ())
        broken = any(not self.usable[row] >> at & 1 for at in columns)
        return not columns or broken or self.is_overdrawn(row, device)

    def write(self, row: int, pool: Pool | None) -> None:
        """The line of a pool that nobody holds anything of."""
        self.pools += (pool is not None) - self.has_pool(row)
        devices = () if pool is None else pool.devices  # none where they are not known
        columns = [device for device in devices for _ in range(device.cores)]
        self.unknown[row] = NO_POOL if pool is None else UNREADABLE if pool.unknown else 0
        self.layouts[row] = None if pool is None else pool.layout
        self.positions[row] = _positions(devices)
        self.holders[row] = [0] * len(columns)
        self.usable[row] = sum(1 << at for at, device in enumerate(columns) if device.healthy)
        self.free[row] = self.usable[row]

    def take(self, row: int, part: Part, sign: int) -> None:
        """A number that the node does not have says that nobody knows what is held."""
        holders, free, usable = self.holders[row], self.free[row], self.usable[row]
        columns = self.positions[row].get(part.id)
        if columns is None:
            self.unknown[row] += sign * (part.id[:1] in ("#", CORE))
            return
        for at in columns:
            count = holders[at] = holders[at] + sign * part.holders
            free = free & ~(1 << at) if count else free | usable & 1 << at
        self.free[row] = free

    def grow(self, rows: int) -> None:
        more = rows - len(self.positions)
        self.unknown += [NO_POOL] * more
        self.positions += [{} for _ in range(more)]
        self.layouts += [None] * more
        self.holders += [[] for _ in range(more)]
        self.usable += [0] * more
        self.free += [0] * more


def _positions(devices: Sequence[Device]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    at = 0
    for device in devices:
        found[device.id] = tuple(range(at, at + device.cores))
        at += device.cores
    for device in devices:
        found.setdefault(f"#{device.index}", found[device.id])
        for core, position in enumerate(found[device.id]):
            found[f"{CORE}{device.index * device.cores + core}"] = (position,)
    return found
