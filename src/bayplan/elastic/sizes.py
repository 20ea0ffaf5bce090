"""How many workers each job should have: the allocator, asked for each resource by itself."""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from bayplan.elastic import allocator, curves
from bayplan.elastic.memory import Memory, room_of
from bayplan.elastic.seen import Seen, Snapshot
from bayplan.kube.elastic import Job


class Policy(Struct, frozen=True):
    allocator: Literal["best", "faithful"] = "best"
    threshold: float = 0.05


def by_resource(jobs: Iterable[Seen]) -> dict[str, list[Seen]]:
    """Jobs that ask for different resources do not compete."""
    found: dict[str, list[Seen]] = {}
    for seen in jobs:
        found.setdefault(seen.job.counted[0], []).append(seen)
    return found


def sizes(
    snapshot: Snapshot, active: Sequence[Seen], memory: Memory, policy: Policy, now: float
) -> dict[str, int]:
    """Workers by the job's key, of all that are active."""
    found: dict[str, int] = {}
    for resource, jobs in by_resource(active).items():
        ours = {seen.job.key for seen in jobs}
        devices = sum(snapshot.capacity.get(resource, {}).values()) - sum(
            seen.job.counted[1] * seen.kept
            for seen in snapshot.jobs
            if seen.job.counted[0] == resource and seen.job.key not in ours
        )
        room = room_of(snapshot, resource)
        asking, floors = [], {}
        for seen in jobs:
            least, most = bounds(seen.job)
            limit = memory.limit(seen, room, now)
            # A StatefulSet's pods are not told how many start together: its group is.
            has_begun = seen.placed or (seen.is_horovod and seen.is_settled and seen.living)
            if limit is not None and limit < least and not has_begun:
                limit = 0  # fewer do not begin: they would wait for the others
            has = seen.job.grant.workers if seen.placed or seen.job.grant.workers >= least else 0
            if limit is not None:
                least, most = min(least, limit), min(most, limit)
            found[seen.job.key] = 0 if most == 0 or resource else most
            # Whether a death has left it less than its minimum, the scheduler says.
            floors[seen.job.key] = min(has, least)
            if most and resource:
                asking.append(_asked(seen.job, has, least, most))
        devices = max(devices, 0)
        hopeless = _hopeless(policy, asking, {s.job.key for s in jobs if _is_bereft(s)}, devices)
        found |= dict.fromkeys(hopeless, 0)
        asking = [job for job in asking if job.key not in hopeless]
        for key, workers in _allocated(policy, asking, devices).items():
            found[key] = max(workers, floors[key])
        if resource:
            held = [seen.job for seen in jobs if memory.may_ask(seen.job.key, now)]
            left = devices - sum(seen.job.counted[1] * found[seen.job.key] for seen in jobs)
            found |= _tried_again(held, found, left)
    return found


def _tried_again(held: Iterable[Job], found: dict[str, int], left: int) -> dict[str, int]:
    """Of those who were refused more, with what nobody else has: nobody is cut for a second try."""
    tried: dict[str, int] = {}
    for job in sorted(held, key=lambda job: (-job.priority, job.arrival, job.key)):
        has, (least, most), each = found[job.key], bounds(job), job.counted[1]
        more = min(most, has + max(left, 0) // each)
        if more > has and more >= least:
            tried[job.key] = more
            left -= (more - has) * each
    return tried


def _is_bereft(seen: Seen) -> bool:
    """Whether no worker has a place, and the scheduler has not found one for all: it has lost
    them, or was granted what is not there yet."""
    return bool(seen.job.grant.workers) and not seen.placed and not seen.is_settled


def _hopeless(
    policy: Policy, asking: Sequence[allocator.Job], bereft: set[str], devices: int
) -> set[str]:
    """Those of the bereft that could not even start now: nobody is cut for them in vain."""
    if not bereft:
        return set()
    anew = [replace(job, has=0) if job.key in bereft else job for job in asking]
    return {
        key
        for key, workers in _allocated(policy, anew, devices).items()
        if key in bereft and not workers
    }


def bounds(job: Job) -> tuple[int, int]:
    """The least and the most that it may have, if it has any."""
    if job.suspend:
        return 0, 0
    if job.fixed is not None:
        fixed = min(job.fixed, job.maximum)
        return fixed, fixed
    return job.minimum, job.maximum


def _asked(job: Job, has: int, least: int, most: int) -> allocator.Job:
    each = job.counted[1]
    return allocator.Job(
        key=job.key,
        minimum=least,
        maximum=most,
        has=has,
        curve=curves.relative(curve_of(job), each),
        arrival=job.arrival,
        priority=job.priority,
        per_worker=each,
    )


def curve_of(job: Job) -> curves.Curve:
    """Given, else measured, else Amdahl's."""
    if job.curve:
        return curves.given(dict(job.curve))
    parallel = curves.PARALLEL if job.parallel is None else job.parallel
    return curves.measured(job.measured, parallel)


def _allocated(policy: Policy, jobs: Sequence[allocator.Job], devices: int) -> dict[str, int]:
    if policy.allocator == "faithful":
        return allocator.faithful(jobs, devices)
    return allocator.best(jobs, devices, policy.threshold)
