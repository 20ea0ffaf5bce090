"""Device classes: kinds of physical device, and the names by which pods ask for them.

A class is what a vendor's configuration describes. Several resources can mean the same devices: as
wholes, by memory, by percent of their compute, by their cores, as partitions. So a card that one
pod holds as a whole is not shared with another by memory. The scheduler and the agent read the same
classes.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

Kind = Literal["whole", "memory", "compute", "core", "partition"]
Dialect = Literal["alnair", "gpushare", "hami", "neuron"]
Model = Literal["any", "contiguous", "partition"]
Shape = Literal["chain", "ring", "rows"]
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
    plugin does, ours for whole devices and cores.
    """

    name: ResourceName
    kind: Kind = "whole"
    unit_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = 1  # of memory
    published: bool = False
    dialect: Dialect | None = None  # the node's own software serves it, and says what it gave
    timestamp: AnnotationKey = ""  # written with a bind: its time in nanoseconds
    environment: Variable = ""  # the variable that tells containers; else the class's
    served: bool = True  # by our agent, where it runs; not so a second name for the same devices


class Instance(Struct, frozen=True, rename="camel"):
    """A kind of machine: how many devices it has, and how they are joined.

    chain: next to next. ring: the last next to the first, too. rows: a torus, of which whole rows
    are given: one, or twice as many again and again, beginning at a multiple of as many.
    """

    type: str  # as the node's label says
    devices: Annotated[int, Meta(ge=1, le=64)]
    cores: Annotated[int, Meta(ge=1, le=16)] = 1  # of each, where the node does not say
    shape: Shape = "chain"
    row: Annotated[int, Meta(ge=1, le=64)] = 4  # devices in a row


class DeviceClass(Struct, frozen=True, rename="camel"):
    """A kind of device: its name in inventories, and what is known of it."""

    name: ClassName
    resources: tuple[Resource, ...] = ()
    ids: Literal["id", "index"] = "id"  # what containers are told
    environment: Variable = ""  # the variable that tells them
    dialects: tuple[Dialect, ...] = ()  # other software's annotations that count
    gpushare_unit_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = MIB_PER_GIB
    model: Model = "any"  # which devices of a node go together
    instances: tuple[Instance, ...] = ()  # known without an inventory
    device_path: str = ""  # on the node, with {index}; containers get it
    annotation: AnnotationKey = ""  # of pods that ask for a partition without a limit

    @property
    def by_type(self) -> Mapping[str, Instance]:
        return {each.type: each for each in self.instances}


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

# NeuronLink joins inf1 and inf2 in a ring, but the runtime refuses ids that go around its end.
_INSTANCES = (
    Instance("inf1.xlarge", 1, 4),
    Instance("inf1.2xlarge", 1, 4),
    Instance("inf1.6xlarge", 4, 4),
    Instance("inf1.24xlarge", 16, 4),
    Instance("inf2.xlarge", 1, 2),
    Instance("inf2.8xlarge", 1, 2),
    Instance("inf2.24xlarge", 6, 2),
    Instance("inf2.48xlarge", 12, 2),
    Instance("trn1.2xlarge", 1, 2),
    Instance("trn1.32xlarge", 16, 2, "rows"),
    Instance("trn1n.32xlarge", 16, 2, "rows"),
    Instance("trn2.3xlarge", 1, 4),
    Instance("trn2.48xlarge", 16, 4, "rows"),  # 8 cores, by default joined to 4 logical ones
    Instance("trn2u.48xlarge", 16, 4, "rows"),
)

NEURON = DeviceClass(
    "neuron",
    (
        Resource("aws.amazon.com/neuron"),
        Resource("aws.amazon.com/neurondevice", served=False),
        Resource("aws.amazon.com/neuroncore", "core", environment="NEURON_RT_VISIBLE_CORES"),
    ),
    ids="index",
    environment="AWS_NEURON_VISIBLE_DEVICES",
    dialects=("neuron",),
    model="contiguous",
    instances=_INSTANCES,
    device_path="/dev/neuron{index}",
)

# In use only where controllers are configured: elsewhere IPUs may be counted by node.
IPU = DeviceClass(
    "ipu",
    (Resource("graphcore.ai/ipu", "partition"),),
    model="partition",
    annotation="graphcore.ai/ipu",
)

KNOWN = (NVIDIA, NEURON)


class Vendors:
    """The classes in use, found by what pods and nodes call them."""

    @classmethod
    def known_and(cls, given: Iterable[DeviceClass], *, controllers: bool = False) -> "Vendors":
        """A class of a known name takes its place."""
        known = (*KNOWN, IPU) if controllers else KNOWN
        return cls({each.name: each for each in (*known, *given)}.values())

    def __init__(self, classes: Iterable[DeviceClass] = KNOWN) -> None:
        self.classes = {each.name: each for each in classes}
        self.resources = {
            resource.name: (each, resource)
            for each in self.classes.values()
            for resource in each.resources
        }
        self.partitions = frozenset(
            name for name, (each, _) in self.resources.items() if each.model == "partition"
        )
        # by annotation: what a pod asks for by it
        self.annotations = {
            each.annotation: (each, each.resources[0])
            for each in self.classes.values()
            if each.annotation and each.model == "partition" and each.resources
        }
