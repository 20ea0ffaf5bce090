"""Bugs planted in what elastic jobs are promised: the law machine of that must notice each."""

from pathlib import Path

import pytest

from tests.law import test_planted_bugs
from tests.oracle.planted_bugs import Bug

PROMISES = "core/engine/promises.py"
BUGS = (
    Bug(
        "taken-by-the-important",
        PROMISES,
        "held = replace(placing.holding(each), priority=FIRST)",
        "held = placing.holding(each)",
        "nobody is important enough for a promised place",
    ),
    Bug(
        "kept-twice",
        PROMISES,
        "sum(map(len, self._there(grant))) + otherwise.get(grant.key, 0)",
        "sum(map(len, self._there(grant)))",
        "a worker that others go for has a place of its own",
    ),
    Bug(
        "never-given-back",
        PROMISES,
        "        for uid in here[wanted:]:\n            self._release(uid)\n",
        "",
        "what is too much is given back",
    ),
    Bug(
        "homeless",
        "core/engine/deciding.py",
        "found = None if waiter.pod.worker is None else self._take_promised(waiter, now)",
        "found = None",
        "a worker takes the place that it was promised",
    ),
    Bug(
        "only-once",
        "core/engine/engine.py",
        "promises.note(event)",
        "pass",
        "what happens may cost a place, or bring one",
    ),
    Bug(
        "gang-without-homes",
        "core/engine/gang_deciding.py",
        "return homes | self._promises.homes(others)",
        "return homes",
        "the places that a gang's members were promised are not in their way",
    ),
    Bug(
        "nobody-left",
        PROMISES,
        "return max(places - self._state(grant, otherwise)[0], 0)",
        "return places",
        "who is there needs no place that is kept",
    ),
    Bug(
        "hope-given-up",
        PROMISES,
        "is_roomier = better or self._helped != self._waiting.helped",
        "is_roomier = False",
        "a grant that was short gets what others leave",
    ),
    Bug(
        "of-the-same-name",
        PROMISES,
        "return [found[mark] for mark in grant.marks if mark in found]",
        "return [uids for mark, uids in found.items() if mark.key == grant.key]",
        "workers of an earlier job of the same name have none of its places",
    ),
    Bug(
        "heirs",
        PROMISES,
        "return grant if grant is not None and pod.worker in grant.marks else None",
        "return grant",
        "nor do they take them",
    ),
)


@pytest.mark.parametrize("bug", test_planted_bugs.short(BUGS), ids=lambda bug: bug.name)
def test_the_law_machine_notices(bug: Bug, tmp_path: Path) -> None:
    test_planted_bugs.test_the_law_machine_notices(bug, "test_promise_laws.py", tmp_path)
