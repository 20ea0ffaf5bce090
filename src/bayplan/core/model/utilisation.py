"""What is really used of a node's devices and by a pod, as a profiler has measured it.

What nobody has said is UNKNOWN, never 0. Nothing here decides anything: how old a measure may be,
and what it is worth, is the plugin's business.
"""

from msgspec import Struct

UNKNOWN = -1
PERIOD_S = 30.0  # profilers measure so often …
AGE_S = 3 * PERIOD_S  # … and what is older than three periods counts for nothing
MOST_DEVICES = 64  # of a node, whose use is read


class DeviceUse(Struct, frozen=True, gc=False):
    """Of one device, by its index on the node."""

    index: int
    gpu_percent: int = UNKNOWN  # the most in the profiler's last window
    copy_percent: int = UNKNOWN  # likewise, of the memory's bandwidth
    used_mib: int = UNKNOWN
    free_mib: int = UNKNOWN
    at_s: float = 0.0  # when it was true, in the time of day; 0: nobody says


class NodeUse(Struct, frozen=True):
    """What a node has, in the profiler's words, and what is used of it."""

    count: int = 0  # devices; 0: nobody says
    model: str = ""  # of the first
    memory_gib: int = 0  # likewise
    pcie_gen: int = 0
    pcie_width: int = 0
    devices: tuple[DeviceUse, ...] = ()  # by index


class PodUse(Struct, frozen=True, gc=False):
    """The most that a pod was seen to use, of each device that it had."""

    gpu_percent: int = UNKNOWN
    copy_percent: int = UNKNOWN
    gpu_memory_mib: int = UNKNOWN
    cpu_percent: int = UNKNOWN  # of one core
    memory_mib: int = UNKNOWN


# NVIDIA's compute capability, times ten. Longer names stand before those that begin alike.
_CAPABILITIES = {
    "K80": 37,
    "M60": 52,
    "P100": 60,
    "TITAN X": 61,
    "P40": 61,
    "P4": 61,
    "V100": 70,
    "TITAN V": 70,
    "T4": 75,
    "A100": 80,
    "A800": 80,
    "A30": 80,
    "A40": 86,
    "A10": 86,
    "A16": 86,
    "L40": 89,
    "L4": 89,
    "H100": 90,
    "H200": 90,
    "GH200": 90,
    "H800": 90,
    "B200": 100,
}
# What Alnair's UtilSched multiplies by. It knows the second as "TITAN X (Pascal)" only, and the
# third by this name, which no driver gives: real ones are found by what they contain.
_WEIGHTS = {"K80": 6, "TITAN X": 7, "V100": 10}


def capability(model: str) -> int:
    """0: not known."""
    return next((number for name, number in _CAPABILITIES.items() if name in model), 0)


def original_weight(model: str) -> int:
    """0 for every other model, as there."""
    return next((weight for name, weight in _WEIGHTS.items() if name in model), 0)
