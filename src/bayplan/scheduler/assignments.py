"""What a Binding says about devices: our assignment, and the plain lists beside it."""

from bayplan.core.model.devices import ASSIGNMENT, IDS, Assignment, write_assignment
from bayplan.core.model.effects import Placement
from bayplan.core.model.vendors import Vendors


def annotations_of(placement: Placement, vendors: Vendors, wall: float) -> dict[str, str]:
    """Raises TooLong for more devices than an annotation can name."""
    asks = placement.pod.row.devices
    if not asks:
        return {}
    noted: dict[str, str] = {}
    if placement.held:
        noted[ASSIGNMENT] = write_assignment(Assignment(placement.node, placement.held))
    lists: dict[str, dict[str, dict[str, None]]] = {}  # by container and class; each device once
    for held in placement.held:
        device_class = vendors.resources[held.resource][0]
        by_index = device_class.ids == "index"
        names = (str(device.index) if by_index else device.id for device in held.devices)
        classes = lists.setdefault(held.container, {})
        classes.setdefault(device_class.name, {}).update(dict.fromkeys(names))
    for container, classes in lists.items():
        if len(classes) == 1:  # of several classes, a plain list could not be told apart
            noted[f"{IDS}/{container}"] = ",".join(*classes.values())
    for ask in asks:
        found = vendors.resources.get(ask.resource)
        if found is not None and found[1].timestamp:
            noted[found[1].timestamp] = str(int(wall * 1e9))
    return noted
