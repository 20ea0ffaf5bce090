"""Devices: refuses nodes whose devices do not serve the pod, scores what serving it costs there,
and says which devices it gets. On nodes that publish none, wholes are only counted (by
NodeResourcesFit) and the node's own device plugin chooses.

The score is the model's cost as 0 to 99. Shared, binpack: nodes where fewer whole cards are broken
into first, then the least memory left over. Shared, spread: nodes where fewer cards get a second
holder first, then cards with fewer holders, then the pool with more memory free. Whole: how well
the devices are joined against the best that the pool could ever give, and how full (binpack) or
empty (spread) the pool becomes, in equal parts. Contiguous: see the model.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from msgspec import Struct

from bayplan.core.devices import contiguous, numa, shared, whole
from bayplan.core.devices.shared import Card, Policy
from bayplan.core.devices.wanted import (
    Choice,
    Wanted,
    choose,
    held_of,
    is_plain,
    topology,
    wanted,
)
from bayplan.core.model.devices import Held
from bayplan.core.model.nodes import Layout, Pool
from bayplan.core.model.pods import RowKey
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins import hooks
from bayplan.core.plugins.hooks import Ask, Reads, Refuser, Scorer
from bayplan.core.plugins.parts import CROWD, OnePart, spread_inner, tightness
from bayplan.core.plugins.resources import FREED
from bayplan.core.state.arrays import Codes, Ints, Mask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.ordered import NO_POOL, Ordered
from bayplan.core.state.pools import TOTAL, Lines, Table
from bayplan.core.state.view import View

_NONE = np.array(0)  # as an array: NumPy converts a Python number anew on every call
UNKNOWN, UNPUBLISHED, SHORT = 1, 2, 4  # bits of a class's reasons …
FLAGS, NUMBERS = 3, 6  # … and above them the number of a kind of machine that never serves it
BITS = FLAGS + NUMBERS
FEW_VISITS = 80  # of the search on each of many nodes: two requests on 8 cards
_SAID = frozenset({*FREED, EventKind.NODE_CHANGED})
_PUBLISHED = frozenset({EventKind.NODE_ADDED, EventKind.NODE_GREW})


class DevicesArgs(Struct, frozen=True, forbid_unknown_fields=True):
    policy: Policy = "binpack"


class Answer(Struct, frozen=True):
    """What the rows of a view say to what a pod wants of a class."""

    unknown: Ints  # as in Lines
    fits: Mask
    score: Ints | None  # None: nobody has asked for it yet


class Devices:
    name = "Devices"
    reads = Reads.LOAD
    Args = DevicesArgs

    def __init__(self, args: DevicesArgs = DevicesArgs()) -> None:  # noqa: B008
        self._policy: Policy = args.policy
        self._kinds: dict[Layout, int] = {}  # of machines that do not serve a number of devices

    def concerns(self, row: RowKey) -> bool:
        return bool(row.devices)

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        codes: Codes | None = None
        for number, want in enumerate(wanted(ask.row.devices)):
            more = self._refusals(want, view)
            if more is not None:
                if number:
                    more = more << BITS * number
                codes = more if codes is None else codes | more
        return codes

    def refuser(self, ask: Ask) -> Refuser:
        part = self._one_part(ask)
        if part is None:
            return partial(self.refuse, ask)
        return cast(Refuser, part.refused)  # any code but 0 refuses, and so does True

    def _one_part(self, ask: Ask) -> OnePart | None:
        """If that is all that the pod asks for."""
        key = (self, OnePart)
        if key not in ask.demand.memo:
            wants = wanted(ask.row.devices)
            part = None
            if len(wants) == 1 and is_one_part(wants[0]):
                part = OnePart(wants[0].device_class, wants[0].requests[0], self._policy)
            ask.demand.memo[key] = part
        found: OnePart | None = ask.demand.memo[key]
        return found

    def _refusals(self, want: Wanted, view: View) -> Codes | None:
        """Wholes are only counted where no pool is known."""
        if want.consecutive:
            refusals: Codes = np.maximum(-self._side_by_side(want, view), _NONE)
            return refusals
        answer = self._answer(want, view)
        if answer is None:
            return np.full(len(view), UNPUBLISHED) if want.needs_ids else None
        fits = answer.fits
        if not view.exact and want.requests:
            return cast(Codes, ~fits)
        codes: Codes = np.where(answer.unknown > 0, UNKNOWN, np.where(fits, 0, SHORT))
        codes[answer.unknown == NO_POOL] = UNPUBLISHED if want.requests else 0
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return [
            reason
            for want in wanted(ask.row.devices)
            for reason in (*_flagged(want), *[_never(want, None)] * NUMBERS)
        ]

    def explain(self, ask: Ask, code: int) -> Sequence[Reason]:
        found = []
        for number, want in enumerate(wanted(ask.row.devices)):
            bits = code >> BITS * number & (1 << BITS) - 1
            found += [each for flag, each in enumerate(_flagged(want)) if bits >> flag & 1]
            if kind := bits >> FLAGS:
                layout = next((each for each, n in self._kinds.items() if n == kind), None)
                found.append(_never(want, layout))
        return found

    def score(self, ask: Ask, view: View) -> Ints | None:
        total: Ints | None = None
        wants = wanted(ask.row.devices)
        for want in wants:
            score = self._score(want, view)
            if score is not None:
                total = score if total is None else total + score
        return total if total is None or len(wants) == 1 else total // len(wants)

    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer:
        part = self._one_part(ask)
        return partial(self.score, ask) if part is None else part.score

    def _score(self, want: Wanted, view: View) -> Ints | None:
        if want.consecutive:
            score: Ints = np.maximum(self._side_by_side(want, view), _NONE)
            return score
        answer = self._answer(want, view)
        if answer is None:
            return None
        return self._by_pool(want, view)[1] if answer.score is None else answer.score

    def choose(self, ask: Ask, row: int, cluster: Cluster) -> Sequence[Held]:
        held: list[Held] = []
        for want in wanted(ask.row.devices):
            pool = pool_of(cluster, row, want.device_class)
            if pool is None:
                continue
            if want.consecutive:
                held += self._windows(want, pool, cluster, row)
                continue
            zones = None
            if want.wholes and cluster.zones.topologies:
                name, resource = cluster.name(row), want.wholes[0].resource
                zones = numa.zones_for_devices(cluster, name, ask.row, resource)
            table = cluster.pools.tables[want.device_class]
            found = None if zones is None else self._choice(want, pool, table, row, zones)
            if found is None:
                found = self._choice(want, pool, table, row)
            assert found is not None, f"{want.device_class} devices of row {row} were found to fit"
            held += held_of(want, found, pool, cluster.name(row))
        return held

    def _windows(self, want: Wanted, pool: Pool, cluster: Cluster, row: int) -> list[Held]:
        assert pool.layout is not None
        free = cluster.pools.ordered[want.device_class].free[row]
        found = contiguous.choose(pool.layout, free, want.consecutive)
        assert found is not None, f"{want.device_class} devices of row {row} were found to fit"
        return contiguous.held_of(want.consecutive, found, pool, cluster.name(row))

    def _choice(
        self, want: Wanted, pool: Pool, table: Table, row: int, zones: set[int] | None = None
    ) -> Choice | None:
        """`zones`: the NUMA zones that devices must come from, if not from any."""
        if not is_one_part(want):
            cards = cards_of(table.cells[row], table.room[row], len(pool.devices))
            if zones is not None:
                devices = zip(cards, pool.devices, strict=True)
                cards = [card if device.numa in zones else None for card, device in devices]
            return choose(want, pool, cards, self._policy)
        position, _ = shared.best(table, row, want.requests[0], self._policy)
        return None if position < 0 else Choice(parts=(position,))

    def _answer(self, want: Wanted, view: View) -> Answer | None:
        key = (self, want)
        if key not in view.answers:
            lines = view.lines(want.device_class)
            view.answers[key] = None if lines is None else self._worked_out(want, view, lines)
        answer: Answer | None = view.answers[key]
        return answer

    def _worked_out(self, want: Wanted, view: View, lines: Lines) -> Answer:
        if is_one_part(want):
            part = OnePart(want.device_class, want.requests[0], self._policy)
            found = part.looked(view, view.cluster.pools.tables[want.device_class])
            return Answer(lines.unknown, found.fits, found.score)
        if want.requests:
            return Answer(lines.unknown, *self._by_pool(want, view))
        _, free = usable_and_free(lines)  # wholes fit where enough are free, and only there
        return Answer(lines.unknown, (lines.unknown == _NONE) & (free >= want.count), None)

    def _side_by_side(self, want: Wanted, view: View) -> Ints:
        """Per row the score, or below 0 the code of the refusal."""
        key = (self, want)
        if key not in view.answers:
            table = view.cluster.pools.ordered.get(want.device_class)
            rows = view.row_numbers.tolist()
            looks = (
                [-UNPUBLISHED] * len(rows)
                if table is None
                else [self._look(want, table, row) for row in rows]
            )
            view.answers[key] = np.array(looks, dtype=np.int64)
        found: Ints = view.answers[key]
        return found

    def _look(self, want: Wanted, table: Ordered, row: int) -> int:
        if unknown := table.unknown[row]:
            return -UNPUBLISHED if unknown == NO_POOL else -UNKNOWN
        layout = table.layouts[row]
        if layout is None:
            return -SHORT
        # what was found for a layout and what is free in it is kept
        look = contiguous.look(layout, table.free[row], want.consecutive, self._policy)
        if look == contiguous.UNSUPPORTED:
            return -(self._kind(layout) << FLAGS)
        return -SHORT if look == contiguous.SHORT else look

    def _kind(self, layout: Layout) -> int:
        """A number for the kind of machine; the last one is for all that come late."""
        last = (1 << NUMBERS) - 1
        if len(self._kinds) < last - 1:
            return self._kinds.setdefault(layout, len(self._kinds) + 1)
        return self._kinds.get(layout, last)

    def _by_pool(self, want: Wanted, view: View) -> tuple[Mask, Ints]:
        """Pool by pool, where more than one device is wanted. Pools in one state count once."""
        lines = view.lines(want.device_class)
        assert lines is not None
        cells, room = lines.cells, lines.room
        usable, free = usable_and_free(lines)
        fits: Mask = (lines.unknown == 0) & (free >= want.count)
        if want.requests:
            fits &= room.max(axis=1) >= max(request.memory for request in want.requests)
        score = np.zeros(len(view), dtype=np.int64)
        known: dict[tuple[Any, ...], int | None] = {}
        rows = view.row_numbers
        for at in np.flatnonzero(fits).tolist():
            pool = pool_of(view.cluster, int(rows[at]), want.device_class)
            assert pool is not None
            if not want.requests and is_plain(pool):
                key: tuple[Any, ...] = (int(free[at]), int(usable[at].sum()), len(pool.devices))
            else:
                key = (topology(pool), cells[at].tobytes(), usable[at].tobytes())
            if key not in known:
                cards = cards_of(cells[at], room[at], len(pool.devices))
                known[key] = self._pool_score(want, pool, cards)
            found = known[key]
            fits[at], score[at] = found is not None, found or 0
        return fits, score

    def _pool_score(self, want: Wanted, pool: Pool, cards: list[Card | None]) -> int | None:
        """What serving it costs the pool, as a score; None where it cannot."""
        choice = choose(want, pool, cards, self._policy, FEW_VISITS)
        if choice is None:
            return None
        scores = []
        if want.count:
            scores.append(whole_score(want, pool, cards, choice, self._policy))
        if want.requests:
            total = sum(device.memory_mib for device in pool.devices)
            scores.append(parts_score(want, cards, choice, total, self._policy))
        return sum(scores) // len(scores)


def _flagged(want: Wanted) -> tuple[Reason, Reason, Reason]:
    """What UNKNOWN, UNPUBLISHED and SHORT say."""
    short = "too few free devices" if want.count else "no device with enough room"
    if want.consecutive:
        short = "no free devices side by side"
    return (
        Reason(f"node(s) had {want.device_class} devices that are not known", True, _SAID),
        Reason(f"node(s) did not publish the devices for {want.resources}", False, _PUBLISHED),
        Reason(f"node(s) had {short} for {want.resources}", True, _SAID),
    )


def _never(want: Wanted, layout: Layout | None) -> Reason:
    """What a machine says that never serves such a request."""
    asks = want.consecutive
    ask = None if layout is None else contiguous.unsupported(layout, asks)
    if layout is None or ask is None:
        return Reason(f"node(s) never serve {want.resources} in such numbers", False, _PUBLISHED)
    return Reason(contiguous.refusal(layout.type, ask), False, _PUBLISHED)


def usable_and_free(lines: Lines) -> tuple[Mask, Ints]:
    """Which devices may be given, and per line how many of them nobody holds."""
    usable: Mask = lines.room >= _NONE
    free: Ints = (usable & (lines.holders == _NONE)).sum(axis=1)
    return usable, free


def is_one_part(want: Wanted) -> bool:
    return not want.count and len(want.requests) == 1


def parts_score(
    want: Wanted, cards: Sequence[Card | None], choice: Choice, total: int, policy: Policy
) -> int:
    """The same for several requests, on one pool: as many bands as cards may be broken into."""
    count = len(want.requests)
    band = 100 // (count + 1)
    first, second, _ = choice.part_cost
    if policy == "binpack":
        asked = sum(request.memory for request in want.requests)
        inner = tightness(asked, second + asked) if asked else tightness(1, second + 1)
    else:
        free = sum(card.memory for card in cards if card is not None)
        inner = int(spread_inner(min(second // count, CROWD), free, max(total, 1)))
    score: int = band * (count - min(first, count)) + max(band - 1, 0) * inner // 49
    return score


def whole_score(
    want: Wanted, pool: Pool, cards: Sequence[Card | None], choice: Choice, policy: Policy
) -> int:
    """How well the devices are joined, and how full or empty the pool becomes."""
    nodes, links, _ = choice.whole_cost
    best = whole.choose(topology(pool), tuple(range(len(pool.devices))), want.count)
    assert best is not None
    joined = 99 * best.cost[0] // nodes
    if best.cost[1]:  # more NUMA nodes can have more links, and are worse all the same
        joined = min(joined * links // best.cost[1], joined)
    usable = sum(card is not None for card in cards)
    left = sum(card is not None and not card.holders for card in cards) - want.count
    full = 99 * (usable - left) // usable
    return (joined + (full if policy == "binpack" else 99 - full)) // 2


def pool_of(cluster: Cluster, row: int, device_class: str) -> Pool | None:
    node = cluster.nodes[row]
    for pool in () if node is None else node.pools:
        if pool.device_class == device_class:
            return pool
    return None


def cards_of(cells: Ints, room: Ints, count: int) -> list[Card | None]:
    """The devices of one line."""
    return [
        Card(*state) if left >= 0 else None
        for state, left in zip(cells[:TOTAL, :count].T.tolist(), room[:count].tolist(), strict=True)
    ]


_: type[hooks.Filter] = Devices
_score: type[hooks.Score] = Devices
_choose: type[hooks.Choose] = Devices
