"""Which devices this node has: from a file, from the command line, or from NVML (`nvml`).

A source is asked again and again. It may block, and it says why it cannot answer.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import yaml

from bayplan.core.model.devices import (
    MOST_DEVICES,
    MOST_INVENTORY_BYTES,
    VERSION,
    Device,
    Devices,
    Inventory,
    Unknown,
    read_inventory,
)
from bayplan.core.model.vendors import MIB_PER_GIB, Vendors

_FLAG = re.compile(r"([^=]+)=(\d{1,3})(?:x(\d{1,9})(MiB|GiB))?")
_EXAMPLE = "nvidia=4x16384MiB"


class BadInventory(ValueError):
    """Nobody can say which devices there are: which source, and what is wrong with it."""


class Source(Protocol):
    def discover(self) -> Inventory:
        """As they are now, or `BadInventory`."""


class FileSource:
    """A file in the form of the annotation, as YAML or JSON; its version may be left out."""

    def __init__(self, path: str | Path, vendors: Vendors) -> None:
        self._path, self._vendors = Path(path), vendors

    def discover(self) -> Inventory:
        try:
            content = yaml.safe_load(self._path.read_bytes())
        except OSError as error:
            raise BadInventory(f"{self._path}: {error.strerror or error}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            words = " ".join(str(error).split())
            raise BadInventory(f"{self._path}: not valid YAML: {words}") from None
        content = {} if content is None else content
        if not isinstance(content, dict) or not set(content) <= {"v", "classes"}:
            raise BadInventory(f"{self._path}: should hold `classes`, and nothing else")
        written = {"v": VERSION, "classes": {}} | content
        try:
            found = read_inventory(msgspec.json.encode(written).decode())
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise BadInventory(f"{self._path}: {error}") from None
        if isinstance(found, Unknown):
            raise BadInventory(f"{self._path}: {found.why}")
        for name in found.classes:
            _must_be_known(name, self._vendors, str(self._path))
        return found


class ListedSource:
    """What the command line says: `nvidia=4x16384MiB` is four devices of that much memory."""

    def __init__(self, flags: Iterable[str], vendors: Vendors) -> None:
        classes: dict[str, Devices] = {}
        for flag in flags:
            name, devices = _listed(flag, vendors)
            if name in classes:
                raise BadInventory(f"--devices {flag}: there is a flag for class {name} already")
            classes[name] = devices
        self._inventory = Inventory(classes)

    def discover(self) -> Inventory:
        return self._inventory


def complete(inventory: Inventory, before: Inventory | Unknown | None) -> Inventory:
    """With an empty class for each that was there before, so that it is seen to be gone."""
    if not isinstance(before, Inventory):
        return inventory
    return Inventory({**{name: Devices(()) for name in before.classes}, **inventory.classes})


def must_fit(text: str) -> str:
    """An inventory that is too long for its annotation would be read as unknown."""
    if len(text.encode()) > MOST_INVENTORY_BYTES:
        raise BadInventory(f"the inventory is longer than {MOST_INVENTORY_BYTES} bytes")
    return text


def _listed(flag: str, vendors: Vendors) -> tuple[str, Devices]:
    found = _FLAG.fullmatch(flag.strip())
    if found is None:
        raise BadInventory(f"--devices {flag}: should be like {_EXAMPLE}")
    name, count, size, unit = found[1], int(found[2]), int(found[3] or 0), found[4]
    _must_be_known(name, vendors, f"--devices {flag}")
    if count > MOST_DEVICES:
        raise BadInventory(f"--devices {flag}: more than {MOST_DEVICES} devices")
    memory_mib = size * (MIB_PER_GIB if unit == "GiB" else 1)
    return name, Devices(tuple(Device(f"{name}-{i}", i, memory_mib) for i in range(count)))


def _must_be_known(name: str, vendors: Vendors, where: str) -> None:
    if name not in vendors.classes:
        known = ", ".join(sorted(vendors.classes))
        raise BadInventory(f"{where}: no device class {name}; there are: {known}")


_: tuple[type[Source], ...] = (FileSource, ListedSource)
