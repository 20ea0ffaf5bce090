"""What a Binding says about devices: our assignment, and the plain lists beside it."""

from bayplan.core.model.devices import ASSIGNMENT, IDS, Assignment, write_assignment
from bayplan.core.model.effects import Placement
from bayplan.core.model.holdings import plain_lists
from bayplan.core.model.neuron import annotations_of_neuron
from bayplan.core.model.vendors import Vendors


def annotations_of(placement: Placement, vendors: Vendors, wall: float) -> dict[str, str]:
    """Raises TooLong for more devices than an annotation can name."""
    asks = placement.pod.row.devices
    if not asks:
        return {}
    noted: dict[str, str] = {}
    if placement.held:
        noted[ASSIGNMENT] = write_assignment(Assignment(placement.node, placement.held))
        lists = plain_lists(placement.held, vendors)
        noted |= {f"{IDS}/{container}": text for container, text in lists.items()}
        noted |= annotations_of_neuron(placement.held, vendors, wall)
    for ask in asks:
        found = vendors.resources.get(ask.resource)
        if found is not None and found[1].timestamp:
            noted[found[1].timestamp] = str(int(wall * 1e9))
    return noted
