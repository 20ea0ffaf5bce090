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


class _Budget(_Object):
    spec: dict[str, Any] = {}
    status: dict[str, Any] | None = None


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
    "PriorityClass": wire.PriorityClass,
    "RuntimeClass": wire.RuntimeClass,
}


def check(kind: Kind, value: Json) -> None:
    """A `Problem` when a field has the wrong type."""
    try:
        raw = encode(value)  # quantities are read as raw JSON
        msgspec.json.decode(raw, type=_Object)
        msgspec.json.decode(raw, type=_SHAPES.get("" if kind.custom else kind.kind, _Whole))
    except msgspec.ValidationError as error:
        version = kind.api_version
        raise problems.bad_request(
            f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: {error}'
        ) from None
