"""Devices that several nodes reach, as one line per estate: who holds them, and what is free.

A device is free while it works, no pod or hold has it, and no partition stands on it that nobody
here knows. What a pod holds follows from the pod alone, wherever it is bound, so an operation of
the cluster and its inverse change it alike. Whatever changes here changes all rows that reach it.
"""

from collections.abc import Callable, Iterable, Iterator

from bayplan.core.model.nodes import Node
from bayplan.core.model.partitions import Estate, Partition, part_id
from bayplan.core.model.pods import Pod

Mask = int  # of the devices, in their order


class Line:
    """One estate."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self.rows: dict[int, None] = {}  # that reach it
        self.positions = {
            part_id(estate.name, device.id): at for at, device in enumerate(estate.devices)
        }
        self.holders = [0] * len(estate.devices)
        self.strays: dict[str, Mask] = {}  # by id: partitions that nobody here holds
        self.refused = 0  # the controller made no partition of this size or a larger one; 0: none
        self.closed = ""  # why nothing is given
        self.free: Mask = 0
        self.settle()

    def settle(self) -> None:
        """What is free now."""
        free = 0
        for at, (device, holders) in enumerate(zip(self.estate.devices, self.holders, strict=True)):
            free |= (device.healthy and not holders) << at
        for mask in self.strays.values():
            free &= ~mask
        self.free = free

    def mask_of(self, devices: Iterable[str]) -> Mask:
        """Of devices by their own ids; what is not there is left out."""
        found = (self.positions.get(part_id(self.estate.name, each)) for each in devices)
        return sum(1 << at for at in found if at is not None)

    def take(self, pod: Pod, sign: int) -> bool:
        """The pod gets what it holds here, or gives it back. Whether it is anything."""
        positions = [
            at
            for part in (pod.held.parts if pod.held is not None else ())
            if (at := self.positions.get(part.id)) is not None
        ]
        for at in positions:
            self.holders[at] += sign
        if positions:
            self.settle()
        return bool(positions)


class Estates:
    """By name. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done", "_touch", "_pods")

    def __init__(
        self,
        done: Callable[..., None],
        touch: Callable[[int], None],
        pods: Callable[[], Iterator[Pod]],
    ) -> None:
        """`touch`: a row has changed; `pods`: all that hold something, or for whom it is held."""
        self.lines: dict[str, Line] = {}
        self._done, self._touch, self._pods = done, touch, pods

    def reached(self, row: int) -> list[Line]:
        """Those that the row's node reaches, by name."""
        return [self.lines[name] for name in sorted(self.lines) if row in self.lines[name].rows]

    def holders(self, line: Line) -> Iterator[Pod]:
        """The pods that hold something of it."""
        for pod in self._pods():
            if pod.held is not None and any(p.id in line.positions for p in pod.held.parts):
                yield pod

    def is_amiss(self, part: str) -> bool:
        """Whether a device should not have been given: not there, not working, or held twice."""
        for line in self.lines.values():
            at = line.positions.get(part)
            if at is not None:
                strayed = any(mask >> at & 1 for mask in line.strays.values())
                return strayed or line.holders[at] > 1 or not line.estate.devices[at].healthy
        return True

    # ---- operations

    def put(self, name: str, line: Line | None) -> None:
        """The estate as it is now, or None when there is none of the name any more."""
        before = self.lines.pop(name, None)
        if line is not None:
            self.lines[name] = line
        self._touched(*(each for each in (before, line) if each is not None))
        self._done(self.put, name, before)

    def write(self, estate: Estate, rows: Iterable[int]) -> None:
        """An estate with other devices than before. What pods hold of it is counted anew."""
        line, old = Line(estate), self.lines.get(estate.name)
        line.rows = dict.fromkeys(rows)
        if old is not None:
            line.closed = old.closed
        for pod in self._pods():
            line.take(pod, 1)
        self.put(estate.name, line)

    def stray(self, name: str, strays: dict[str, Mask]) -> None:
        """The partitions that nobody here holds."""
        line = self.lines[name]
        before, line.strays = line.strays, strays
        line.settle()
        self._touched(line)
        self._done(self.stray, name, before)

    def refuse(self, name: str, size: int) -> None:
        """The controller has no room for so many; 0: something was freed."""
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

    def _touched(self, *lines: Line) -> None:
        for row in dict.fromkeys(row for line in lines for row in line.rows):
            self._touch(row)


def is_head(node: Node, estate: Estate) -> bool:
    key, value = estate.label
    return node.labels.get(key) == value


def masks(line: Line, partitions: Iterable[Partition]) -> dict[str, Mask]:
    return {each.id: line.mask_of(each.devices) for each in partitions}
