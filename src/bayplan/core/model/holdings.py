"""What a bound pod holds of devices, from what it asked for and what was written down.

Nothing is guessed: what is missing, contradicts the request, or names what was not asked for makes
the class unknown, and the state then gives nothing more of it on that node.
"""

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from bayplan.core.model import dialects
from bayplan.core.model.devices import (
    ASSIGNMENT,
    CORE,
    Device,
    Held,
    HeldDevice,
    Unknown,
    read_assignment,
)
from bayplan.core.model.dialects import GIB, MIB, NODES_OWN, Annotations, Given
from bayplan.core.model.partitions import part_id
from bayplan.core.model.pods import MOST_MIB, DeviceAsk, Holding, Part
from bayplan.core.model.vendors import MIB_PER_GIB, DeviceClass, Vendors

Cards = dict[str, Part]  # by id


def holding_of(asks: Sequence[DeviceAsk], held: Iterable[Held]) -> Holding | None:
    """What is held where `held` serves the requests; a class that it does not serve is unknown.
    None where it serves none of them: nobody has said anything."""
    has_estates = any(ask.kind == "partition" for ask in asks)
    given = {
        (each.container, each.resource): _devices_of(each, asks) if has_estates else each.devices
        for each in held
    }
    parts: list[Part] = []
    unknown: list[str] = []
    for device_class in dict.fromkeys(ask.device_class for ask in asks):
        ours = [ask for ask in asks if ask.device_class == device_class]
        served = [(ask, given.get((ask.container, ask.resource), ())) for ask in ours]
        if all(_serves(ask, devices) for ask, devices in served):
            parts += _together(served).values()
        else:
            unknown.append(device_class)
    return Holding(tuple(parts), tuple(sorted(unknown))) if parts else None


def _devices_of(held: Held, asks: Sequence[DeviceAsk]) -> tuple[HeldDevice, ...]:
    """Devices of an estate are told apart from those of others."""
    if all(ask.kind != "partition" or ask.resource != held.resource for ask in asks):
        return held.devices
    return tuple(replace(each, id=part_id(held.pool, each.id)) for each in held.devices)


def plain_lists(held: Iterable[Held], vendors: Vendors) -> dict[str, str]:
    """By container the devices that it was given, each once, as its class tells them. A container
    with devices of several classes, or devices and cores, gets none: nobody could tell them apart
    in it."""
    found: dict[str, dict[tuple[str, bool], dict[str, None]]] = {}  # by container and kind
    for each in held:
        device_class, resource = vendors.resources[each.resource]
        names = dict.fromkeys(told(device_class, each.devices))
        kind = device_class.name, resource.kind == "core"
        found.setdefault(each.container, {}).setdefault(kind, {}).update(names)
    return {name: ",".join(*lists.values()) for name, lists in found.items() if len(lists) == 1}


def told(device_class: DeviceClass, devices: Iterable[Device | HeldDevice]) -> list[str]:
    """As containers are told of their devices: by id, or by index."""
    by_index = device_class.ids == "index"
    return [str(device.index) if by_index else device.id for device in devices]


def bound_holding(
    asks: Sequence[DeviceAsk],
    node: str,
    annotations: Annotations,
    vendors: Vendors,
    resources: Collection[str] = (),
) -> Holding | None:
    """What a pod that is bound to the node and asks for these resources holds.

    Where the node's own software serves a resource, what it writes is true for that resource; else
    our assignment is. Users can write what they like, so neither is believed beyond its requests.
    """
    parts: list[Part] = []
    unknown: set[str] = set()
    settled: set[DeviceAsk] = set()
    for each in vendors.classes.values():
        found = _told(each, asks, annotations, resources, vendors)
        if found is None:
            continue
        theirs, told = found
        settled |= set(theirs)
        if isinstance(told, Unknown):
            unknown.add(each.name)
        else:
            parts += told
    ours = [ask for ask in asks if ask not in settled]
    assigned = _assigned(ours, asks, node, annotations, vendors) if ours else None
    if not parts and not unknown:
        return assigned
    assigned = assigned or unsaid(ours)
    return _joined([*assigned.parts, *parts], {*assigned.unknown, *unknown})


