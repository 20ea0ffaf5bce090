"""The types that objects must have, as far as anything here reads them.

A real API server has a type for every field. Here it is those that selectors, tables, patches and
defaults touch; the rest of an object is kept as it came.
"""

from typing import Any

import msgspec
from msgspec import Struct

from bayplan.kube import wire
from bayplan.local import problems
from bayplan.local.kinds import Kind
from bayplan.local.store import Json, encode

Texts = dict[str, str] | None
Objects = list[dict[str, Any]] | None


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


class _PodStatus(_Shape):
    phase: str | None = None
    reason: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: Objects = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    nominated_node_name: str | None = None


class _Pod(_Object):
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Address(_Shape):
    type: str
    address: str


class _NodeStatus(_Shape):
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    node_info: dict[str, Any] | None = None


class _Node(_Object):
    spec: wire.NodeSpec | None = None
    status: _NodeStatus | None = None


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


class _Claim(_Object):
    spec: _ClaimSpec | None = None
    status: dict[str, Any] | None = None


class _Secret(_Object):
    data: Texts = None
    string_data: Texts = None


class _Preconditions(_Shape):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(_Shape):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions | None = None


class _Reference(_Shape):
    kind: str | None = None
    name: str | None = None


class _Binding(_Object):
    target: _Reference | None = None


class _Eviction(_Object):
    delete_options: _DeleteOptions | None = None


class _Event(_Object):
    involved_object: dict[str, Any] | None = None
    regarding: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    series: dict[str, Any] | None = None
    message: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class _Definition(_Object):
    spec: dict[str, Any]


_SHAPES: dict[str, Any] = {
    "Pod": _Pod,
    "Node": _Node,
    "PodDisruptionBudget": _Budget,
    "Event": _Event,
    "CustomResourceDefinition": _Definition,
    "PersistentVolumeClaim": _Claim,
    "Secret": _Secret,
    "PriorityClass": wire.PriorityClass,
    "RuntimeClass": wire.RuntimeClass,
}


def check(kind: Kind, value: Json) -> None:
    """A `Problem` when a field has the wrong type."""
    shape = _SHAPES.get("" if kind.custom else kind.kind, _Whole)
    _check(kind.kind, kind.api_version, value, shape)


def check_action(kind: str, value: Json) -> None:
    """The same, for what is only done and not kept."""
    _check(kind, "v1", value, _Binding if kind == "Binding" else _Eviction)


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
