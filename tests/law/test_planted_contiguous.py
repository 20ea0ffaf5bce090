"""Bugs planted in how devices go together: the law machine of that model must notice each."""

from pathlib import Path

import pytest

from tests.law import test_planted_bugs
from tests.oracle.planted_bugs import Bug

CONTIGUOUS = "core/devices/contiguous.py"
ORDERED = "core/state/ordered.py"
BUGS = (
    Bug(
        "rows-from-anywhere",
        CONTIGUOUS,
        "for first in range(0, layout.indexes[-1] + 1, count):",
        "for first in range(0, layout.indexes[-1] + 1, layout.row):",
        "eight are rows 0 and 1, or 2 and 3",
    ),
    Bug(
        "holes-do-not-count",
        CONTIGUOUS,
        "return there if self.numbers[there] == self.numbers[at] + step else None",
        "return there",
        "what has a gap between does not go together",
    ),
    Bug(
        "containers-share",
        CONTIGUOUS,
        "usable, free = self._free & ~blocked, self._free & ~own",
        "usable, free = self._free, self._free & ~own",
        "two that run at the same time share nothing",
    ),
    Bug(
        "the-sick-are-given",
        ORDERED,
        "sum(1 << at for at, device in enumerate(columns) if device.healthy)",
        "(1 << len(columns)) - 1",
        "a device that does not work is not given",
    ),
    Bug(
        "one-core-stands-for-all",
        ORDERED,
        "found[device.id] = tuple(range(at, at + device.cores))",
        "found[device.id] = (at,)",
        "whoever holds a device holds all of its cores",
    ),
    Bug(
        "what-nobody-knows-is-free",
        "core/plugins/devices.py",
        "if unknown := table.unknown[row]:",
        "if (unknown := table.unknown[row]) == NO_POOL:",
        "what nobody knows closes the class",
    ),
)


@pytest.mark.parametrize("bug", test_planted_bugs.short(BUGS), ids=lambda bug: bug.name)
def test_the_law_machine_notices(bug: Bug, tmp_path: Path) -> None:
    test_planted_bugs.test_the_law_machine_notices(bug, "test_contiguous_laws.py", tmp_path)
