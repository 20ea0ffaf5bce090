"""What repeats itself is found, with its period; what does not is not."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.agent.cycles import FEWEST, autocorrelation, period

N = 120  # two minutes


def sine(length: float, phase: float = 0.0) -> list[float]:
    return [50 + 40 * math.sin(2 * math.pi * (i + phase) / length) for i in range(N)]


def pulses(length: float, on: float, phase: float = 0.0) -> list[float]:
    return [90.0 if (i + phase) % length < on else 0.0 for i in range(N)]


def naive(values: list[float]) -> float | None:
    """The rule again, with NumPy and in other words."""
    x = np.asarray(values, dtype=float)
    x = x - x.mean()
    if len(x) < FEWEST or not x.any():
        return None
    full = np.correlate(x, x, "full")[len(x) - 1 :]
    lags = (full / full[0])[: len(x) // 2]
    above = np.concatenate([[False], lags > 1.96 / math.sqrt(len(x)), [False]])
    edges = np.flatnonzero(np.diff(above.astype(int)))
    runs = [(a, b) for a, b in edges.reshape(-1, 2) if b < len(lags)]
    tops = [int(a + np.argmax(lags[a:b])) for a, b in runs]
    gaps = np.diff(tops)
    if len(tops) < 3:
        return None
    middle = float(np.median(gaps))
    near = np.abs(gaps - middle) <= max(1.0, middle / 10)
    return middle if near.mean() >= 0.75 else None


def original(values: list[float]) -> float | None:
    """Alnair's rule: lags above mean + 1.96 deviations of all of them, each counted by itself."""
    x = np.asarray(values, dtype=float)
    lags = [1.0, *(np.corrcoef(x[:-k], x[k:])[0, 1] for k in range(1, len(x) // 2))]
    line = np.mean(lags) + 1.96 * np.std(lags)
    above = [k for k, value in enumerate(lags) if value > line]
    return float(np.median(np.diff(above))) if len(above) > 2 else None


@given(st.lists(st.integers(0, 100), min_size=2, max_size=150))
def test_the_autocorrelation_is_numpys(values: list[int]) -> None:
    x = np.asarray(values, dtype=float) - np.mean(values)
    found = autocorrelation(values)
    if len(set(values)) == 1:
        assert found == []
        return
    full = np.correlate(x, x, "full")[len(x) - 1 :]
    assert found == pytest.approx(list(full[: len(x) // 2] / full[0]), abs=1e-9)


@given(st.integers(0, 1 << 30), st.sampled_from((20, 29, 30, 61, 119, 120)), st.integers(3, 40))
def test_the_rule_is_the_one_in_other_words(seed: int, length: int, beat: int) -> None:
    rng = random.Random(seed)
    values = [(i % beat) * rng.choice((0, 3)) + rng.randrange(50) + 0.5 for i in range(length)]
    assert period(values) == naive(values)


@given(st.integers(4, 25), st.floats(0, 30))
def test_waves_are_found(length: int, phase: float) -> None:
    for wave in (
        sine(length, phase),
        pulses(length, length / 2, phase),
        pulses(length, 1.5, phase),
    ):
        found = period(wave)
        assert found is not None
        assert abs(found - length) <= 1.0


@given(st.integers(4, 25), st.integers(0, 1 << 30))
def test_waves_in_some_noise_are_found(length: int, seed: int) -> None:
    rng = random.Random(seed)
    found = period([value + rng.gauss(0, 8) for value in pulses(length, length / 2)])
    assert found is not None
    assert abs(found - length) <= 1.0


def test_what_does_not_repeat_is_not_cyclic() -> None:
    assert period([]) is None
    for level in (0.0, 0.1, 37.0, 1e9):
        assert period([level] * N) is None
    assert period([float(i) for i in range(N)]) is None
    assert period([0.0] * 60 + [90.0] * 60) is None
    assert period([0.0] * 50 + [90.0] + [0.0] * 69) is None


def test_a_short_series_says_nothing() -> None:
    wave = pulses(5, 2)
    assert period(wave[: FEWEST - 1]) is None
    assert period(wave[:FEWEST]) == 5.0
    assert period(pulses(60, 30)) is None  # two rounds: nobody knows yet


def test_little_noise_passes_for_a_cycle() -> None:
    """About what the line promises: one in twenty, and less."""
    rng = random.Random(1)
    even = sum(period([rng.random() for _ in range(N)]) is not None for _ in range(1000))
    rare = sum(
        period([float(rng.random() < 0.1) for _ in range(N)]) is not None for _ in range(1000)
    )
    assert 0 < even < 50
    assert 0 < rare < 80


def test_beside_the_originals_rule() -> None:
    """It sees short peaks only, and takes a broad one for many; what it sees we see too."""
    for length in (5, 10, 20):
        assert original(sine(length)) is None
        assert period(sine(length)) == length
        assert original(pulses(length, 1)) == period(pulses(length, 1)) == length
    broad = pulses(24, 3)
    assert (original(broad), period(broad)) == (1.0, 24.0)


def test_a_longer_period_is_a_longer_period() -> None:
    found = [period(sine(length)) or 0.0 for length in range(4, 26)]
    assert all(one < other for one, other in pairwise(found))
