"""How much less a pod would have to ask for: the most that still finds a place.

One resource alone if that is enough. If not, several: then none of them can be larger.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine.ground import Ground
from bayplan.core.model.advice import BYTES, MIB, Change, Less, Suggestion, written
from bayplan.core.model.holdings import at_once
from bayplan.core.model.pods import DeviceAsk, Pod, RowKey
from bayplan.core.state.arrays import Rows

MOST = 3  # suggestions
MOST_TRIED = 128  # amounts, where more can fit and less not
CPU_STEP = 10  # thousandths
NATIVE = ("cpu", "memory", "ephemeral-storage")


class Scale(Struct, frozen=True):
    """The amounts of one resource that can be asked for: `least` to `most` steps."""

    resource: str
    step: int
    least: int
    most: int
    is_even: bool  # where an amount fits, all smaller ones do
    doubles: bool = False  # only powers of two can be asked for


def requests(ground: Ground, pod: Pod) -> list[Suggestion]:
    amounts = _asked(pod.row).items()
    scales = [each for name, amount in amounts if (each := _scale(pod, name, amount))]
    alone = [found for scale in scales if (found := _largest(ground, pod, scale, {}))]
    if alone:
        alone.sort(key=lambda each: -_share(pod.row, each))
        proven = (_suggestion(ground, pod, each) for each in alone[:MOST])
        return [each for each in proven if each]
    together = _together(ground, pod, scales) if len(scales) > 1 else None
    proof = _suggestion(ground, pod, together) if together else None
    return [proof] if proof else []


def _together(ground: Ground, pod: Pod, scales: Sequence[Scale]) -> dict[str, int] | None:
    """The least of all, then as much as possible of each: the rarest first."""
    amounts = {scale.resource: scale.least * scale.step for scale in scales}
    if not len(ground.rows(asking_for(pod, amounts))):
        return None
    for scale in sorted(scales, key=lambda scale: (scale.resource in NATIVE, scale.resource)):
        others = {name: now for name, now in amounts.items() if name != scale.resource}
        if len(ground.rows(asking_for(pod, others))):
            amounts = others
        else:
            amounts = _largest(ground, pod, scale, others) or amounts
    return amounts


def _largest(
    ground: Ground, pod: Pod, scale: Scale, others: Mapping[str, int]
) -> dict[str, int] | None:
    """The amounts with as much as possible of one resource; None: not even the least fits."""

    def amounts(steps: int) -> dict[str, int]:
        return {**others, scale.resource: steps * scale.step}

    def rows(steps: int, among: Rows | None = None) -> Rows:
        return ground.rows(asking_for(pod, amounts(steps)), among)

    if not scale.is_even:
        found = next((steps for steps in _tries(scale) if len(rows(steps))), 0)
        return amounts(found) if found else None
    fits, fails = scale.least, scale.most + 1
    here = rows(fits)
    if not len(here):
        return None
    while fails - fits > 1:
        middle = (fits + fails) // 2
        left = rows(middle, here)
        if len(left):
            fits, here = middle, left
        else:
            fails = middle
    return amounts(fits)


def _tries(scale: Scale) -> Iterable[int]:
    """The largest first."""
    if scale.doubles:
        powers = (1 << at for at in range(scale.most.bit_length() - 1, -1, -1))
        return [power for power in powers if power >= scale.least]
    return range(scale.most, max(scale.most - MOST_TRIED, scale.least - 1), -1)


def _scale(pod: Pod, resource: str, amount: int) -> Scale | None:
    asks = _asks(pod.row, resource)
    if asks:
        return _device_scale(resource, amount, asks)
    step = 1
    if resource == "cpu" and amount > CPU_STEP:
        step = CPU_STEP
    elif (resource in BYTES or resource.startswith("hugepages-")) and amount > MIB:
        step = MIB
    most = (amount - 1) // step
    return Scale(resource, step, 1, most, True) if most else None


def _device_scale(resource: str, amount: int, asks: Sequence[DeviceAsk]) -> Scale | None:
    """Only the container that asks for most can ask for less. Where init containers ask too, that
    is not all that counts."""
    init = any(ask.phase == "init" for ask in asks)
    if at_once(asks) != amount or (init and len(asks) > 1):
        return None
    least = amount - _widest(asks).amount + 1
    doubles = asks[0].kind == "partition"
    is_even = not doubles and not any(ask.consecutive for ask in asks)
    return Scale(resource, 1, least, amount - 1, is_even, doubles) if least < amount else None


def asking_for(pod: Pod, amounts: Mapping[str, int]) -> Pod:
    """The pod with these amounts, all of them smaller than now."""
    row = pod.row
    devices = list(row.devices)
    less: dict[str, int] = {}
    for name, amount in _asked(row).items():
        if name not in amounts:
            continue
        less[name] = amount - amounts[name]
        if asks := _asks(row, name):
            widest = _widest(asks)
            smaller = replace(widest, amount=widest.amount - less[name])
            devices[devices.index(widest)] = smaller
    cpu, memory = row.scored_placed
    scored = tuple((name, max(now - less.get(name, 0), 0)) for name, now in row.scored)
    placed = (max(cpu - less.get("cpu", 0), 0), max(memory - less.get("memory", 0), 0))
    requests = tuple((name, amounts.get(name, now)) for name, now in row.requests)
    changed = replace(
        row, requests=requests, scored=scored, scored_placed=placed, devices=tuple(devices)
    )
    return replace(pod, row=changed)


def _asked(row: RowKey) -> dict[str, int]:
    """With what is no node's own."""
    found = dict(row.requests)
    return found | {ask.resource: at_once(row.partitions) for ask in row.partitions}


def _asks(row: RowKey, resource: str) -> tuple[DeviceAsk, ...]:
    return tuple(ask for ask in row.devices if ask.resource == resource)


def _widest(asks: Sequence[DeviceAsk]) -> DeviceAsk:
    return max(asks, key=lambda ask: ask.amount)


def _share(row: RowKey, amounts: Mapping[str, int]) -> float:
    """How much of what was asked for is left."""
    return min(now / _asked(row)[name] for name, now in amounts.items())


def _suggestion(ground: Ground, pod: Pod, amounts: Mapping[str, int]) -> Suggestion | None:
    placed = ground.where(asking_for(pod, amounts))
    if placed is None:
        return None
    before = _asked(pod.row)
    changes, words = [], []
    for name, now in sorted(amounts.items()):
        was, container = before[name], ""
        if asks := _asks(pod.row, name):
            widest = _widest(asks)
            container = widest.container
            was, now = widest.amount, widest.amount - (was - now)
        changes.append(Less(name, written(name, was), written(name, now), container))
        named = f" in container {container}" if len(asks) > 1 else ""
        words.append(f"{changes[-1].now} {name}{named} instead of {changes[-1].was}")
    text = f"ask for {' and '.join(words)}"
    return Suggestion("request", text, placed.node, Change(requests=tuple(changes)))
