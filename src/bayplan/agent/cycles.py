"""Whether a series repeats itself, and after how many of its values.

A series is cyclic when its autocorrelation stands out more than twice, lag 0 counted as in the
original: above the line that the autocorrelation of white noise passes in one lag of forty. The
period is the median gap between the places where it stands out.

The original draws its line at mean + 1.96 deviations of the autocorrelation itself. For every sine
and every even square wave that is above 1, which nothing reaches. It counts neighbouring lags one
by one, so that the median gap of a broad peak is 1. Here they count once, at the highest of them;
and most gaps must be alike, without which a tenth of all noise would pass.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

LINE = 1.96  # standard deviations: 95 % of what is normally distributed is nearer
FEWEST = 30  # values; of fewer the autocorrelation says little
MOST_TOPS_WITHOUT_A_CYCLE = 2  # the original's
ALIKE = 0.1  # how far a gap may be from the median, or 1
ALIKE_SHARE = 0.75  # so many of the gaps: of 2000 series of noise 2 % pass, 5 % of rare spikes


def autocorrelation(values: Sequence[float]) -> list[float]:
    """By lag, up to half the length; empty when nothing varies."""
    mean = sum(values) / len(values) if values else 0.0
    apart = [value - mean for value in values]
    whole = sum(each * each for each in apart)
    if whole <= 1e-12 * max((value * value for value in values), default=0.0):
        return []
    return [
        sum(one * other for one, other in zip(apart, apart[lag:], strict=False)) / whole
        for lag in range(len(values) // 2)
    ]


def period(values: Sequence[float]) -> float | None:
    """In values; None when it is not cyclic."""
    if len(values) < FEWEST:
        return None
    tops = _tops(autocorrelation(values), LINE / sqrt(len(values)))
    if len(tops) <= MOST_TOPS_WITHOUT_A_CYCLE:
        return None
    gaps = [after - before for before, after in pairwise(tops)]
    usual = float(median(gaps))
    alike = sum(abs(gap - usual) <= max(1.0, ALIKE * usual) for gap in gaps)
    return usual if alike >= ALIKE_SHARE * len(gaps) else None


def _tops(correlation: Sequence[float], line: float) -> list[int]:
    """The highest lag of each run above the line; of one that the end cuts off it is not known."""
    tops: list[int] = []
    run: list[int] = []
    for lag, value in enumerate(correlation):
        if value > line:
            run.append(lag)
        elif run:
            tops.append(max(run, key=correlation.__getitem__))
            run = []
    return tops
