"""Which pod a process belongs to, and what the pod uses: from the files of the machine's kernel.

Nothing is entered and nothing is run. What cannot be read is left out: all of it but the pod of a
process needs cgroup v2. Static pods go by another uid in their cgroups than in the API.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from bayplan.agent.profile import Usage

_HEX = "[0-9a-f]"
_UID = re.compile(rf"pod({_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}})\b")
CLASSES = ("", "burstable", "besteffort")  # of a pod's quality of service; guaranteed has no name
BYTES_PER_MB = 1e6


class Counters(Struct, frozen=True):
    """What the kernel has counted for a pod since it began."""

    time: float
    cpu_us: int | None
    memory_bytes: int | None
    sent_bytes: int | None
    written_bytes: int | None


class Kernel:
    """The files under the root of the machine."""

    def __init__(self, root: Path) -> None:
        self._proc, self._cgroups = root / "proc", root / "sys/fs/cgroup"

    def pods_of(self, pids: Iterable[int]) -> dict[str, set[int]]:
        """The processes by the uid of their pod; those of none, and those that ended, are left
        out."""
        found: dict[str, set[int]] = {}
        for pid in pids:
            match = _UID.search(_text(self._proc / str(pid) / "cgroup"))
            if match:
                found.setdefault(match[1].replace("_", "-"), set()).add(pid)
        return found

    def counters(self, uid: str, pids: Iterable[int], now: float, own_network: bool) -> Counters:
        """`own_network`: what is sent from where its processes are was sent by the pod alone."""
        group = self._group(uid)
        if group is None:
            return Counters(now, None, None, None, None)
        return Counters(
            now,
            _field(_text(group / "cpu.stat"), r"usage_usec (\d+)"),
            _field(_text(group / "memory.current"), r"(\d+)"),
            self._sent(pids) if own_network else None,
            _sum(_text(group / "io.stat"), r"\bwbytes=(\d+)"),
        )

    def _group(self, uid: str) -> Path | None:
        """As the kubelet names it: with systemd, or by itself."""
        for name in CLASSES:
            slice = f"kubepods-{name}" if name else "kubepods"
            outer = Path("kubepods.slice", f"{slice}.slice" if name else "")
            inner = f"{slice}-pod{uid.replace('-', '_')}.slice"
            for path in (outer / inner, Path("kubepods", name, f"pod{uid}")):
                if (self._cgroups / path / "cpu.stat").exists():
                    return self._cgroups / path
        return None

    def _sent(self, pids: Iterable[int]) -> int | None:
        """All processes of a pod have the same network; the first that still runs will do."""
        for pid in sorted(pids):
            text = _text(self._proc / str(pid) / "net/dev")
            found = re.findall(r"^\s*([^:\s]+):((?:\s+\d+){9,})", text, re.MULTILINE)
            if found:
                return sum(int(numbers.split()[8]) for name, numbers in found if name != "lo")
        return None


def usage_between(before: Counters | None, now: Counters) -> Usage:
    """What needs two looks is left out at the first."""
    memory = None if now.memory_bytes is None else now.memory_bytes / BYTES_PER_MB
    if before is None or now.time <= before.time:
        return Usage(memory_mb=_rounded(memory))
    elapsed = now.time - before.time
    return Usage(
        cpu_percent=_rate(before.cpu_us, now.cpu_us, elapsed * 1e6 / 100),
        memory_mb=_rounded(memory),
        network_mb_per_s=_rate(before.sent_bytes, now.sent_bytes, elapsed * BYTES_PER_MB),
        disk_mb_per_s=_rate(before.written_bytes, now.written_bytes, elapsed * BYTES_PER_MB),
    )


def _rate(before: int | None, now: int | None, unit: float) -> float | None:
    """None too when something began to count anew."""
    if before is None or now is None or now < before:
        return None
    return _rounded((now - before) / unit)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _field(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


def _sum(text: str, pattern: str) -> int | None:
    found = re.findall(pattern, text)
    return sum(map(int, found)) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
