"""The next steps for all elastic jobs, from what the API says now. Pure.

Nothing is remembered but back-offs (`Memory`), and losing them is harmless: every step is enabled
by what stands in the API, never by an earlier step of the same plan. So the controller may die, or
be taken over, between any two writes.

    grow    grant{n} ──confirmed──▶ make workers
    shrink  grant{m, passing n-m} ─▶ remove workers ──gone──▶ another's grant ──seen──▶ passing 0

What holds after every step, whoever dies (tests/elastic/test_planner.py):

- A worker is made only under a grant that is confirmed for at least so many workers.
- A generation counts up by one with each change of the grant, and none is written twice.
- Places granted, in all, are no more than the devices that jobs may have, beside those that one
  job keeps to pass them on and another is granted already.
- Places are given up only when whoever is to have them has a grant that the scheduler has seen.
- No job is granted more than its maximum, nor less than its minimum unless the scheduler has no
  place for it, or it has not begun, or is over.
"""

from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct

from bayplan.elastic.ending import ended_steps, outcome
from bayplan.elastic.memory import Memory, Patience, room_of
from bayplan.elastic.seen import (
    MakeLauncher,
    MakeWorkers,
    RemovePods,
    Scale,
    Seen,
    Snapshot,
    Step,
    Worker,
    Write,
)
from bayplan.elastic.sizes import Policy, by_resource, sizes
from bayplan.elastic.statuses import status_fields
from bayplan.elastic.workers import has_our_gang
from bayplan.kube.elastic import Grant


class Settings(Struct, frozen=True):
    policy: Policy = Policy()
    patience: Patience = Patience()


def plan(snapshot: Snapshot, memory: Memory, settings: Settings, now: float) -> list[Step]:
    """Each job gets a write of its status, or pods made or removed; what follows waits for the
    next look."""
    memory.forget_all_but(snapshot)
    ends = {seen.job.key: outcome(seen) for seen in snapshot.jobs}
    active = [seen for seen in snapshot.jobs if is_active(seen) and not ends[seen.job.key]]
    targets = sizes(snapshot, active, memory, settings.policy, now)
    waits = _Waits(memory, settings.patience, now)
    grants = _grants(snapshot, active, targets, waits)
    steps: list[Step] = []
    for seen in snapshot.jobs:
        end, grant = ends[seen.job.key], grants.get(seen.job.key)
        if seen.job.leaving or seen.job.managed_by:
            continue
        if end:
            steps += ended_steps(seen, end, status_fields(seen, end, memory, snapshot.at))
            continue
        fields = status_fields(seen, "", memory, snapshot.at)
        if grant is not None or fields:
            steps.append(Write(seen.job, grant, fields))
        elif not seen.job.wrong:
            found = _pods(seen, waits)
            if not found and memory.refused.pop(seen.job.key, ""):  # it is over: say so
                memory.due = now
            steps += found
    return steps


def is_active(seen: Seen) -> bool:
    """Whether its size is ours to decide."""
    return not (seen.job.wrong or seen.job.leaving or seen.job.managed_by)


# Grants


class _Waits(Struct, frozen=True):
    memory: Memory
    patience: Patience
    now: float


def _grants(
    snapshot: Snapshot, active: Sequence[Seen], targets: dict[str, int], waits: _Waits
) -> dict[str, Grant]:
    """The changes of grants, by the job's key."""
    written: dict[str, Grant] = {}
    for seen in active:
        grant = _given_up(seen, waits)
        if grant is not None:
            room = room_of(snapshot, seen.job.counted[0])
            waits.memory.cap(seen, grant.workers, room, waits.patience)
            written[seen.job.key] = grant
    for resource, jobs in by_resource(active).items():
        market = Market(snapshot, resource)
        for seen in _by_rank(jobs):
            if seen.job.key not in written:
                grant = _moved(seen, targets[seen.job.key], market)
                if grant is not None:
                    written[seen.job.key] = grant
        grown = any(
            seen.job.key in written and written[seen.job.key].places > seen.used for seen in jobs
        )
        if not grown and not any(map(_is_unseen, jobs)):
            written |= _released(jobs, targets, market, written)
    return written


