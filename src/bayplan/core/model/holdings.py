"""What a bound pod holds of devices, from what it asked for and what was written down.

Nothing is guessed: what is missing, contradicts the request, or names what was not asked for makes
the class unknown, and the state then gives nothing more of it on that node.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from bayplan.core.model import dialects
from bayplan.core.model.devices import ASSIGNMENT, Held, HeldDevice, Unknown, read_assignment
from bayplan.core.model.dialects import Annotations
from bayplan.core.model.pods import MOST_MIB, DeviceAsk, Holding, Part
from bayplan.core.model.vendors import FULL_COMPUTE, MIB_PER_GIB, DeviceClass, Vendors

Cards = dict[str, Part]  # by id


def holding_of(asks: Sequence[DeviceAsk], held: Iterable[Held]) -> Holding | None:
    """What is held where `held` serves the requests; a class that it does not serve is unknown.
    None where it serves none of them: nobody has said anything."""
    given = {(each.container, each.resource): each.devices for each in held}
    parts: list[Part] = []
    unknown: list[str] = []
    for device_class in dict.fromkeys(ask.device_class for ask in asks):
        ours = [ask for ask in asks if ask.device_class == device_class]
        served = [(ask, given.pop((ask.container, ask.resource), ())) for ask in ours]
        if all(_serves(ask, devices) for ask, devices in served):
            parts += _together(served).values()
        else:
            unknown.append(device_class)
    return Holding(tuple(parts), tuple(sorted(unknown))) if parts else None


def bound_holding(
    asks: Sequence[DeviceAsk], node: str, annotations: Annotations, vendors: Vendors
) -> Holding | None:
    """What a pod that is bound to the node holds. What the node's own software writes wins."""
    told = [each for one in vendors.classes.values() if (each := _told(one, asks, annotations))]
    assigned = _assigned(asks, node, annotations, vendors)
    if not told:
        return assigned
    assigned = assigned or unsaid(asks)
    settled = {device_class for device_class, _ in told}
    parts = [part for part in assigned.parts if part.device_class not in settled]
    unknown = [name for name in assigned.unknown if name not in settled]
    for device_class, found in told:
        if isinstance(found, Unknown):
            unknown.append(device_class)
        else:
            parts += found
    return Holding(tuple(parts), tuple(sorted(unknown)))


def unsaid(asks: Iterable[DeviceAsk]) -> Holding:
    """What is held where nobody has said which devices were given."""
    return Holding((), tuple(sorted({ask.device_class for ask in asks})))


def _assigned(
    asks: Sequence[DeviceAsk], node: str, annotations: Annotations, vendors: Vendors
) -> Holding | None:
    text = annotations.get(ASSIGNMENT)
    if not asks or text is None:
        return None
    found = read_assignment(text)
    if isinstance(found, Unknown) or found.node != node:
        return None
    holding = holding_of(asks, found.held)
    if holding is None:
        return None
    asked = {(ask.container, ask.resource) for ask in asks}
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
    if ask.kind == "whole":
        return len(devices) == ask.amount and all(device.amount == 1 for device in devices)
    return sum(device.amount for device in devices) == ask.amount


def _together(served: Iterable[tuple[DeviceAsk, Sequence[HeldDevice]]]) -> Cards:
    """The most that is held of each device at any time: init containers run one after another,
    beside the sidecars that started before them, and end before the others start."""
    containers: dict[tuple[str, str], Cards] = {}  # by phase and name, as they start
    for ask, devices in served:
        own = containers.setdefault((ask.phase, ask.container), {})
        for device in devices:
            part = own.get(device.id) or Part(ask.device_class, device.id)
            own[device.id] = _with(part, ask, device.amount)
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


def _with(part: Part, ask: DeviceAsk, amount: int) -> Part:
    match ask.kind:
        case "whole":
            return replace(part, whole=True)
        case "memory":
            return replace(part, memory_mib=min(amount * ask.unit_mib, MOST_MIB))
        case "compute":
            return replace(part, compute=min(amount, MOST_MIB))


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


def _told(
    each: DeviceClass, asks: Sequence[DeviceAsk], annotations: Annotations
) -> tuple[str, list[Part] | Unknown] | None:
    """What the node's own software says that the pod holds of the class, if it says anything."""
    for dialect in each.dialects:
        read, unit_mib = {
            "alnair": (dialects.alnair_pod, MIB_PER_GIB),
            "hami": (dialects.hami_pod, 1),
            "gpushare": (dialects.gpushare_pod, each.gpushare_unit_mib),
        }[dialect]
        found = read(annotations)
        if found is None:
            continue
        if isinstance(found, Unknown):
            return each.name, found
        compute = sum(
            ask.amount
            for ask in asks
            if ask.device_class == each.name and ask.kind == "compute" and ask.phase != "init"
        )
        parts = [
            Part(
                each.name,
                f"#{device.index}" if dialect == "gpushare" else device.id,
                min(device.amount * unit_mib, MOST_MIB),
                min(compute, FULL_COMPUTE) if i == 0 else 0,
            )
            for i, device in enumerate(found)
        ]
        return each.name, parts
    return None
