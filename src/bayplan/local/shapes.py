"""The types that objects must have, as far as anything here reads them.

A real API server has a type for every field. Here it is those that selectors, tables, patches and
defaults touch; the rest of an object is kept as it came.
"""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from bayplan.kube import wire
from bayplan.local import problems
from bayplan.local.kinds import Kind
from bayplan.local.store import Json, encode

Texts = dict[str, str] | None
Objects = list[dict[str, Any]] | None
Amounts = dict[str, str | int | float] | None
Time = Annotated[datetime, Meta(tz=True)] | None
MicroTime = (
    Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)$")] | None
)


class _Shape(Struct, rename="camel"):
    pass


class _Metadata(_Shape):
    name: str | None = None
    namespace: str | None = None
    generate_name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: Texts = None
    annotations: Texts = None
    finalizers: list[str] | None = None
    owner_references: Objects = None
    generation: int | None = None
    deletion_grace_period_seconds: int | None = None


class _Object(_Shape):
    metadata: _Metadata


class _Whole(_Object):
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _Condition(_Shape):
    type: str
    status: str
    reason: str | None = None


class _PodSpec(wire.PodSpec):
    restart_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    readiness_gates: Objects = None


class _Waiting(_Shape):
    reason: str | None = None


class _Terminated(_Shape):
    reason: str | None = None
    signal: int | None = None
    exit_code: int | None = None


class _ContainerState(_Shape):
    waiting: _Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(_Shape):
    ready: bool | None = None
    restart_count: int | None = None
    state: _ContainerState | None = None


class _PodStatus(_Shape):
    phase: str | None = None
    reason: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: Objects = msgspec.field(default=None, name="podIPs")
    nominated_node_name: str | None = None


class _Pod(_Object):
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _NodeAddress(_Shape):
    type: str
    address: str


class _NodeStatus(_Shape):
    capacity: Amounts = None
    allocatable: Amounts = None
    conditions: list[_Condition] | None = None
    addresses: list[_NodeAddress] | None = None
    node_info: dict[str, Any] | None = None


class _Node(_Object):
    spec: wire.NodeSpec | None = None
    status: _NodeStatus | None = None


class _TemplateMetadata(_Shape):
    labels: Texts = None
    annotations: Texts = None


class _Template(_Shape):
    metadata: _TemplateMetadata | None = None
    spec: _PodSpec | None = None


class _Strategy(_Shape):
    type: str | None = None
    rolling_update: dict[str, int | str | None] | None = None


class _SetSpec(_Shape):
    replicas: wire.Int32 | None = None
    selector: wire.LabelSelector | None = None
    template: _Template | None = None
    service_name: str | None = None
    pod_management_policy: str | None = None
    update_strategy: _Strategy | None = None
    min_ready_seconds: wire.Int32 | None = None
    persistent_volume_claim_retention_policy: Texts = None
    ordinals: dict[str, int | None] | None = None
    volume_claim_templates: Objects = None


class _SetStatus(_Shape):
    replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    current_revision: str | None = None
    conditions: list[_Condition] | None = None


class _StatefulSet(_Object):
    spec: _SetSpec | None = None
    status: _SetStatus | None = None


class _JobSpec(_Shape):
    parallelism: wire.Int32 | None = None
    completions: wire.Int32 | None = None
    backoff_limit: wire.Int32 | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: wire.Int32 | None = None
    selector: wire.LabelSelector | None = None
    manual_selector: bool | None = None
    template: _Template | None = None
    completion_mode: str | None = None
    suspend: bool | None = None
    pod_replacement_policy: str | None = None


class _JobStatus(_Shape):
    conditions: list[_Condition] | None = None
    start_time: Time = None
    completion_time: Time = None
    active: int | None = None
    succeeded: int | None = None
    failed: int | None = None


class _Job(_Object):
    spec: _JobSpec | None = None
    status: _JobStatus | None = None


class _ScaleSpec(_Shape):
    replicas: wire.Int32 | None = None


class _Scale(_Object):
    spec: _ScaleSpec | None = None


class _BudgetSpec(_Shape):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: dict[str, Any] | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _BudgetStatus(_Shape):
    current_healthy: int | None = None
    desired_healthy: int | None = None
    disruptions_allowed: int | None = None
    expected_pods: int | None = None
    observed_generation: int | None = None
    disrupted_pods: Texts = None
    conditions: list[_Condition] | None = None


class _Budget(_Object):
    spec: _BudgetSpec | None = None
    status: _BudgetStatus | None = None


class _ClaimSpec(_Shape):
    access_modes: list[str] | None = None
    resources: dict[str, dict[str, Any] | None] | None = None


class _VolumeStatus(_Shape):
    phase: str | None = None
    access_modes: list[str] | None = None
    capacity: Amounts = None


class _Claim(_Object):
    spec: _ClaimSpec | None = None
    status: _VolumeStatus | None = None


class _VolumeSpec(_Shape):
    access_modes: list[str] | None = None
    capacity: Amounts = None
    claim_ref: dict[str, Any] | None = None


class _Volume(_Object):
    spec: _VolumeSpec | None = None
    status: _VolumeStatus | None = None


class _Secret(_Object):
    data: Texts = None
    string_data: Texts = None


class _ConfigMap(_Object):
    data: dict[str, str | None] | None = None
    binary_data: dict[str, str | None] | None = None
    immutable: bool | None = None


