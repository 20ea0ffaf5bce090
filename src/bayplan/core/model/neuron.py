"""What a pod was given, in the words of Neuron's own scheduler extension.

Written for whoever reads them beside or instead of our assignment: users' scripts, and the vendor's
node software. `dialects.neuron_pod` reads them.
"""

from collections.abc import Iterable

from bayplan.core.model.devices import Held
from bayplan.core.model.dialects import (
    NEURON_ALLOCATED,
    NEURON_CORES,
    NEURON_DEVICES,
    NEURON_IDS,
    NEURON_TIME,
    NEURON_TYPE,
)
from bayplan.core.model.vendors import Vendors


def annotations_of_neuron(held: Iterable[Held], vendors: Vendors, wall: float) -> dict[str, str]:
    """Of a pod that was given these at that time and has not got them yet; empty where none of them
    is Neuron's. Where it has both devices and cores, the keys that know one kind only name the
    devices."""
    numbers: dict[str, set[int]] = {}  # by key
    resources: dict[str, str] = {}
    for each in held:
        device_class, resource = vendors.resources.get(each.resource, (None, None))
        if device_class is None or resource is None or "neuron" not in device_class.dialects:
            continue
        key = NEURON_CORES if resource.kind == "core" else NEURON_DEVICES
        numbers.setdefault(key, set()).update(device.index for device in each.devices)
        resources.setdefault(key, each.resource)
    if not numbers:
        return {}
    lists = {key: ",".join(map(str, sorted(found))) for key, found in numbers.items()}
    first = NEURON_DEVICES if NEURON_DEVICES in lists else NEURON_CORES
    return {
        NEURON_IDS: lists[first],
        NEURON_TYPE: resources[first],
        **lists,
        NEURON_ALLOCATED: "false",
        NEURON_TIME: str(int(wall * 1e9)),
    }
