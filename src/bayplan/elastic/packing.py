"""Which size for each of many ladders of sizes, so that the sum of values is largest and all fits.

This is the multiple-choice knapsack problem. It is solved exactly, by dynamic programming over
devices; where that would take long, sizes that cannot be part of a better answer are dropped first,
by Lagrange's bound. Nothing here knows jobs, arrival or what a device is.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

QUICK = 5_000_000  # sizes × devices that the plain program does at once: about 50 ms
BUDGET = 100_000_000  # and at most, as long as sizes can be dropped at a known loss: about 1 s
LOSSES = (0.0, 1e-4, 1e-3, 1e-2)  # of the sum of values, tried in this order
HALVINGS = 60  # of the price of a device
TOP_UPS = 64  # steps that use what the price left over; more never helped
EQUAL = 2.0**44  # sums that differ by less than one part of this are equal: rounding does as much
SAFE = 1e-9  # of the sum: beyond what rounding can do


class Ladder(Struct, frozen=True):
    """Sizes to choose from: both arrays rise strictly, from 0."""

    costs: Ints  # choices, devices
    values: Floats  # choices


def ladder(costs: Ints, values: Floats) -> tuple[Ladder, Ints]:
    """Without the sizes that are worth no more than a smaller one; and the places of those left."""
    gains = values - values[0]
    before = np.concatenate(([-1.0], np.maximum.accumulate(gains)[:-1]))
    left = np.flatnonzero(gains > before)
    return Ladder((costs - costs[0])[left], gains[left]), left


def fill(ladders: Sequence[Ladder], devices: int) -> list[int]:
    """The choice of each ladder. Of equal sums: the fewest devices, then more for the earlier."""
    room = min(devices, sum(int(each.costs[-1]) for each in ladders))
    if sum(len(each.costs) for each in ladders) * (room + 1) <= QUICK:
        return _exactly(ladders, room)
    return _reduced(ladders, room)


def _exactly(ladders: Sequence[Ladder], room: int) -> list[int]:
    """Dynamic programming from the last ladder to the first; ties as `fill` says."""
    whole = _in_whole_numbers(ladders, room)
    best = np.zeros(room + 1, np.int64)  # by devices: what the ladders so far are worth
    chosen = np.zeros((len(ladders), room + 1), np.int32)  # ladders × devices
    for i in range(len(ladders) - 1, -1, -1):
        above = best.copy()
        for choice, (cost, value) in enumerate(zip(ladders[i].costs, whole[i], strict=True)):
            if cost > room or not choice:
                continue
            offer = best[: room + 1 - cost] + value
            better = offer >= above[cost:]
            np.copyto(above[cost:], offer, where=better)
            np.copyto(chosen[i, cost:], choice, where=better)
        best = above
    choices = []
    for i, each in enumerate(ladders):
        choices.append(int(chosen[i, room]))
        room -= int(each.costs[choices[-1]])
    return choices


def _in_whole_numbers(ladders: Sequence[Ladder], room: int) -> list[Ints]:
    """Values as integers, less one for each device: exact sums, and the cheaper of equal ones."""
    most = sum(float(each.values[-1]) for each in ladders) or 1.0
    exponent = math.floor(math.log2(min(EQUAL, 2.0**60 / (room + 2)) / most))
    scale = 2.0**exponent  # a power of two, so that whole and half values stay what they are
    return [
        np.rint(each.values * scale).astype(np.int64) * (room + 1) - each.costs for each in ladders
    ]


class _Flat(Struct, frozen=True):
    """All ladders behind each other."""

    costs: Floats
    values: Floats
    starts: Ints  # of each ladder
    owners: Ints  # of each choice

    def at(self, price: float) -> Ints:
        """The choices, one per ladder, that are worth most when a device costs this much."""
        worth = self.values - price * self.costs
        top = np.maximum.reduceat(worth, self.starts)
        places = np.flatnonzero(worth == top[self.owners])
        _, first = np.unique(self.owners[places], return_index=True)
        return places[first]


def _flat(ladders: Sequence[Ladder]) -> _Flat:
    lengths = [len(each.costs) for each in ladders]
    return _Flat(
        np.concatenate([each.costs for each in ladders]).astype(np.float64),
        np.concatenate([each.values for each in ladders]),
        np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64),
        np.repeat(np.arange(len(ladders)), lengths),
    )


def _reduced(ladders: Sequence[Ladder], room: int) -> list[int]:
    """Exactly over the sizes that may matter; if need be with a loss, one of LOSSES."""
    flat = _flat(ladders)
    price, places = _priced(flat, room)
    places = _topped_up(flat, places, room)
    sure = float(flat.values[places].sum())
    worth = flat.values - price * flat.costs
    top = np.maximum.reduceat(worth, flat.starts)
    bound = top.sum() + price * room - (top[flat.owners] - worth)  # of any answer with this choice
    for loss in LOSSES:
        kept = bound >= sure * (1 + loss - SAFE)
        kept[places] = True
        few, index = _kept(ladders, flat, kept)
        left = room - sum(int(e.costs[i[0]]) for e, i in zip(ladders, index, strict=True))
        left = min(left, sum(int(each.costs[-1]) for each in few))
        if sum(len(each.costs) for each in few if len(each.costs) > 1) * (left + 1) <= BUDGET:
            break
    open_ = [i for i, each in enumerate(few) if len(each.costs) > 1]
    choices = [0] * len(few)
    for i, choice in zip(open_, _exactly([few[i] for i in open_], left), strict=True):
        choices[i] = choice
    return [int(places[choice]) for places, choice in zip(index, choices, strict=True)]


def _priced(flat: _Flat, room: int) -> tuple[float, Ints]:
    """The lowest price at which the choices fit, and these choices."""
    low, high = 0.0, float((flat.values / np.maximum(flat.costs, 1)).max()) + 1.0
    places = flat.starts
    for _ in range(HALVINGS):
        price = (low + high) / 2
        tried = flat.at(price)
        if flat.costs[tried].sum() <= room:
            high, places = price, tried
        else:
            low = price
    return high, places


def _topped_up(flat: _Flat, places: Ints, room: int) -> Ints:
    """What is left over goes, step by step, where one step brings most."""
    places = places.copy()
    for _ in range(TOP_UPS):
        left = room - flat.costs[places].sum()
        more = flat.costs - flat.costs[places][flat.owners]
        gain = np.where(more <= left, flat.values - flat.values[places][flat.owners], 0.0)
        step = int(np.argmax(gain))
        if gain[step] <= 0:
            break
        places[flat.owners[step]] = step
    return places


def _kept(
    ladders: Sequence[Ladder], flat: _Flat, kept: NDArray[np.bool_]
) -> tuple[list[Ladder], list[Ints]]:
    """The ladders with only these choices, and the places where these stood."""
    few, index = [], []
    for start, each in zip(flat.starts, ladders, strict=True):
        places = np.flatnonzero(kept[start : start + len(each.costs)])
        costs, values = each.costs[places], each.values[places]
        few.append(Ladder(costs - costs[0], values - values[0]))
        index.append(places)
    return few, index
