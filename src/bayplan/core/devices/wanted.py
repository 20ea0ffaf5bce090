"""What a pod wants of one class of devices, and how a pool serves all of it together.

Whole devices go first, on cards that nobody holds; where the shared requests then do not fit, they
go first. Init containers run before the others and give back what they had, so they get devices of
the others' where they can: as wholes out of the same ones, as parts on the card of the first
request, which counts as large as the largest of theirs.
"""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from bayplan.core.devices import shared, whole
from bayplan.core.devices.shared import Card, Policy, Request
from bayplan.core.devices.whole import Topology
from bayplan.core.model.devices import Held, HeldDevice
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

    @property
    def resources(self) -> str:
        asks = (*self.wholes, *(ask for asks in self.parts for ask in asks))
        return ", ".join(dict.fromkeys(ask.resource for ask in asks))


class Choice(Struct, frozen=True):
    """Positions in the pool, and what they cost (see the models)."""

    wholes: tuple[int, ...] = ()  # ascending
    parts: tuple[int, ...] = ()  # per request
    whole_cost: tuple[int, int, int] = (0, 0, 0)
    part_cost: tuple[int, int, int] = (0, 0, 0)


@lru_cache(maxsize=4096)
def wanted(asks: tuple[DeviceAsk, ...]) -> tuple[Wanted, ...]:
    """By class, in the order of first sight."""
    classes = dict.fromkeys(ask.device_class for ask in asks)
    return tuple(_wanted(name, [a for a in asks if a.device_class == name]) for name in classes)


def _wanted(name: str, asks: Sequence[DeviceAsk]) -> Wanted:
    wholes = tuple(ask for ask in asks if ask.kind == "whole")
    containers: dict[tuple[str, str], list[DeviceAsk]] = {}
    for ask in asks:
        if ask.kind != "whole":
            containers.setdefault((ask.phase, ask.container), []).append(ask)
    requests: list[Request] = []
    served_by: list[int] = []
    first = Request(0, 0)  # what the largest of the init containers needs
    for (phase, _), parts in containers.items():
        request = Request(
            sum(ask.memory_mib for ask in parts),
            sum(ask.amount for ask in parts if ask.kind == "compute"),
        )
        if phase == "init":
            first = _larger(first, request)
            served_by.append(0)
        else:
            served_by.append(len(requests))
            requests.append(request)
    if first != Request(0, 0):
        requests[:1] = [_larger(first, requests[0]) if requests else first]
    return Wanted(
        name,
        _most_wholes(wholes),
        tuple(requests),
        wholes,
        tuple(map(tuple, containers.values())),
        tuple(served_by),
    )


def _larger(one: Request, other: Request) -> Request:
    return Request(max(one.memory, other.memory), max(one.compute, other.compute))


def _most_wholes(wholes: Sequence[DeviceAsk]) -> int:
    most = standing = 0
    for ask in wholes:
        if ask.phase == "init":
            most = max(most, standing + ask.amount)
        else:
            standing += ask.amount
    return max(most, standing)


@lru_cache(maxsize=1 << 16)
def topology(pool: Pool) -> Topology:
    return _topology(tuple(device.numa for device in pool.devices), pool.links)


@lru_cache(maxsize=1024)
def _topology(numa: tuple[int, ...], links: tuple[tuple[int, ...], ...]) -> Topology:
    """One for all pools of a kind."""
    return Topology(numa, links)


@lru_cache(maxsize=1 << 16)
def is_plain(pool: Pool) -> bool:
    """Whether any devices of the pool are as good as any others."""
    return not pool.links and len({device.numa for device in pool.devices}) < 2


def choose(want: Wanted, pool: Pool, cards: Sequence[Card | None], policy: Policy) -> Choice | None:
    """The best devices for all of it, or None. `cards` are the pool's; None: not to be used."""
    if not want.count:
        parts = shared.choose(cards, want.requests, policy)
        if parts is None:
            return None
        return Choice((), parts, part_cost=_part_cost(want, cards, parts, policy))
    found, parts = _wholes(want, pool, cards), ()
    if want.requests and found is not None:
        rest = _without(cards, found.devices)
        parts = shared.choose(rest, want.requests, policy)
        if parts is None:
            parts = shared.choose(cards, want.requests, policy)
            found = None if parts is None else _wholes(want, pool, _without(cards, parts))
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
