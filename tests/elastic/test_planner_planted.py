"""Bugs planted in the planner: its law machine, a look or a story must notice each of them."""

from pathlib import Path

import pytest

from tests.law.test_planted_bugs import assert_noticed, short
from tests.oracle.planted_bugs import Bug

PLANNER, MEMORY, SIZES = "elastic/planner.py", "elastic/memory.py", "elastic/sizes.py"
MACHINE = "TestElastic"
TESTS = ("tests/elastic/test_planner.py", "tests/elastic/test_stories.py")

BUGS = (
    (
        Bug(
            "made-before-it-is-confirmed",
            PLANNER,
            "elif seen.is_settled and (indices := _missing(seen)):",
            "elif indices := _missing(seen):",
            "a worker is made under a confirmed grant only",
        ),
        "test_workers_are_made_as_soon_as_the_grant_is_confirmed_and_not_before",
    ),
    (
        Bug(
            "given-up-too-early",
            PLANNER,
            "if not grown and not any(map(_is_unseen, jobs)):",
            "if not grown:",
            "places are kept until the scheduler knows whose they will be",
        ),
        "test_places_are_passed_on_only_when_the_next_one_is_known_to_the_scheduler",
    ),
    (
        Bug(
            "granted-while-pods-have-them",
            PLANNER,
            "return min(grant.passing, max(grant.places - seen.used, 0))",
            "return grant.passing",
            "a pod that is still there has its place",
        ),
        "test_nobody_is_granted_places_that_pods_still_have",
    ),
    (
        Bug(
            "asks-while-it-waits",
            PLANNER,
            "if target > grant.workers and seen.is_settled:",
            "if target > grant.workers:",
            "more is asked for only when the last grant is confirmed",
        ),
        "test_more_is_not_asked_for_before_the_last_grant_is_confirmed",
    ),
    (
        Bug(
            "the-same-generation",
            PLANNER,
            "return Grant(newest + 1, workers, passing,",
            "return Grant(newest, workers, passing,",
            "generations count up",
        ),
        MACHINE,
    ),
    (
        Bug(
            "never-gives-up",
            PLANNER,
            "        return None\n    return _next(seen, workers, 0)",
            "        return None\n    return None",
            "what is not confirmed is given up after a while",
        ),
        "test_places_that_the_scheduler_does_not_find_are_given_up_after_a_while",
    ),
    (
        Bug(
            "passed-on-to-nobody",
            PLANNER,
            "            written |= _released(jobs, targets, market, written)\n",
            "            pass\n",
            "nothing is left to be passed on",
        ),
        MACHINE,
    ),
    (
        Bug(
            "capped-for-ever",
            MEMORY,
            "return None if not cap.is_final and self._is_past(cap.until, now) else cap.limit",
            "return cap.limit",
            "after a rest more is asked for again",
        ),
        MACHINE,
    ),
    (
        Bug(
            "never-patient",
            MEMORY,
            "delay_s = min(before.delay_s * 2, patience.retry_most_s)",
            "delay_s = 0.0",
            "what was in vain is not asked for again at once",
        ),
        "test_what_does_not_fit_is_asked_for_again_after_longer_and_longer_times",
    ),
    (
        Bug(
            "below-the-minimum",
            SIZES,
            "found[key] = max(workers, floors[key])",
            "found[key] = max(workers - 1, 0)",
            "nobody has less than the minimum",
        ),
        MACHINE,
    ),
    (
        Bug(
            "waits-for-ever",
            PLANNER,
            "each.waits_for > most)",
            "each.waits_for > most + 1)",
            "nobody waits for others that will not come",
        ),
        "test_workers_that_wait_for_more_than_are_granted_are_made_again",
    ),
    (
        Bug(
            "made-again-and-again",
            PLANNER,
            "late and not seen.is_horovod and has_our_gang(seen.job)",
            "late and not seen.is_horovod",
            "who would wait for as many is not made again",
        ),
        "test_workers_of_a_gang_of_the_owners_are_left_alone",
    ),
)


@pytest.mark.parametrize(("bug", "test"), short(BUGS), ids=lambda each: getattr(each, "name", ""))
def test_the_tests_notice(bug: Bug, test: str, tmp_path: Path) -> None:
    assert_noticed(bug, tmp_path, (*TESTS, "-k", test), examples=1000)
