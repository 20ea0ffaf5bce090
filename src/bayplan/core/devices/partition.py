"""Partitions: blocks of a power of two of devices, as a buddy allocator gives them.

A block begins at a multiple of its size and lies within one link domain, so that up to as many as a
machine has are in one machine, and more are whole machines next to each other.

Minimises the tuple
    size of the free block that is broken into, so that the largest stay whole,
    the number of its first device.
"""

from collections.abc import Sequence
from functools import lru_cache

from bayplan.core.devices.shared import Policy
from bayplan.core.model.partitions import Spot

Mask = int  # of the devices, in their order
Spots = tuple[Spot, ...]
NEVER, SHORT = -2, -1  # in place of a score


@lru_cache(maxsize=4096)
def blocks(spots: Spots, size: int) -> tuple[Mask, ...]:
    """Where so many could be given, whatever is free; none: never."""
    if size < 1 or size & size - 1:
        return ()
    found: dict[tuple[int, int], list[int]] = {}
    for number, spot in enumerate(spots):
        found.setdefault((spot.domain, spot.at // size), []).append(number)
    whole = (found[key] for key in sorted(found) if len(found[key]) == size)
    return tuple(sum(1 << number for number in block) for block in whole)


def choose(spots: Spots, free: Mask, size: int) -> Mask | None:
    """The block that breaks into the smallest free one, or None."""
    found = _best(spots, free, size)
    return None if found is None else found[1]


@lru_cache(maxsize=1 << 14)
def _best(spots: Spots, free: Mask, size: int) -> tuple[int, Mask] | None:
    """The size of what is broken into, and the block."""
    candidates = [block for block in blocks(spots, size) if block & free == block]
    if not candidates:
        return None
    whole = size
    while candidates:
        larger = [block for block in blocks(spots, 2 * whole) if block & free == block]
        tight = [block for block in candidates if not any(block & each for each in larger)]
        if tight:
            return whole, tight[0]
        whole *= 2
    raise AssertionError("a free block lies in a largest one")


def look(spots: Spots, free: Mask, size: int, policy: Policy) -> int:
    """0 to 99, or why there is none. Binpack: the smaller the free block that is broken into, the
    better. Spread: the more stays free."""
    found = _best(spots, free, size)
    if found is None:
        return SHORT if blocks(spots, size) else NEVER
    if policy == "spread":
        return 99 * (free.bit_count() - size) // len(spots)
    doublings = (found[0] // size).bit_length() - 1
    return max(99 - 9 * doublings, 0)


def numbers(mask: Mask) -> Sequence[int]:
    """The devices of a mask."""
    return [at for at in range(mask.bit_length()) if mask >> at & 1]
