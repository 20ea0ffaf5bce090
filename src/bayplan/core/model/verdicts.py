"""Why a node was refused, and what could change that."""

from enum import Enum

from msgspec import Struct


class EventKind(Enum):
    """What can happen to a cluster, as far as it can help a pod that waits."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node labels, taints or cordon changed"
    NODE_GREW = "node has more to allocate"
    POD_PLACED = "pod placed"
    POD_GONE = "pod gone"
    POD_SHRANK = "pod uses less"
    POD_RELABELLED = "pod labels changed"
    NAMESPACE_CHANGED = "namespace labels changed"
    CLAIM_CHANGED = "persistent volume claim or its volume changed"
    STORAGE_CLASS_CHANGED = "storage class changed"
    DEVICE_CLASS_CHANGED = "device class changed"
    TOPOLOGY_CHANGED = "node's NUMA zones changed"
    USE_CHANGED = "other use of a node's devices was measured, or it is too old to count"
    NODE_FORGIVEN = "kubelet's refusal is long enough ago"


class Changed(Struct, frozen=True, cache_hash=True):
    """Something happened to one object, where its kind alone would wake too many."""

    kind: EventKind
    name: str


Help = EventKind | Changed


class Reason(Struct, frozen=True):
    """One reason of a plugin. An empty `helped_by` means that nothing will help."""

    text: str  # kube-scheduler's words where it has them
    preemption_helps: bool
    helped_by: frozenset[Help]


class Tally(Struct, frozen=True):
    """How many nodes gave a reason, and the first ten of them."""

    count: int
    nodes: tuple[str, ...]


class Refusal(Struct, frozen=True):
    """Why a pod fits nowhere, in a state of the given version."""

    message: str  # kube-scheduler's sentence
    tallies: dict[str, Tally]  # by the reason's text
    helped_by: frozenset[Help]
    version: int
    more: str = ""  # of the gang, of preemption

    @property
    def sentence(self) -> str:
        """All of it, as kube-scheduler says it."""
        return f"{self.message} {self.more}" if self.more else self.message
