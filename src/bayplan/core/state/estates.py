"""Devices that several nodes reach, as one line per estate: who holds them, and what is free.

A device is free while it works, no pod or hold has it, and no partition stands on it that nobody
here knows. What a pod holds follows from the pod alone, wherever it is bound, so an operation of
the cluster and its inverse change it alike. Whatever changes here changes all rows that reach it.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bayplan.core.model.nodes import Node
from bayplan.core.model.partitions import Estate, part_id
from bayplan.core.model.pods import Holding, Pod
from bayplan.core.state.arrays import Rows

Mask = int  # of the devices, in their order


class Line:
    """One estate."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self.rows: dict[int, None] = {}  # that reach it
        self.positions = {
            part_id(estate.name, device.id): at for at, device in enumerate(estate.devices)
        }
        self.pods: dict[str, None] = {}  # uids of those that hold something of it
        self.holders = [0] * len(estate.devices)
        self.strays: dict[str, Mask] = {}  # by id: partitions that nobody here counts for
        self.refused = 0  # the controller makes no partition of so many, or more; 0: it may
        self.closed = ""  # why nothing is given
        self._works: Mask = sum(d.healthy << at for at, d in enumerate(estate.devices))
        self._busy: Mask = 0

    @property
    def free(self) -> Mask:
        return self._works & ~self._busy & ~union(self.strays.values())

    def refuses(self, size: int) -> bool:
        return 0 < self.refused <= size

    def mask_of(self, devices: Iterable[str]) -> Mask:
        """Of devices by their own ids; what is not there is left out."""
        found = (self.positions.get(part_id(self.estate.name, each)) for each in devices)
        return union(1 << at for at in found if at is not None)

    def mask(self, held: Holding | None) -> Mask:
        """What is held of it."""
        found = (self.positions.get(part.id) for part in (held.parts if held is not None else ()))
        return union(1 << at for at in found if at is not None)

    def take(self, pod: Pod, sign: int) -> bool:
        """The pod gets what it holds here, or gives it back. Whether it is anything."""
        mask = self.mask(pod.held)
        for bit in bits(mask):
            at = bit.bit_length() - 1
            self.holders[at] += sign
            self._busy = self._busy | bit if self.holders[at] else self._busy & ~bit
        if mask and sign > 0:
            self.pods[pod.uid] = None
        elif mask:
            del self.pods[pod.uid]
        return bool(mask)


class Estates:
    """By name. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done", "_touch", "_pods", "_find")

    def __init__(
        self,
        done: Callable[..., None],
        touch: Callable[[Rows], None],
        pods: Callable[[], Iterator[Pod]],
        find: Callable[[str], Pod],
    ) -> None:
        """`touch`: rows have changed; `pods`: all that hold something, or for whom it is held;
        `find`: one of them by uid."""
        self.lines: dict[str, Line] = {}
        self._done, self._touch, self._pods, self._find = done, touch, pods, find

    def reached(self, row: int) -> list[Line]:
        """Those that the row's node reaches, by name."""
        return [self.lines[name] for name in sorted(self.lines) if row in self.lines[name].rows]

    def around(self, row: int) -> list[Pod]:
        """Whoever holds something that the row reaches, wherever they are; by uid."""
        uids = {uid for line in self.reached(row) for uid in line.pods}
        return [self._find(uid) for uid in sorted(uids)]

    def holders(self, line: Line) -> list[Pod]:
        """By uid."""
        return [self._find(uid) for uid in sorted(line.pods)]

    def is_amiss(self, part: str) -> bool:
        """Whether a device should not have been given: not there, not working, or held twice."""
        for line in self.lines.values():
            at = line.positions.get(part)
            if at is not None:
                strayed = union(line.strays.values()) >> at & 1
                return bool(strayed) or line.holders[at] > 1 or not line.estate.devices[at].healthy
        return True

    # ---- operations

    def write(self, estate: Estate, rows: Iterable[int]) -> None:
        """An estate that is new, or has other devices. What pods hold of it is counted anew."""
        line, old = Line(estate), self.lines.get(estate.name)
        line.rows = dict.fromkeys(rows)
        if old is not None:
            line.closed = old.closed
        for pod in self._pods():
            line.take(pod, 1)
        self._put(estate.name, line)

    def _put(self, name: str, line: Line | None) -> None:
        before = self.lines.pop(name, None)
        if line is not None:
            self.lines[name] = line
        for each in (before, line):
            if each is not None:
                self._touched(each)
        self._done(self._put, name, before)

    def stray(self, name: str, strays: dict[str, Mask]) -> None:
        """The partitions that nobody here counts for."""
        line = self.lines[name]
        before, line.strays = line.strays, strays
        self._touched(line)
        self._done(self.stray, name, before)

    def refuse(self, name: str, size: int) -> None:
        """As in `Line.refused`."""
        line = self.lines[name]
        before, line.refused = line.refused, size
        self._touched(line)
        self._done(self.refuse, name, before)

    def close(self, name: str, why: str) -> None:
        line = self.lines[name]
        before, line.closed = line.closed, why
        self._touched(line)
        self._done(self.close, name, before)

    # ---- parts of the cluster's operations

    def take(self, pod: Pod, sign: int) -> None:
        for line in self.lines.values():
            if line.take(pod, sign):
                self._touched(line)

    def reach(self, row: int, node: Node | None) -> None:
        """The row's node may reach others now."""
        for line in self.lines.values():
            if node is not None and is_head(node, line.estate):
                line.rows[row] = None
            else:
                line.rows.pop(row, None)

    def _touched(self, line: Line) -> None:
        self._touch(np.fromiter(line.rows, dtype=np.intp, count=len(line.rows)))


def is_head(node: Node, estate: Estate) -> bool:
    key, value = estate.label
    return node.labels.get(key) == value


def union(masks: Iterable[Mask]) -> Mask:
    found = 0
    for mask in masks:
        found |= mask
    return found


def bits(mask: Mask) -> Iterator[Mask]:
    """The lowest first."""
    while mask:
        yield mask & -mask
        mask &= mask - 1
