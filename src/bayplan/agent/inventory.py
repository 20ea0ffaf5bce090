"""Which devices this node has: from a file, from the command line, or of the machine itself.

The machine has Neuron devices (`neuron`), or is asked by NVML (`nvml`): no machine has both.

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
from bayplan.core.model.vendors import MIB_PER_GIB, Instance, Vendors

_FLAG = re.compile(r"([^=]+)=(\d{1,3})(?:x(\d{1,9})(MiB|GiB|cores))?")
_EXAMPLES = "nvidia=4x16384MiB, neuron=4x2cores or neuron=trn1.32xlarge"
_MOST_CORES = 16  # of a device


class BadInventory(ValueError):
    """Nobody can say which devices there are: which source, and what is wrong with it."""


class NodeNotSeen(Exception):
    """Which devices there are depends on what the node says of its machine."""


class Source(Protocol):
    def discover(self, machine: str | None = "") -> Inventory:
        """As they are now, or `BadInventory`. `machine`: its type, as the node has it; None: the
        node was not looked at, and where that matters it is `NodeNotSeen`."""


class FileSource:
    """A file in the form of the annotation, as YAML or JSON; its version may be left out."""

    def __init__(self, path: str | Path, vendors: Vendors) -> None:
        self._path, self._vendors = Path(path), vendors

    def discover(self, machine: str | None = "") -> Inventory:
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
        for name, devices in found.classes.items():
            _must_be_known(name, self._vendors, str(self._path))
            if len({device.cores for device in devices.devices}) > 1:
                raise BadInventory(f"{self._path}: {name}: its devices differ in cores")
        return found


class ListedSource:
    """What the command line says: `nvidia=4x16384MiB` is four devices of that much memory,
    `neuron=4x2cores` four with two cores each, `neuron=trn1.32xlarge` those of such a machine."""

    def __init__(self, flags: Iterable[str], vendors: Vendors) -> None:
        classes: dict[str, Devices] = {}
        for flag in flags:
            name, devices = _listed(flag, vendors)
            if name in classes:
                raise BadInventory(f"--devices {flag}: there is a flag for class {name} already")
            classes[name] = devices
        self._inventory = Inventory(classes)

    def discover(self, machine: str | None = "") -> Inventory:
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
    name, _, machine = flag.strip().partition("=")
    if name in vendors.classes and machine in vendors.classes[name].by_type:
        return name, of_type(vendors.classes[name].by_type[machine])
    found = _FLAG.fullmatch(flag.strip())
    if found is None:
        raise BadInventory(f"--devices {flag}: should be like {_EXAMPLES}")
    name, count, size, unit = found[1], int(found[2]), int(found[3] or 0), found[4]
    _must_be_known(name, vendors, f"--devices {flag}")
    cores = size if unit == "cores" else 1
    if not 1 <= cores <= _MOST_CORES:
        raise BadInventory(f"--devices {flag}: should have 1 to {_MOST_CORES} cores each")
    if count * cores > MOST_DEVICES:
        raise BadInventory(f"--devices {flag}: more than {MOST_DEVICES} devices or their cores")
    memory_mib = {"MiB": 1, "GiB": MIB_PER_GIB}.get(unit, 0) * size
    # As the scheduler calls them where no agent does.
    prefix = "" if vendors.classes[name].model == "contiguous" else f"{name}-"
    devices = (Device(f"{prefix}{i}", i, memory_mib, cores=cores) for i in range(count))
    return name, Devices(tuple(devices))


def of_type(machine: Instance) -> Devices:
    """What such a machine has, under the ids by which the scheduler knows them without an agent."""
    devices = (Device(str(i), i, cores=machine.cores) for i in range(machine.devices))
    return Devices(tuple(devices), shape=machine.shape, row=machine.row)


def _must_be_known(name: str, vendors: Vendors, where: str) -> None:
    if name not in vendors.classes:
        known = ", ".join(sorted(vendors.classes))
        raise BadInventory(f"{where}: no device class {name}; there are: {known}")


_: tuple[type[Source], ...] = (FileSource, ListedSource)
