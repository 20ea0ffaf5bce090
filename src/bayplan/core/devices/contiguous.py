"""Contiguous devices: n that follow each other in a pool, or whole rows of a torus; or n cores.

Which sets of devices go together is in `windows`: on a chain any that have consecutive numbers; on
a ring also around its end; on a torus one, a row, or twice as many rows again and again, beginning
at a multiple of as many. All of a pool always go together. Cores likewise; on a torus those of one
device, or those of devices that go together.

Minimises the tuple
    whole blocks that are broken into: the pool, larger and smaller groups of rows, devices,
    on a torus: what stays free in each block that is touched, the smallest blocks first,
    on a chain or ring: what stays free of the stretch, and how much of that on its shorter side,
    the number of the first device.

Exact for one container. Several containers are served one after the other, the largest request
first, each from its best window; where that leaves no window to a later one, the next best is
tried, up to MANY in all. Init containers get devices of the others' as far as they can.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from bayplan.core.devices.shared import Policy
from bayplan.core.model.devices import Held, HeldDevice
from bayplan.core.model.nodes import Layout, Pool
from bayplan.core.model.pods import DeviceAsk

MANY = 500  # windows that are tried for all containers of a pod on one node
UNSUPPORTED, SHORT = -2, -1  # in place of a score
FULL = 1000
_KEPT = 1 << 16

Asks = tuple[DeviceAsk, ...]
Mask = int  # of the pool's columns: the cores of its devices, one device after the other
Cost = tuple[int, ...]


class Unit(Struct, frozen=True, cache_hash=True):
    """Devices, or cores, of a layout, in their order."""

    masks: tuple[Mask, ...]
    numbers: tuple[int, ...]  # ascending
    is_ring: bool

    def after(self, at: int, step: int) -> int | None:
        """The neighbour of one, on one side."""
        there = at + step
        if 0 <= there < len(self.masks):
            return there if self.numbers[there] == self.numbers[at] + step else None
        return there % len(self.masks) if self.is_ring and len(self.masks) > 1 else None


@lru_cache(maxsize=1024)
def units(layout: Layout, kind: str) -> Unit:
    cores, size = layout.cores, len(layout.indexes)
    closed = layout.shape == "ring" and layout.indexes == tuple(range(size))
    if kind == "core":
        numbers = tuple(i * cores + core for i in layout.indexes for core in range(cores))
        return Unit(tuple(1 << at for at in range(size * cores)), numbers, closed)
    one = (1 << cores) - 1
    return Unit(tuple(one << i * cores for i in range(size)), layout.indexes, closed)


@lru_cache(maxsize=4096)
def windows(layout: Layout, kind: str, count: int) -> tuple[Mask, ...]:
    """The sets of so many that go together, in the order of their first; none: such a request
    cannot be served, whatever is free."""
    size = len(layout.indexes) * (layout.cores if kind == "core" else 1)
    unit = units(layout, kind)
    if not 1 <= count <= size:
        return ()
    if count == size:
        return (_union(unit.masks),)
    if count == 1:
        return unit.masks
    if layout.shape != "rows":
        return tuple(_runs(unit, range(size), count))
    if kind == "core" and count < layout.cores:
        devices = (range(at, at + layout.cores) for at in range(0, size, layout.cores))
        return tuple(window for each in devices for window in _runs(unit, each, count))
    if kind == "core":
        whole, rest = divmod(count, layout.cores)
        return () if rest else windows(layout, "whole", whole)
    return tuple(_rows(layout, count))


def _runs(unit: Unit, among: Sequence[int], count: int) -> Iterator[Mask]:
    for first in among:
        at: int | None = first
        mask = 0
        for _ in range(count):
            if at is None or at not in among:
                break
            mask, at = mask | unit.masks[at], unit.after(at, 1)
        else:
            yield mask


def _rows(layout: Layout, count: int) -> Iterator[Mask]:
    """Rows, where so many go together."""
    size = layout.row
    while size < count:
        size *= 2
    if size != count or not layout.indexes:
        return
    masks = dict(zip(layout.indexes, units(layout, "whole").masks, strict=True))
    for first in range(0, layout.indexes[-1] + 1, count):
        members = range(first, first + count)
        if all(index in masks for index in members):
            yield _union(masks[index] for index in members)


@lru_cache(maxsize=1024)
def blocks(layout: Layout) -> tuple[tuple[Mask, ...], ...]:
    """What is better kept whole, the largest first."""
    devices = units(layout, "whole").masks
    found: list[tuple[Mask, ...]] = [(_union(devices),)]
    if layout.shape == "rows":
        size = layout.row
        groups: list[tuple[Mask, ...]] = []
        while size < len(layout.indexes):
            groups.insert(0, tuple(_rows(layout, size)))
            size *= 2
        found += groups
    if layout.cores > 1:
        found.append(devices)
    return tuple(found)


@lru_cache(maxsize=_KEPT)
def _touched(layout: Layout, chosen: Mask) -> tuple[tuple[Mask, tuple[Mask, ...]], ...]:
    """By size of block, the largest first: the columns of all that a choice touches, and which of
    them it takes in part."""
    found = []
    for level in blocks(layout):
        here = [block for block in level if block & chosen]
        found.append((_union(here), tuple(block for block in here if block & ~chosen)))
    return tuple(found)


@lru_cache(maxsize=_KEPT)
def _beside(layout: Layout, kind: str, chosen: Mask) -> tuple[tuple[Mask, ...], tuple[Mask, ...]]:
    """What lies on both sides of a choice, outwards, until an end or all around."""
    unit = units(layout, kind)
    mine = [at for at, mask in enumerate(unit.masks) if mask & chosen]
    sides = []
    for step in (-1, 1):
        edges = [at for at in mine if unit.after(at, step) not in mine]
        at = unit.after(edges[0], step) if len(edges) == 1 else None
        side: list[Mask] = []
        while at is not None and at not in mine:
            side.append(unit.masks[at])
            at = unit.after(at, step)
        sides.append(tuple(side))
    return sides[0], sides[1]


def broken(layout: Layout, chosen: Mask, free: Mask) -> Cost:
    """By size of block, the largest first: how many free ones are taken in part."""
    return tuple(
        [sum([block & free == block for block in cut]) for _, cut in _touched(layout, chosen)]
    )


def cost(layout: Layout, kind: str, chosen: Mask, free: Mask) -> Cost:
    return (*broken(layout, chosen, free), *left_over(layout, kind, chosen, free))


def left_over(layout: Layout, kind: str, chosen: Mask, free: Mask) -> Cost:
    left = free & ~chosen
    if layout.shape == "rows":
        return tuple([(here & left).bit_count() for here, _ in _touched(layout, chosen)[::-1]])
    sides = _beside(layout, kind, chosen)
    before, after = (_stretch(side, left) for side in sides)
    if sides[0] and before == len(sides[0]) == len(sides[1]) == after and is_ring(layout):
        return before, 0  # all around
    return before + after, min(before, after)


def is_ring(layout: Layout) -> bool:
    return units(layout, "whole").is_ring


def _stretch(side: Sequence[Mask], left: Mask) -> int:
    """How many are free, one after the other."""
    for count, mask in enumerate(side):
        if mask & left != mask:
            return count
    return len(side)


class Choice(Struct, frozen=True):
    """Per request the columns that it gets."""

    masks: tuple[Mask, ...]

    @property
    def together(self) -> Mask:
        return _union(self.masks)


@lru_cache(maxsize=_KEPT)
def choose(layout: Layout, free: Mask, asks: Asks) -> Choice | None:
    """The best windows for all requests, or None."""
    if len(asks) == 1:
        (ask,) = asks
        found = _best(layout, ask, free)
        return None if found is None else Choice((found,))
    return _Search(layout, free, asks).found()


def _best(layout: Layout, ask: DeviceAsk, free: Mask) -> Mask | None:
    fitting = [w for w in windows(layout, ask.kind, ask.amount) if w & free == w]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    return min(fitting, key=lambda w: cost(layout, ask.kind, w, free))


class _Search:
    """Windows for several requests. Two that run at the same time share nothing; nor do those for
    devices and those for cores, which are counted apart."""

    def __init__(self, layout: Layout, free: Mask, asks: Asks) -> None:
        self._layout, self._free, self._asks = layout, free, asks
        columns = [ask.amount * (1 if ask.kind == "core" else layout.cores) for ask in asks]
        self._order = sorted(range(len(asks)), key=lambda i: -columns[i])
        self._chosen: dict[int, Mask] = {}
        self._tried = 0

    def found(self) -> Choice | None:
        if not self._serve(0):
            return None
        return Choice(tuple(self._chosen[i] for i in range(len(self._asks))))

    def _serve(self, number: int) -> bool:
        if number == len(self._order):
            return True
        i = self._order[number]
        for window in self._ways(i):
            self._tried += 1
            if self._tried > MANY:
                return False
            self._chosen[i] = window
            if self._serve(number + 1):
                return True
            del self._chosen[i]
        return False

    def _ways(self, i: int) -> list[Mask]:
        """The best first: what the pod has anyhow, then what costs least."""
        ask, layout = self._asks[i], self._layout
        blocked = _union(m for j, m in self._chosen.items() if _clash(self._asks, i, j))
        own = _union(self._chosen.values())
        usable, free = self._free & ~blocked, self._free & ~own
        ways = [w for w in windows(layout, ask.kind, ask.amount) if w & usable == w]
        return sorted(
            ways, key=lambda w: ((w & ~own).bit_count(), cost(layout, ask.kind, w, free | w))
        )


def _clash(asks: Asks, i: int, j: int) -> bool:
    """Requests are in the order in which their containers start."""
    one, other = asks[min(i, j)], asks[max(i, j)]
    if one.kind != other.kind or one.container == other.container:
        return True
    if "init" not in (one.phase, other.phase):
        return True
    return one.phase == "sidecar" and other.phase == "init"


@lru_cache(maxsize=_KEPT)
def look(layout: Layout, free: Mask, asks: Asks, policy: Policy) -> int:
    """0 to 99 for what the choice costs the pool, or why there is none. Binpack: the smaller the
    blocks that are broken into, the better; then the less stays free beside it. Spread: the more
    stays free."""
    choice = choose(layout, free, asks)
    if choice is None:
        return UNSUPPORTED if unsupported(layout, asks) is not None else SHORT
    chosen = choice.together
    if policy == "spread":
        return 99 * (free & ~chosen).bit_count() // (len(layout.indexes) * layout.cores)
    levels = broken(layout, chosen, free)
    first = next((level for level, count in enumerate(levels) if count), len(levels))
    band = 100 // (len(levels) + 1)
    return first * band + (band - 1) * (FULL - _share(layout, asks, chosen, free)) // FULL


def _share(layout: Layout, asks: Asks, chosen: Mask, free: Mask) -> int:
    """0 to FULL: what stays free in the blocks that are touched, the smaller ones counting more; or
    of the stretch. How full the rest of the pool is does not count: measured, fewer large requests
    find room when it does."""
    left, size = free & ~chosen, len(layout.indexes) * layout.cores
    by_core = any(ask.kind == "core" for ask in asks)
    if layout.shape != "rows":
        beside = left.bit_count()
        if len(asks) == 1:
            one = 1 if by_core else layout.cores
            beside = one * left_over(layout, asks[0].kind, chosen, free)[0]
        return FULL * beside // size
    levels = _touched(layout, chosen)[1 : None if by_core or layout.cores == 1 else -1]
    total = weights = 0
    for depth, (here, _) in enumerate(levels):
        if here:
            total += (FULL << depth) * (here & left).bit_count() // here.bit_count()
        weights += 1 << depth
    return total // max(weights, 1)


def unsupported(layout: Layout, asks: Iterable[DeviceAsk]) -> DeviceAsk | None:
    """The first request that such a pool never serves."""
    return next((ask for ask in asks if not windows(layout, ask.kind, ask.amount)), None)


def refusal(machine: str, ask: DeviceAsk) -> str:
    """In the words of Neuron's own extension."""
    what = "core" if ask.kind == "core" else "device"
    return (
        f"Instance type {machine or 'unknown'} does not support requests for {what}: "
        f"{ask.amount}. Please request a different number of {what}s."
    )


def held_of(asks: Asks, choice: Choice, pool: Pool, node: str) -> list[Held]:
    """The choice, written down by container and resource."""
    assert pool.layout is not None
    found = []
    for ask, mask in zip(asks, choice.masks, strict=True):
        if ask.kind == "core":
            numbers = units(pool.layout, "core")
            given = [
                HeldDevice(str(number), number, 1)
                for number, bit in zip(numbers.numbers, numbers.masks, strict=True)
                if bit & mask
            ]
        else:
            whole = units(pool.layout, "whole").masks
            given = [
                HeldDevice(device.id, device.index, 1)
                for device, bits in zip(pool.devices, whole, strict=True)
                if bits & mask
            ]
        found.append(Held(ask.container, ask.resource, node, tuple(given)))
    return found


def _union(masks: Iterable[Mask]) -> Mask:
    found = 0
    for mask in masks:
        found |= mask
    return found
