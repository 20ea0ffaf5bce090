"""A node's NUMA zones as somebody published them, and what of a pod a kubelet aligns to them.

Nothing here knows which pods are on the node, nor how the object is written down.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Literal

from msgspec import Struct, json

from bayplan.core.model.pods import ZoneAsk

Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]
Scope = Literal["container", "pod"]
Amounts = tuple[tuple[str, int], ...]  # sorted by name; cpu in thousandths

MOST_ZONES = 64
FAR = 255  # ACPI's distance for "not known"
ZONES = "NUMA zones"  # what a kubelet is short of that cannot align a pod: see `unaligned`
SETTLING_S = 10.0  # an exporter looks and writes within so long
LASTING_S = 180.0  # … and again and again; what it saw unchanged for three looks is so
SKEW_S = 5.0  # between the clocks of a node and of the API server


class Zone(Struct, frozen=True):
    """One NUMA zone, under whatever name."""

    name: str
    number: int  # as the operating system counts them
    allocatable: Amounts = ()
    available: Amounts = ()  # what the publisher counted as not in use
    costs: tuple[int, ...] = ()  # to each zone of the node, in their order; empty: not known
    # Of cpus and devices where it is not the allocatable: a kubelet takes these for an empty node.
    capacity: Amounts = ()


class Topology(Struct, frozen=True):
    """What is published about a node. `unknown` says why nothing can be told from it."""

    node: str
    policy: Policy = "none"
    scope: Scope = "container"
    zones: tuple[Zone, ...] = ()  # by number
    fingerprint: str = ""  # of the pods that the publisher has counted
    of_exclusive: bool = False  # only pods with resources of their own are in the fingerprint
    written_s: float = 0.0  # since 1970; 0: not known
    unknown: str = ""

    @property
    def refuses(self) -> bool:
        """Whether the kubelet turns pods away that it cannot align."""
        return bool(self.unknown) or self.policy in ("restricted", "single-numa-node")


def is_memory(name: str) -> bool:
    """Whether the kubelet's memory manager gives it."""
    return name == "memory" or name.startswith("hugepages-")


def is_zonal(name: str) -> bool:
    """Whether only Guaranteed pods get it in zones."""
    return name == "cpu" or is_memory(name)


@lru_cache(maxsize=4096)
def unaligned(asks: tuple[ZoneAsk, ...]) -> str:
    """What a kubelet is short of that cannot align just these containers."""
    return f"{ZONES} of {blake2b(json.encode(asks), digest_size=8).hexdigest()}"


def without_kind(resource: str) -> str:
    """For people, to whom it says nothing which containers it was that could not be aligned."""
    return ZONES if resource.startswith(ZONES) else resource


@lru_cache(maxsize=4096)
def together(asks: tuple[ZoneAsk, ...]) -> Amounts:
    """What the containers hold at most at one time; init containers run one by one."""
    standing: dict[str, int] = {}
    peak: dict[str, int] = {}
    for ask in asks:
        for name, amount in ask.amounts:
            if ask.phase == "init":
                peak[name] = max(peak.get(name, 0), amount + standing.get(name, 0))
            else:
                standing[name] = standing.get(name, 0) + amount
    names = sorted(standing.keys() | peak.keys())
    return tuple((name, max(standing.get(name, 0), peak.get(name, 0))) for name in names)
