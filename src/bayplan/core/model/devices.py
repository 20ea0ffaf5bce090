"""Devices as they are written down: what a node has, and what a pod was given.

Two annotations, both JSON with a version. A reader that meets a higher version, or something that
it cannot read, knows only that something is held: it says so in `Unknown`, and the caller treats
all that may be concerned as held. Nothing is guessed.
"""

from itertools import product
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from bayplan.core.model.vendors import Shape

ASSIGNMENT = "bayplan.dev/assignment"  # on a pod, with its Binding
INVENTORY = "bayplan.dev/devices"  # on a node, by its agent
CORDON = "bayplan.dev/cordon-devices"  # on a node, by an operator: ids or indexes
CORE = "@"  # before a core's number, among the ids of devices
IDS = "ids.bayplan.dev"  # on a pod, with its Binding: /container, a plain list
VERSION = 1
MOST_BYTES = 16 << 10  # of an assignment
MOST_INVENTORY_BYTES = 64 << 10
MOST_DEVICES = 256  # of a class on a node

T = TypeVar("T")
Id = Annotated[str, Meta(min_length=1, max_length=253)]
Index = Annotated[int, Meta(ge=0, lt=1 << 16)]
Link = Annotated[int, Meta(ge=0, le=1 << 16)]
Amount = Annotated[int, Meta(ge=1, lt=1 << 53)]  # JSON readers elsewhere count in doubles


class Unknown(Struct, frozen=True):
    """Something was given, or is there, and what it is cannot be said."""

    why: str


class HeldDevice(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A device, or a part of one, in the unit of the resource; 1 for a whole device."""

    id: Id
    index: Index
    amount: Amount


class Held(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a container was given of one resource."""

    container: Id
    resource: Id
    pool: Id
    devices: tuple[HeldDevice, ...]


class Assignment(Struct, frozen=True):
    """All that a pod was given, on the node that it was given for."""

    node: Id
    held: tuple[Held, ...]


class Device(Struct, frozen=True, rename="camel"):
    """One device of a node."""

    id: Id
    index: Index
    memory_mib: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0  # 0: not known
    numa: Annotated[int, Meta(ge=-1, lt=1 << 10)] = -1  # -1: not known
    healthy: bool = True
    model: str = ""
    cores: Annotated[int, Meta(ge=1, le=16)] = 1  # that can be given one by one


class Devices(Struct, frozen=True):
    """The devices of one class on a node. `links[i][j]`: how well the two are joined; 0: badly.
    `shape` is for classes of which consecutive devices are given."""

    devices: tuple[Device, ...]
    links: tuple[tuple[Link, ...], ...] = ()
    shape: Shape = "chain"
    row: Annotated[int, Meta(ge=1, le=64)] = 4  # devices in a row


class Inventory(Struct, frozen=True):
    """By class, as the vendors' configuration names it."""

    classes: dict[str, Devices]


class TooLong(ValueError):
    """An assignment that does not fit into its annotation."""


def write_assignment(assignment: Assignment) -> str:
    text = _write({"node": assignment.node, "held": assignment.held})
    if len(text) > MOST_BYTES:
        raise TooLong(f"the assignment is {len(text)} bytes long, more than {MOST_BYTES}")
    return text.decode()


def read_assignment(text: str) -> Assignment | Unknown:
    found = _read(text, Assignment, MOST_BYTES)
    if isinstance(found, Unknown):
        return found
    for held in found.held:
        if why := _repeated([device.id for device in held.devices], "device"):
            return Unknown(f"{held.container}: {why}")
    places = [f"{held.container}/{held.resource}" for held in found.held]
    if why := _repeated(places, "container and resource"):
        return Unknown(why)
    return found


def write_inventory(inventory: Inventory) -> str:
    return _write({"classes": inventory.classes}).decode()


def read_inventory(text: str) -> Inventory | Unknown:
    found = _read(text, Inventory, MOST_INVENTORY_BYTES)
    if isinstance(found, Unknown):
        return found
    for name, devices in found.classes.items():
        if why := _wrong(devices):
            return Unknown(f"{name}: {why}")
    return found


def _wrong(devices: Devices) -> str | None:
    count = len(devices.devices)
    if sum(device.cores for device in devices.devices) > MOST_DEVICES:
        return f"{count} devices or their cores, more than {MOST_DEVICES}"
    for what, names in (
        ("id", [device.id for device in devices.devices]),
        ("index", [str(device.index) for device in devices.devices]),
    ):
        if why := _repeated(names, what):
            return why
    if any(device.id[0] in ("#", CORE) for device in devices.devices):
        return f"an id begins with # or {CORE}"
    links = devices.links
    if not links:
        return None
    if len(links) != count or any(len(line) != count for line in links):
        return f"links are not {count} by {count}"
    if any(
        links[i][j] != links[j][i] or links[i][j] < 0 for i, j in product(range(count), repeat=2)
    ):
        return "links are negative, or differ by direction"
    return None


def _repeated(names: list[str], what: str) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"{what} {name} is there twice"
        seen.add(name)
    return None


class _Versioned(Struct):
    v: int


_encode = msgspec.json.Encoder(order="sorted").encode


def _write(content: dict[str, Any]) -> bytes:
    return _encode({"v": VERSION, **content})


def _read(text: str, kind: type[T], most: int) -> T | Unknown:
    raw = text.encode(errors="replace")
    if len(raw) > most:
        return Unknown(f"{len(raw)} bytes long, more than {most}")
    try:
        version = msgspec.json.decode(raw, type=_Versioned).v
        if version > VERSION:
            return Unknown(f"version {version}; this program reads up to {VERSION}")
        if version < 1:
            return Unknown(f"version {version}")
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Unknown(str(error) or type(error).__name__)
