"""The devices of class `neuron`, from the files that their driver makes; nothing of it is run.

Which there are: /dev/neuron0 and on. How many cores each has, and how they are joined, is known by
the type of the machine: as it was named to the agent, as the machine's firmware has it, or as the
node's label says. For other types the driver says how many cores a device has, and the devices
count as a chain. The type is asked first, since the driver counts the cores of the silicon: on
trn2 two of them are one to whoever uses them.

A device is unhealthy when its file is not there, but was, or should be on such a machine.
"""

import re
from pathlib import Path

from msgspec.structs import replace

from bayplan.agent.counts import Told
from bayplan.agent.inventory import BadInventory, NodeNotSeen, Source, of_type
from bayplan.core.model.devices import MOST_DEVICES, Device, Devices, Inventory
from bayplan.core.model.vendors import DeviceClass, Instance

NAME = "neuron"
DRIVER = "sys/devices/virtual/neuron_device"
FIRMWARE = "sys/class/dmi/id/product_name"  # EC2 has the type of the machine there
_FILE = re.compile(r"neuron(0|[1-9]\d{0,2})")


class NeuronSource:
    def __init__(
        self, device_class: DeviceClass, root: Path = Path("/"), machine: str = ""
    ) -> None:
        self._types, self._root, self._machine = device_class.by_type, root, machine
        self._last: tuple[Device, ...] = ()
        self._told = Told()
        if machine and machine not in self._types:
            known = ", ".join(sorted(self._types))
            raise BadInventory(f"no machine of type {machine} is known; there are: {known}")

    def discover(self, machine: str | None = "") -> Inventory:
        """Empty on a machine that has none and never had."""
        found = self._files()
        if not found and not self._last:
            return Inventory({})
        instance = self._instance(machine or "")
        if instance is None and machine is None:
            raise NodeNotSeen
        known = Devices(()) if instance is None else of_type(instance)
        cores = self._cores(found) if instance is None else instance.cores
        indexes = sorted({*found, *(each.index for each in (*known.devices, *self._last))})
        if len(indexes) * cores > MOST_DEVICES:
            raise BadInventory(f"/dev/{NAME}*: more than {MOST_DEVICES} devices or their cores")
        devices = tuple(Device(str(i), i, healthy=i in found, cores=cores) for i in indexes)
        gone = ", ".join(device.id for device in devices if not device.healthy)
        self._told.new([(gone, f"no files of {NAME} devices {gone}")] if gone else [])
        self._last = devices
        return Inventory({NAME: replace(known, devices=devices)})

    def _files(self) -> set[int]:
        try:
            names = [path.name for path in (self._root / "dev").iterdir()]
        except OSError:
            return set()
        return {int(match[1]) for name in names if (match := _FILE.fullmatch(name))}

    def _instance(self, machine: str) -> Instance | None:
        named = (self._machine, _text(self._root / FIRMWARE), machine)
        return next((self._types[each] for each in named if each in self._types), None)

    def _cores(self, found: set[int]) -> int:
        """As the driver counts them; the last ones' while it is away."""
        said = {_text(self._root / DRIVER / f"{NAME}{i}" / "core_count") for i in found}
        if not said and self._last:
            return self._last[0].cores
        text = said.pop() if len(said) == 1 else ""
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 16:
            raise BadInventory(
                f"/{DRIVER} does not say how many cores {NAME} devices have; name the machine "
                "with --instance-type, or the devices with --inventory"
            )
        return int(text)


class MachineSource:
    """Neuron devices where there are any, else what another source finds."""

    def __init__(self, neuron: NeuronSource, other: Source) -> None:
        self._neuron, self._other = neuron, other

    def discover(self, machine: str | None = "") -> Inventory:
        found = self._neuron.discover(machine)
        return found if found.classes else self._other.discover(machine)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


_: tuple[type[Source], ...] = (NeuronSource, MachineSource)
