"""Bugs planted in the allocator: its laws, or else its examples, must notice each of them."""

from pathlib import Path

import pytest

from tests.law.test_planted_bugs import assert_noticed, short
from tests.oracle.planted_bugs import Bug

ALLOCATOR, PACKING = "elastic/allocator.py", "elastic/packing.py"
ROOT = Path(__file__).parents[2]
TESTS = ("tests/elastic/test_allocator_laws.py", "tests/elastic/test_allocator.py")

BUGS = (
    (
        Bug(
            "above-max",
            ALLOCATOR,
            "return job.maximum if floors",
            "return job.maximum + 1 if floors",
            "nothing is above max",
        ),
        "test_sizes_are_within_min_max_and_the_devices",
    ),
    (
        Bug(
            "greed",
            PACKING,
            "better = offer >= above[cost:]",
            "better = (offer >= above[cost:]) & (choice == chosen[i, cost:] + 1)",
            "curves may be flat and then rise",
        ),
        "test_the_sizes_are_the_optimum_of_an_integer_program",
    ),
    (
        Bug(
            "others-first",
            ALLOCATOR,
            "(-job.priority, job.arrival, job.key)",
            "(job.arrival, -job.priority, job.key)",
            "priority comes before arrival",
        ),
        "test_priority_comes_before_arrival",
    ),
    (
        Bug(
            "the-first-blocks",
            ALLOCATOR,
            "        if more <= left:\n",
            "        if more > left:\n            break\n        if more <= left:\n",
            "a job that does not fit does not block a smaller one",
        ),
        "test_the_better_rule_gets_at_least_as_much_done_as_the_faithful_one",
    ),
    (
        Bug(
            "threshold-ignored",
            ALLOCATOR,
            "throughput(changed, now) * (1 + threshold)",
            "throughput(changed, now)",
            "no change for a gain below the threshold",
        ),
        "test_what_need_not_change_changes_only_for_more_than_the_threshold",
    ),
    (
        Bug(
            "never-grows",
            ALLOCATOR,
            "    return _most(ranked, sizes, high, terms)\n",
            "    return sizes\n",
            "free devices are used where they are worth it",
        ),
        "test_no_device_is_idle_that_is_worth_the_threshold_to_a_job",
    ),
    (
        Bug(
            "swallows-what-is-free",
            ALLOCATOR,
            "return kept if stays else _most(ranked, kept, ceilings, _Terms(devices))",
            "return kept if stays else _most(ranked, kept, {job.key: ceilings[job.key] "
            "if kept[job.key] != job.has else job.has for job in ranked}, _Terms(devices))",
            "whoever starts does not take what is free before others are asked",
        ),
        "test_what_is_free_is_shared_as_well_as_it_can_be_without_a_cut",
    ),
    (
        Bug(
            "cost-of-a-worker",
            ALLOCATOR,
            "np.arange(least, most + 1) * job.per_worker",
            "np.arange(least, most + 1)",
            "workers may have several devices",
        ),
        "test_sizes_are_within_min_max_and_the_devices",
    ),
    (
        Bug(
            "dropped-too-much",
            PACKING,
            "sure * (1 + loss - SAFE)",
            "sure * (1.05 + loss - SAFE)",
            "only sizes that cannot be better are dropped",
        ),
        "test_the_short_way_for_many_jobs_finds_the_same",
    ),
    (
        Bug(
            "price-too-high",
            PACKING,
            "top.sum() + price * room - (",
            "top.sum() - (",
            "Lagrange's bound counts the room",
        ),
        "test_the_short_way_for_many_jobs_finds_the_same",
    ),
    (
        Bug(
            "cut-all",
            ALLOCATOR,
            "        if free >= wanted:\n            break\n",
            "",
            "the original cuts only until there is room",
        ),
        "test_the_faithful_rule_cuts_others_by_name_only_until_there_is_room",
    ),
    (
        Bug(
            "not-quite-enough",
            ALLOCATOR,
            "    if free >= wanted:\n        most",
            "    if free > wanted:\n        most",
            "exactly the minimum is enough",
        ),
        "test_the_faithful_rule_cuts_others_by_name_only_until_there_is_room",
    ),
)


@pytest.mark.parametrize(("bug", "test"), short(BUGS), ids=lambda each: getattr(each, "name", ""))
def test_the_tests_notice(bug: Bug, test: str, tmp_path: Path) -> None:
    assert_noticed(bug, tmp_path, (*TESTS, "-k", test), examples=1000)
