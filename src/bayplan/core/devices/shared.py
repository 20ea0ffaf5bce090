"""Shared devices: memory and a share of the compute of **one** device for each request.

`binpack` keeps cards whole. It minimises the tuple
    whole cards that are broken into,
    memory left over on the cards that are used,
    compute left over on them,
    the positions themselves.

`spread` keeps cards unshared. It minimises the tuple
    cards that get a second holder,
    holders that the cards have already,
    minus the memory that is free on them,
    the positions themselves.

One request is answered for many pools at once, exactly. Several requests of one pod, on one pool,
are answered exactly as long as that takes no more than a number of steps, where cards in the same
state count as one, and equal requests too. Beyond, it is the best of what was found so far, of the
largest request first on its cheapest card, and of the largest first on the card with least room.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from bayplan.core.state.arrays import Ints
from bayplan.core.state.pools import COMPUTE_BITS, Lines, Table

Policy = Literal["binpack", "spread"]

MANY = 4096  # steps of a search: about 10 ms
REFUSED = int(np.iinfo(np.int64).max)
_REFUSED = np.array(REFUSED)  # as an array: NumPy converts a Python number anew on every call
_COMPUTE = (1 << COMPUTE_BITS) - 1
_SMALLEST = np.minimum.reduce


class Request(Struct, frozen=True):
    """Of one device. Nothing of the compute is a request too: the card is shared in time."""

    memory: int
    compute: int = 0


class Card(Struct, frozen=True, order=True, cache_hash=True):
    """One card of one pool."""

    memory: int
    compute: int
    holders: int

    def takes(self, request: Request) -> bool:
        return self.memory >= request.memory and self.compute >= request.compute

    def after(self, request: Request) -> "Card":
        return Card(self.memory - request.memory, self.compute - request.compute, self.holders + 1)


def lowest(lines: Lines, request: Request, policy: Policy) -> Ints:
    """Per pool the number by which the policy orders its best card; REFUSED where none fits."""
    packing = lines.packing.T.copy()  # devices × lines: the smallest of each is found faster
    fits = lines.room.T.copy() >= request.memory
    if request.compute:
        fits &= (packing & _COMPUTE) >= request.compute
    numbers = packing if policy == "binpack" else lines.spreading.T
    found: Ints = _SMALLEST(np.where(fits, numbers, _REFUSED))
    return found


def best(table: Table, row: int, request: Request, policy: Policy) -> tuple[int, int]:
    """The position of the best card of one pool, or -1; and the number by which it is."""
    numbers = table.packing[row].tolist()
    order = numbers if policy == "binpack" else table.spreading[row].tolist()
    found, best = REFUSED, -1
    for position, room in enumerate(table.room[row].tolist()):
        enough = room >= request.memory and numbers[position] & _COMPUTE >= request.compute
        if enough and order[position] < found:
            found, best = order[position], position
    return best, found


def choose(
    cards: Sequence[Card | None], requests: Sequence[Request], policy: Policy, visits: int = MANY
) -> tuple[int, ...] | None:
    """A position for each request of a pod; None where they do not all fit. A card may serve
    several; None stands for one that may not be used. The search makes so many steps at most."""
    search = _Search(list(cards), tuple(requests), policy, visits)
    search.exactly()
    if search.visits < 0:  # cut short
        search.one_by_one(by_cost=True)
        search.one_by_one(by_cost=False)
    return None if search.found is None else search.found[1]


def cost(
    before: Sequence[Card | None], after: Sequence[Card | None], policy: Policy
) -> tuple[int, int, int]:
    """Of going from one state of a pool to another."""
    used = [
        (old, new)
        for old, new in zip(before, after, strict=True)
        if old is not None and new is not None and old != new
    ]
    if policy == "binpack":
        return (
            sum(old.holders == 0 for old, _ in used),
            sum(new.memory for _, new in used),
            sum(new.compute for _, new in used),
        )
    return (
        sum(old.holders < 2 <= new.holders for old, new in used),
        sum(old.holders for old, _ in used),
        -sum(old.memory for old, _ in used),
    )


Cost = tuple[int, int, int]


class _Search:
    """Over the cards of one pool; `found` is the best way so far, with its cost."""

    def __init__(
        self,
        cards: list[Card | None],
        requests: tuple[Request, ...],
        policy: Policy,
        visits: int,
    ) -> None:
        self._cards, self._requests, self._packs = cards, requests, policy == "binpack"
        self.visits = visits  # that are left; below 0, the search was cut short
        self.found: tuple[Cost, tuple[int, ...]] | None = None

    def exactly(self) -> None:
        self._extend(list(self._cards), (), (0, 0, 0))

    def _extend(self, now: list[Card | None], chosen: tuple[int, ...], cost: Cost) -> None:
        if len(chosen) == len(self._requests):
            self._offer(cost, chosen)
            return
        request = self._requests[len(chosen)]
        tried: set[tuple[Card, Card]] = set()  # before the pod, and now: equals are one
        for position in range(self._first(request, chosen), len(now)):
            card, at_first = now[position], self._cards[position]
            if card is None or at_first is None or not card.takes(request):
                continue
            if (at_first, card) in tried:
                continue
            tried.add((at_first, card))
            self.visits -= 1
            if self.visits < 0:
                return
            now[position] = card.after(request)
            self._extend(now, (*chosen, position), self._added(cost, at_first, card, request))
            now[position] = card

    def _first(self, request: Request, chosen: tuple[int, ...]) -> int:
        """Equal requests are served in the order of their cards: any other order is the same."""
        for i in range(len(chosen) - 1, -1, -1):
            if self._requests[i] == request:
                return chosen[i]
        return 0

    def _added(self, cost: Cost, at_first: Card, now: Card, request: Request) -> Cost:
        """The cost with one request more on a card, as `cost` says it of the whole."""
        first, second, third = cost
        fresh = now is at_first or now == at_first
        if self._packs:
            if fresh:
                memory, compute = now.memory - request.memory, now.compute - request.compute
                return first + (now.holders == 0), second + memory, third + compute
            return first, second - request.memory, third - request.compute
        first += now.holders == 1  # with this one it has two
        if fresh:
            second, third = second + at_first.holders, third - at_first.memory
        return first, second, third

    def _offer(self, cost: Cost, chosen: tuple[int, ...]) -> None:
        if self.found is None or (cost, chosen) < self.found:
            self.found = (cost, chosen)

    def one_by_one(self, by_cost: bool) -> None:
        """The largest request first, each on its best card; or on the one with the least room."""
        now, total = list(self._cards), (0, 0, 0)
        chosen = [0] * len(self._requests)
        order = sorted(
            range(len(chosen)),
            key=lambda i: (self._requests[i].memory, self._requests[i].compute),
            reverse=True,
        )
        for i in order:
            request = self._requests[i]
            ways = [
                ((self._added(total, first, card, request) if by_cost else (card.memory,)), at)
                for at, (card, first) in enumerate(zip(now, self._cards, strict=True))
                if card is not None and first is not None and card.takes(request)
            ]
            if not ways:
                return
            _, at = min(ways)
            card, first = now[at], self._cards[at]
            assert card is not None
            assert first is not None
            chosen[i], total = at, self._added(total, first, card, request)
            now[at] = card.after(request)
        self._offer(total, tuple(chosen))
