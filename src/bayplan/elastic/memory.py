"""Back-offs: all that the planner remembers. Whoever starts anew without them asks once too often,
which is harmless."""

from msgspec import Struct
from msgspec.structs import replace

from bayplan.elastic.seen import Seen, Snapshot, Worker
from bayplan.kube.elastic import Job


class Patience(Struct, frozen=True):
    confirm_s: float = 10.0  # until a grant that is not confirmed is given up
    retry_s: float = 30.0  # until more is asked for again; doubles
    retry_most_s: float = 300.0
    failure_s: float = 10.0  # until a failed worker is made again; doubles, as of a Job
    failure_most_s: float = 360.0


class Room(Struct, frozen=True):
    """What elastic jobs may have of a resource, and which of them want any. What one of them gives
    back is no news to those who were refused more: it was cut for them, or will have it again. That
    one has ended is."""

    nodes: dict[str, int]  # by name: so much is not others'
    jobs: frozenset[str]

    def has_gained(self, before: "Room") -> bool:
        more = any(amount > before.nodes.get(node, 0) for node, amount in self.nodes.items())
        return more or bool(before.jobs - self.jobs)


class Cap(Struct, frozen=True):
    """More than this was granted in vain."""

    limit: int  # workers
    until: float
    delay_s: float
    room: Room  # when it was tried
    is_final: bool  # nobody is cut for another try
    why: str


class Memory:
    def __init__(self) -> None:
        self.short: dict[str, tuple[int, float]] = {}  # by job: generation, since when
        self.caps: dict[str, Cap] = {}  # by job
        self._failed: dict[str, float] = {}  # by uid of a pod: when it was seen first
        self.refused: dict[str, str] = {}  # by job: what the API does not allow, in its words
        self._heard: dict[str, tuple[str, int]] = {}  # by job: a report, and the size at its time
        self.due = float("inf")  # when it is time to look again, whatever happens

    def forget_all_but(self, snapshot: Snapshot) -> None:
        jobs = {seen.job.key for seen in snapshot.jobs}
        uids = {pod.uid for seen in snapshot.jobs for pod in pods_of(seen)}
        self.short = {key: value for key, value in self.short.items() if key in jobs}
        self.caps = {key: value for key, value in self.caps.items() if key in jobs}
        self._heard = {key: value for key, value in self._heard.items() if key in jobs}
        self.refused = {key: value for key, value in self.refused.items() if key in jobs}
        self._failed = {uid: value for uid, value in self._failed.items() if uid in uids}
        self.due = float("inf")

    def is_overdue(self, key: str, generation: int, patience_s: float, now: float) -> bool:
        """Whether the job's grant has been short for so long."""
        was, since = self.short.get(key, (0, now))
        if was != generation:
            since = now
            self.short[key] = generation, now
        return self._is_past(since + patience_s, now)

    def cap(self, seen: Seen, workers: int, room: Room, patience: Patience) -> None:
        """More than these workers need not be asked for, for a while from the next look on."""
        key, before = seen.job.key, self.caps.get(seen.job.key)
        delay_s = patience.retry_s
        if before is not None:
            delay_s = min(before.delay_s * 2, patience.retry_most_s)
        why = seen.job.confirmed.message or "the scheduler has not confirmed the grant"
        # Whoever has heard no twice, and nothing has changed, asks for what is free only. Where
        # nobody answered, there may be room as soon as somebody does.
        is_answered = seen.job.confirmed.generation == seen.job.grant.generation
        is_final = is_answered and delay_s > 2 * patience.retry_s
        self.caps[key] = Cap(workers, float("-inf"), delay_s, room, is_final, why)

    def limit(self, seen: Seen, room: Room, now: float) -> int | None:
        """The workers that the job is held to for now, if it is."""
        key, cap = seen.job.key, self.caps.get(seen.job.key)
        if cap is None:
            return None
        if seen.is_settled and seen.job.grant.workers > cap.limit:
            del self.caps[key]  # there was room after all
            return None
        if cap.until == float("-inf"):
            cap = self.caps[key] = replace(cap, until=now + cap.delay_s)
        if room.has_gained(cap.room):
            del self.caps[key]  # something has changed: it is worth a try, and a new start
            return None
        return None if not cap.is_final and self._is_past(cap.until, now) else cap.limit

    def may_ask(self, key: str, now: float) -> bool:
        """Whether a job that is held to fewer may ask for what is free: its time has come, though
        nothing has changed that would be seen from here."""
        cap = self.caps.get(key)
        return cap is not None and cap.is_final and self._is_past(cap.until, now)

    def over(self, seen: Seen, patience: Patience, now: float) -> list[Worker]:
        """Failed pods whose time has come to be made again, and those that are lost."""
        status, found = seen.job.status, []
        for pod in pods_of(seen):
            if pod.state == "lost":
                found.append(pod)
            elif pod.state == "failed" and (pod.excused or pod.uid in status.counted):
                first = self._failed.setdefault(pod.uid, now)
                times = 0 if pod.excused else min(max(status.failures - 1, 0), 20)
                delay_s = min(patience.failure_s * 2**times, patience.failure_most_s)
                if self._is_past(first + delay_s, now):
                    found.append(pod)
        return found

    def is_of_now(self, seen: Seen) -> bool:
        """Whether what the job reports is of its present size, not left over from another."""
        key, report, size = seen.job.key, seen.report, seen.job.grant.workers
        if self._heard.get(key, ("", 0))[0] != report:
            self._heard[key] = report, size
        return self._heard[key][1] == size

    def _is_past(self, time: float, now: float) -> bool:
        if now < time:
            self.due = min(self.due, time)
        return now >= time


def pods_of(seen: Seen) -> list[Worker]:
    return [*seen.workers, *([seen.launcher] if seen.launcher is not None else [])]


def room_of(snapshot: Snapshot, resource: str) -> Room:
    jobs = (seen.job for seen in snapshot.jobs if seen.job.counted[0] == resource)
    some = frozenset(job.key for job in jobs if not (job.leaving or job.suspend or is_over(job)))
    return Room(dict(snapshot.capacity.get(resource, {})), some)


def is_over(job: Job) -> bool:
    return job.status.phase in ("Complete", "Failed")
