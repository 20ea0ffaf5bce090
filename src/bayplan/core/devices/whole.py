"""Whole devices: n of those that are free in a pool.

Minimises the tuple
    NUMA nodes that the choice touches,
    minus the links inside the choice (so that what works together is well joined),
    minus the links inside what stays free (so that the next choice can be),
    the positions themselves.

Exact for pools of up to 16 devices, by looking at every choice once per topology and free set, and
for pools of equal groups (links depend only on whether two devices are in one group) of up to 64.
Elsewhere it begins with each of the best joined devices in turn, adds the best one more, exchanges
while that helps, and says that it is not exact.
"""

from collections import Counter
from functools import lru_cache
from itertools import combinations

from msgspec import Struct

FEW = 16  # devices: every choice is looked at
_KEPT = 1 << 14  # choices
STARTS = 8

Cost = tuple[int, int, int]


class Topology(Struct, frozen=True, cache_hash=True):
    """The NUMA node of each device, and how well each two are joined. Pools of a kind share it."""

    numa: tuple[int, ...]
    links: tuple[tuple[int, ...], ...] = ()  # empty: all alike

    def cost(self, chosen: tuple[int, ...], free: tuple[int, ...]) -> Cost:
        left = tuple(device for device in free if device not in chosen)
        nodes = len({self.numa[device] for device in chosen})
        return nodes, -self.inside(chosen), -self.inside(left)

    def inside(self, devices: tuple[int, ...]) -> int:
        if not self.links:
            return 0
        return sum(self.links[a][b] for a, b in combinations(devices, 2))


class Choice(Struct, frozen=True):
    devices: tuple[int, ...]  # positions in the pool, ascending
    cost: Cost
    exact: bool = True


@lru_cache(maxsize=_KEPT)
def choose(topology: Topology, free: tuple[int, ...], count: int) -> Choice | None:
    """The best `count` of the free positions, which ascend; None where there are not so many."""
    if count < 1 or count > len(free):
        return None
    if len(topology.numa) <= FEW:
        return min(
            (Choice(chosen, topology.cost(chosen, free)) for chosen in combinations(free, count)),
            key=lambda choice: (choice.cost, choice.devices),
        )
    groups = equal_groups(topology)
    if groups is not None:
        return by_groups(topology, groups, free, count)
    return by_exchanges(topology, free, count)


@lru_cache(maxsize=1024)
def equal_groups(topology: Topology) -> tuple[tuple[int, ...], ...] | None:
    """The groups, where links say only whether two devices are in one, and a group is on one NUMA
    node; None where there are none such."""
    size = len(topology.numa)
    seen = {link for i, line in enumerate(topology.links) for link in line[i + 1 :]}
    if len(seen) <= 1:  # all are joined alike, so only NUMA nodes differ
        nodes = dict.fromkeys(topology.numa)
        return tuple(tuple(d for d in range(size) if topology.numa[d] == node) for node in nodes)
    near = max(seen)
    groups: list[tuple[int, ...]] = []
    for device in range(size):
        if any(device in group for group in groups):
            continue
        line = topology.links[device]
        groups.append(tuple(d for d in range(size) if d == device or line[d] == near))
    far = {
        topology.links[a][b] for one, other in combinations(groups, 2) for a in one for b in other
    }
    joined = all(topology.links[a][b] == near for g in groups for a, b in combinations(g, 2))
    together = all(len({topology.numa[d] for d in group}) == 1 for group in groups)
    apart = sum(map(len, groups)) == size
    return tuple(groups) if joined and together and apart and len(far) <= 1 else None


def by_groups(
    topology: Topology, groups: tuple[tuple[int, ...], ...], free: tuple[int, ...], count: int
) -> Choice:
    """How many of each group, by dynamic programming.

    With links near inside a group and far between groups, the links inside a set depend only on the
    sum of squares of its parts; and tuples compare alike after the same is added to both. So the
    best for a number of devices is the best for fewer and the next group.
    """
    by_node: dict[int, list[tuple[int, ...]]] = {}
    for group in groups:
        here = tuple(device for device in group if device in free)
        by_node.setdefault(topology.numa[group[0]], []).append(here)
    best: dict[int, _Plan] = {0: ((0, 0, 0), ())}
    for parts in by_node.values():
        inner: dict[int, _Plan] = {0: ((0, 0, 0), ())}
        for part in parts:
            inner = _with(inner, {take: _part(part, take) for take in range(len(part) + 1)}, count)
        touched = {
            take: ((cost[0] + (take > 0), *cost[1:]), devices)
            for take, (cost, devices) in inner.items()
        }
        best = _with(best, touched, count)
    chosen = tuple(sorted(best[count][1]))
    return Choice(chosen, topology.cost(chosen, free))


