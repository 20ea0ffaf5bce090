"""A node's pools of devices, from what its agent, its operator and other software have written."""

from msgspec.structs import replace

from bayplan.core.model import dialects
from bayplan.core.model.devices import CORDON, INVENTORY, Device, Devices, Unknown, read_inventory
from bayplan.core.model.dialects import Annotations
from bayplan.core.model.nodes import Pool
from bayplan.core.model.vendors import DeviceClass, Vendors


def pools_of(annotations: Annotations, vendors: Vendors) -> tuple[Pool, ...]:
    """One pool for each class that somebody describes. The agent's word counts most."""
    text = annotations.get(INVENTORY)
    inventory = None if text is None else read_inventory(text)
    cordoned = {part.strip() for part in annotations.get(CORDON, "").split(",")}
    found = []
    for each in vendors.classes.values():
        devices: Devices | Unknown | None
        if isinstance(inventory, Unknown):
            devices = Unknown(f"{INVENTORY}: {inventory.why}")
        else:
            devices = inventory.classes.get(each.name) if inventory is not None else None
        if devices is None:
            devices = _told(each, annotations)
        if isinstance(devices, Unknown):
            found.append(Pool(each.name, unknown=devices.why))
        elif devices is not None:
            usable = tuple(_without(cordoned, device) for device in devices.devices)
            found.append(Pool(each.name, usable, devices.links))
    return tuple(found)


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
