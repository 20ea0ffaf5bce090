"""What a pod wants of one class of devices, and how a pool serves all of it together.

Whole devices go first, on cards that nobody holds; where the shared requests then do not fit, they
go first, by the policy or else packed. Init containers run before the others and give back what
they had, so they get devices of the others': as wholes out of the same ones, as parts on the card
of the largest request, which counts as large as they need.
"""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from bayplan.core.devices import shared, whole
from bayplan.core.devices.shared import Card, Policy, Request
from bayplan.core.devices.whole import Topology
from bayplan.core.model.devices import Held, HeldDevice
from bayplan.core.model.holdings import at_once
from bayplan.core.model.nodes import Pool
from bayplan.core.model.pods import DeviceAsk


class Wanted(Struct, frozen=True, cache_hash=True):
    """Of one class. `count` whole devices in all, and each of `requests` on one device."""

    device_class: str
    count: int
    requests: tuple[Request, ...]
    wholes: tuple[DeviceAsk, ...] = ()
    parts: tuple[tuple[DeviceAsk, ...], ...] = ()  # by container: its memory and its compute
    served_by: tuple[int, ...] = ()  # per entry of `parts` the request that covers it
    consecutive: tuple[DeviceAsk, ...] = ()  # all of it, where devices must follow each other

    @property
    def needs_ids(self) -> bool:
        """Whether counting is not enough."""
        return bool(self.requests or self.consecutive)

    @property
    def resources(self) -> str:
        asks = (*self.wholes, *(ask for asks in self.parts for ask in asks), *self.consecutive)
        return ", ".join(dict.fromkeys(ask.resource for ask in asks))


class Choice(Struct, frozen=True, gc=False):
    """Positions in the pool, and what they cost (see the models)."""

    wholes: tuple[int, ...] = ()  # ascending
    parts: tuple[int, ...] = ()  # per request
    whole_cost: tuple[int, int, int] = (0, 0, 0)
    part_cost: tuple[int, int, int] = (0, 0, 0)


@lru_cache(maxsize=4096)
def wanted(asks: tuple[DeviceAsk, ...]) -> tuple[Wanted, ...]:
    """By class, in the order of first sight. Partitions are not of a node's own devices."""
    asks = tuple(ask for ask in asks if ask.kind != "partition")
    classes = dict.fromkeys(ask.device_class for ask in asks)
    return tuple(_wanted(name, [a for a in asks if a.device_class == name]) for name in classes)


def _wanted(name: str, asks: Sequence[DeviceAsk]) -> Wanted:
    if asks[0].consecutive:
        return Wanted(name, 0, (), consecutive=tuple(asks))
    wholes = tuple(ask for ask in asks if ask.kind == "whole")
    containers: dict[tuple[str, str], list[DeviceAsk]] = {}
    for ask in asks:
        if ask.kind != "whole":
            containers.setdefault((ask.phase, ask.container), []).append(ask)
    needs = [
        Request(
            sum(ask.memory_mib for ask in parts),
            sum(ask.amount for ask in parts if ask.kind == "compute"),
        )
        for parts in containers.values()
    ]
    phases = [phase for phase, _ in containers]
    requests, served_by = _with_init(phases, needs)
    return Wanted(
        name,
        at_once(wholes),
        tuple(requests),
        wholes,
        tuple(map(tuple, containers.values())),
        tuple(served_by),
    )


def _with_init(phases: list[str], needs: list[Request]) -> tuple[list[Request], list[int]]:
    """The requests of what runs together, one of them as large as every init container needs; and
    for each container the request that covers it."""
    standing = [i for i, phase in enumerate(phases) if phase != "init"]
    first = [i for i, phase in enumerate(phases) if phase == "init"]
    numbers = {i: number for number, i in enumerate(standing)}
    requests = [needs[i] for i in standing]
    if not first:
        return requests, [numbers[i] for i in range(len(needs))]
    if not standing:
        return [_larger(*(needs[i] for i in first))], [0] * len(needs)
    # A container that has not started is best: it only has to be as large. What else is on its
    # card is counted beside it.
    host = max(standing, key=lambda i: (phases[i] == "main", needs[i].memory, needs[i].compute))
    beside = [
        _sum(needs[i], needs[host]) if phases[host] == "sidecar" and host < i else needs[i]
        for i in first
    ]
    requests[numbers[host]] = _larger(needs[host], *beside)
    return requests, [numbers.get(i, numbers[host]) for i in range(len(needs))]


