"""A pod as the engine sees it: a reference to its keys and a handful of scalars.

The *row key* is everything that a single node is asked about; pods of one template share it, so
verdicts are kept per row key. What depends on labels is apart: the labels themselves and the
pod's own affinity and spread terms.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.model.selectors import NodeTerm, Selector, Toleration
from bayplan.core.model.utilisation import PodUse
from bayplan.core.model.vendors import Kind

Phase = Literal["init", "sidecar", "main"]
MOST_MIB = 1 << 53  # more than any device has; what asks for more fits nowhere


class HostPort(Struct, frozen=True, cache_hash=True, order=True):
    protocol: str
    port: int
    ip: str  # "0.0.0.0" stands for every address


class DeviceAsk(Struct, frozen=True, cache_hash=True):
    """What a container asks for of a class of devices by one of its names."""

    container: str
    resource: str
    device_class: str
    kind: Kind
    amount: int  # in the resource's own unit
    unit_mib: int = 1
    phase: Phase = "main"
    consecutive: bool = False  # its devices, or cores, must follow each other

    @property
    def memory_mib(self) -> int:
        return min(self.amount * self.unit_mib, MOST_MIB) if self.kind == "memory" else 0


class ZoneAsk(Struct, frozen=True, cache_hash=True):
    """What of a container a kubelet aligns to NUMA zones: cpus of its own, memory, devices."""

    amounts: tuple[tuple[str, int], ...]  # sorted by name; cpu in milli
    phase: Phase = "main"


class RowKey(Struct, frozen=True, cache_hash=True):
    """What a pod asks of one node, whatever its labels are."""

    requests: tuple[tuple[str, int], ...] = ()  # sorted by name, without zeros; cpu in milli
    # What NodeResourcesFit's score counts a newcomer for, and what all scores count it for once it
    # is placed (cpu milli, memory bytes). Containers that request no cpu or memory get
    # kube-scheduler's defaults here, and a newcomer's pod-level resources are left out.
    scored: tuple[tuple[str, int], ...] = ()
    scored_placed: tuple[int, int] = (0, 0)
    node_selector: tuple[tuple[str, str], ...] = ()  # sorted
    required: tuple[NodeTerm, ...] | None = None  # None: no required node affinity
    preferred: tuple[tuple[int, NodeTerm], ...] = ()  # weight, term
    has_preferred: bool = False  # a preferred list is there, even if nothing in it counts
    tolerations: tuple[Toleration, ...] = ()
    ports: tuple[HostPort, ...] = ()  # sorted
    images: tuple[str, ...] = ()  # normalised names of containers and image volumes, with repeats
    containers: int = 1  # init and ordinary containers together
    node_name: str = ""  # set by hand in the manifest: only this node will do
    claims: tuple[str, ...] = ()  # namespace/name of persistent volume claims, by volume
    ephemeral: tuple[str, ...] = ()  # those of them that must belong to the pod itself …
    claim_owner: str = ""  # … whose uid this is; empty where there are none
    resource_claims: bool = False  # asks for devices through resourceClaims
    devices: tuple[DeviceAsk, ...] = ()  # init containers first, as they start
    aligned: tuple[ZoneAsk, ...] = ()  # likewise; empty where no zone could matter
    guaranteed: bool = False  # QoS class Guaranteed, where `aligned` says something

    @property
    def partitions(self) -> tuple[DeviceAsk, ...]:
        """What is asked for as a partition, which is no node's own."""
        if not self.devices:
            return ()
        return tuple([ask for ask in self.devices if ask.kind == "partition"])

    @property
    def plain(self) -> "RowKey":
        """Without what is each pod's own: the key that all pods of a template share."""
        if not self.claims:
            return self
        return replace(self, claims=(), ephemeral=(), claim_owner="")


class AffinityTerm(Struct, frozen=True, cache_hash=True):
    """Pods that match, in these namespaces, within one domain of `topology_key`."""

    selector: Selector | None
    topology_key: str
    namespaces: tuple[str, ...] = ()  # sorted; the pod's own is filled in where none was given
    namespace_selector: Selector | None = None