class _Port(_Shape):
    port: int | None = None
    node_port: int | None = None
    protocol: str | None = None


class _ServiceSpec(_Shape):
    type: str | None = None
    selector: dict[str, str | None] | None = None
    ports: list[_Port] | None = None
    external_name: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    external_ips: list[str] | None = msgspec.field(default=None, name="externalIPs")


class _Address(_Shape):
    ip: str | None = None
    hostname: str | None = None


class _Balancer(_Shape):
    ingress: list[_Address] | None = None


class _ServiceStatus(_Shape):
    load_balancer: _Balancer | None = None


class _Service(_Object):
    spec: _ServiceSpec | None = None
    status: _ServiceStatus | None = None


class _Subset(_Shape):
    addresses: list[_Address] | None = None
    ports: list[_Port] | None = None


class _Endpoints(_Object):
    subsets: list[_Subset] | None = None


class _RoleBinding(_Object):
    subjects: Objects = None
    role_ref: dict[str, Any] | None = None


class _Drivers(_Shape):
    drivers: Objects = None


class _CsiNode(_Object):
    spec: _Drivers | None = None


class _QuotaStatus(_Shape):
    hard: Amounts = None
    used: Amounts = None


class _Quota(_Object):
    spec: dict[str, Any] | None = None
    status: _QuotaStatus | None = None


class _SliceSpec(_Shape):
    driver: str | None = None
    node_name: str | None = None
    pool: dict[str, Any] | None = None


class _Slice(_Object):
    spec: _SliceSpec | None = None


class _Preconditions(_Shape):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(_Shape):
    kind: str | None = None
    dry_run: list[str] | None = None
    propagation_policy: str | None = None
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None


class _Reference(_Shape):
    kind: str | None = None
    name: str | None = None


class _Binding(_Object):
    target: _Reference | None = None


class _Eviction(_Object):
    delete_options: _DeleteOptions | None = None


class _Series(_Shape):
    count: int | None = None
    last_observed_time: MicroTime = None


class _Event(_Object):
    involved_object: dict[str, Any] | None = None
    regarding: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    deprecated_source: dict[str, Any] | None = None
    series: _Series | None = None
    count: int | None = None
    deprecated_count: int | None = None
    message: str | None = None
    first_timestamp: Time = None
    deprecated_first_timestamp: Time = None
    last_timestamp: Time = None
    deprecated_last_timestamp: Time = None
    event_time: MicroTime = None


class _Names(_Shape):
    plural: str | None = None
    singular: str | None = None
    kind: str | None = None
    list_kind: str | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None


class _Column(_Shape):
    name: str | None = None
    type: str | None = None
    json_path: str | None = None
    priority: int | None = None


class _Version(_Shape):
    name: str | None = None
    served: bool = False
    storage: bool = False
    schema: dict[str, Any] | None = None
    subresources: dict[str, dict[str, Any] | None] | None = None
    additional_printer_columns: list[_Column] | None = None


class _DefinitionSpec(_Shape):
    group: str | None = None
    scope: str | None = None
    names: _Names | None = None
    versions: list[_Version] | None = None
    conversion: dict[str, Any] | None = None


class _DefinitionStatus(_Shape):
    accepted_names: _Names | None = None
    conditions: list[_Condition] | None = None
    stored_versions: list[str] | None = None


class _Definition(_Object):
    spec: _DefinitionSpec | None = None
    status: _DefinitionStatus | None = None


_SHAPES: dict[str, Any] = {
    "Pod": _Pod,
    "Node": _Node,
    "PodDisruptionBudget": _Budget,
    "StatefulSet": _StatefulSet,
    "Job": _Job,
    "Event": _Event,
    "CustomResourceDefinition": _Definition,
    "PersistentVolumeClaim": _Claim,
    "PersistentVolume": _Volume,
    "ResourceQuota": _Quota,
    "Secret": _Secret,
    "ConfigMap": _ConfigMap,
    "Service": _Service,
    "Endpoints": _Endpoints,
    "RoleBinding": _RoleBinding,
    "ClusterRoleBinding": _RoleBinding,
    "CSINode": _CsiNode,
    "ResourceSlice": _Slice,
    "PriorityClass": wire.PriorityClass,
    "RuntimeClass": wire.RuntimeClass,
}


def check(kind: Kind, value: Json) -> None:
    """A `Problem` when a field has the wrong type."""
    shape = _SHAPES.get(kind.built_in, _Whole)
    _check(kind.kind, kind.version, value, shape)


def check_action(kind: str, value: Json) -> None:
    """The same, for what is only done and not kept."""
    _check(kind, "v1", value, _Binding if kind == "Binding" else _Eviction)


def check_scale(value: Json) -> None:
    """The same, for the number of an object's replicas."""
    _check("Scale", "v1", value, _Scale)


def check_options(value: Any) -> None:
    """The same, for the options of a delete."""
    try:
        msgspec.convert(value, _DeleteOptions)
    except msgspec.ValidationError as error:
        raise problems.bad_request(f"the options of a delete: {error}") from None


def _check(kind: str, version: str, value: Json, shape: Any) -> None:
    try:
        raw = encode(value)  # quantities are read as raw JSON
        msgspec.json.decode(raw, type=_Object)
        msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise problems.bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: {error}'
        ) from None
