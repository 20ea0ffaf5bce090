"""Shared devices: the choice is the cheapest of all, for one request and for several."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.core.devices.shared import REFUSED, Card, Policy, Request, best, choose, cost, lowest
from bayplan.core.model.devices import Device
from bayplan.core.model.nodes import Pool
from bayplan.core.model.pods import Part
from bayplan.core.state.pools import Lines, Table

POLICIES: tuple[Policy, ...] = ("binpack", "spread")
SIZE = 16

card = st.builds(Card, st.integers(0, SIZE), st.integers(0, 100), st.integers(0, 3))
pool = st.lists(st.none() | card, min_size=1, max_size=4)
request = st.builds(Request, st.integers(1, SIZE), st.sampled_from((0, 25, 50, 100)))
policy = st.sampled_from(POLICIES)


def brute(
    cards: list[Card | None], requests: list[Request], policy: Policy
) -> tuple[tuple[int, int, int], tuple[int, ...]] | None:
    """Every way, one by one."""
    ways = []
    for way in product(range(len(cards)), repeat=len(requests)):
        now = list(cards)
        for position, asked in zip(way, requests, strict=True):
            here = now[position]
            if here is None or here.memory < asked.memory or here.compute < asked.compute:
                break
            now[position] = Card(
                here.memory - asked.memory, here.compute - asked.compute, here.holders + 1
            )
        else:
            ways.append((cost(cards, now, policy), way))
    return min(ways, default=None)


@given(pool, st.lists(request, min_size=1, max_size=3), policy)
def test_brute_force_agrees(
    cards: list[Card | None], requests: list[Request], policy: Policy
) -> None:
    cheapest = brute(cards, requests, policy)
    assert choose(cards, requests, policy) == (cheapest and cheapest[1])


@given(st.lists(pool, min_size=1, max_size=4), request, policy)
def test_one_request_on_many_pools_is_answered_as_on_each(
    pools: list[list[Card | None]], asked: Request, policy: Policy
) -> None:
    table = Table(len(pools))
    for row, cards in enumerate(pools):
        devices = (Device(str(i), i, SIZE, healthy=c is not None) for i, c in enumerate(cards))
        table.write(row, Pool("gpu", tuple(devices)))
        for i, c in enumerate(cards):
            if c is not None:
                held = Part("gpu", str(i), SIZE - c.memory, 100 - c.compute, holders=c.holders)
                table.take(row, held, 1)
    numbers = lowest(Lines(table, None, len(pools)), asked, policy)
    found = [brute(cards, [asked], policy) for cards in pools]
    assert (numbers == REFUSED).tolist() == [way is None for way in found]
    for row, way in enumerate(found):
        assert best(table, row, asked, policy) == (-1 if way is None else way[1][0], numbers[row])
    order = sorted((way[0], int(n)) for way, n in zip(found, numbers, strict=True) if way)
    assert [n for _, n in order] == sorted(n for _, n in order)  # between pools they compare too


@given(pool, st.lists(request, min_size=1, max_size=5), policy, st.integers(0, 30))
def test_a_search_that_is_cut_short_still_gives_places_that_are_right(
    cards: list[Card | None], requests: list[Request], policy: Policy, visits: int
) -> None:
    way = choose(cards, requests, policy, visits)
    if way is not None:
        now = list(cards)
        for position, asked in zip(way, requests, strict=True):
            here = now[position]
            assert here is not None
            assert here.takes(asked)
            now[position] = here.after(asked)
    longer = choose(cards, requests, policy, 10 * visits + 100)
    assert way is None or longer is not None  # more steps never lose a way


def test_many_requests_end_soon() -> None:
    cards: list[Card | None] = [Card(16_384, 100, 0)] * 8
    for requests in ([Request(100 + i) for i in range(40)], [Request(100)] * 100):
        for policy in POLICIES:
            way = choose(cards, requests, policy)
            assert way is not None
            assert len(way) == len(requests)


def test_nine_pods_of_ten_on_eight_cards_of_sixteen_place_eight() -> None:
    for policy in POLICIES:
        cards: list[Card | None] = [Card(16, 100, 0)] * 8
        placed = 0
        for _ in range(9):
            way = choose(cards, [Request(10)], policy)
            if way is not None:
                here = cards[way[0]]
                assert here is not None
                cards[way[0]] = here.after(Request(10))
                placed += 1
        assert placed == 8


@pytest.mark.parametrize(
    ("policy", "cards", "asked", "expected"),
    [
        ("binpack", [(16, 100, 0), (12, 100, 1), (6, 100, 1)], Request(6), 2),  # the best fit
        ("binpack", [(16, 100, 0), (12, 50, 1), (6, 10, 1)], Request(6, 50), 1),
        ("binpack", [(24, 100, 0), (16, 100, 0)], Request(8), 1),  # the smaller one is broken into
        ("spread", [(16, 100, 0), (12, 100, 1)], Request(4), 0),
        ("spread", [(8, 100, 2), (12, 100, 1)], Request(4), 0),  # it is shared already
        ("spread", [(4, 100, 1), (12, 100, 1)], Request(4), 1),
    ],
)
def test_by_hand(
    policy: Policy, cards: list[tuple[int, int, int]], asked: Request, expected: int
) -> None:
    assert choose([Card(*each) for each in cards], [asked], policy) == (expected,)
