"""Does the comparison notice? Every planted bug must be caught within the recorded cases.

They are of one fixed seed, which changes only with the generator: some bugs show once in a thousand
cases, and chance is not to decide. `pytest -rP` tells which case caught each.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.parity import CRASHED
from tests.oracle.planted_bugs import Bug, plant
from tests.oracle.preemption import ROOT, apart, record, write
from tests.oracle.preemption_bugs import BUGS

SOURCE = ROOT / "src"
CASES = 1500
FIXED_SEED = 805


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cases with the oracle's answers; the first worker writes them."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = folder / "preemption.jsonl"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            write(path, record(FIXED_SEED, range(CASES)))
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A copy of src, with the byte code, so that it starts quickly."""
    target = tmp_path / "src"
    shutil.copytree(SOURCE, target)
    yield target
    shutil.rmtree(target)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_about_preemption_is_caught(bug: Bug, copy: Path, recorded: Path) -> None:
    plant(bug, copy / "bayplan")

    caught = apart(recorded, copy)

    assert caught.index >= 0, f"not noticed: {bug.breaks}"
    assert CRASHED not in caught.difference, "a crash is too easy to notice; plant another bug"
    sys.stdout.write(f"{bug.name}: {caught.index}\n{caught.difference}\n")


def test_without_a_bug_nothing_is_caught(copy: Path, recorded: Path) -> None:
    assert apart(recorded, copy).difference == ""