def _joined(parts: Iterable[Part], unknown: set[str]) -> Holding:
    """With one part for each device."""
    cards: dict[tuple[str, str], Part] = {}
    for part in parts:
        if part.device_class not in unknown:
            key = part.device_class, part.id
            cards[key] = _sum(cards.get(key), part)
    return Holding(tuple(cards.values()), tuple(sorted(unknown)))


def unsaid(asks: Iterable[DeviceAsk]) -> Holding:
    """What is held where nobody has said which devices were given."""
    return Holding((), tuple(sorted({ask.device_class for ask in asks})))


def _assigned(
    asks: Sequence[DeviceAsk],
    every: Sequence[DeviceAsk],
    node: str,
    annotations: Annotations,
    vendors: Vendors,
) -> Holding | None:
    """What our assignment says about some of the pod's requests."""
    text = annotations.get(ASSIGNMENT)
    if text is None:
        return None
    found = read_assignment(text)
    if isinstance(found, Unknown) or found.node != node:
        return None
    partitions = {ask.resource for ask in every if ask.kind == "partition"}
    if any((held.resource in partitions) == (held.pool == node) for held in found.held):
        return None
    holding = holding_of(asks, found.held)
    if holding is None:
        return None
    asked = {(ask.container, ask.resource) for ask in every}
    more = {
        vendors.resources[each.resource][0].name
        for each in found.held
        if (each.container, each.resource) not in asked and each.resource in vendors.resources
    }
    if not more:
        return holding
    kept = tuple(part for part in holding.parts if part.device_class not in more)
    return Holding(kept, tuple(sorted({*holding.unknown, *more})))


def _serves(ask: DeviceAsk, devices: Sequence[HeldDevice]) -> bool:
    if ask.kind in ("whole", "core", "partition"):
        return len(devices) == ask.amount and all(device.amount == 1 for device in devices)
    return sum(device.amount for device in devices) == ask.amount


def _together(served: Sequence[tuple[DeviceAsk, Sequence[HeldDevice]]]) -> Cards:
    """The most that is held of each device at any time: init containers run one after another,
    beside the sidecars that started before them, and end before the others start."""
    if len(served) == 1:  # most pods
        ((ask, devices),) = served
        return {part.id: part for part in [_part(ask, device) for device in devices]}
    containers: dict[tuple[str, str], Cards] = {}  # by phase and name, as they start
    for ask, devices in served:
        own = containers.setdefault((ask.phase, ask.container), {})
        for device in devices:
            part = _part(ask, device)
            known = own.get(part.id)  # asked for by two names
            own[part.id] = part if known is None else _with(known, ask, device.amount)
    standing: Cards = {}
    peak: Cards = {}
    for (phase, _), own in containers.items():
        for id, part in own.items():
            both = _sum(standing.get(id), part)
            if phase == "init":
                peak[id] = _most(peak.get(id), replace(both, holders=1))
            else:
                standing[id] = both
    for id, part in standing.items():
        peak[id] = _most(peak.get(id), part)
    return peak


def at_once(asks: Iterable[DeviceAsk]) -> int:
    """How much of it the containers hold together at most, as Kubernetes counts it."""
    most = standing = 0
    for ask in asks:
        if ask.phase == "init":
            most = max(most, standing + ask.amount)
        else:
            standing += ask.amount
    return max(most, standing)


def _part(ask: DeviceAsk, device: HeldDevice) -> Part:
    """Cores have numbers of their own."""
    match ask.kind:
        case "whole" | "partition":
            return Part(ask.device_class, device.id, whole=True)
        case "core":
            return Part(ask.device_class, f"{CORE}{device.id}", whole=True)
    return _with(Part(ask.device_class, device.id), ask, device.amount)


