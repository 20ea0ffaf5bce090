"""Tells the cluster which devices this node has: an annotation, and amounts in the node's status.

A watch of the node says what stands there. Whatever is not as it should be is written again; a
kubelet that starts may set amounts that are not its own to zero. After each write there is a pause
that grows, so that two who disagree do not write without end.

Amounts are what healthy devices have, and what pods still hold of others. So what is left beside
all requests is what healthy devices have left; and a kubelet that restarts finds room for all pods
that run, where it would end one for which there is not enough.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import msgspec
from msgspec import Raw, Struct

from bayplan.agent.counts import Counts, Told
from bayplan.agent.inventory import BadInventory, complete, must_fit
from bayplan.agent.pods import PodsHere
from bayplan.agent.profile import ours_on_node
from bayplan.agent.units import units_of
from bayplan.core.model.devices import (
    INVENTORY,
    Devices,
    Held,
    Inventory,
    read_inventory,
    write_inventory,
)
from bayplan.core.model.inventories import TYPES
from bayplan.core.model.quantity import NANO, BadQuantity, parse_json
from bayplan.core.model.vendors import FULL_COMPUTE, Resource, Vendors
from bayplan.kube.client import NODES, Client
from bayplan.kube.clock import Backoff
from bayplan.kube.reflector import Sink, Watched
from bayplan.kube.transport import MERGE_PATCH, ApiError, TransportError
from bayplan.kube.wire import FullMetadata

log = logging.getLogger("bayplan")

CURRENT_S = 5.0  # for the node as it is now
LOOK_S = 10.0  # pods that held sick devices may have gone
FIRST_PAUSE_S, LAST_PAUSE_S = (
    0.1,
    30.0,
)  # after a write; the first is there for the watch to bring it


class NodeSeen(Struct, frozen=True):
    annotation: str | None
    capacity: dict[str, Raw]
    allocatable: dict[str, Raw]
    machine: str  # its type, if it says so
    profiled: frozenset[str]  # what it carries of the profiler's annotations: their keys


class Publisher:
    def __init__(
        self, client: Client, node: str, vendors: Vendors, pods: PodsHere, counts: Counts
    ) -> None:
        self._client, self._clock, self._node = client, client.clock, node
        self._vendors, self._pods, self._counts = vendors, pods, counts
        self._seen: NodeSeen | None = None
        self._inventory: Inventory | None = None
        self._changed = asyncio.Event()
        self._told = Told()
        self.is_published = False
        self.machine: str | None = None  # its type; None: nobody has looked
        selector = f"metadata.name={node}"
        self.watched = Watched(NODES.path(), decode_node, field_selector=selector)

    def show(self, inventory: Inventory) -> None:
        """From now on the node has these. Classes that it had before stay, with no devices."""
        self._inventory = inventory
        self._changed.set()

    def allocatable(self, resource: str) -> int | None:
        """As the node's status has it; None: it says nothing."""
        return None if self._seen is None else amount(self._seen.allocatable, resource)

    @property
    def profiled(self) -> frozenset[str]:
        """The keys of the profiler's annotations that the node has."""
        return frozenset() if self._seen is None else self._seen.profiled

    def indexes(self, name: str) -> dict[str, int]:
        """Of the devices of a class, by id."""
        classes = {} if self._inventory is None else self._inventory.classes
        return {device.id: device.index for device in classes.get(name, Devices(())).devices}

    async def look(self) -> None:
        """Asks what the node says of its machine, before the watch brings it; in vain perhaps."""
        self.machine = ""
        try:
            async with self._clock.timeout(CURRENT_S):
                params = {"fieldSelector": self.watched.field_selector}
                body = await self._client.request("GET", NODES.path(), params=params)
            for raw in msgspec.json.decode(body, type=_List).items or ():
                self.machine = decode_node(raw).machine
        except (ApiError, TransportError, TimeoutError, msgspec.MsgspecError) as error:
            self._counts.troubles += 1
            log.warning("what machine node %s is cannot be told: %s", self._node, error)

    async def run(self) -> NoReturn:
        """Until cancelled."""
        rest = Backoff(self._clock, self._client.rng, FIRST_PAUSE_S, LAST_PAUSE_S)
        await self._pods.synced_once.wait()
        while True:
            self._changed.clear()
            try:
                wrote = await self._put_right()
                self._told.new([])
            except (ApiError, TransportError, BadInventory) as error:
                self._counts.troubles += self._told.new([("", f"node {self._node}: {error}")])
                await rest.pause(error.retry_after if isinstance(error, ApiError) else None)
                continue
            if wrote:
                await rest.pause()
            with suppress(TimeoutError):
                async with self._clock.timeout(LOOK_S):
                    await self._changed.wait()

    async def _put_right(self) -> bool:
        seen = self._seen
        if seen is None or self._inventory is None:
            return False
        before = None if seen.annotation is None else read_inventory(seen.annotation)
        inventory = complete(self._inventory, before)
        text = must_fit(write_inventory(inventory))
        wrote = False
        if text != seen.annotation:
            await self._patch("", {"metadata": {"annotations": {INVENTORY: text}}})
            wrote = True
        held = [
            each
            for pod in self._pods.all()
            if not pod.has_ended
            for each in pod.entries(self._node)
        ]
        wanted = {
            name: str(total)
            for name, total in totals(inventory, self._vendors, held).items()
            if amount(seen.capacity, name) != total or amount(seen.allocatable, name) != total
        }
        if wanted:
            # the kubelet takes what can be allocated from the capacity, so they are the same
            await self._patch("status", {"status": {"capacity": wanted, "allocatable": wanted}})
            wrote = True
        self.is_published = True
        return wrote

    async def _patch(self, sub: str, content: object) -> None:
        await self._client.request(
            "PATCH",
            NODES.path(name=self._node, sub=sub),
            body=msgspec.json.encode(content),
            content_type=MERGE_PATCH,
        )
        self._counts.published += 1
        log.info("node %s: wrote its %s", self._node, sub or "devices")

    # What a reflector calls

    def replace(self, items: list[NodeSeen], resource_version: str) -> None:
        self._seen = items[0] if items else None
        self.machine = self._seen.machine if self._seen is not None else self.machine
        if not items:
            log.warning("there is no node %s yet", self._node)

    def put(self, item: NodeSeen) -> None:
        self._seen, self.machine = item, item.machine
        self._changed.set()

    def drop(self, item: NodeSeen) -> None:
        self._seen, self.is_published = None, False

    def synced(self) -> None:
        self._changed.set()

    def bad(self, line: bytes, error: Exception) -> None:
        log.warning("node %s cannot be read: %s", self._node, error)