def _sum(one: Request, other: Request) -> Request:
    return Request(one.memory + other.memory, one.compute + other.compute)


def _larger(*requests: Request) -> Request:
    return Request(max(r.memory for r in requests), max(r.compute for r in requests))


def topology(pool: Pool) -> Topology:
    return _topology(tuple(device.numa for device in pool.devices), pool.links)


@lru_cache(maxsize=1024)
def _topology(numa: tuple[int, ...], links: tuple[tuple[int, ...], ...]) -> Topology:
    """One for all pools of a kind."""
    return Topology(numa, links)


def is_plain(pool: Pool) -> bool:
    """Whether any devices of the pool are as good as any others."""
    return not pool.links and len({device.numa for device in pool.devices}) < 2


def choose(
    want: Wanted,
    pool: Pool,
    cards: Sequence[Card | None],
    policy: Policy,
    visits: int = shared.MANY,
) -> Choice | None:
    """The best devices for all of it, or None. `cards` are the pool's; None: not to be used."""
    if not want.count:
        parts = shared.choose(cards, want.requests, policy, visits)
        if parts is None:
            return None
        return Choice((), parts, part_cost=_part_cost(want, cards, parts, policy))
    found = _wholes(want, pool, cards)
    if not want.requests or found is None:
        return None if found is None else Choice(found.devices, (), found.cost)
    rest = _without(cards, found.devices)
    parts = shared.choose(rest, want.requests, policy, visits)
    others: tuple[Policy, ...] = (policy, "binpack") if parts is None else ()
    for other in others:
        parts = shared.choose(cards, want.requests, other, visits)
        found = None if parts is None else _wholes(want, pool, _without(cards, parts))
        if found is not None:
            break
    if found is None or parts is None:
        return None
    return Choice(found.devices, parts, found.cost, _part_cost(want, cards, parts, policy))


def _wholes(want: Wanted, pool: Pool, cards: Sequence[Card | None]) -> whole.Choice | None:
    free = tuple(at for at, card in enumerate(cards) if card is not None and not card.holders)
    return whole.choose(topology(pool), free, want.count)


def _without(cards: Sequence[Card | None], taken: Sequence[int]) -> list[Card | None]:
    return [None if at in taken else card for at, card in enumerate(cards)]


def _part_cost(
    want: Wanted, cards: Sequence[Card | None], parts: Sequence[int], policy: Policy
) -> tuple[int, int, int]:
    after = list(cards)
    for request, at in zip(want.requests, parts, strict=True):
        card = after[at]
        assert card is not None
        after[at] = card.after(request)
    return shared.cost(cards, after, policy)


def held_of(want: Wanted, choice: Choice, pool: Pool, node: str) -> list[Held]:
    """The choice, written down by container and resource."""

    def held(ask: DeviceAsk, positions: Sequence[int], amount: int) -> Held:
        devices = (pool.devices[at] for at in positions)
        given = tuple(HeldDevice(each.id, each.index, amount) for each in devices)
        return Held(ask.container, ask.resource, node, given)

    found: list[Held] = []
    standing = 0
    for ask in want.wholes:
        found.append(held(ask, choice.wholes[standing : standing + ask.amount], 1))
        if ask.phase != "init":
            standing += ask.amount
    for asks, request in zip(want.parts, want.served_by, strict=True):
        found += [held(ask, [choice.parts[request]], ask.amount) for ask in asks]
    return found
