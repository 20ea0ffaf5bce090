"""Bugs planted in the state and the engine: the law machine must notice each of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.oracle.planted_bugs import Bug, plant

CLUSTER = "core/state/cluster.py"
TERMS = "core/state/terms.py"
ENGINE = "core/engine/engine.py"
ROOT = Path(__file__).parents[2]
T = TypeVar("T")

BUGS = (
    Bug(
        "ports-not-given-back",
        CLUSTER,
        "self._use_ports(row, pod.row.ports, -1)",
        "self._use_ports(row, pod.row.ports, 0)",
        "a removed pod frees its ports",
    ),
    Bug(
        "relabelled-still-counted",
        CLUSTER,
        "            self._count(resident, -1)\n            resident.matched = matched",
        "            resident.matched = matched",
        "a relabelled pod leaves the terms that it does not match any more",
    ),
    Bug(
        "relabelled-for-good",
        CLUSTER,
        "self._done(self.relabel, uid, old)",
        "pass",
        "labels are undone too",
    ),
    Bug(
        "undone-in-order",
        CLUSTER,
        "inverse, arguments = undo.pop()",
        "inverse, arguments = undo.pop(mark.operations)",
        "operations are undone from the last to the first",
    ),
    Bug(
        "version-not-restored",
        CLUSTER,
        "self.version = mark.version",
        "pass",
        "a dropped trial leaves no trace",
    ),
    Bug(
        "zeros-not-subtracted",
        CLUSTER,
        "self.lacking.subtract(self._zeros(line))",
        "pass",
        "columns that some node lacks are counted",
    ),
    Bug(
        "load-log-skips-one",
        "core/engine/verdicts.py",
        "cluster.load_log.since(kept.load_position)",
        "cluster.load_log.since(min(kept.load_position + 1, head))",
        "kept verdicts follow every row of the log",
    ),
    Bug(
        "domain-sums-stay",
        TERMS,
        "self._sums(column)[column.codes[row]] += amount",
        "self._sums(column)[column.codes[row]] += 0",
        "sums per domain follow placements",
    ),
    Bug(
        "holders-miscounted",
        "core/state/labels.py",
        "self.holders += (value is not None) - (old != 0)",
        "self.holders += value is not None",
        "nodes with a label are counted",
    ),
    Bug(
        "index-keeps-the-dead",
        "core/state/podindex.py",
        "del holders[pod.uid]",
        "holders.pop('', None)",
        "removed pods leave the index",
    ),
    Bug(
        "room-wakes-nobody",
        "core/plugins/resources.py",
        "EventKind.NODE_GREW, EventKind.POD_GONE, EventKind.POD_SHRANK",
        "EventKind.NODE_GREW, EventKind.POD_SHRANK",
        "a pod that ends wakes those who lack room",
    ),
    Bug(
        "node-change-wakes-nobody",
        "core/engine/nodes.py",
        "kinds.append(EventKind.NODE_CHANGED)",
        "pass",
        "a changed node wakes those whom it refused",
    ),
    Bug(
        "relist-moves-orphans",
        ENGINE,
        "elif not same_to_us(orphan, pod):",
        "else:",
        "a relist changes nothing",
    ),
    Bug(
        "assumed-after-it-is-gone",
        ENGINE,
        "self._confirm(uid)\n        self.offers.forget(uid)",
        "self.offers.forget(uid)",
        "everything assumed is confirmed or forgotten",
    ),
    Bug(
        "claims-wake-nobody",
        "core/engine/facts.py",
        "if storage.set_claim(claim.key, claim):",
        "if storage.set_claim(claim.key, claim) and False:",
        "a claim that changes wakes the pods that name it",
    ),
    Bug(
        "volumes-wake-nobody",
        "core/engine/facts.py",
        "if storage.set_volume(volume.name, volume):",
        "if storage.set_volume(volume.name, volume) and False:",
        "a volume that changes wakes the pods whose claims name it",
    ),
    Bug(
        "users-of-claims-stay",
        CLUSTER,
        "self.storage.count(pod.row.claims, row, -1)",
        "self.storage.count((), row, -1)",
        "a removed pod frees its claims",
    ),
    Bug(
        "distrust-not-logged",
        "core/state/distrust.py",
        "self._touch(node)",
        "pass",
        "kept verdicts follow what kubelets refuse",
    ),
    Bug(
        "distrust-outlives-the-node",
        CLUSTER,
        "self.distrusted.forgive(name)",
        "pass",
        "a node that goes is forgotten",
    ),
    Bug(
        "forgiven-in-silence",
        ENGINE,
        "self.waiting.wake((EventKind.NODE_FORGIVEN,), now)",
        "pass",
        "a node that takes pods again wakes those whom it refused",
    ),
)


POOLS = "core/state/pools.py"
DEVICE_BUGS = (
    Bug(
        "compute-given-twice",
        POOLS,
        "self.usable[row][at] and memory >= 0 and compute >= 0",
        "self.usable[row][at] and memory >= 0",
        "a device that is given twice is not given once more",
    ),
    Bug(
        "unknown-not-looked-at",
        "core/plugins/parts.py",
        "fits &= lines.unknown == _NONE",
        "pass",
        "what nobody knows closes the class",
    ),
    Bug(
        "shared-given-whole",
        "core/devices/wanted.py",
        "if card is not None and not card.holders)",
        "if card is not None)",
        "a card that somebody holds is not given as a whole",
    ),
    Bug(
        "devices-not-given-back",
        CLUSTER,
        "            self.pools.take(row, pod, -1)",
        "            pass",
        "a removed pod frees its devices",
    ),
    Bug(
        "a-changed-pool-stays",
        POOLS,
        "if before.get(name) == after.get(name):",
        "if name in before and name in after:",
        "pools follow what the node publishes",
    ),
    Bug(
        "holding-not-compared",
        "core/engine/alike.py",
        "and old.held == new.held",
        "and True",
        "what the node side says moves what is held",
    ),
)
MACHINES = [(bug, "test_laws.py") for bug in BUGS]
MACHINES += [(bug, "test_device_laws.py") for bug in DEVICE_BUGS]


def short(bugs: Sequence[T]) -> Sequence[T]:
    """All of them under `make prove`; each takes a process of its own and some seconds."""
    return bugs if os.environ.get("BAYPLAN_PROVE") else bugs[::3]


@pytest.mark.parametrize(
    ("bug", "machine"),
    short(MACHINES),
    ids=lambda each: each.name if isinstance(each, Bug) else "",
)
def test_the_law_machine_notices(bug: Bug, machine: str, tmp_path: Path) -> None:
    assert_noticed(bug, tmp_path, (f"tests/law/{machine}",))


def assert_noticed(bug: Bug, tmp_path: Path, tests: Sequence[str], examples: int = 4000) -> None:
    """One test of these, which are what pytest is told, fails with the bug."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    plant(bug, tmp_path / "src" / "bayplan")
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "BAYPLAN_SHRINK": "no",
        "BAYPLAN_EXAMPLES": str(examples),  # at most: the first that notices ends it
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *tests]
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
