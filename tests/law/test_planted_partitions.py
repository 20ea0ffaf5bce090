"""Bugs planted in partitions of devices: the law machine of that model must notice each."""

from pathlib import Path

import pytest

from tests.law import test_planted_bugs
from tests.oracle.planted_bugs import Bug

ESTATES = "core/state/estates.py"
KEEPER = "core/engine/keeper.py"
BUGS = (
    Bug(
        "strays-are-free",
        ESTATES,
        "~self._busy & ~union(self.strays.values())",
        "~self._busy",
        "what somebody else has is not given",
    ),
    Bug(
        "the-sick-are-given",
        ESTATES,
        "sum(d.healthy << at for at, d in enumerate(estate.devices))",
        "sum(1 << at for at, d in enumerate(estate.devices))",
        "a device that does not work is not given",
    ),
    Bug(
        "nobody-hears-of-it",
        ESTATES,
        "self._touch(np.fromiter(line.rows, dtype=np.intp, count=len(line.rows)))",
        "pass",
        "kept verdicts follow what happens on other head nodes",
    ),
    Bug(
        "orphans-hold-nothing",
        "core/state/cluster.py",
        "self.orphan_nodes[pod.uid] = pod.node\n        self.estates.take(pod, 1)",
        "self.orphan_nodes[pod.uid] = pod.node",
        "a pod keeps its devices when its node goes",
    ),
    Bug(
        "plans-are-not-exchanged",
        KEEPER,
        "self._exchange(line, instead & ~plan, plan & ~instead)",
        "pass",
        "nobody plans with what another has got",
    ),
    Bug(
        "others-are-ours",
        "core/model/partitions.py",
        "if not self.prefix or not partition.startswith(self.prefix):",
        "if not self.prefix:",
        "nobody else's partition is deleted",
    ),
)


@pytest.mark.parametrize("bug", test_planted_bugs.short(BUGS), ids=lambda bug: bug.name)
def test_the_law_machine_notices(bug: Bug, tmp_path: Path) -> None:
    test_planted_bugs.test_the_law_machine_notices(bug, "test_partition_laws.py", tmp_path)
