"""Does parity notice? Every planted bug must be caught within 2,000 recorded cases of a stream.

Bugs in what plugins decide are looked for with and without scores, in turn; bugs in what is kept,
in cases that go on. `pytest -rP` tells which case caught each.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.oracle.parity import CRASHED, Caught, Stream, print_seed, record, run_seed
from tests.oracle.planted_bugs import ABOUT_VOLUMES, BUGS, KEEPING, Bug, plant

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CASES: dict[Stream, int] = {"filters": 2000, "scores": 2000, "kept": 1500, "volumes": 1500}
DECIDING: tuple[Stream, ...] = ("filters", "scores")
GOING_ON: tuple[Stream, ...] = ("kept",)
WITH_VOLUMES: tuple[Stream, ...] = ("volumes",)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run for all its workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest, shared: Path) -> int:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    return print_seed(shared, capture.global_and_fixture_disabled())


@pytest.fixture(scope="session")
def deciding(shared: Path, seed: int) -> Path:
    return recorded(shared, seed, DECIDING)


@pytest.fixture(scope="session")
def going_on(shared: Path, seed: int) -> Path:
    return recorded(shared, seed, GOING_ON)


@pytest.fixture(scope="session")
def with_volumes(shared: Path, seed: int) -> Path:
    return recorded(shared, seed, WITH_VOLUMES)


def recorded(folder: Path, seed: int, streams: tuple[Stream, ...]) -> Path:
    """Cases of the streams in turn, with the oracle's answers; the first worker writes them."""
    path = folder / f"{'-'.join(streams)}.jsonl"
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            cases = [record(stream, seed, range(CASES[stream])) for stream in streams]
            in_turn = (case for turn in zip(*cases, strict=True) for case in turn)
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


def answer_with(copy: Path, cases: Path) -> Caught:
    """The first difference between the oracle and the code of the copy."""
    command = [sys.executable, "-m", "tests.oracle.parity", "--recorded", str(cases)]
    env = os.environ | {"PYTHONPATH": str(copy)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    caught = msgspec.json.decode(ran.stdout, type=Caught)
    assert Path(caught.source).is_relative_to(copy.resolve()), caught.source
    return caught


def catch(bug: Bug, copy: Path, cases: Path) -> None:
    plant(bug, copy / "bayplan")

    caught = answer_with(copy, cases)

    assert caught.stream, f"BAYPLAN_SEED={run_seed()}: not noticed in {cases}: {bug.breaks}"
    assert CRASHED not in caught.difference, "a crash is too easy to notice; plant another bug"
    sys.stdout.write(f"{bug.name}: {caught.stream} {caught.index}\n{caught.difference}\n")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_deciding_is_caught(bug: Bug, copy: Path, deciding: Path) -> None:
    catch(bug, copy, deciding)


@pytest.mark.parametrize("bug", KEEPING, ids=lambda bug: bug.name)
def test_a_bug_in_keeping_is_caught(bug: Bug, copy: Path, going_on: Path) -> None:
    catch(bug, copy, going_on)


@pytest.mark.parametrize("bug", ABOUT_VOLUMES, ids=lambda bug: bug.name)
def test_a_bug_about_volumes_is_caught(bug: Bug, copy: Path, with_volumes: Path) -> None:
    catch(bug, copy, with_volumes)


def test_without_a_bug_nothing_is_caught(
    copy: Path, deciding: Path, going_on: Path, with_volumes: Path
) -> None:
    for cases in (deciding, going_on, with_volumes):
        assert answer_with(copy, cases).difference == ""
