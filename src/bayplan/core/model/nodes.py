"""A node as the engine sees it."""

from msgspec import Struct

from bayplan.core.model.devices import Device
from bayplan.core.model.selectors import Taint
from bayplan.core.model.utilisation import NodeUse
from bayplan.core.model.vendors import Shape


class Image(Struct, frozen=True, gc=False):
    names: tuple[str, ...]
    size_bytes: int


class Layout(Struct, frozen=True, cache_hash=True):
    """How the devices of a pool follow each other, for those that are given side by side. Pools of
    a kind share it. A device's cores have the numbers `index * cores` and on."""

    indexes: tuple[int, ...]  # of the devices, ascending
    cores: int = 1  # of each device
    shape: Shape = "chain"
    row: int = 4  # devices
    type: str = ""  # of the machine


class Pool(Struct, frozen=True, cache_hash=True):
    """A node's devices of one class, by which pods are told apart. A node without one only counts
    them. Devices that are cordoned count as unhealthy here."""

    device_class: str
    devices: tuple[Device, ...] = ()
    links: tuple[tuple[int, ...], ...] = ()  # devices × devices; empty: all alike
    unknown: str = ""  # why nobody can say which there are; then nothing is given
    layout: Layout | None = None  # of a class of which consecutive devices are given


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
    maps: dict[str, str] = {}  # of devices in use, as somebody wrote them; only to be corrected
    use: NodeUse | None = None  # what a profiler has measured; None: nobody does

    @property
    def static(self) -> tuple[object, ...]:
        """What static plugins, and the tie-break, read of a node."""
        return (self.labels, self.taints, self.unschedulable, self.uid)
