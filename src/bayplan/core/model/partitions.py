"""Devices behind a controller, of which pods get partitions: a pool that several nodes reach.

The controller makes a partition while a pod is bound, and chooses its devices itself; until then
what the pod gets is a plan. What the controller tells counts: partitions that no pod of ours stands
for are in use all the same.
"""

from collections.abc import Sequence

from msgspec import Struct

from bayplan.core.model.devices import Device, Held, HeldDevice
from bayplan.core.model.pods import DeviceAsk


class Spot(Struct, frozen=True, cache_hash=True):
    """Where a device stands: blocks begin at multiples of their size, within one domain."""

    domain: int
    at: int


class Partition(Struct, frozen=True):
    """One that the controller has."""

    id: str
    devices: tuple[str, ...]  # ids


class Estate(Struct, frozen=True):
    """The devices of a controller, or of one of its allocations. Nodes with the label reach it."""

    name: str  # one of its own among all of them; without "/"
    device_class: str
    label: tuple[str, str]
    devices: tuple[Device, ...] = ()
    spots: tuple[Spot, ...] = ()  # of the devices, in the same order
    prefix: str = ""  # of the ids of partitions that are ours; a pod's uid follows
    site: str = ""  # the controller, among whose partitions ids are unique

    def id_of(self, uid: str) -> str:
        """The partition of a pod."""
        return f"{self.prefix}{uid}"

    def uid_of(self, partition: str) -> str | None:
        """The pod that a partition was made for; None: it is not ours."""
        if not self.prefix or not partition.startswith(self.prefix):
            return None
        return partition[len(self.prefix) :]


def part_id(estate: str, device: str) -> str:
    """How a device of an estate is called among all devices of its class."""
    return f"{estate}/{device}"


def divided(asks: Sequence[DeviceAsk], estate: str, devices: Sequence[Device]) -> list[Held]:
    """The devices of a partition by container, in the order in which containers start: each has its
    own, but what an init container had is given to those after it."""
    found: list[Held] = []
    standing = 0
    for ask in asks:
        own = devices[standing : standing + ask.amount]
        given = tuple(HeldDevice(each.id, each.index, 1) for each in own)
        found.append(Held(ask.container, ask.resource, estate, given))
        if ask.phase != "init":
            standing += ask.amount
    return found
