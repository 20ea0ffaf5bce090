"""Bugs planted in how zones are counted and merged: the tests of this folder must notice each."""

from pathlib import Path

import pytest

from tests.law import test_planted_bugs
from tests.oracle.planted_bugs import Bug

ZONES, MERGING = "core/state/zones.py", "core/devices/numa.py"
LAG = (
    Bug(
        "only-one-zone-is-reserved",
        ZONES,
        "                for zone in free:\n",
        "                for zone in free[:1]:\n",
        "a pod that is not counted may be in any zone",
    ),
    Bug(
        "counted-as-soon-as-it-is-there",
        ZONES,
        "long_ago = topology.written_s - SETTLING_S",
        "long_ago = topology.written_s + SETTLING_S",
        "what was written before the pod started does not count it",
    ),
    Bug(
        "a-name-is-enough",
        ZONES,
        "(not written or written >= pod.started_s)",
        "True",
        "a pod that was made anew under its old name is another",
    ),
    Bug(
        "containers-go-where-we-think",
        MERGING,
        "if len(row.aligned) > 1 and next(cluster.zones.uncounted(node), None) is not None:",
        "if False:",
        "a lower zone may have more room than we know",
    ),
    Bug(
        "init-containers-go-where-we-think",
        MERGING,
        "starts <= set(fitting)",
        "starts & set(fitting)",
        "wherever an init container may go, the others must fit",
    ),
    Bug(
        "the-start-is-no-news",
        "core/state/cluster.py",
        "if old.started_s != pod.started_s:\n            self.zones.changed",
        "if False:\n            self.zones.changed",
        "a pod that has started may be counted already",
    ),
)
KUBELET = (
    Bug(
        "widths-may-differ",
        MERGING,
        "return widths.pop() if len(widths) == 1 else 0",
        "return max(widths)",
        "all resources must come from the same zones",
    ),
    Bug(
        "narrow-by-what-is-free",
        MERGING,
        "most = sorted((zone.get(name, 0) for zone in self.at_most), reverse=True)",
        "most = sorted((zone.get(name, 0) for zone in self.free), reverse=True)",
        "how many zones it takes is a matter of the empty node",
    ),
    Bug(
        "init-containers-keep-theirs",
        MERGING,
        'if zones is not None and ask.phase == "init":',
        "if False:",
        "what an init container had is free for the others",
    ),
    Bug(
        "init-containers-bind-nobody",
        MERGING,
        "if needed <= set(zones) and fits(",
        "if fits(",
        "the zones of an init container's cpus are the next one's too",
    ),
)


@pytest.mark.parametrize("bug", test_planted_bugs.short(LAG), ids=lambda bug: bug.name)
def test_the_tests_of_lag_notice(bug: Bug, tmp_path: Path) -> None:
    test_planted_bugs.test_the_law_machine_notices(bug, "../numa/test_lag.py", tmp_path)


@pytest.mark.parametrize("bug", test_planted_bugs.short(KUBELET), ids=lambda bug: bug.name)
def test_the_tests_against_a_kubelet_notice(bug: Bug, tmp_path: Path) -> None:
    test_planted_bugs.test_the_law_machine_notices(bug, "../numa/test_kubelet.py", tmp_path)
