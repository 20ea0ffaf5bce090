"""Tells the cluster which devices this node has: an annotation, and amounts in the node's status.

A watch of the node says what stands there. Whatever is not as it should be is written again; a
kubelet that starts sets amounts that are not its own to zero.
"""

import asyncio
import logging
from typing import NoReturn

import msgspec
from msgspec import Raw, Struct

from bayplan.agent.counts import Counts, Told
from bayplan.agent.inventory import BadInventory, complete, must_fit
from bayplan.core.model.devices import (
    INVENTORY,
    Devices,
    Inventory,
    read_inventory,
    write_inventory,
)
from bayplan.core.model.quantity import NANO, BadQuantity, parse_json
from bayplan.core.model.vendors import FULL_COMPUTE, Resource, Vendors
from bayplan.kube.client import NODES, Client
from bayplan.kube.reflector import Sink, Watched
from bayplan.kube.transport import MERGE_PATCH, ApiError, TransportError
from bayplan.kube.wire import FullMetadata

log = logging.getLogger("bayplan")

REST_S = 1.0  # after a write, so that two who disagree do not write without end
AGAIN_S = 5.0  # after one that failed


class NodeSeen(Struct, frozen=True):
    annotation: str | None
    capacity: dict[str, Raw]
    allocatable: dict[str, Raw]


class Publisher:
    def __init__(self, client: Client, node: str, vendors: Vendors, counts: Counts) -> None:
        self._client, self._clock, self._node = client, client.clock, node
        self._vendors, self._counts = vendors, counts
        self._seen: NodeSeen | None = None
        self._inventory: Inventory | None = None
        self._changed = asyncio.Event()
        self._told = Told()
        self.is_published = False
        selector = f"metadata.name={node}"
        self.watched = Watched(NODES.path(), decode_node, field_selector=selector)

    def show(self, inventory: Inventory) -> None:
        """From now on the node has these. Classes that it had before stay, with no devices."""
        self._inventory = inventory
        self._changed.set()

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                wrote = await self._put_right()
                self._told.new([])
            except (ApiError, TransportError, BadInventory) as error:
                self._counts.troubles += self._told.new([("", f"node {self._node}: {error}")])
                await self._clock.sleep(AGAIN_S)
                self._changed.set()
                continue
            if wrote:
                await self._clock.sleep(REST_S)

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
        wanted = {
            name: str(total)
            for name, total in totals(inventory, self._vendors).items()
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
        if not items:
            log.warning("there is no node %s yet", self._node)

    def put(self, item: NodeSeen) -> None:
        self._seen = item
        self._changed.set()

    def drop(self, item: NodeSeen) -> None:
        self._seen = None

    def synced(self) -> None:
        self._changed.set()

    def bad(self, line: bytes, error: Exception) -> None:
        log.warning("node %s cannot be read: %s", self._node, error)


def totals(inventory: Inventory, vendors: Vendors) -> dict[str, int]:
    """By published resource: what the healthy devices have together."""
    return {
        resource.name: _total(resource, inventory.classes[name])
        for name, device_class in vendors.classes.items()
        if name in inventory.classes
        for resource in device_class.resources
        if resource.published
    }


def _total(resource: Resource, devices: Devices) -> int:
    healthy = [device for device in devices.devices if device.healthy]
    match resource.kind:
        case "memory":
            return sum(device.memory_mib // resource.unit_mib for device in healthy)
        case "compute":
            return FULL_COMPUTE * len(healthy)
        case "whole":
            return len(healthy)


def amount(amounts: dict[str, Raw], name: str) -> int | None:
    try:
        return parse_json(bytes(amounts[name])) // NANO if name in amounts else None
    except BadQuantity:
        return None


class _Status(Struct):
    capacity: dict[str, Raw] | None = None
    allocatable: dict[str, Raw] | None = None


class _Node(Struct):
    metadata: FullMetadata
    status: _Status | None = None


_decode = msgspec.json.Decoder(_Node).decode


def decode_node(raw: Raw | bytes) -> NodeSeen:
    found = _decode(raw)
    status = found.status or _Status()
    text = (found.metadata.annotations or {}).get(INVENTORY)
    return NodeSeen(text, _own(status.capacity), _own(status.allocatable))


def _own(amounts: dict[str, Raw] | None) -> dict[str, Raw]:
    """Copied, since a raw value keeps the whole message that it came in."""
    return {name: value.copy() for name, value in (amounts or {}).items()}


_: type[Sink[NodeSeen]] = Publisher
