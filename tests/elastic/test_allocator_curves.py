"""Throughput curves: their shape, and what is refused."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st

from bayplan.elastic.curves import BadCurve, amdahl, given, measured, relative, reported


def test_between_given_points_the_curve_is_straight_and_behind_them_flat() -> None:
    curve = given({"2": 4.0, "4": 6.0})

    assert [curve.at(n) for n in range(7)] == [0, 2, 4, 5, 6, 6, 6]


def test_a_worker_more_never_counts_as_less() -> None:
    curve = given({1: 1.0, 2: 3.0, 3: 2.0})

    assert [curve.at(n) for n in (1, 2, 3)] == [1, 3, 3]


def test_amdahls_law() -> None:
    curve = amdahl(0.95)

    assert curve.at(0) == 0
    assert curve.at(1) == 1
    assert curve.at(4) == pytest.approx(1 / (0.05 + 0.95 / 4))


@pytest.mark.parametrize("part", [-1.0, 0, 0.0])
def test_a_job_of_which_nothing_is_parallel_gains_nothing(part: float) -> None:
    assert [amdahl(part).at(n) for n in (0, 1, 8)] == [0, 1, 1]


def test_all_of_a_job_is_never_parallel() -> None:
    assert amdahl(1).at(1_000_000) < 10_001


def test_of_each_size_the_latest_sample_counts() -> None:
    assert measured([(2, 10.0), (4, 30.0), (2, 20.0)]).at(2) == 20


def test_one_sample_is_carried_on_by_amdahls_law() -> None:
    curve, law = measured([(2, 190.0)], parallel=0.9), amdahl(0.9)

    assert curve.at(8) / curve.at(2) == pytest.approx(law.at(8) / law.at(2))
    assert curve.at(1) == pytest.approx(190 / law.at(2))


def test_two_sizes_say_how_parallel_a_job_is() -> None:
    law = amdahl(0.8)
    curve = measured([(n, 50 * law.at(n)) for n in (1, 4)])

    assert curve.parallel == pytest.approx(0.8)
    assert [curve.at(n) for n in (2, 3, 9)] == pytest.approx([50 * law.at(n) for n in (2, 3, 9)])


def test_without_samples_it_is_amdahls_curve() -> None:
    assert measured([]) == amdahl()


def test_a_job_that_got_no_faster_is_not_expected_to() -> None:
    curve = measured([(1, 9.0), (2, 9.0), (4, 8.0)])

    assert curve.at(16) == curve.at(1) == 9


def test_images_and_tokens_are_counted_in_what_one_worker_does() -> None:
    images, tokens = given({1: 300, 2: 570}), given({1: 90_000, 2: 171_000})

    assert relative(images).at(2) == pytest.approx(relative(tokens).at(2))
    assert relative(images, per_worker=8).at(1) == pytest.approx(8)
    assert relative(given({1: 0, 4: 8})).at(4) == pytest.approx(4)
    assert relative(relative(images)) == relative(images)


RATES = st.floats(1e-9, 1e15)
POINTS = st.dictionaries(st.integers(1, 1000), RATES, min_size=1, max_size=8)


@any_of(POINTS, st.booleans())
def test_curves_rise_meet_their_points_and_are_numbers(
    points: dict[int, float], by_measuring: bool
) -> None:
    curve = measured(points.items()) if by_measuring else given(points)
    values = relative(curve).over(0, 1100)

    assert all(math.isfinite(value) and value >= 0 for value in values)
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(values))
    for size in points:
        highest = max(rate for n, rate in points.items() if n <= size)
        assert curve.at(size) == pytest.approx(highest, rel=1e-6)


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        ({}, "spec.throughput.curve: a map of workers to throughput is needed, with one point"),
        ([1, 2], "spec.throughput.curve: a map of workers to throughput is needed, with one point"),
        ({"1": math.nan}, "spec.throughput.curve[1]: nan is not a number up to 1e+15."),
        ({"1": math.inf}, "spec.throughput.curve[1]: inf is not a number up to 1e+15."),
        ({"2": -1}, "spec.throughput.curve[2]: -1 is negative."),
        ({"2": 1e-300}, "spec.throughput.curve[2]: 1e-300 is above 0 and below 1e-09."),
        ({"2": 10**400}, "spec.throughput.curve[2]: 1000"),
        ({"2": "fast"}, "spec.throughput.curve[2]: 'fast' is not a number."),
        ({"2": True}, "spec.throughput.curve[2]: True is not a number."),
        ({"2": None}, "spec.throughput.curve[2]: None is not a number."),
        ({"0": 1}, "spec.throughput.curve: 0 is not a number of workers from 1 to 1000000."),
        ({"-1": 1}, "spec.throughput.curve: '-1' is not a number of workers"),
        ({"1.5": 1}, "spec.throughput.curve: '1.5' is not a number of workers"),
        ({"²": 1}, "spec.throughput.curve: '²' is not a number of workers"),
        ({"9" * 5000: 1}, "spec.throughput.curve: '999"),
        ({"1": 1, "01": 2}, "spec.throughput.curve: a number of workers is there twice."),
        ({"1": 0, "2": 0}, "spec.throughput.curve: no point is above 0."),
    ],
)
def test_what_is_no_curve_is_refused_with_a_sentence(points: Any, sentence: str) -> None:
    with pytest.raises(BadCurve) as refusal:
        given(points, "spec.throughput.curve")

    assert str(refusal.value).startswith(sentence)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("part", [math.nan, math.inf, "0.9", None, True])
def test_what_is_no_part_is_refused(part: Any) -> None:
    with pytest.raises(BadCurve, match=r"^parallel: .* is not a number"):
        amdahl(part)


@pytest.mark.parametrize("sample", [(0, 1.0), (1, 0.0), (1, -1.0), (1, math.nan), ("x", 1.0)])
def test_what_is_no_sample_is_refused(sample: Any) -> None:
    with pytest.raises(BadCurve, match=r"^sample"):
        measured([sample])


@pytest.mark.parametrize(
    "text", ["", "fast", "nan", "inf", "-1", "0", "1e999", "1" * 1_000_000, "__import__('os')", 3]
)
def test_an_annotation_that_is_no_throughput_is_refused(text: Any) -> None:
    with pytest.raises(BadCurve, match=r"^bayplan\.dev/throughput: ") as refusal:
        reported(text)

    assert len(str(refusal.value)) < 200


def test_an_annotation_is_read() -> None:
    assert reported("1234.5") == 1234.5
