"""Bugs planted in gangs, their objects and the places that are kept for them: the law machine of
those must notice each."""

from pathlib import Path

import pytest

from tests.law import test_planted_bugs
from tests.oracle.planted_bugs import Bug

BUGS = (
    Bug(
        "nobody-to-wait-for",
        "core/engine/nominations.py",
        "            self.awaited.pop(owner, None)\n",
        "",
        "places that are given up wait for nobody",
    ),
    Bug(
        "without-its-group",
        "core/engine/gangs.py",
        'return f"{gang.title} does not exist" if gang.grouped else ""',
        'return ""',
        "a gang whose object is missing does not start",
    ),
    Bug(
        "anywhere-across",
        "core/engine/evenly.py",
        "np.where(feasible & fewest[codes], verdict, REFUSED)",
        "verdict",
        "members that must be spread are",
    ),
)


@pytest.mark.parametrize("bug", test_planted_bugs.short(BUGS), ids=lambda bug: bug.name)
def test_the_law_machine_notices(bug: Bug, tmp_path: Path) -> None:
    test_planted_bugs.test_the_law_machine_notices(bug, "test_reservation_laws.py", tmp_path)