class Spread(Struct, frozen=True, cache_hash=True):
    """One topology spread constraint, `matchLabelKeys` already merged into the selector."""

    max_skew: int
    topology_key: str
    hard: bool
    selector: Selector | None
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class PodTerms(Struct, frozen=True, cache_hash=True):
    """A pod's own terms about other pods. Anti-affinity preferences have negative weights."""

    namespace: str
    spread: tuple[Spread, ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[tuple[int, AffinityTerm], ...] = ()


class Part(Struct, frozen=True, gc=False):
    """What a pod holds of one device at most, all its containers together."""

    device_class: str
    id: str  # or "#" and the index, where that is all that is known; "@" and a core's number
    memory_mib: int = 0
    compute: int = 0  # percent
    whole: bool = False
    holders: int = 1  # containers that run together


class Holding(Struct, frozen=True, gc=False):
    """What a bound pod holds. Of `unknown` classes it holds something that cannot be said."""

    parts: tuple[Part, ...] = ()
    unknown: tuple[str, ...] = ()  # sorted


class Gang(Struct, frozen=True, cache_hash=True):
    """Pods that start together or not at all. Where an object says what they are, a pod has no more
    than the key, and the rest is in the object (`groups`)."""

    key: str  # namespace/name; before it the kind of the object, where there is one
    minimum: int = 1  # fewer do not start
    near: tuple[str, ...] = ()  # label keys: all on nodes that agree in the first, else the next …
    within: str = ""  # label key: all on nodes that agree in it, or nowhere
    spread: str = ""  # label key: evenly over the nodes that agree in it, as far as that can be …
    across: str = ""  # … or not at all
    timeout_s: float = 0.0  # how long it may run in part; 0: as long as everybody
    grouped: bool = False  # an object says the rest

    @property
    def title(self) -> str:
        return self.key if self.grouped else f"gang {self.key}"


class Worker(Struct, frozen=True, cache_hash=True, gc=False):
    """Whose worker a pod is: the key of the elastic job, and its uid where it is the pod's owner;
    else nobody says that."""

    key: str
    uid: str = ""


class Lifecycle(Struct, frozen=True, gc=False, omit_defaults=True):
    """When a pod may begin and how long it runs, who goes for whom, and what its end costs. Most
    pods have the same, so they share it, and a pod has one field in place of six."""

    gates: tuple[str, ...] = ()
    preempts: bool = True  # preemptionPolicy is not Never
    preempted: bool = False  # a scheduler deleted it for another
    controlled: bool = False  # somebody would make it anew
    run_s: float = 0.0  # how long it runs at most, by its owner's word; 0: nobody says
    checkpoint_s: float = 0.0  # when it last saved its work; 0: never, as far as is known


class Pod(Struct, frozen=True, gc=False):
    """A pod. `node` is empty until it is bound. There are many: each field costs 8 bytes of each,
    and a field that few pods have is better in what they share."""

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    row: RowKey
    terms: PodTerms | None = None
    node: str = ""
    scheduler: str = "default-scheduler"
    priority: int = 0
    created_s: float = 0.0
    started_s: float = 0.0
    terminating: bool = False
    nominated: str = ""
    held: Holding | None = None  # devices; None: it asks for none, or nobody has said which
    gang: Gang | None = None
    worker: Worker | None = None
    lifecycle: Lifecycle = Lifecycle()
    use: PodUse | None = None  # the most that a profiler saw it use; None: nobody has looked

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def gates(self) -> tuple[str, ...]:
        return self.lifecycle.gates

    @property
    def preempts(self) -> bool:
        return self.lifecycle.preempts

    @property
    def preempted(self) -> bool:
        return self.lifecycle.preempted

    @property
    def controlled(self) -> bool:
        return self.lifecycle.controlled

    @property
    def run_s(self) -> float:
        return self.lifecycle.run_s

    @property
    def checkpoint_s(self) -> float:
        return self.lifecycle.checkpoint_s

    @property
    def saved_s(self) -> float:
        """From when on its work is lost if it is removed."""
        return max(self.started_s or self.created_s, self.lifecycle.checkpoint_s)
