"""A program as a child process: its log in a file, its death with ours, its start waited for.

Nothing here knows which program it is.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bayplan.testing.binaries import ControlPlaneError

POLL_S = 0.02
TAIL_LINES = 12
TAIL_BYTES = 32_768

# A child must not outlive us, not even when we are killed with SIGKILL and can tidy up nothing. On
# Linux a process can ask for a signal on its parent's death (PR_SET_PDEATHSIG, which is 1), and
# the wish survives execv. The child asks for itself, in a short Python program that then becomes
# the real one: a `preexec_fn` would run Python between fork and exec, which is unsafe beside other
# threads, and warned about since Python 3.12. A parent that died before the wish is seen by its
# number. Other systems have no such signal; there a killed parent leaves its children behind.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
# To Linux the parent is the thread that started the child. This one lives as long as Python does,
# so that a process started from a short-lived thread does not die with that thread.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class Process:
    """A running program; what it writes is appended to `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        if sys.platform == "linux":
            python = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            command = [*python, *command]
        self._popen = _STARTER.submit(_start, command, log).result()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Returns when it is ready; a process that ends or is late is an error with its log."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                code = self._popen.returncode
                raise ControlPlaneError(f"{self.name} ended with {code}:\n{self.tail()}")
            if time.monotonic() > deadline:
                late = f"{self.name} is not ready after {timeout_s:.0f} s"
                raise ControlPlaneError(f"{late}:\n{self.tail()}")
            time.sleep(POLL_S)

    def tail(self) -> str:
        """The last lines of the log."""
        with open(self.log, "rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Its exit status, when it ends in time."""
        return self._popen.wait(timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM, and SIGKILL when it does not end in time."""
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()


def _start(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us alone; we then stop the children in order
        )
