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
are answered exactly as long as there are no more than 65,536 ways to serve them, where cards in
the same state count as one; beyond, the largest goes first and each takes its best.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from bayplan.core.state.arrays import Ints
from bayplan.core.state.pools import COMPUTE_BITS, Lines

Policy = Literal["binpack", "spread"]

FULL_COMPUTE = 100  # percent
MOST_WAYS = 1 << 16
REFUSED = np.iinfo(np.int64).max
_COMPUTE = (1 << COMPUTE_BITS) - 1


class Request(Struct, frozen=True):
    """Of one device. Nothing of the compute is a request too: the card is shared in time."""

    memory: int
    compute: int = 0


class Card(Struct, frozen=True, order=True):
    """One card of one pool."""

    memory: int
    compute: int
    holders: int

    def takes(self, request: Request) -> bool:
        return self.memory >= request.memory and self.compute >= request.compute

    def after(self, request: Request) -> "Card":
        return Card(self.memory - request.memory, self.compute - request.compute, self.holders + 1)


def best(lines: Lines, request: Request, policy: Policy) -> tuple[Ints, Ints]:
    """Per pool the best position, and the number by which the policy orders it; REFUSED where
    nothing fits."""
    fits = lines.room >= request.memory
    if request.compute:
        fits &= (lines.packing & _COMPUTE) >= request.compute
    cost = np.where(fits, lines.packing if policy == "binpack" else lines.spreading, REFUSED)
    position = cost.argmin(axis=1)
    return position, cost[np.arange(len(cost)), position]


def choose(
    cards: Sequence[Card | None], requests: Sequence[Request], policy: Policy
) -> tuple[int, ...] | None:
    """A position for each request of a pod; None where they do not all fit. A card may serve
    several; None stands for one that may not be used."""
    found = _Search(list(cards), list(requests), policy)
    if len({card for card in cards if card is not None}) ** len(requests) > MOST_WAYS:
        return found.greedily()
    return found.exactly()


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


class _Search:
    """Over the cards of one pool."""

    def __init__(self, cards: list[Card | None], requests: list[Request], policy: Policy) -> None:
        self._cards, self._requests, self._policy = cards, requests, policy
        self._found: tuple[tuple[int, int, int], tuple[int, ...]] | None = None

    def exactly(self) -> tuple[int, ...] | None:
        self._extend(list(self._cards), ())
        return None if self._found is None else self._found[1]

    def _extend(self, now: list[Card | None], chosen: tuple[int, ...]) -> None:
        if len(chosen) == len(self._requests):
            found = (cost(self._cards, now, self._policy), chosen)
            if self._found is None or found < self._found:
                self._found = found
            return
        request = self._requests[len(chosen)]
        tried: set[tuple[Card, Card]] = set()  # before the pod, and now: equals are one
        for position, card in enumerate(now):
            at_first = self._cards[position]
            if card is None or at_first is None or not card.takes(request):
                continue
            if (at_first, card) in tried:
                continue
            tried.add((at_first, card))
            now[position] = card.after(request)
            self._extend(now, (*chosen, position))
            now[position] = card

    def greedily(self) -> tuple[int, ...] | None:
        now = list(self._cards)
        chosen = [0] * len(self._requests)
        order = sorted(range(len(chosen)), key=lambda i: self._requests[i].memory, reverse=True)
        for i in order:
            request, costs = self._requests[i], []
            for position, card in enumerate(now):
                if card is not None and card.takes(request):
                    later = [*now[:position], card.after(request), *now[position + 1 :]]
                    costs.append((cost(self._cards, later, self._policy), position, later))
            if not costs:
                return None
            _, chosen[i], now = min(costs, key=lambda found: found[:2])
        return tuple(chosen)
