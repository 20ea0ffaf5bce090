"""The cgroup that a node's pods live in: made before the kubelet starts, removed after it.

Of version 1 there is one in every hierarchy, of version 2 one that hands every controller on.
"""

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "bayplan-"  # then the process that owns it, so that a later one can tell whether it lives
V1_NEEDED = ("cpu", "cpuset", "devices", "freezer", "memory", "pids")
V2_NEEDED = ("cpu", "memory", "pids")
V2_HANDED_ON = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")
POLL_S = 0.02


class Cgroup:
    """`name` below the root of each hierarchy."""

    def __init__(self, label: str) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{label}"
        self._enabled: list[str] = []  # controllers that the root did not hand on before

    def make(self) -> None:
        sweep()
        if is_v2():
            self._hand_on(ROOT)
            (ROOT / self.name).mkdir()
            self._hand_on(ROOT / self.name)
            return
        for root in hierarchies():
            (root / self.name).mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset is empty, and of no use
                if (root / file).exists():
                    (root / self.name / file).write_text((root / file).read_text())

    def remove(self, timeout_s: float = 10.0) -> None:
        """Waits until the last process is gone."""
        deadline = time.monotonic() + timeout_s
        for root in hierarchies():
            while not _removed(root / self.name):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{root / self.name} still has processes")
                time.sleep(POLL_S)
        for controller in self._enabled:
            with contextlib.suppress(OSError):  # somebody else uses it now
                (ROOT / "cgroup.subtree_control").write_text(f"-{controller}")
        self._enabled.clear()

    def _hand_on(self, group: Path) -> None:
        there = (group / "cgroup.controllers").read_text().split()
        control = group / "cgroup.subtree_control"
        for controller in V2_HANDED_ON:
            if controller in there and controller not in control.read_text().split():
                control.write_text(f"+{controller}")
                if group == ROOT:
                    self._enabled.append(controller)


def is_v2() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Where each is mounted; of version 2 there is only one, which may stand beside version 1."""
    if is_v2():
        return [ROOT]
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(where) for _, where, kind, *_ in lines if kind in ("cgroup", "cgroup2")]


def why_no_cgroups() -> str | None:
    if is_v2():
        there = set((ROOT / "cgroup.controllers").read_text().split())
        missing = [name for name in V2_NEEDED if name not in there]
    else:
        there = {part for root in hierarchies() for part in root.name.split(",")}
        missing = [name for name in V1_NEEDED if name not in there]
    if missing:
        return f"there is no cgroup controller {', '.join(missing)}"
    probe = Cgroup("probe")
    try:
        probe.make()
    except OSError as error:
        return f"no cgroup can be made: {error}"
    finally:
        probe.remove()
    return None


def left() -> list[Path]:
    """What is there of nodes of this process."""
    ours = f"{PREFIX}{os.getpid()}-*"
    return [group for root in hierarchies() for group in root.glob(ours)]


def sweep() -> None:
    """Removes what a process left behind that was killed."""
    for root in hierarchies():
        for group in root.glob(f"{PREFIX}*"):
            owner = group.name.removeprefix(PREFIX).partition("-")[0]
            if not Path("/proc", owner).exists():
                _removed(group)


def _removed(group: Path) -> bool:
    """Removes it with all below it, children first; False when something lives there."""
    try:
        for path, _, _ in os.walk(group, topdown=False):
            os.rmdir(path)
    except FileNotFoundError:
        return not group.exists()
    except OSError:
        return False
    return True
