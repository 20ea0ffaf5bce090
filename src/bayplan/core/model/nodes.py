"""A node as the engine sees it."""

from msgspec import Struct

from bayplan.core.model.devices import Device
from bayplan.core.model.selectors import Taint


class Image(Struct, frozen=True, gc=False):
    names: tuple[str, ...]
    size_bytes: int


class Pool(Struct, frozen=True, cache_hash=True):
    """A node's devices of one class, by which pods are told apart. A node without one only counts
    them. Devices that are cordoned count as unhealthy here."""

    device_class: str
    devices: tuple[Device, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()  # devices × devices; empty: all alike
    unknown: str = ""  # why nobody can say which there are; then nothing is given


class Node(Struct, frozen=True):
    """A machine for pods. Amounts are integers: cpu in thousandths, the rest in units."""

    name: str
    uid: str
    labels: dict[str, str] = {}
    allocatable: dict[str, int] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    images: tuple[Image, ...] = ()
    pools: tuple[Pool, ...] = ()  # one per class at most

    @property
    def static(self) -> tuple[object, ...]:
        """What static plugins, and the tie-break, read of a node."""
        return (self.labels, self.taints, self.unschedulable, self.uid)
