"""Device classes: kinds of physical device, and the names by which pods ask for them.

A class is what a vendor's configuration describes. Several resources can mean the same devices: as
wholes, by memory, by percent of their compute. So a card that one pod holds as a whole is not
shared with another by memory. The scheduler and the agent read the same classes.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

Kind = Literal["whole", "memory", "compute"]
Dialect = Literal["alnair", "gpushare", "hami"]
MIB_PER_GIB = 1024
ALNAIR_BOUND = "ai.centaurus.io/scheduler-timestamp"
FULL_COMPUTE = 100  # percent of a device

ResourceName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9][-\w.]*$")]
ClassName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")]
AnnotationKey = Annotated[str, Meta(pattern=r"^([a-z0-9][-a-z0-9.]*/)?([A-Za-z0-9][-\w.]{0,62})?$")]
Variable = Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")]


class Resource(Struct, frozen=True, rename="camel"):
    """A name by which pods ask for devices of a class, or for a part of one.

    `published`: the agent writes how much of it there is into the node's status; else a device
    plugin does, ours for whole devices.
    """

    name: ResourceName
    kind: Kind = "whole"
    unit_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = 1  # of memory
    published: bool = False
    dialect: Dialect | None = None  # the node's own software serves it, and says what it gave
    timestamp: AnnotationKey = ""  # written with a bind: its time in nanoseconds


class DeviceClass(Struct, frozen=True, rename="camel"):
    """A kind of device: its name in inventories, and what is known of it."""

    name: ClassName
    resources: tuple[Resource, ...] = ()
    ids: Literal["id", "index"] = "id"  # what containers are told
    environment: Variable = ""  # the variable that tells them
    dialects: tuple[Dialect, ...] = ()  # other software's annotations that count
    gpushare_unit_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = MIB_PER_GIB


NVIDIA = DeviceClass(
    "nvidia",
    (
        Resource("nvidia.com/gpu"),
        Resource("bayplan.dev/gpu-memory-mib", "memory", published=True),
        Resource("bayplan.dev/gpu-compute-percent", "compute", published=True),
        Resource(
            "alnair/vgpu-memory", "memory", MIB_PER_GIB, dialect="alnair", timestamp=ALNAIR_BOUND
        ),
        Resource("alnair/vgpu-compute", "compute", dialect="alnair", timestamp=ALNAIR_BOUND),
    ),
    environment="NVIDIA_VISIBLE_DEVICES",
    dialects=("alnair", "hami", "gpushare"),
)

KNOWN = (NVIDIA,)


class Vendors:
    """The classes in use, found by what pods and nodes call them."""

    @classmethod
    def known_and(cls, given: Iterable[DeviceClass]) -> "Vendors":
        """A class of a known name takes its place."""
        return cls({each.name: each for each in (*KNOWN, *given)}.values())

    def __init__(self, classes: Iterable[DeviceClass] = KNOWN) -> None:
        self.classes = {each.name: each for each in classes}
        self.resources = {
            resource.name: (each, resource)
            for each in self.classes.values()
            for resource in each.resources
        }
