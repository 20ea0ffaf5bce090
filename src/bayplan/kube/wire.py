"""Kubernetes objects as they travel: only the fields that are read, named as they are in JSON.

Unknown fields are skipped, and null stands for "not there", as in Go. Nothing is defaulted,
checked or computed here beyond types; amounts stay raw, because 1 and "1" are both quantities.
"""

from functools import cache
from operator import attrgetter
from typing import Annotated, Any, cast

from msgspec import Meta, Raw, Struct, defstruct, field

from bayplan.core.model import devices, dialects

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Labels = dict[str, str] | None
Strings = list[str] | None
Quantities = dict[str, Raw] | None

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

GANG = "bayplan.dev/gang"  # on a pod: a name, one gang of its namespace
GANG_MIN = "bayplan.dev/gang-min"  # how many of it start together at least; 1 if it is not there
GANG_NEAR = "bayplan.dev/gang-near"  # label keys of nodes, narrowest first, with commas
GANG_WITHIN = "bayplan.dev/gang-within"  # a label key of nodes: all that start agree in it
GANG_SPREAD = "bayplan.dev/gang-spread"  # a label key: evenly over its values, if it can be
GANG_ACROSS = "bayplan.dev/gang-across"  # a label key: evenly over its values, or not at all
CHECKPOINT = "bayplan.dev/checkpoint"  # when it last saved its work, RFC 3339
RUN_SECONDS = "bayplan.dev/run-seconds"  # how long it runs at most
OURS = "bayplan.dev/"  # how the apiVersion of an ElasticJob begins
ELASTIC = "bayplan.dev/elastic"  # on a worker: its job's name, after "kind/" if not ElasticJob's

GROUP_LABEL = "scheduling.x-k8s.io/pod-group"  # on a pod: the PodGroup that it is a member of
OLD_GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"  # the same, as it was called at first


class Wire(Struct, rename="camel", gc=False):
    pass


class Metadata(Wire):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: Labels = None
    generation: Int64 | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class DeviceAnnotations(Wire):
    """What is read of a pod's or a node's annotations; they can hold a great deal else."""

    assignment: str | None = field(default=None, name=devices.ASSIGNMENT)
    inventory: str | None = field(default=None, name=devices.INVENTORY)
    cordon: str | None = field(default=None, name=devices.CORDON)
    alnair_held: str | None = field(default=None, name=dialects.ALNAIR_HELD)
    alnair_count: str | None = field(default=None, name=dialects.ALNAIR_COUNT)
    alnair_uuids: str | None = field(default=None, name=dialects.ALNAIR_UUIDS)
    alnair_sizes: str | None = field(default=None, name=dialects.ALNAIR_SIZES[0])
    alnair_mistyped: str | None = field(default=None, name=dialects.ALNAIR_SIZES[1])
    gpushare_index: str | None = field(default=None, name=dialects.GPUSHARE_INDEX)
    gpushare_amount: str | None = field(default=None, name=dialects.GPUSHARE_AMOUNT)
    hami_node: str | None = field(default=None, name=dialects.HAMI_NODE)
    hami_held: str | None = field(default=None, name=dialects.HAMI_HELD)
    hami_to_come: str | None = field(default=None, name=dialects.HAMI_TO_COME)
    neuron_ids: str | None = field(default=None, name=dialects.NEURON_IDS)
    neuron_type: str | None = field(default=None, name=dialects.NEURON_TYPE)
    neuron_devices: str | None = field(default=None, name=dialects.NEURON_DEVICES)
    neuron_cores: str | None = field(default=None, name=dialects.NEURON_CORES)
    neuron_device_map: str | None = field(default=None, name=dialects.NEURON_DEVICE_MAP)
    neuron_core_map: str | None = field(default=None, name=dialects.NEURON_CORE_MAP)

    def there(self) -> dict[str, str]:
        found = zip(DeviceAnnotations.__struct_encode_fields__, _texts(self), strict=True)
        return {name: text for name, text in found if text is not None}


_texts = attrgetter(*DeviceAnnotations.__struct_fields__)


class NodeMetadata(Metadata):
    annotations: DeviceAnnotations | None = None


