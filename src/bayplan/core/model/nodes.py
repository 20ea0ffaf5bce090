"""A node as the engine sees it."""

from msgspec import Struct

from bayplan.core.model.selectors import Taint


class Image(Struct, frozen=True, gc=False):
    names: tuple[str, ...]
    size_bytes: int


class Node(Struct, frozen=True):
    """A machine for pods. Amounts are integers: cpu in thousandths, the rest in units."""

    name: str
    uid: str
    labels: dict[str, str] = {}
    allocatable: dict[str, int] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    images: tuple[Image, ...] = ()

    @property
    def static(self) -> tuple[object, ...]:
        """What static plugins, and the tie-break, read of a node."""
        return (self.labels, self.taints, self.unschedulable, self.uid)