class Market:
    """How much of a resource can be granted now: what nobody has, and what is kept to be passed
    on, less what of that is promised already."""

    def __init__(self, snapshot: Snapshot, resource: str) -> None:
        self.free = sum(snapshot.capacity.get(resource, {}).values())
        self.budget = 0
        for seen in snapshot.jobs:
            name, each = seen.job.counted
            if name == resource:
                ours = max(seen.job.grant.places, seen.used)
                self.free -= each * (ours if is_active(seen) else seen.kept)
                self.budget += each * spare(seen)
        self.budget += self.free
        self.is_bounded = bool(resource)

    def room(self, each: int, most: int) -> int:
        """For so many workers there is room, of the most that are wanted."""
        return min(most, max(self.budget, 0) // each) if self.is_bounded else most


def spare(seen: Seen) -> int:
    """Places that are kept to be passed on, and that no pod has any more."""
    grant = seen.job.grant
    return min(grant.passing, max(grant.places - seen.used, 0))


def _moved(seen: Seen, target: int, market: Market) -> Grant | None:
    """Towards the target, as far as it goes now."""
    job, grant = seen.job, seen.job.grant
    if target < grant.workers:
        return _next(seen, target, grant.places - target)
    if target > grant.workers and seen.is_settled:
        each, back = job.counted[1], min(target - grant.workers, grant.passing)
        own = min(back, spare(seen))  # of the budget, what it takes back itself
        market.budget -= own * each
        more = market.room(each, target - grant.workers - back)
        workers = grant.workers + back + more
        if workers > grant.workers and (workers >= job.minimum or grant.workers):
            market.budget -= more * each
            return _next(seen, workers, grant.passing - back)
        market.budget += own * each
    is_set_back = grant.generation < job.confirmed.generation  # by hand: the scheduler heeds it not
    if is_set_back or (grant.places and grant.counts != _counts(seen, grant.places)):
        return _next(seen, grant.workers, grant.passing)
    return None


def _next(seen: Seen, workers: int, passing: int) -> Grant:
    newest = max(seen.job.grant.generation, seen.job.confirmed.generation)
    return Grant(newest + 1, workers, passing, _counts(seen, workers + passing))


def _counts(seen: Seen, places: int) -> dict[str, int]:
    return {name: each * places for name, each in seen.job.requests if "/" in name}


def _is_unseen(seen: Seen) -> bool:
    """Whether the scheduler does not know yet of a grant with places still to be found."""
    grant = seen.job.grant
    return seen.job.confirmed.generation < grant.generation and grant.workers > seen.used


def _released(
    jobs: Sequence[Seen], targets: dict[str, int], market: Market, written: dict[str, Grant]
) -> dict[str, Grant]:
    """Places given up, but for those that somebody waits for who cannot have them yet."""
    wants = sum(
        seen.job.counted[1] * max(targets[seen.job.key] - seen.job.grant.workers, 0)
        for seen in jobs
        if seen.job.key not in written
    )
    keep = min(market.budget, wants) - max(market.free, 0)
    released = {}
    for seen in jobs:
        grant, each = seen.job.grant, seen.job.counted[1]
        if not grant.passing or seen.job.key in written or seen.used > grant.workers:
            continue
        passing = min(grant.passing, ceil(max(keep, 0) / each)) if each else 0
        keep -= passing * each
        if passing < grant.passing:
            released[seen.job.key] = _next(seen, grant.workers, passing)
    return released


def _given_up(seen: Seen, waits: _Waits) -> Grant | None:
    """What was confirmed, when more has not been for a while."""
    grant, confirmed = seen.job.grant, seen.job.confirmed
    known = confirmed.generation == grant.generation
    short = confirmed.workers < grant.workers if known else len(seen.living) < grant.workers
    if not short:
        waits.memory.short.pop(seen.job.key, None)
        return None
    patience_s = waits.patience.confirm_s
    if not waits.memory.is_overdue(seen.job.key, grant.generation, patience_s, waits.now):
        return None
    enough = known and confirmed.workers >= seen.job.minimum
    workers = min(confirmed.workers if enough else seen.placed, grant.workers)
    if workers == grant.workers:
        return None
    return _next(seen, workers, 0)


def _by_rank(jobs: Iterable[Seen]) -> list[Seen]:
    """Those without their minimum first: nobody gets more before they have it."""

    def rank(seen: Seen) -> tuple[bool, int, float, str]:
        job = seen.job
        return job.grant.workers >= job.minimum, -job.priority, job.arrival, job.key

    return sorted(jobs, key=rank)


# Pods


def _pods(seen: Seen, waits: _Waits) -> list[Step]:
    """Under the grant that stands in the API."""
    job, grant = seen.job, seen.job.grant
    removed = _surplus(seen) + waits.memory.over(seen, waits.patience, waits.now)
    if seen.is_horovod:
        removed = [worker for worker in removed if worker.state == "lost"]
    if job.suspend and seen.launcher is not None and seen.launcher.state != "going":
        removed.append(seen.launcher)
    if removed:
        return [RemovePods(job, tuple(removed))]
    if in_vain := _in_vain(seen):
        return [RemovePods(job, in_vain, unchanged=True)]
    if seen.is_horovod:
        if steps := _scaled(seen):
            return steps
    elif seen.is_settled and (indices := _missing(seen)):
        return [MakeWorkers(job, indices, together=not seen.placed)]
    wanted = seen.is_horovod or (job.launcher is not None and not job.suspend)
    is_there = bool(seen.launched) if seen.is_horovod else seen.launcher is not None
    if wanted and not is_there and grant.workers and seen.ready >= min(job.minimum, grant.workers):
        return [MakeLauncher(job)]
    return []


def _surplus(seen: Seen) -> list[Worker]:
    """More than were granted: those that wait first, then the highest indices."""
    many = len(seen.living) - seen.job.grant.workers
    if many <= 0:
        return []
    order = sorted(seen.living, key=lambda w: (w.state == "waiting", w.index), reverse=True)
    return order[:many]


def _in_vain(seen: Seen) -> tuple[Worker, ...]:
    """Those that wait for more than are granted: they were made when the minimum was higher. Made
    again they wait for no more than that. A StatefulSet's group is told of the new number."""
    most = seen.job.grant.workers
    late = tuple(each for each in seen.living if each.state == "waiting" and each.waits_for > most)
    return late if late and not seen.is_horovod and has_our_gang(seen.job) else ()


def _missing(seen: Seen) -> tuple[int, ...]:
    """The lowest indices that no pod has; a failed one keeps its own until it is made again."""
    grant = seen.job.grant
    kept = sum(worker.state in ("failed", "lost") for worker in seen.workers)
    many = min(grant.workers - len(seen.living) - kept, grant.places - seen.used - kept)
    taken = {worker.index for worker in seen.workers}
    free = [index for index in range(grant.workers + len(taken)) if index not in taken]
    return tuple(free[: max(many, 0)])


def _scaled(seen: Seen) -> list[Step]:
    replicas, workers = seen.replicas or 0, seen.job.grant.workers
    # a pod that is still going has its place; more replicas would wait for it
    grows = workers > replicas and seen.is_settled and seen.used <= replicas
    if workers < replicas or grows:
        return [Scale(seen.job, workers)]
    return [Scale(seen.job, replicas)] if replicas and seen.lacks else []
