"""How many workers each elastic job may have: the original's rule, and a better one.

Pure: jobs and a number of devices in, a number of workers per job out
(docs/elastic-allocator.md). Where the devices are, whether a pod fits there, and how a job gets
from one size to another is not known here.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from bayplan.elastic.curves import Curve
from bayplan.elastic.packing import fill, ladder

LEAST_GAIN = 1e-9  # relative; below that two sums are the same, whatever the threshold


class Job(Struct, frozen=True):
    """An elastic job, as far as its size is concerned."""

    key: str
    minimum: int  # workers
    maximum: int
    has: int  # workers; 0: it waits for its start
    curve: Curve
    arrival: float  # seconds
    priority: int = 0
    per_worker: int = 1  # devices of one worker

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(
                f"{self.key}: min {self.minimum}, max {self.maximum}: min is from 0 to max."
            )
        if self.has < 0 or self.per_worker < 1:
            raise ValueError(
                f"{self.key}: {self.has} workers of {self.per_worker} devices cannot be."
            )


Sizes = dict[str, int]  # workers by the job's key


def throughput(jobs: Sequence[Job], sizes: Mapping[str, int]) -> float:
    """What the jobs get done together, in the units of their curves."""
    return math.fsum(job.curve.at(sizes[job.key]) for job in jobs)


def devices_of(jobs: Sequence[Job], sizes: Mapping[str, int]) -> int:
    """What the jobs take together."""
    return sum(sizes[job.key] * job.per_worker for job in jobs)


def faithful(jobs: Sequence[Job], total_devices: int) -> Sizes:
    """The original's rule for the whole cluster, capped at max.

    Jobs are decided one by one in order of arrival, each with what runs at that moment; a job
    that has its minimum keeps what it has. Max if that is free, else what is free if that is at
    least min, else the others are cut to min, in the order of a list (by key), until there is
    room for min. Cuts stay also when there is never enough.
    """
    _check(jobs)
    by_arrival = sorted(jobs, key=lambda job: (job.arrival, job.key))
    listed = sorted(jobs, key=lambda job: job.key)
    sizes = _surviving(by_arrival, listed, total_devices)
    free = total_devices - devices_of(jobs, sizes)
    for job in by_arrival:
        if sizes[job.key] < job.minimum or not job.has:
            free = _decide(job, sizes, listed, free)
    return sizes


def _surviving(by_arrival: Sequence[Job], listed: Sequence[Job], devices: int) -> Sizes:
    """What runs, held to max and to the devices that there are."""
    sizes = {job.key: min(job.has, job.maximum) for job in listed}
    used = devices_of(listed, sizes)
    for job in listed:
        if used <= devices:
            break
        used -= _cut(job, sizes)
    left = max(devices, 0)
    for job in by_arrival:
        sizes[job.key] = min(sizes[job.key], left // job.per_worker)
        left -= sizes[job.key] * job.per_worker
    return sizes


def _decide(job: Job, sizes: Sizes, listed: Sequence[Job], free: int) -> int:
    """Apply the original's rule to one job; the devices left free.

    One that has begun and lost workers only gets its minimum back: the original grows nobody.
    """
    free += sizes[job.key] * job.per_worker
    wanted = job.minimum * job.per_worker
    for other in listed:
        if free >= wanted:
            break
        if other.key != job.key:
            free += _cut(other, sizes)
    if free >= wanted:
        most = job.minimum if job.has else job.maximum
        sizes[job.key] = min(free // job.per_worker, most)
    return free - sizes[job.key] * job.per_worker


def _cut(job: Job, sizes: Sizes) -> int:
    """Cut a job to its minimum; the devices that it gives up."""
    more = max(sizes[job.key] - job.minimum, 0)
    sizes[job.key] -= more
    return more * job.per_worker


def best(jobs: Sequence[Job], free_devices: int, threshold: float = 0.05) -> Sizes:
    """The sizes with which all jobs together get most done; changed only where that is worth it.

    First who runs at all: running jobs keep their minimum, then those that wait get theirs, by
    priority, arrival and key. Who must be resized for that gets the best size; if nobody need be
    cut, all share what is free. Everything beyond is a change that is made only if the jobs that it
    resizes get more done by more than the threshold.
    """
    _check(jobs)
    ranked = sorted(jobs, key=lambda job: (-job.priority, job.arrival, job.key))
    floors = _floors(ranked, free_devices)
    terms = _Terms(free_devices, max(threshold, LEAST_GAIN))
    sizes = _settled(ranked, floors, free_devices)
    while True:
        changed = _improved(ranked, floors, sizes, terms)
        if changed == sizes:
            return sizes
        sizes = changed


class _Terms(Struct, frozen=True):
    devices: int
    threshold: float = 0.0  # relative: a change that brings less is none


def _check(jobs: Sequence[Job]) -> None:
    keys = [job.key for job in jobs]
    if len(set(keys)) < len(keys):
        raise ValueError("two jobs have the same key.")


def _floors(ranked: Sequence[Job], devices: int) -> Sizes:
    """The least of each job: min; what a death left of it, if min has no room; 0 if it waits."""
    floors, left = {}, max(devices, 0)
    for job in ranked:
        floors[job.key] = min(job.has, job.minimum, left // job.per_worker)
        left -= floors[job.key] * job.per_worker
    for job in ranked:
        more = (job.minimum - floors[job.key]) * job.per_worker
        if more <= left:
            floors[job.key] = job.minimum
            left -= more
    return floors


def _ceiling(job: Job, floors: Sizes) -> int:
    """A job without its minimum stays as it is."""
    return job.maximum if floors[job.key] >= job.minimum else floors[job.key]


def _settled(ranked: Sequence[Job], floors: Sizes, devices: int) -> Sizes:
    """What must change: those that start, and those that are cut for them. Where nobody need be
    cut, what is free is shared by all as soon as one must change: whoever starts does not take it
    before others are asked."""
    ceilings = {job.key: _ceiling(job, floors) for job in ranked}
    kept = {job.key: max(floors[job.key], min(job.has, ceilings[job.key])) for job in ranked}
    if devices_of(ranked, kept) <= devices:
        stays = all(kept[job.key] == job.has for job in ranked)
        return kept if stays else _most(ranked, kept, ceilings, _Terms(devices))
    sizes = _most(ranked, floors, kept, _Terms(devices))
    touched = {job.key for job in ranked if sizes[job.key] != job.has}
    low = {key: floors[key] if key in touched else size for key, size in sizes.items()}
    high = {key: ceilings[key] if key in touched else size for key, size in sizes.items()}
    return _most(ranked, low, high, _Terms(devices))


def _improved(ranked: Sequence[Job], floors: Sizes, sizes: Sizes, terms: _Terms) -> Sizes:
    """The best sizes of all, if they are worth it; else the best of those that cut nobody; else
    growth into what is free, of those to whom it is worth it."""
    high = {job.key: _ceiling(job, floors) for job in ranked}
    top = _most(ranked, floors, high, _Terms(terms.devices))
    rule = faithful(ranked, terms.devices)
    possible = all(floors[key] <= size <= high[key] for key, size in rule.items())
    if possible and _worth(ranked, top, rule, 0.0):  # after a loss that `fill` allows itself
        top = rule
    if _worth(ranked, sizes, top, terms.threshold):
        return top
    grown = _most(ranked, sizes, high, _Terms(terms.devices))
    if _worth(ranked, sizes, grown, terms.threshold):
        return grown
    return _most(ranked, sizes, high, terms)


def _worth(jobs: Sequence[Job], now: Sizes, then: Sizes, threshold: float) -> bool:
    """Whether the jobs that change size gain, together, more than this part of what they do now."""
    changed = [job for job in jobs if now[job.key] != then[job.key]]
    return throughput(changed, then) > throughput(changed, now) * (1 + threshold)


def _most(ranked: Sequence[Job], low: Sizes, high: Sizes, terms: _Terms) -> Sizes:
    """The sizes from low to high with the largest throughput; ties go to the earlier in rank.

    A job leaves its low for a size that is worth the threshold to itself, or stays there.
    """
    sizes = dict(low)
    left = terms.devices - devices_of(ranked, low)
    climbers, ladders, rungs = [], [], []
    for job in ranked:
        least = low[job.key]
        most = min(high[job.key], least + max(left, 0) // job.per_worker)
        if most <= least:
            continue
        values = job.curve.over(least, most)
        values[values <= values[0] * (1 + terms.threshold)] = values[0]
        steps, kept = ladder(np.arange(least, most + 1) * job.per_worker, values)
        climbers.append(job)
        ladders.append(steps)
        rungs.append(kept)
    for job, kept, choice in zip(climbers, rungs, fill(ladders, left), strict=True):
        sizes[job.key] += int(kept[choice])
    return sizes
