"""What the world tells the engine. Past tense: it has happened."""

from msgspec import Struct

from bayplan.core.model.budgets import Budget
from bayplan.core.model.devices import Held
from bayplan.core.model.grants import Grant
from bayplan.core.model.groups import PodGroup, Source
from bayplan.core.model.nodes import Node
from bayplan.core.model.numa import Topology
from bayplan.core.model.partitions import Estate, Partition
from bayplan.core.model.pods import Pod
from bayplan.core.model.utilisation import NodeUse
from bayplan.core.model.volumes import Claim, StorageClass, Volume


class PodSeen(Struct, frozen=True, gc=False):
    """A pod was listed, created or changed."""

    pod: Pod


class PodGone(Struct, frozen=True, gc=False):
    """A pod was deleted or has ended."""

    uid: str


class PodUnreadable(Struct, frozen=True, gc=False):
    """A bound pod cannot be understood: its node takes nothing more until it can, or is gone."""

    uid: str
    node: str


class NodeSeen(Struct, frozen=True, gc=False):
    node: Node


class NodeGone(Struct, frozen=True, gc=False):
    name: str


class UseSeen(Struct, frozen=True, gc=False):
    """Other use of a node's devices was measured; nothing else about the node has changed."""

    node: str
    use: NodeUse | None


class NamespaceSeen(Struct, frozen=True, gc=False):
    name: str
    labels: dict[str, str]


class NamespaceGone(Struct, frozen=True, gc=False):
    name: str


class BindDone(Struct, frozen=True, gc=False):
    uid: str


class BindFailed(Struct, frozen=True, gc=False):
    uid: str
    why: str


class KubeletRefused(Struct, frozen=True, gc=False):
    """A kubelet did not admit a pod that was bound to its node, for want of these resources.

    To be told once per pod, and only as news: it counts as of now.
    """

    node: str
    resources: tuple[str, ...]


class ClaimSeen(Struct, frozen=True, gc=False):
    claim: Claim


class ClaimGone(Struct, frozen=True, gc=False):
    key: str  # namespace/name


class VolumeSeen(Struct, frozen=True, gc=False):
    volume: Volume


class VolumeGone(Struct, frozen=True, gc=False):
    name: str


class StorageClassSeen(Struct, frozen=True, gc=False):
    storage_class: StorageClass


class StorageClassGone(Struct, frozen=True, gc=False):
    name: str


class StorageClassesHidden(Struct, frozen=True, gc=False):
    """Storage classes may not be read, or they may again: what is not known may exist."""

    hidden: bool = True


class DeviceClassSeen(Struct, frozen=True, gc=False):
    """A DeviceClass, and the extended resource that it serves, or an empty name."""

    name: str
    resource: str


class DeviceClassGone(Struct, frozen=True, gc=False):
    name: str


class BudgetSeen(Struct, frozen=True, gc=False):
    budget: Budget


class BudgetGone(Struct, frozen=True, gc=False):
    key: str  # namespace/name


class TopologySeen(Struct, frozen=True, gc=False):
    topology: Topology


class TopologyGone(Struct, frozen=True, gc=False):
    node: str


class VictimSpared(Struct, frozen=True, gc=False):
    """A pod that was to be deleted for another will not be."""

    uid: str
    why: str
    preemptor: str = ""  # the uid of the pod that it was to go for, where that is known
    for_s: float = 0.0  # it is not asked to go again for so long


class EstateSeen(Struct, frozen=True, gc=False):
    """A controller has told what it has, and all partitions that there are."""

    estate: Estate
    partitions: tuple[Partition, ...] = ()


class EstateLost(Struct, frozen=True, gc=False):
    """A controller does not answer, or has it no more."""

    name: str
    why: str


class PartitionMade(Struct, frozen=True, gc=False):
    """The partition of a pod that is being bound, with the devices that it really has."""

    uid: str
    held: tuple[Held, ...]  # all that the pod is given


class PartitionRefused(Struct, frozen=True, gc=False):
    """A controller said that it has no room for so many."""

    estate: str
    size: int


class PartitionGone(Struct, frozen=True, gc=False):
    """A partition was deleted, or there was none to delete."""

    estate: str
    id: str
    freed: bool = True


class GroupSeen(Struct, frozen=True, gc=False):
    group: PodGroup


class GroupGone(Struct, frozen=True, gc=False):
    source: Source
    key: str  # of its gang


class GrantSeen(Struct, frozen=True, gc=False):
    grant: Grant


class GrantGone(Struct, frozen=True, gc=False):
    key: str  # of the job


class ConfirmFailed(Struct, frozen=True, gc=False):
    """What was to be said of a grant was not written."""

    job: str


class PodExpected(Struct, frozen=True, gc=False):
    """Another scheduler was told where the pod fits; it will most likely choose this node."""

    pod: Pod
    node: str


class PodNotExpected(Struct, frozen=True, gc=False):
    """It was not told any place."""

    uid: str


class PlaceWanted(Struct, frozen=True, gc=False):
    """Another scheduler found no place for the pod, and on these nodes nothing but devices that it
    does not know was in the way."""

    pod: Pod
    nodes: tuple[str, ...]


class BindAsked(Struct, frozen=True, gc=False):
    """Another scheduler has chosen the node and wants the pod to be bound there."""

    pod: Pod
    node: str


class Tick(Struct, frozen=True, gc=False):
    """Time to decide. At most `limit` pods are tried."""

    limit: int = 1024
    day_s: float = 0.0  # the time of day, as pods' times are given; 0: nobody knows


Event = (
    PodSeen
    | PodGone
    | PodUnreadable
    | NodeSeen
    | NodeGone
    | UseSeen
    | NamespaceSeen
    | NamespaceGone
    | BindDone
    | BindFailed
    | KubeletRefused
    | ClaimSeen
    | ClaimGone
    | VolumeSeen
    | VolumeGone
    | StorageClassSeen
    | StorageClassGone
    | StorageClassesHidden
    | DeviceClassSeen
    | DeviceClassGone
    | BudgetSeen
    | BudgetGone
    | TopologySeen
    | TopologyGone
    | VictimSpared
    | EstateSeen
    | EstateLost
    | PartitionMade
    | PartitionRefused
    | PartitionGone
    | GroupSeen
    | GroupGone
    | GrantSeen
    | GrantGone
    | ConfirmFailed
    | PodExpected
    | PodNotExpected
    | PlaceWanted
    | BindAsked
    | Tick
)
