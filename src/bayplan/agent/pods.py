"""The pods that are bound to this node, and which of them still wait for their devices.

Kept by a watch. Allocate does not say for which pod it asks; so the pod that waits longest with an
assignment of the right size is taken for it, and what came of it is read back (`truth`).
"""

import logging
from asyncio import Event
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw, Struct, field

from bayplan.agent.profile import ours_of_pod
from bayplan.core.model.devices import (
    ASSIGNMENT,
    VERSION,
    Assignment,
    Held,
    Unknown,
    read_assignment,
)
from bayplan.core.model.dialects import NEURON_ALLOCATED, NEURON_SAID, NEURON_TYPE
from bayplan.kube.client import PODS, Client
from bayplan.kube.reflector import Sink, Watched
from bayplan.kube.wire import FullMetadata

log = logging.getLogger("bayplan")

Key = tuple[str, str]  # namespace, name
Place = tuple[str, str]  # container, resource
NEURON = (*NEURON_SAID, NEURON_TYPE, NEURON_ALLOCATED)
_LONGEST = 1 << 10  # characters that are kept of such an annotation; right ones are shorter
Settled = Mapping[tuple[str, Place], frozenset[str]]  # by pod uid and place: what it really holds


class Pod(Struct, frozen=True):
    key: Key
    uid: str
    version: str
    created: str
    containers: frozenset[str]
    assignment: Assignment | Unknown | None
    is_newer: bool  # the assignment, than what we understand
    is_waiting: bool  # it has not started yet, and may
    has_ended: bool
    told: dict[Place, frozenset[str]]  # what its status says that its init containers got
    neuron: dict[str, str] = {}  # what it carries in the words of Neuron's extension
    profiled: frozenset[str] = frozenset()  # the keys of the profiler's annotations that it has
    own_network: bool = True  # not the node's

    def entries(self, node: str) -> tuple[Held, ...]:
        """What it was given, if it was given it here."""
        found = self.assignment
        return found.held if isinstance(found, Assignment) and found.node == node else ()


class Wanted(Struct, frozen=True):
    """What the kubelet asks about a container that it does not name."""

    resource: str
    size: int
    available: frozenset[str]
    must_include: frozenset[str]


def waiting_for(
    pods: Iterable[Pod], node: str, wanted: Wanted, settled: Settled
) -> frozenset[str] | None:
    """The devices of the first pod that waits for as many, all of them to be had."""
    for pod in pods:
        for held in pod.entries(node) if pod.is_waiting else ():
            ids = frozenset(device.id for device in held.devices)
            if (
                held.resource == wanted.resource
                and held.pool == node
                and held.container in pod.containers
                and (pod.uid, (held.container, held.resource)) not in settled
                and all(device.amount == 1 for device in held.devices)
                and len(ids) == wanted.size
                and wanted.must_include <= ids <= wanted.available
            ):
                return ids
    return None


class PodsHere:
    """What the watch of this node's pods has brought, in the order in which they came."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._pods: dict[str, Pod] = {}  # by uid; a pod keeps the place where it came
        self.synced_once = Event()
        selector = f"spec.nodeName={node}"
        self.watched = Watched(PODS.path(), decode_pod, field_selector=selector)

    def all(self) -> list[Pod]:
        return list(self._pods.values())

    async def read_now(self) -> list[Pod]:
        """As the API has them at this moment, in the order in which they were made."""
        params = {"fieldSelector": self.watched.field_selector}
        body = await self._client.request("GET", PODS.path(), params=params)
        found: list[Pod] = []
        for raw in msgspec.json.decode(body, type=_List).items or ():
            try:
                found.append(decode_pod(raw))
            except msgspec.MsgspecError as error:
                self.bad(bytes(raw), error)
        return sorted(found, key=_age)

    # What a reflector calls

    def replace(self, items: list[Pod], resource_version: str) -> None:
        new = {pod.uid: pod for pod in sorted(items, key=_age)}
        kept = {uid: new.pop(uid) for uid in self._pods if uid in new}
        self._pods = kept | new

    def put(self, item: Pod) -> None:
        self._pods[item.uid] = item

    def drop(self, item: Pod) -> None:
        self._pods.pop(item.uid, None)

    def synced(self) -> None:
        self.synced_once.set()

    def bad(self, line: bytes, error: Exception) -> None:
        log.warning("a pod of this node cannot be read: %s", error)


def _age(pod: Pod) -> tuple[str, Key]:
    return pod.created, pod.key


class _Container(Struct):
    name: str


class _Spec(Struct, rename="camel"):
    host_network: bool | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Device(Struct):
    resource_id: str = field(default="", name="resourceID")


class _Allocated(Struct):
    name: str = ""
    resources: list[_Device] | None = None


class _ContainerStatus(Struct, rename="camel"):
    name: str = ""
    allocated_resources_status: list[_Allocated] | None = None


class _Status(Struct, rename="camel"):
    phase: str | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(Struct):
    metadata: FullMetadata
    spec: _Spec
    status: _Status | None = None


class _List(Struct):
    items: list[Raw] | None = None


_decode = msgspec.json.Decoder(_Pod).decode


def decode_pod(raw: Raw | bytes) -> Pod:
    found = _decode(raw)
    about, status = found.metadata, found.status or _Status()
    annotations = about.annotations or {}
    text = annotations.get(ASSIGNMENT)
    assignment = None if text is None else read_assignment(text)
    spec, phase = found.spec, status.phase or "Pending"
    return Pod(
        key=(about.namespace or "", about.name or ""),
        uid=about.uid or "",
        version=about.resource_version or "",
        created=about.creation_timestamp or "",
        containers=frozenset(
            each.name for some in (spec.containers, spec.init_containers) for each in some or ()
        ),
        assignment=assignment,
        is_newer=isinstance(assignment, Unknown) and _version(text) > VERSION,
        is_waiting=phase == "Pending" and about.deletion_timestamp is None,
        has_ended=phase in ("Succeeded", "Failed"),
        told=_told(status.init_container_statuses or []),
        neuron={key: annotations[key][:_LONGEST] for key in NEURON if key in annotations},
        profiled=ours_of_pod(annotations),
        own_network=not spec.host_network,
    )


class _Versioned(Struct):
    v: int


def _version(text: str | None) -> int:
    try:
        return msgspec.json.decode(text or "", type=_Versioned).v
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 0


def _told(statuses: list[_ContainerStatus]) -> dict[Place, frozenset[str]]:
    return {
        (status.name, each.name): frozenset(device.resource_id for device in each.resources)
        for status in statuses
        for each in status.allocated_resources_status or ()
        if each.resources
    }


_: type[Sink[Pod]] = PodsHere
