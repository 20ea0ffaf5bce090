"""Does parity notice? Every planted bug must be caught within a few recorded cases."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.oracle.parity import STREAMS, Caught, record, run_seed
from tests.oracle.planted_bugs import BUGS, Bug, plant

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CASES = 2000  # of each stream


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cases of both streams in turn, with the oracle's answers; one file for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    path = shared / "recorded.jsonl"
    with open(shared / "recorded.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            seed = run_seed()
            streams = [record(stream, seed, range(CASES)) for stream in STREAMS]
            in_turn = (case for cases in zip(*streams, strict=True) for case in cases)
            partial = path.with_suffix(".partial")
            partial.write_bytes(b"\n".join(map(msgspec.json.encode, in_turn)))
            partial.rename(path)
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A copy of src, with the byte code, so that it starts quickly."""
    target = tmp_path / "src"
    shutil.copytree(SOURCE, target)
    yield target
    shutil.rmtree(target)


def answer_with(copy: Path, recorded: Path) -> Caught:
    """The first difference between the oracle and the code of the copy."""
    command = [sys.executable, "-m", "tests.oracle.parity", "--recorded", str(recorded)]
    env = os.environ | {"PYTHONPATH": str(copy)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    caught = msgspec.json.decode(ran.stdout, type=Caught)
    assert Path(caught.source).is_relative_to(copy.resolve()), caught.source
    return caught


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, copy: Path, recorded: Path) -> None:
    plant(bug, copy / "bayplan")

    caught = answer_with(copy, recorded)

    sys.stdout.write(f"caught {bug.name} by {caught.stream} {caught.index}\n{caught.difference}\n")
    assert caught.stream, (
        f"not noticed in {CASES} cases of each stream, seed {run_seed()}: {bug.breaks}"
    )
    assert "theirs: an answer" not in caught.difference, f"it crashes: {caught.difference}"


def test_without_a_bug_nothing_is_caught(copy: Path, recorded: Path) -> None:
    assert answer_with(copy, recorded).difference == ""
