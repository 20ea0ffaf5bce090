"""How much of this machine others used while something was measured. Linux only: it reads /proc.

Ours are this process, its children that live, and those that have ended.
"""

import os
import time
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # of the figures of /proc/stat: idle, and waiting for a disk
_TIMES = 8  # the two after them are parts of the first two


class Meter:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began, self._busy_s, self._ours_s = time.monotonic(), _busy_s(), _ours_s()

    def elsewhere_cores(self) -> float:
        """The cores that were taken by processes that are not ours, on average."""
        others_s = (_busy_s() - self._busy_s) - (_ours_s() - self._ours_s)
        return max(0.0, others_s / (time.monotonic() - self._began))


def process_cpu_s(pid: int) -> float:
    """User and system time of all its threads since it began."""
    user, system = _fields(Path(f"/proc/{pid}/stat"))[11:13]
    return (int(user) + int(system)) * TICK_S


def _fields(stat: Path) -> list[str]:
    """What follows the program's name, which may hold anything; the parent is the second."""
    return stat.read_text().rpartition(")")[2].split()


def _ours_s() -> float:
    ours = os.times()
    total = ours.user + ours.system + ours.children_user + ours.children_system
    me = str(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = _fields(stat)
        except OSError:
            continue  # it has ended meanwhile
        if fields[1] == me:
            total += (int(fields[11]) + int(fields[12])) * TICK_S
    return total


def _busy_s() -> float:
    figures = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _TIMES]
    return sum(int(ticks) for i, ticks in enumerate(figures) if i not in _IDLE) * TICK_S
