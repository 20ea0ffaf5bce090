"""An oracle for devices that are given side by side, from the vendor's documents and the model's
own words, and slow: sets of (device, core), and every way one by one."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from bayplan.core.model.nodes import Layout
from bayplan.core.model.pods import DeviceAsk

Cells = frozenset[tuple[int, int]]  # device, core

# Type: devices, cores of each, shape.
TABLE = {
    "inf1.xlarge": (1, 4, "chain"),
    "inf1.2xlarge": (1, 4, "chain"),
    "inf1.6xlarge": (4, 4, "chain"),
    "inf1.24xlarge": (16, 4, "chain"),
    "inf2.xlarge": (1, 2, "chain"),
    "inf2.8xlarge": (1, 2, "chain"),
    "inf2.24xlarge": (6, 2, "chain"),
    "inf2.48xlarge": (12, 2, "chain"),
    "trn1.2xlarge": (1, 2, "chain"),
    "trn1.32xlarge": (16, 2, "rows"),
    "trn1n.32xlarge": (16, 2, "rows"),
    "trn2.3xlarge": (1, 4, "chain"),
    "trn2.48xlarge": (16, 4, "rows"),
    "trn2u.48xlarge": (16, 4, "rows"),
}


class Machine(NamedTuple):
    indexes: tuple[int, ...]
    cores: int
    shape: str
    row: int = 4

    @property
    def layout(self) -> Layout:
        return Layout(*self)  # type: ignore[arg-type]

    def device(self, index: int) -> Cells:
        return frozenset((index, core) for core in range(self.cores))

    @property
    def everything(self) -> Cells:
        return joined(map(self.device, self.indexes))

    def units(self, kind: str) -> list[tuple[int, Cells]]:
        """The number of each device, or core, and what it is."""
        if kind == "whole":
            return [(i, self.device(i)) for i in self.indexes]
        return [
            (i * self.cores + core, frozenset({(i, core)}))
            for i in self.indexes
            for core in range(self.cores)
        ]

    @property
    def closed(self) -> bool:
        """Whether the last is next to the first."""
        return self.shape == "ring" and self.indexes == tuple(range(len(self.indexes)))

    def mask(self, cells: Cells) -> int:
        """As the model numbers the columns."""
        return sum(
            1 << at * self.cores + core
            for at, index in enumerate(self.indexes)
            for core in range(self.cores)
            if (index, core) in cells
        )

    def cells(self, mask: int) -> Cells:
        pairs = [(index, core) for index in self.indexes for core in range(self.cores)]
        return frozenset(pair for at, pair in enumerate(pairs) if mask >> at & 1)


def machine(name: str) -> Machine:
    devices, cores, shape = TABLE[name]
    return Machine(tuple(range(devices)), cores, shape)


def joined(parts: Iterator[Cells] | Sequence[Cells]) -> Cells:
    return frozenset().union(*parts)


@cache
def legal(on: Machine, kind: str, count: int) -> list[Cells]:
    """What a request may get if all is free, by the first of it."""
    units = on.units(kind)
    if count == len(units):
        return [on.everything]
    if count == 1:
        return [cells for _, cells in units]
    if not 1 < count < len(units):
        return []
    if on.shape != "rows":
        return _runs(units, count, on.closed)
    if kind == "whole":
        return [joined(list(map(on.device, block))) for block in _blocks(on, count)]
    if count < on.cores:
        return [run for _, d in on.units("whole") for run in _runs(_of(units, d), count, False)]
    return legal(on, "whole", count // on.cores) if count % on.cores == 0 else []


def _of(units: Sequence[tuple[int, Cells]], device: Cells) -> list[tuple[int, Cells]]:
    return [(number, cells) for number, cells in units if cells <= device]


def _runs(units: Sequence[tuple[int, Cells]], count: int, closed: bool) -> list[Cells]:
    around = [*units, *units[: count - 1]] if closed else units
    found = []
    for first in range(len(around) - count + 1):
        run = around[first : first + count]
        if closed or all(b - a == 1 for (a, _), (b, _) in pairwise(run)):
            found.append(joined([cells for _, cells in run]))
    return found


def _blocks(on: Machine, size: int) -> list[range]:
    """Rows that go together, of which the machine has all devices."""
    if size not in (on.row << power for power in range(8)):
        return []
    starts = range(0, max(on.indexes, default=-1) + 1, size)
    return [range(s, s + size) for s in starts if set(range(s, s + size)) <= {*on.indexes}]


@cache
def levels(on: Machine) -> list[list[Cells]]:
    """What is better kept whole, the largest first."""
    found = [[on.everything]]
    if on.shape == "rows":
        sizes = [on.row << p for p in range(8) if on.row << p < len(on.indexes)]
        found += [
            [joined(list(map(on.device, block))) for block in _blocks(on, size)]
            for size in reversed(sizes)
        ]
    return [*found, [on.device(index) for index in on.indexes]]


def cost(on: Machine, kind: str, chosen: Cells, free: Cells) -> tuple[int, ...]:
    """As the model's first lines say."""
    broken = [
        sum(block <= free and bool(block & chosen) and not block <= chosen for block in level)
        for level in levels(on)
    ]
    left = free - chosen
    if on.shape == "rows":
        touched = [joined([b for b in level if b & chosen]) for level in levels(on)]
        return *broken, *(len(blocks & left) for blocks in reversed(touched))
    sides = _sides(on, kind, chosen, left)
    return *broken, sum(sides), min(sides)


def _sides(on: Machine, kind: str, chosen: Cells, left: Cells) -> tuple[int, int]:
    """How many are free next to it, before and behind."""
    units = on.units(kind)
    at = [i for i, (_, cells) in enumerate(units) if cells <= chosen]
    if len(at) == len(units) or (on.closed and chosen | left == on.everything):
        return 0, 0  # wherever it lies, the same is left

    def count(start: int, step: int) -> int:
        found, here = 0, start
        while True:
            there = here + step
            if on.closed:
                there %= len(units)
            elif not 0 <= there < len(units) or abs(units[there][0] - units[here][0]) != 1:
                return found
            if not units[there][1] <= left:
                return found
            found, here = found + 1, there

    if on.closed:
        first = next(i for i in at if (i - 1) % len(units) not in at)
        last = next(i for i in at if (i + 1) % len(units) not in at)
        return count(first, -1), count(last, 1)
    return count(at[0], -1), count(at[-1], 1)


def cheapest(on: Machine, kind: str, count: int, free: Cells) -> Cells | None:
    ways = [way for way in legal(on, kind, count) if way <= free]
    return min(ways, key=lambda way: cost(on, kind, way, free), default=None)


def at_the_same_time(asks: Sequence[DeviceAsk], i: int, j: int) -> bool:
    """Whether two requests are held together at some time: init containers run one by one, beside
    the sidecars that started before, and end before the others start."""
    i, j = min(i, j), max(i, j)
    one, other = asks[i], asks[j]
    if one.container == other.container or "init" not in (one.phase, other.phase):
        return True
    return one.phase == "sidecar" and other.phase == "init"


def served(
    on: Machine, free: Cells, asks: Sequence[DeviceAsk], clash: Callable[[int, int], bool]
) -> bool:
    """Whether there is a way for all requests."""
    given: list[Cells] = []

    def serve(i: int) -> bool:
        if i == len(asks):
            return True
        taken = joined([given[j] for j in range(i) if clash(i, j)])
        for way in legal(on, asks[i].kind, asks[i].amount):
            if way <= free - taken:
                given.append(way)
                if serve(i + 1):
                    return True
                given.pop()
        return False

    return serve(0)
