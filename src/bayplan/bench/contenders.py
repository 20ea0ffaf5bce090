"""The three that bind pods in the benchmarks, each a process of its own, and what it has used.

CPU time and memory are read from /proc, so they are all of the process and nothing else's.
"""

import http.client
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from bayplan.bench.machine import process_cpu_s
from bayplan.testing.controlplane import ControlPlane, Process, free_ports

PYTHON = sys.executable
BAYPLAN = [PYTHON, "-m", "bayplan", "run"]
BARE = [PYTHON, "-m", "bayplan.bench.bare_binder"]

_REST_S = 1.0  # a process rests when it used at most this much in that long:
_REST_CPU_S = 0.03
_REST_AT_MOST_S = 30.0


class Running(Struct, frozen=True):
    """A contender that was started just now; `is_ready` may be asked when nothing is measured."""

    process: Process
    is_ready: Callable[[], bool]
    port: int = 0  # of its metrics, where it has them
    api: int = 0  # of questions, where it answers them


class Contender(Struct, frozen=True):
    key: str  # as in the keys of the report
    scheduler: str  # the schedulerName of its pods
    start: Callable[[ControlPlane], Running]


def start_kube_scheduler(plane: ControlPlane) -> Running:
    return Running(plane.start_kube_scheduler(), lambda: True)


def start_bayplan(plane: ControlPlane, config: Path | None = None) -> Running:
    """With no configuration: every default plugin, and no leader election."""
    port, api = free_ports(2)
    command = [
        *BAYPLAN,
        f"--kubeconfig={plane.kubeconfig}",
        f"--listen=127.0.0.1:{port}",
        f"--api=127.0.0.1:{api}",
    ]
    if config is not None:
        command.append(f"--config={config}")
    process = Process("bayplan", command, plane.directory / "bayplan.log")
    return Running(process, lambda: get(port, "/readyz") is not None, port, api)


def start_bare_loop(plane: ControlPlane) -> Running:
    command = [*BARE, str(plane.kubeconfig), BARE_LOOP.scheduler]
    log = plane.directory / "bare-loop.log"
    log.unlink(missing_ok=True)
    process = Process("bare loop", command, log)
    return Running(process, lambda: b"ready" in process.log.read_bytes())


KUBE_SCHEDULER = Contender("kube_scheduler", "default-scheduler", start_kube_scheduler)
BAYPLAN_RUN = Contender("bayplan", "bayplan", start_bayplan)
BARE_LOOP = Contender("bare_loop", "bare-loop", start_bare_loop)
ALL = (KUBE_SCHEDULER, BAYPLAN_RUN, BARE_LOOP)


def rest(process: Process) -> None:
    """Returns when it has nothing to do: for a second it used next to no CPU time."""
    deadline = time.monotonic() + _REST_AT_MOST_S
    before = process_cpu_s(process.pid)
    while time.monotonic() < deadline:
        time.sleep(_REST_S)
        now = process_cpu_s(process.pid)
        if now - before <= _REST_CPU_S:
            return
        before = now


def peak_mib(process: Process) -> float:
    return _status_kib(process, "VmHWM") / 1024


def rss_mib(process: Process) -> float:
    return _status_kib(process, "VmRSS") / 1024


def _status_kib(process: Process, name: str) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"no {name} of process {process.pid}")


def get(port: int, path: str) -> str | None:
    """What a contender's own server says, or None when it does not say 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read().decode()
        return said if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
