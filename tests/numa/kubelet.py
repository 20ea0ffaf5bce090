"""A kubelet's topology manager, as slow and as plain as can be: every hint of every resource, every
way to merge them. It has managers that are static, and admits pods one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product

from msgspec import Struct

from bayplan.core.model.numa import together
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

    def admits(self, name: str, row: RowKey) -> bool:
        """Whether the pod may start; then it holds what it gets."""
        before = [dict(zone) for zone in self.free]
        held: list[tuple[int, str, int]] = []
        asks: Iterable[ZoneAsk] = row.aligned
        if self.scope == "pod" and row.aligned:
            asks = (ZoneAsk(together(row.aligned)),)
        for ask in asks:
            zones = self.merged(ask.amounts)
            if zones is None:
                self.free = before
                return False
            if ask.phase != "init":
                held += self._allocate(ask.amounts, zones)
        self.given[name] = held
        return True

    def ends(self, name: str) -> None:
        for zone, resource, amount in self.given.pop(name):
            self.free[zone][resource] += amount

    def _masks(self) -> list[Mask]:
        every = range(len(self.there))
        return [frozenset(c) for n in range(1, len(self.there) + 1) for c in combinations(every, n)]

    def hints(self, resource: str, amount: int) -> list[Hint]:
        if not any(resource in zone for zone in self.there):
            return [Hint(None, True)]
        could = [m for m in self._masks() if _sum(self.there, m, resource) >= amount]
        least = min((len(mask) for mask in could), default=0)
        return [
            Hint(mask, len(mask) == least)
            for mask in self._masks()
            if _sum(self.free, mask, resource) >= amount
        ] or [Hint(None, False)]

    def merged(self, amounts: Amounts) -> Mask | None:
        """The zones that are given, or None where the pod is refused."""
        everywhere = frozenset(range(len(self.there)))
        every = [self.hints(name, amount) for name, amount in amounts]
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


def _sum(zones: Sequence[Mapping[str, int]], mask: Mask, resource: str) -> int:
    return sum(zones[zone].get(resource, 0) for zone in mask)