class PodAnnotations(DeviceAnnotations):
    """With what a pod's owner may say of it."""

    gang: str | None = field(default=None, name=GANG)
    gang_min: str | None = field(default=None, name=GANG_MIN)
    gang_near: str | None = field(default=None, name=GANG_NEAR)
    gang_within: str | None = field(default=None, name=GANG_WITHIN)
    gang_spread: str | None = field(default=None, name=GANG_SPREAD)
    gang_across: str | None = field(default=None, name=GANG_ACROSS)
    checkpoint: str | None = field(default=None, name=CHECKPOINT)
    run_seconds: str | None = field(default=None, name=RUN_SECONDS)
    elastic: str | None = field(default=None, name=ELASTIC)

    @property
    def has_gang(self) -> bool:
        """Whether anything is said of a gang; nearly no pod does."""
        near = self.gang_near is self.gang_within is self.gang_spread is self.gang_across is None
        return not (near and self.gang is self.gang_min is None)

    def asked(self) -> dict[str, str]:
        """By key: what the pod asks for by annotations (`pod_asking`)."""
        fields = self.__struct_fields__[_ASKED:]
        return {
            name: text
            for name, attribute in zip(self.__struct_encode_fields__[_ASKED:], fields, strict=True)
            if (text := getattr(self, attribute)) is not None
        }


_ASKED = len(PodAnnotations.__struct_fields__)


class PodOwner(Wire):
    api_version: str | None = None
    kind: str | None = None
    uid: str | None = None
    controller: bool | None = None


class PodMetadata(Metadata):
    annotations: PodAnnotations | None = None
    owner_references: list[PodOwner] | None = None


class OwnerReference(Wire):
    uid: str | None = None
    controller: bool | None = None


class FullMetadata(Metadata):
    """With what is read of claims and volumes only, since pods have much of it."""

    annotations: Labels = None
    owner_references: list[OwnerReference] | None = None


# Selectors


class Expression(Wire):
    key: str | None = None
    operator: str | None = None
    values: Strings = None


class LabelSelector(Wire):
    match_labels: Labels = None
    match_expressions: list[Expression] | None = None


class NodeSelectorTerm(Wire):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Wire):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredNodes(Wire):
    weight: Int32 | None = None
    preference: NodeSelectorTerm | None = None


class NodeAffinity(Wire):
    required: NodeSelector | None = field(default=None, name=REQUIRED)
    preferred: list[PreferredNodes] | None = field(default=None, name=PREFERRED)


class PodAffinityTerm(Wire):
    label_selector: LabelSelector | None = None
    namespaces: Strings = None
    namespace_selector: LabelSelector | None = None
    topology_key: str | None = None


class PreferredPods(Wire):
    weight: Int32 | None = None
    pod_affinity_term: PodAffinityTerm | None = None


class PodAffinity(Wire):
    required: list[PodAffinityTerm] | None = field(default=None, name=REQUIRED)
    preferred: list[PreferredPods] | None = field(default=None, name=PREFERRED)


class Affinity(Wire):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(Wire):
    max_skew: Int32 | None = None
    topology_key: str | None = None
    when_unsatisfiable: str | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: Strings = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


# Pods


class Resources(Wire):
    requests: Quantities = None


class Port(Wire):
    host_port: Int32 | None = None
    host_ip: str | None = field(default=None, name="hostIP")
    protocol: str | None = None


class Container(Wire):
    name: str | None = None
    image: str | None = None
    restart_policy: str | None = None
    resources: Resources | None = None
    ports: list[Port] | None = None


class ImageSource(Wire):
    reference: str | None = None


class ClaimSource(Wire):
    claim_name: str | None = None


class EphemeralSource(Wire):
    pass


class Volume(Wire):
    name: str | None = None
    image: ImageSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class Toleration(Wire):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Gate(Wire):
    name: str | None = None


class PodResourceClaim(Wire):
    name: str | None = None


class SchedulingGroup(Wire):
    pod_group_name: str | None = None


