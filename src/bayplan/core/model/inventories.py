"""A node's pools of devices, from what its agent, its operator and other software have written; and
for machines of a known type from the type itself."""

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.core.model import dialects
from bayplan.core.model.devices import (
    CORDON,
    INVENTORY,
    MOST_DEVICES,
    Device,
    Devices,
    Unknown,
    read_inventory,
)
from bayplan.core.model.dialects import Annotations
from bayplan.core.model.nodes import Layout, Pool
from bayplan.core.model.vendors import DeviceClass, Instance, Vendors

TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")  # labels


def pools_of(
    annotations: Annotations,
    vendors: Vendors,
    labels: Mapping[str, str],
    allocatable: Mapping[str, int],
) -> tuple[Pool, ...]:
    """One pool for each class that somebody describes. The agent's word counts most."""
    text = annotations.get(INVENTORY)
    inventory = None if text is None else read_inventory(text)
    cordoned = {part.strip() for part in annotations.get(CORDON, "").split(",")} - {""}
    machine = next((labels[key] for key in TYPES if key in labels), "")
    found = []
    for each in vendors.classes.values():
        if each.model == "partition":  # they are no node's own
            continue
        devices: Devices | Unknown | None
        if isinstance(inventory, Unknown):
            devices = Unknown(f"{INVENTORY}: {inventory.why}")
        else:
            devices = inventory.classes.get(each.name) if inventory is not None else None
        if devices is None:
            devices = _told(each, annotations)
        if devices is None and each.model == "contiguous":
            devices = _of_type(each, machine, allocatable, cordoned)
        if devices is not None:
            found.append(_pool(each, devices, cordoned, machine))
    return tuple(found)


def _pool(each: DeviceClass, found: Devices | Unknown, cordoned: set[str], machine: str) -> Pool:
    if isinstance(found, Unknown):
        nothing = Layout(()) if each.model == "contiguous" else None
        return Pool(each.name, unknown=found.why, layout=nothing)
    usable = tuple(_without(cordoned, device) for device in found.devices)
    if each.model != "contiguous":
        usable = tuple(replace(device, cores=1) for device in usable)
        return Pool(each.name, usable, found.links)
    usable = tuple(sorted(usable, key=lambda device: device.index))
    cores = {device.cores for device in usable}
    if len(cores) > 1:
        return Pool(each.name, unknown="its devices differ in cores", layout=Layout(()))
    indexes = tuple(device.index for device in usable)
    layout = Layout(indexes, max(cores, default=1), found.shape, found.row, machine)
    return Pool(each.name, usable, layout=layout)


def _without(cordoned: set[str], device: Device) -> Device:
    if device.id in cordoned or str(device.index) in cordoned:
        return replace(device, healthy=False)
    return device


def _told(each: DeviceClass, annotations: Annotations) -> Devices | Unknown | None:
    for dialect in each.dialects:
        found = None
        if dialect == "alnair":
            found = dialects.alnair_node(annotations)
        elif dialect == "hami":
            found = dialects.hami_node(annotations)
        if found is not None:
            return found
    return None


def _of_type(
    each: DeviceClass, machine: str, allocatable: Mapping[str, int], cordoned: set[str]
) -> Devices | Unknown | None:
    """All devices that such a machine has. A kubelet counts those that work but does not name them;
    where some do not, an operator must say which."""
    devices, cores = (_counted(each, kind, allocatable) for kind in ("whole", "core"))
    if not devices and not cores:
        return None
    if devices == 0 or cores == 0:  # a device plugin that starts tells one after the other
        return Unknown(f"{devices} devices and {cores} cores, which do not go together")
    known = each.by_type.get(machine)
    size = known.devices if known is not None else devices or cores or 0
    if size > MOST_DEVICES:
        return Unknown(f"{size} devices, more than {MOST_DEVICES}")
    named = sum(str(i) in cordoned for i in range(size))
    working, per_device = _working(known, devices, cores, size - named)
    if not per_device:
        return Unknown(f"{devices} devices and {cores} cores, which do not go together")
    if size - named > working:
        return Unknown(
            f"{working} of its {size} devices work, and nobody says which; "
            f"name the others in {CORDON}"
        )
    numbers = range(max(size, working))
    if len(numbers) * per_device > MOST_DEVICES:
        return Unknown(f"{len(numbers)} devices with {per_device} cores, more than {MOST_DEVICES}")
    some = tuple(Device(str(i), i, cores=per_device) for i in numbers)
    if known is None:
        return Devices(some)
    return Devices(some, shape=known.shape, row=known.row)


def _counted(each: DeviceClass, kind: str, allocatable: Mapping[str, int]) -> int | None:
    """How many the kubelet counts; None where it does not."""
    found = [
        allocatable[r.name] for r in each.resources if r.kind == kind and r.name in allocatable
    ]
    return max(found, default=None)


def _working(
    known: Instance | None, devices: int | None, cores: int | None, most: int
) -> tuple[int, int]:
    """How many devices work, and how many cores each has, as the node counts them: two cores can
    be joined to a logical one, or not. No cores where the numbers do not go together."""
    sizes = (1,) if known is None else (known.cores, 2 * known.cores)
    if devices is None:
        each = next((size for size in sizes if cores == most * size), sizes[0])
        return (cores or 0) // each, each
    if cores is None:
        return devices, sizes[0]
    each, rest = divmod(cores, devices)
    return devices, 0 if rest or (known is not None and each not in sizes) else each