def totals(inventory: Inventory, vendors: Vendors, held: Iterable[Held] = ()) -> dict[str, int]:
    """By published resource: what the healthy devices have, and what pods hold of others."""
    held = tuple(held)
    return {
        resource.name: _total(resource, inventory.classes[name], held)
        for name, device_class in vendors.classes.items()
        if name in inventory.classes
        for resource in device_class.resources
        if resource.published
    }


def _total(resource: Resource, devices: Devices, held: Iterable[Held]) -> int:
    healthy = Devices(tuple(device for device in devices.devices if device.healthy))
    units = units_of(resource, healthy)
    total = sum(
        device.amount
        for each in held
        if each.resource == resource.name
        for device in each.devices
        if device.id not in units
    )
    match resource.kind:
        case "memory":
            sizes = (unit.device.memory_mib // resource.unit_mib for unit in units.values())
            return total + sum(sizes)
        case "compute":
            return total + FULL_COMPUTE * len(units)
        case "whole" | "core" | "partition":
            return total + len(units)


def amount(amounts: dict[str, Raw], name: str) -> int | None:
    try:
        return parse_json(bytes(amounts[name])) // NANO if name in amounts else None
    except BadQuantity:
        return None


class _Status(Struct):
    capacity: dict[str, Raw] | None = None
    allocatable: dict[str, Raw] | None = None


class _List(Struct):
    items: list[Raw] | None = None


class _Node(Struct):
    metadata: FullMetadata
    status: _Status | None = None


_decode = msgspec.json.Decoder(_Node).decode


def decode_node(raw: Raw | bytes) -> NodeSeen:
    found = _decode(raw)
    status = found.status or _Status()
    annotations = found.metadata.annotations or {}
    text = annotations.get(INVENTORY)
    labels = found.metadata.labels or {}
    machine = next((labels[key] for key in TYPES if key in labels), "")
    amounts = _own(status.capacity), _own(status.allocatable)
    return NodeSeen(text, *amounts, machine, ours_on_node(annotations))


def _own(amounts: dict[str, Raw] | None) -> dict[str, Raw]:
    """Copied, since a raw value keeps the whole message that it came in."""
    return {name: value.copy() for name, value in (amounts or {}).items()}


_: type[Sink[NodeSeen]] = Publisher