def _with(part: Part, ask: DeviceAsk, amount: int) -> Part:
    match ask.kind:
        case "whole" | "core" | "partition":
            return replace(part, whole=True)
        case "memory":
            memory = part.memory_mib + amount * ask.unit_mib
            return replace(part, memory_mib=min(memory, MOST_MIB))
        case "compute":
            return replace(part, compute=min(part.compute + amount, MOST_MIB))


def _sum(one: Part | None, other: Part) -> Part:
    if one is None:
        return other
    return Part(
        one.device_class,
        one.id,
        min(one.memory_mib + other.memory_mib, MOST_MIB),
        min(one.compute + other.compute, MOST_MIB),
        one.whole or other.whole,
        one.holders + other.holders,
    )


def _most(one: Part | None, other: Part) -> Part:
    if one is None:
        return other
    return Part(
        one.device_class,
        one.id,
        max(one.memory_mib, other.memory_mib),
        max(one.compute, other.compute),
        one.whole or other.whole,
        max(one.holders, other.holders),
    )


# ---- other software's annotations


_OTHERS = {  # names by which pods ask that software; HAMi's count of cards has our name
    "gpushare": ("aliyun.com/gpu-mem",),
    "hami": ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
}


def _told(
    each: DeviceClass,
    asks: Sequence[DeviceAsk],
    annotations: Annotations,
    resources: Collection[str],
    vendors: Vendors,
) -> tuple[list[DeviceAsk], list[Part] | Unknown] | None:
    """Which requests the node's own software has served, and with what, if it says anything."""
    ours = [ask for ask in asks if ask.device_class == each.name]
    for dialect in each.dialects:
        if dialect == "alnair":
            theirs = [ask for ask in ours if vendors.resources[ask.resource][1].dialect == dialect]
            found = dialects.alnair_pod(annotations) if theirs else None
        elif ASSIGNMENT in annotations:  # we have bound it, so they have not
            continue
        elif dialect == "neuron":
            numbered = _numbered(each, ours, annotations)
            if numbered is not None:
                return ours, numbered
            continue
        else:
            wholes = [ask for ask in ours if ask.kind == "whole"] if dialect == "hami" else []
            asked = wholes or any(name in resources for name in _OTHERS[dialect])
            read = dialects.hami_pod if dialect == "hami" else dialects.gpushare_pod
            theirs, found = wholes, read(annotations) if asked else None
        if found is not None:
            return theirs, found if isinstance(found, Unknown) else _parts(each, theirs, found)
    return None


def _numbered(
    each: DeviceClass, asks: Sequence[DeviceAsk], annotations: Annotations
) -> list[Part] | Unknown | None:
    """What Neuron's own extension gave, if that is as much as was asked for."""
    if not asks or not any(key in annotations for key in dialects.NEURON_SAID):
        return None
    parts: list[Part] = []
    both = len({ask.kind for ask in asks}) > 1
    for by_core in (False, True):
        ours = [ask for ask in asks if (ask.kind == "core") == by_core]
        if not ours:
            continue
        found = dialects.neuron_pod(annotations, by_core=by_core, both=both)
        if isinstance(found, Unknown):
            return found
        if found is None or len(found) != at_once(ours):
            return Unknown(f"{len(found or ())} ids for {at_once(ours)} of {ours[0].resource}")
        parts += [
            Part(each.name, f"{CORE if by_core else '#'}{number}", whole=True) for number in found
        ]
    return parts


def _parts(each: DeviceClass, asks: Sequence[DeviceAsk], found: Sequence[Given]) -> list[Part]:
    asked = sum(ask.amount for ask in asks if ask.kind == "compute" and ask.phase != "init")
    unit_mib = {GIB: MIB_PER_GIB, MIB: 1, NODES_OWN: each.gpushare_unit_mib}
    return [
        Part(
            each.name,
            given.id,
            min(given.amount * unit_mib[given.unit], MOST_MIB),
            min(given.compute or (asked if i == 0 else 0), MOST_MIB),
        )
        for i, given in enumerate(found)
    ]
