"""Bugs planted in the allocator: its laws, or else its examples, must notice each of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.law.test_planted_bugs import short
from tests.oracle.planted_bugs import Bug, plant

ALLOCATOR, PACKING = "elastic/allocator.py", "elastic/packing.py"
ROOT = Path(__file__).parents[2]
LAWS, EXAMPLES = "test_allocator_laws.py", "test_allocator.py"

BUGS = (
    (
        Bug(
            "above-max",
            ALLOCATOR,
            "return job.maximum if floors",
            "return job.maximum + 1 if floors",
            "nothing is above max",
        ),
        LAWS,
    ),
    (
        Bug(
            "greed",
            PACKING,
            "better = offer >= above[cost:]",
            "better = (offer >= above[cost:]) & (choice == chosen[i, cost:] + 1)",
            "curves may be flat and then rise",
        ),
        LAWS,
    ),
    (
        Bug(
            "others-first",
            ALLOCATOR,
            "(-job.priority, job.arrival, job.key)",
            "(job.arrival, -job.priority, job.key)",
            "priority comes before arrival",
        ),
        LAWS,
    ),
    (
        Bug(
            "the-first-blocks",
            ALLOCATOR,
            "        if more <= left:\n",
            "        if more > left:\n            break\n        if more <= left:\n",
            "a job that does not fit does not block a smaller one",
        ),
        LAWS,
    ),
    (
        Bug(
            "threshold-ignored",
            ALLOCATOR,
            "throughput(changed, now) * (1 + threshold)",
            "throughput(changed, now)",
            "no change for a gain below the threshold",
        ),
        LAWS,
    ),
    (
        Bug(
            "never-grows",
            ALLOCATOR,
            "    return _most(ranked, sizes, high, terms)\n",
            "    return sizes\n",
            "free devices are used where they are worth it",
        ),
        LAWS,
    ),
    (
        Bug(
            "one-step-only",
            ALLOCATOR,
            "        sizes = changed\n",
            "        return changed\n",
            "asked again it gives the same",
        ),
        LAWS,
    ),
    (
        Bug(
            "cost-of-a-worker",
            ALLOCATOR,
            "np.arange(least, most + 1) * job.per_worker",
            "np.arange(least, most + 1)",
            "workers may have several devices",
        ),
        LAWS,
    ),
    (
        Bug(
            "dropped-too-much",
            PACKING,
            "sure * (1 + loss - SAFE)",
            "sure * (1.05 + loss - SAFE)",
            "only sizes that cannot be better are dropped",
        ),
        LAWS,
    ),
    (
        Bug(
            "price-too-high",
            PACKING,
            "top.sum() + price * room - (",
            "top.sum() - (",
            "Lagrange's bound counts the room",
        ),
        LAWS,
    ),
    (
        Bug(
            "cut-all",
            ALLOCATOR,
            "        if free >= wanted:\n            break\n",
            "",
            "the original cuts only until there is room",
        ),
        EXAMPLES,
    ),
    (
        Bug(
            "cuts-undone",
            ALLOCATOR,
            "    if free >= wanted:\n        sizes",
            "    if free > wanted:\n        sizes",
            "exactly the minimum is enough",
        ),
        EXAMPLES,
    ),
)


@pytest.mark.parametrize(("bug", "tests"), short(BUGS), ids=lambda each: getattr(each, "name", ""))
def test_the_tests_notice(bug: Bug, tests: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    plant(bug, tmp_path / "src" / "bayplan")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "BAYPLAN_SHRINK": "no",
        "BAYPLAN_EXAMPLES": "2000",  # at most: the first that notices ends it
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", f"tests/elastic/{tests}"]
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 1, run.stdout[-2000:] + run.stderr[-2000:]
    assert "1 failed" in run.stdout