_Plan = tuple[Cost, tuple[int, ...]]  # what it costs, and the devices


def _part(part: tuple[int, ...], take: int) -> _Plan:
    return (0, -take * take, -((len(part) - take) ** 2)), part[:take]


def _with(so_far: dict[int, _Plan], more: dict[int, _Plan], most: int) -> dict[int, _Plan]:
    """The best plan for each number of devices, one part of which comes from each side."""
    found: dict[int, _Plan] = {}
    for taken, (cost, devices) in so_far.items():
        for take, (added, others) in more.items():
            if taken + take <= most:
                total = tuple(a + b for a, b in zip(cost, added, strict=True))
                plan: _Plan = (total[0], total[1], total[2]), devices + others
                if taken + take not in found or plan < found[taken + take]:
                    found[taken + take] = plan
    return found


def by_exchanges(topology: Topology, free: tuple[int, ...], count: int) -> Choice:
    """Good, but perhaps not the best."""
    sums = {device: sum(_link(topology, device, other) for other in free) for device in free}
    starts = sorted(free, key=lambda device: (-sums[device], device))[:STARTS]
    found = [_Exchanges(topology, free, start, count).best() for start in starts]
    best = min(found, key=lambda devices: (topology.cost(devices, free), devices))
    return Choice(best, topology.cost(best, free), exact=False)


def _link(topology: Topology, one: int, other: int) -> int:
    return topology.links[one][other] if topology.links and one != other else 0


class _Exchanges:
    """Begins with one device, adds the best one more, then exchanges while that helps. What a step
    changes follows from each device's links to the chosen and to the rest, kept as sums."""

    def __init__(self, topology: Topology, free: tuple[int, ...], start: int, count: int) -> None:
        self._topology, self._free = topology, free
        self._chosen: set[int] = set()
        self._inside = dict.fromkeys(free, 0)  # by device: its links to the chosen
        self._all = {d: sum(_link(topology, d, other) for other in free) for d in free}
        self._nodes: Counter[int] = Counter()
        self._put(start)
        while len(self._chosen) < count:
            self._put(min(self._rest(), key=lambda device: (self._change(None, device), device)))

    def best(self) -> tuple[int, ...]:
        while True:
            rest = self._rest()
            ways = [(self._change(out, come), out, come) for out in self._chosen for come in rest]
            change, out, come = min(ways, default=((0, 0, 0), 0, 0))
            if change >= (0, 0, 0):
                return tuple(sorted(self._chosen))
            self._take(out)
            self._put(come)

    def _rest(self) -> list[int]:
        return [device for device in self._free if device not in self._chosen]

    def _put(self, device: int) -> None:
        self._move(device, 1)
        self._chosen.add(device)

    def _take(self, device: int) -> None:
        self._move(device, -1)
        self._chosen.remove(device)

    def _move(self, device: int, sign: int) -> None:
        self._nodes[self._topology.numa[device]] += sign
        for other in self._free:
            self._inside[other] += sign * _link(self._topology, device, other)

    def _change(self, out: int | None, come: int) -> Cost:
        """Of the cost, when one goes and another comes."""
        numa, inside, nodes = self._topology.numa, self._inside, self._nodes
        if out is None:
            touched = int(nodes[numa[come]] == 0)
            return touched, -inside[come], self._all[come] - inside[come]
        between = _link(self._topology, out, come)
        gain = inside[come] - between - inside[out]
        left = (self._all[out] - inside[out]) - (self._all[come] - inside[come]) - between
        touched = 0
        if numa[out] != numa[come]:
            touched = int(nodes[numa[come]] == 0) - int(nodes[numa[out]] == 1)
        return touched, -gain, -left
