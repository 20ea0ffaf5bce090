"""Throughput curves: what a job gets done with n workers.

A curve is given point by point, or by Amdahl's law, or measured. Values only: nobody is asked here
how fast a job is, and nothing is decided. What cannot be a throughput is refused with a sentence
that names the field.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ANNOTATION = "bayplan.dev/throughput"
PARALLEL = (
    0.95  # of a job that says nothing: 2 workers do 1.9 times the work of one, 8 do 5.9 times
)
MOST_PARALLEL = 0.9999  # at 1 the law has no limit, and no worker would be one too many
SMALLEST, LARGEST = (
    1e-9,
    1e15,
)  # items per second: an item in 30 years, and more than any machine does
LARGEST_SIZE = 1_000_000
LONGEST = 64  # characters of an annotation


class BadCurve(ValueError):
    """What was given as a throughput is none; the text is a sentence for the job's status."""


class Curve(Struct, frozen=True):
    """Throughput by workers: points that are known, and the shape between and beyond them.

    Without a parallel part, straight lines join the points and the curve is flat behind the last.
    With one, Amdahl's law does, bent so that it meets every point.
    """

    points: tuple[tuple[int, float], ...]  # workers and items per second; both only ever rise
    parallel: float | None = None
    unit: float = 1.0  # items per second that count as one

    def at(self, workers: int) -> float:
        """Throughput of so many workers, in units."""
        return float(self.over(workers, workers)[0])

    def over(self, least: int, most: int) -> Floats:
        """Throughput of every number of workers from least to most, in units."""
        steps = self._shape(np.arange(least, most + 1))
        known = self._shape(np.array([0, *(size for size, _ in self.points)]))
        items = np.array([0.0, *(items for _, items in self.points)])
        values: Floats = np.interp(steps, known, items)
        if self.parallel is not None:
            values = np.where(steps > known[-1], items[-1] * steps / known[-1], values)
        values /= self.unit
        return values

    def _shape(self, workers: NDArray[np.int64]) -> Floats:
        """What the curve is straight over: the workers themselves, or Amdahl's speed-up of them."""
        if self.parallel is None:
            return workers.astype(np.float64)
        some = np.maximum(workers, 1)  # none are 0 / 0 where nothing is parallel
        speed_up: Floats = workers / (some * (1 - self.parallel) + self.parallel)
        return speed_up


def given(points: Mapping[str, float] | Mapping[int, float], field: str = "curve") -> Curve:
    """The curve through points that the user wrote; a worker more never counts as less."""
    if not isinstance(points, Mapping) or not points:
        raise BadCurve(
            f"{field}: a map of workers to throughput is needed, with one point at least."
        )
    read = [
        (_workers(size, field), _number(items, f"{field}[{size}]"))
        for size, items in points.items()
    ]
    if len({size for size, _ in read}) < len(read):
        raise BadCurve(f"{field}: a number of workers is there twice.")
    if not any(items for _, items in read):
        raise BadCurve(f"{field}: no point is above 0.")
    return Curve(_rising(read))


def amdahl(parallel: float = PARALLEL, field: str = "parallel") -> Curve:
    """The curve of a job of which this part is parallel; held to 0 at least and below 1."""
    part = _finite(parallel, field)
    return Curve(((1, 1.0),), min(max(part, 0.0), MOST_PARALLEL))


def measured(samples: Iterable[tuple[int, float]], parallel: float = PARALLEL) -> Curve:
    """The curve of a job that reports: the latest sample of each size, else Amdahl's law.

    The samples are workers and items per second of the whole job, the oldest first. Two sizes or
    more also say how parallel the job is. Without a sample it is Amdahl's curve.
    """
    latest: dict[int, float] = {}
    for size, items in samples:
        workers = _workers(size, "sample")
        latest[workers] = _above_zero(items, f"sample[{workers}]")
    if not latest:
        return amdahl(parallel)
    points = _rising(latest.items())
    part = fitted(points) if len(points) > 1 else amdahl(parallel).parallel
    return Curve(points, part)


def fitted(points: Iterable[tuple[int, float]]) -> float:
    """The parallel part that fits best: an item takes a + b / workers, the part is b / (a + b)."""
    known = [(1 / size, 1 / items) for size, items in points if items]
    if len(known) < 2:
        return PARALLEL
    x_mean = math.fsum(x for x, _ in known) / len(known)
    y_mean = math.fsum(y for _, y in known) / len(known)
    spread = math.fsum((x - x_mean) ** 2 for x, _ in known)
    b = math.fsum((x - x_mean) * (y - y_mean) for x, y in known) / spread
    a = max(y_mean - b * x_mean, 0.0)
    b = max(b, 0.0)
    return min(b / (a + b), MOST_PARALLEL) if a + b else 0.0


def relative(curve: Curve, per_worker: int = 1) -> Curve:
    """The same curve in units that can be compared and added up: one worker counts as its devices.

    Images per second of one job and tokens per second of another cannot be added. So each counts
    in what it does itself with one worker: the sum is the number of devices that are of full use.
    """
    size, items = next(point for point in curve.points if point[1])
    alone = Curve(curve.points, curve.parallel).at(1) or items / size
    return Curve(curve.points, curve.parallel, alone / per_worker)


def reported(text: object, field: str = ANNOTATION) -> float:
    """Items per second, from the annotation of a pod."""
    if not isinstance(text, str):
        raise BadCurve(f"{field}: a number as text is needed.")
    if len(text) > LONGEST:
        raise BadCurve(f"{field}: {len(text)} characters are too many for a number.")
    try:
        items = float(text)
    except ValueError:
        raise BadCurve(f"{field}: {text!r} is not a number.") from None
    return _above_zero(items, field)


def _rising(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """In order of size and never falling: a job may leave a worker idle."""
    ordered = sorted(points)
    return tuple(
        zip((n for n, _ in ordered), accumulate((x for _, x in ordered), max), strict=True)
    )


def _workers(size: object, field: str) -> int:
    if isinstance(size, str) and size.isascii() and size.isdecimal() and len(size) <= LONGEST:
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
        raise BadCurve(
            f"{field}: {size!r:.64} is not a number of workers from 1 to {LARGEST_SIZE}."
        )
    return size


def _finite(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadCurve(f"{field}: {value!r:.64} is not a number.")
    if not abs(value) <= LARGEST:
        raise BadCurve(f"{field}: {value!r:.64} is not a number up to {LARGEST:.0e}.")
    return float(value)


def _number(value: object, field: str) -> float:
    number = _finite(value, field)
    if number < 0:
        raise BadCurve(f"{field}: {value!r:.64} is negative.")
    if 0 < number < SMALLEST:
        raise BadCurve(f"{field}: {value!r:.64} is above 0 and below {SMALLEST:.0e}.")
    return number


def _above_zero(value: object, field: str) -> float:
    number = _number(value, field)
    if number == 0:
        raise BadCurve(f"{field}: a job that gets nothing done has no throughput yet.")
    return number
