"""The devices of class `nvidia`, from the driver's own library.

Run as a module it asks NVML once and prints what it finds. The agent runs it so, each time anew:
the library keeps 15 to 20 MiB for as long as a process lives, and calls into a driver whose card
has died may never come back.

A card is unhealthy when it cannot be asked, when the driver says that it needs a reset or more
(that is its verdict on the Xids that the card had), or when it has no rows left to replace bad
memory. How well two cards are joined: the number of active NVLinks between them, straight or
through switches, above every kind of PCIe path; below that the nearest bridge that they share.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import combinations
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

from msgspec.structs import replace

from bayplan.agent.counts import Told
from bayplan.agent.inventory import BadInventory, Source
from bayplan.core.model.devices import (
    Device,
    Devices,
    Inventory,
    Unknown,
    read_inventory,
    write_inventory,
)

NAME = "nvidia"
BYTES_PER_MIB = 1 << 20
FAILURES = 2  # in a row, until cards count as unhealthy: a busy machine may be slow once
ANSWER_S = 8.0  # what NVML may take, and less than a pod is given to end; usual is half a second
COMMAND = (sys.executable, "-m", "bayplan.agent.nvml")
PCI = Path("/sys/bus/pci/devices")
ELSE = "--inventory or --devices names the devices without it"
_FARTHEST = 50  # NVML's number for two cards that share no more than the system
_BY_NVLINK = 5  # above what the nearest path over PCIe counts
_SWITCH = 2  # NVML's number for a link's other end
_MOST_LINKS = 36  # of a card

_Address = tuple[int, int, int]  # PCI domain, bus, device


class NvmlSource:
    """A card that was there and is not found any more is unhealthy for as long as this lives."""

    def __init__(self, command: Sequence[str] = COMMAND, answer_s: float = ANSWER_S) -> None:
        self._command, self._answer_s = command, answer_s
        self._last = Devices(())
        self._stuck: Popen[str] | None = None
        self._failures = 0  # in a row
        self._told = Told()

    def discover(self, machine: str | None = "") -> Inventory:
        try:
            found, warnings = self._ask()
            self._failures = 0
        except BadInventory as error:
            if not self._last.devices:
                raise BadInventory(f"{error}; {ELSE}") from None
            self._failures += 1
            if self._failures < FAILURES:
                raise
            found, warnings = Devices(()), [f"{error}; every card counts as unhealthy"]
        self._told.new((words, words) for words in warnings)
        self._last = _with_the_lost(found, self._last)
        return Inventory({NAME: self._last})

    def _ask(self) -> tuple[Devices, list[str]]:
        """The cards, and what there is to say about them."""
        if self._stuck is not None and self._stuck.poll() is None:  # one is enough
            raise BadInventory("NVML: an earlier question still hangs in the driver")
        try:
            asked = Popen(
                self._command, stdout=PIPE, stderr=PIPE, encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise BadInventory(f"NVML: {error}") from None
        try:
            said, warned = asked.communicate(timeout=self._answer_s)
        except TimeoutExpired:
            self._stuck = asked
            asked.kill()
            with suppress(TimeoutExpired):  # inside the driver it cannot even be killed
                asked.wait(1.0)
            for pipe in filter(None, (asked.stdout, asked.stderr)):
                pipe.close()
            raise BadInventory(f"NVML: no answer within {self._answer_s:g} s") from None
        if asked.returncode != 0:
            said = (said.strip() or warned.strip()).rpartition("\n")[2]
            raise BadInventory(said or f"NVML: status {asked.returncode}")
        inventory = read_inventory(said)
        if isinstance(inventory, Unknown):
            raise BadInventory(f"NVML: {inventory.why}")
        return inventory.classes.get(NAME, Devices(())), warned.splitlines()


def _with_the_lost(found: Devices, last: Devices) -> Devices:
    now = {device.id: device for device in found.devices}
    before = {device.id: device for device in last.devices}
    if not before.keys() - now.keys():
        return found
    kept = tuple(  # under their indexes, though the driver may have counted anew
        replace(now.get(id, device), index=device.index, healthy=id in now and now[id].healthy)
        for id, device in before.items()
    )
    new = tuple(device for id, device in now.items() if id not in before)
    indexes = {device.index for device in kept}
    if any(device.index in indexes for device in new):  # others have come into their place
        return found
    return Devices(kept + new, () if new else last.links)


# In a process of its own


def ask(nvml: Any, pci: Path = PCI) -> Devices:
    """What the library says now; its own error when it does not work at all."""
    nvml.nvmlInit()
    found: list[tuple[Device, Any]] = []
    for i in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            found.append((_device(nvml, i, handle, pci), handle))
        except nvml.NVMLError as error:
            sys.stderr.write(f"NVML: card {i} cannot be asked: {error}\n")
    links = _links(nvml, [handle for _, handle in found])
    return Devices(tuple(device for device, _ in found), links)


def _device(nvml: Any, index: int, handle: Any, pci: Path) -> Device:
    id = _text(nvml.nvmlDeviceGetUUID(handle))
    memory = nvml.nvmlDeviceGetMemoryInfo(handle).total // BYTES_PER_MIB
    why = _trouble(nvml, handle)
    if why:
        sys.stderr.write(f"NVML: {id} is unhealthy: {why}\n")
    model = _text(nvml.nvmlDeviceGetName(handle))
    return Device(id, index, memory, _numa(pci, _address(nvml, handle)), not why, model)


def _trouble(nvml: Any, handle: Any) -> str:
    """Older drivers and cards know less."""
    with suppress(nvml.NVMLError):
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if value.nvmlReturn == 0 and value.value.uiVal != nvml.NVML_GPU_RECOVERY_ACTION_NONE:
            return f"the driver asks for recovery action {value.value.uiVal}"
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetRemappedRows(handle)[3]:
            return "bad memory could not be replaced"
    return ""


def _address(nvml: Any, handle: Any) -> _Address:
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    return int(pci.domain), int(pci.bus), int(pci.device)


def _numa(pci: Path, address: _Address) -> int:
    domain, bus, device = address
    try:
        path = pci / f"{domain:04x}:{bus:02x}:{device:02x}.0" / "numa_node"
        return max(int(path.read_text()), -1)
    except (OSError, ValueError):
        return -1


def _links(nvml: Any, handles: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    count = len(handles)
    if count < 2:
        return ()
    straight, switched = _nvlinks(nvml, handles)
    links = [[0] * count for _ in handles]
    for i, j in combinations(range(count), 2):
        joined = straight[i][j] + min(switched[i], switched[j])
        value = _BY_NVLINK + joined if joined else _nearness(nvml, handles[i], handles[j])
        links[i][j] = links[j][i] = value
    return tuple(map(tuple, links))


def _nearness(nvml: Any, one: Any, other: Any) -> int:
    """5 for one board, 0 for cards that share no more than the system."""
    try:
        level = nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
    except nvml.NVMLError:
        return 0
    return max(_FARTHEST - int(level), 0) // 10


def _nvlinks(nvml: Any, handles: Sequence[Any]) -> tuple[list[list[int]], list[int]]:
    """Active links between each two, and from each into switches."""
    straight, switched = [[0] * len(handles) for _ in handles], [0] * len(handles)
    places = {_address(nvml, handle): i for i, handle in enumerate(handles)}
    for i, handle in enumerate(handles):
        for link in range(_MOST_LINKS):
            with suppress(nvml.NVMLError):  # it has no such link
                if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                    continue
                if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH:
                    switched[i] += 1
                    continue
                pci = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
                j = places.get((int(pci.domain), int(pci.bus), int(pci.device)))
                if j is not None and j != i:
                    straight[i][j] += 1
    for i, j in combinations(range(len(handles)), 2):  # a link that one end calls down is down
        straight[i][j] = straight[j][i] = min(straight[i][j], straight[j][i])
    return straight, switched


def _text(found: str | bytes) -> str:
    return found.decode() if isinstance(found, bytes) else found


def main() -> int:
    """Prints the inventory, or what is wrong and gives 1."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        sys.stdout.write("NVML needs the package nvidia-ml-py, which bayplan[agent] brings\n")
        return 1
    try:
        sys.stdout.write(write_inventory(Inventory({NAME: ask(nvml)})))
    except nvml.NVMLError as error:
        sys.stdout.write(f"NVML: {error}\n")
        return 1
    return 0


_: type[Source] = NvmlSource

if __name__ == "__main__":
    sys.exit(main())
