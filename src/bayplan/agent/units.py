"""What the kubelet counts and gives one by one of a resource: devices, or the cores of devices.

Resources of a class can mean the same devices, and the kubelet counts each resource by itself. So
a unit knows of which cores of the node it is made: two units that share one exclude each other.
"""

from msgspec import Struct

from bayplan.core.model.devices import Device, Devices, HeldDevice
from bayplan.core.model.vendors import Resource

Units = dict[str, "Unit"]  # by id
# The class, and the number of a core among those of the node; or a resource, and the id of what is
# not here any more.
Cell = tuple[str, int | str]


class Unit(Struct, frozen=True):
    held: HeldDevice  # as an assignment names it
    device: Device  # that it is, or is a part of
    cores: range  # that it has; a device without parts counts as one


def is_served(resource: Resource) -> bool:
    """Whether it is ours to give; what is published is counted by the scheduler alone."""
    return resource.kind in ("whole", "core") and resource.served and not resource.published


def units_of(resource: Resource, devices: Devices) -> Units:
    """For resources that mean a part of a device in another way, the devices."""
    found: list[Unit] = []
    for device in devices.devices:
        first = device.index * device.cores
        cores = range(first, first + device.cores)
        if resource.kind == "core":
            found += (
                Unit(HeldDevice(str(core), core, 1), device, range(core, core + 1))
                for core in cores
            )
        else:
            found.append(Unit(HeldDevice(device.id, device.index, 1), device, cores))
    return {unit.held.id: unit for unit in found}
