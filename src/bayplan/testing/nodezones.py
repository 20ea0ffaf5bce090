"""NUMA zones that a node pretends to have: the files that a kubelet reads them from.

It hands out cpus that are not there, so a container that gets some does not start. Whether the
kubelet admits a pod is decided before that.
"""

from collections.abc import Sequence
from pathlib import Path

ONLINE = "cpus-online"
MEMORY_KIB = 4 << 20  # of a zone
NEAR, FAR = 10, 21


def write(folder: Path, cpus: Sequence[int]) -> None:
    """What stands in /sys/devices/system/node, with so many cpus per zone; and in ONLINE what
    stands in /sys/devices/system/cpu/online."""
    number = 0
    for zone, count in enumerate(cpus):
        here = folder / f"node{zone}"
        (here / "hugepages").mkdir(parents=True)
        for cpu in range(number, number + count):
            topology = here / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "core_id").write_text(f"{cpu}\n")
            (topology / "physical_package_id").write_text(f"{zone}\n")
        number += count
        near = [str(NEAR if other == zone else FAR) for other in range(len(cpus))]
        (here / "distance").write_text(" ".join(near) + "\n")
        (here / "meminfo").write_text(f"Node {zone} MemTotal: {MEMORY_KIB} kB\n")
    (folder / ONLINE).write_text(f"0-{number - 1}\n")


def settings(policy: str, scope: str) -> dict[str, object]:
    """Of the kubelet. The first cpu is the machine's own."""
    return {
        "cpuManagerPolicy": "static",
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
        "reservedSystemCPUs": "0",
    }
