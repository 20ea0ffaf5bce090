"""A kubelet's topology manager, as slow and as plain as can be: every hint of every resource, every
way to merge them. It has managers that are static, and admits pods one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product

from msgspec import Struct

from bayplan.core.model.numa import is_memory, together
from bayplan.core.model.pods import RowKey, ZoneAsk

Amounts = Sequence[tuple[str, int]]
Mask = frozenset[int]


class Hint(Struct, frozen=True):
    zones: Mask | None  # None: any
    preferred: bool


class Kubelet:
    """`zones`: what each has, by resource. What a pod gets is in `given`, by pod."""

    def __init__(self, zones: Sequence[Mapping[str, int]], policy: str, scope: str) -> None:
        self.policy, self.scope = policy, scope
        self.there = [dict(zone) for zone in zones]
        self.free = [dict(zone) for zone in zones]
        self.given: dict[str, list[tuple[int, str, int]]] = {}
        self.reusable: dict[tuple[int, str], int] = {}  # of the pod's init containers

    def admits(self, name: str, row: RowKey) -> bool:
        """Whether the pod may start; then it holds what it gets."""
        before = [dict(zone) for zone in self.free]
        held: list[tuple[int, str, int]] = []
        asks: Iterable[ZoneAsk] = row.aligned
        if self.scope == "pod" and row.aligned:
            asks = (ZoneAsk(together(row.aligned)),)
        self.reusable = {}
        for ask in asks:
            zones = self.merged(ask.amounts)
            if zones is None:
                self.free = before
                return False
            got = self._allocate(ask.amounts, zones)
            if ask.phase == "init":
                self._lend(got)
                continue
            held += got
            for zone, resource, amount in got:
                left = self.reusable.get((zone, resource), 0)
                self.reusable[zone, resource] = max(left - amount, 0)
        self.given[name] = held
        return True

    def ends(self, name: str) -> None:
        for zone, resource, amount in self.given.pop(name):
            self.free[zone][resource] += amount

    def _lend(self, got: list[tuple[int, str, int]]) -> None:
        """What an init container has is for the containers after it: cpus and devices one by one,
        and as one may ask for more than the one before, the same ones first."""
        for zone, resource, amount in got:
            self.free[zone][resource] += amount
            if not is_memory(resource):
                left = self.reusable.get((zone, resource), 0)
                self.reusable[zone, resource] = max(left, amount)

    def _masks(self) -> list[Mask]:
        every = range(len(self.there))
        return [frozenset(c) for n in range(1, len(self.there) + 1) for c in combinations(every, n)]

    def hints(self, resource: str, amount: int, beside: Amounts = ()) -> list[Hint]:
        """`beside`: what else is asked for, whose zones must be the same if it is memory too."""
        if not any(resource in zone for zone in self.there):
            return [Hint(None, True)]
        if resource == "cpu" and not any(zone["cpu"] for zone in self.there):
            return [Hint(None, True)]  # the manager gives nobody cpus of their own
        asked = [(resource, amount)]
        if is_memory(resource):
            listed = {name for zone in self.there for name in zone}
            asked += [each for each in beside if is_memory(each[0]) and each[0] in listed]
        could = [m for m in self._masks() if _fits(self.there, m, asked)]
        least = min((len(mask) for mask in could), default=0)
        reused = {zone for (zone, name), left in self.reusable.items() if left and name == resource}
        return [
            Hint(mask, len(mask) == least)
            for mask in self._masks()
            if reused <= mask and _fits(self.free, mask, asked)
        ] or [Hint(None, False)]

    def merged(self, amounts: Amounts) -> Mask | None:
        """The zones that are given, or None where the pod is refused."""
        everywhere = frozenset(range(len(self.there)))
        every = [self.hints(name, amount, amounts) for name, amount in amounts]
        if self.policy == "single-numa-node":
            every = [
                [h for h in hints if h.preferred and (h.zones is None or len(h.zones) == 1)]
                for hints in every
            ]
        best: tuple[bool, int, list[int]] | None = None  # not preferred, size, zones
        for permutation in product(*every):
            masks = [hint.zones for hint in permutation if hint.zones is not None]
            preferred = all(hint.preferred for hint in permutation) and len(set(masks)) <= 1
            merged = sorted(everywhere.intersection(*masks))
            rank = (not preferred, len(merged), merged)
            if merged and (best is None or rank < best):
                best = rank
        found = None if best is None else frozenset(best[2])
        if self.policy in ("restricted", "single-numa-node"):
            return None if best is None or best[0] else found
        if self.policy == "best-effort":
            return found or everywhere
        return everywhere

    def _allocate(self, amounts: Amounts, zones: Mask) -> list[tuple[int, str, int]]:
        """Of the zones that were merged first, from the lowest; then anywhere."""
        held = []
        order = [*sorted(zones), *(z for z in range(len(self.free)) if z not in zones)]
        for name, amount in amounts:
            for zone in order:
                taken = min(amount, self.free[zone].get(name, 0))
                if taken:
                    self.free[zone][name] -= taken
                    held.append((zone, name, taken))
                    amount -= taken
        return held


def _fits(zones: Sequence[Mapping[str, int]], mask: Mask, asked: Amounts) -> bool:
    return all(sum(zones[z].get(name, 0) for z in mask) >= amount for name, amount in asked)