class PodSpec(Wire):
    resource_claims: list[PodResourceClaim] | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    resources: Resources | None = None
    overhead: Quantities = None
    node_name: str | None = None
    node_selector: Labels = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[Gate] | None = None
    priority: Int32 | None = None
    preemption_policy: str | None = None
    active_deadline_seconds: Int64 | None = None
    scheduling_group: SchedulingGroup | None = None


class ContainerStatus(Wire):
    name: str | None = None
    resources: Resources | None = None
    allocated_resources: Quantities = None


class Condition(Wire):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class PodStatus(Wire):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    qos_class: str | None = None
    nominated_node_name: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resources: Resources | None = None
    allocated_resources: Quantities = None


class Pod(Wire):
    """`profile` is no field of the object: it is filled in by whoever decodes it, because the names
    of these annotations cannot be listed here."""

    metadata: PodMetadata | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None
    profile: Labels = None


@cache
def pod_asking(keys: tuple[str, ...]) -> type[Pod]:
    """Pods of whose annotations these keys are read too."""
    if not keys:
        return Pod
    fields = [
        (f"asked_{i}", str | None, field(default=None, name=key)) for i, key in enumerate(keys)
    ]
    annotations = defstruct("AskingAnnotations", fields, bases=(PodAnnotations,))
    some: Any = annotations | None
    metadata: Any = defstruct("Metadata", [("annotations", some, None)], bases=(PodMetadata,))
    asking: Any = defstruct("Pod", [("metadata", metadata | None, None)], bases=(Pod,))
    return cast(type[Pod], asking)


# Nodes and the rest


class Taint(Wire):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeSpec(Wire):
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class ContainerImage(Wire):
    names: Strings = None
    size_bytes: Int64 | None = None


class NodeStatus(Wire):
    allocatable: Quantities = None
    images: list[ContainerImage] | None = None


class AllAnnotations(Wire):
    annotations: Labels = None


class Profiled(Wire):
    """Any object, read for its annotations alone."""

    metadata: AllAnnotations | None = None


class Node(Wire):
    metadata: NodeMetadata | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class Namespace(Wire):
    metadata: Metadata | None = None


class PriorityClass(Wire):
    metadata: Metadata | None = None
    value: Int32 | None = None
    global_default: bool | None = None
    preemption_policy: str | None = None


class RuntimeOverhead(Wire):
    pod_fixed: dict[str, Any] | None = None  # copied into pods as it is


class RuntimeScheduling(Wire):
    node_selector: Labels = None
    tolerations: list[dict[str, Any]] | None = None  # copied likewise


class RuntimeClass(Wire):
    metadata: Metadata | None = None
    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None


class BudgetSpec(Wire):
    selector: LabelSelector | None = None


class BudgetStatus(Wire):
    disruptions_allowed: Int32 | None = None
    disrupted_pods: dict[str, Raw] | None = None  # by name: when


class PodDisruptionBudget(Wire):
    metadata: Metadata | None = None
    spec: BudgetSpec | None = None
    status: BudgetStatus | None = None


# Volumes


class ClaimSpec(Wire):
    access_modes: Strings = None
    storage_class_name: str | None = None
    volume_name: str | None = None


class ClaimStatus(Wire):
    phase: str | None = None


class PersistentVolumeClaim(Wire):
    metadata: FullMetadata | None = None
    spec: ClaimSpec | None = None
    status: ClaimStatus | None = None


class ClaimReference(Wire):
    name: str | None = None


class VolumeNodeAffinity(Wire):
    required: NodeSelector | None = None


class VolumeSpec(Wire):
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    storage_class_name: str | None = None


class VolumeStatus(Wire):
    phase: str | None = None


class PersistentVolume(Wire):
    metadata: FullMetadata | None = None
    spec: VolumeSpec | None = None
    status: VolumeStatus | None = None


class TopologySelectorTerm(Wire):
    match_label_expressions: list[Expression] | None = None


class StorageClass(Wire):
    metadata: Metadata | None = None
    provisioner: str | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologySelectorTerm] | None = None


class DeviceClassSpec(Wire):
    extended_resource_name: str | None = None


class DeviceClass(Wire):
    metadata: Metadata | None = None
    spec: DeviceClassSpec | None = None
