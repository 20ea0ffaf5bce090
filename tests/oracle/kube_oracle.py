"""kube-scheduler's own plugins as a test oracle: builds the Go program in kube/ and talks to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bayplan.testing import gotool

SOURCES = Path(__file__).resolve().parent / "kube"


def build() -> Path:
    """The path of the oracle's binary, built if these sources were not built before."""
    folder = gotool.cache_dir() / "oracle"
    target = folder / _digest() / "kube-oracle"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with gotool.alone(folder / "lock"):
            if not target.exists():
                gotool.build(gotool.Package(".", SOURCES), target)
    return target


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix == ".go" or path.name in ("go.mod", "go.sum"):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


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
