"""What stands in the status of a PodGroup: how far its members have got, and why no further.

Pure: what is known of a group and its members in, a status out. The phases are those that
controllers of PodGroups have always written, so that what reads them goes on. Of what stands in a
status already, all that is not ours stays.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from bayplan.core.model.groups import PodGroup

Json = dict[str, Any]
PENDING, PRE_SCHEDULING, SCHEDULING = "Pending", "PreScheduling", "Scheduling"
SCHEDULED, RUNNING, FINISHED, FAILED = "Scheduled", "Running", "Finished", "Failed"
UNKNOWN = "Unknown"
CONDITION = "PodGroupScheduled"
_LONGEST = 4096  # characters of a message; a status is no place for more


class SeenGroup(Struct, frozen=True):
    """A PodGroup as it stands in the API."""

    namespace: str
    name: str
    generation: int
    resource_version: str
    group: PodGroup
    status: Json

    @property
    def is_custom(self) -> bool:
        """Of a kind that has phases and counts."""
        return self.group.source != "scheduling.k8s.io"


class Member(Struct, frozen=True, gc=False):
    """A pod of a group, in whatever phase."""

    uid: str
    name: str
    created: str
    phase: str
    scheduled: bool  # it has a node
    ours: bool  # it names one of our profiles
    owners: tuple[str, ...] = ()  # names


class Counts(Struct, frozen=True):
    here: int = 0
    scheduled: int = 0  # and not failed
    running: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def have_ended(self) -> bool:
        """Nobody of them is still to come or at work."""
        return self.succeeded + self.failed == self.here


def count(members: Iterable[Member]) -> Counts:
    found = tuple(members)
    phases = [member.phase for member in found]
    return Counts(
        here=len(found),
        scheduled=sum(member.scheduled and member.phase != "Failed" for member in found),
        running=phases.count("Running"),
        succeeded=phases.count("Succeeded"),
        failed=phases.count("Failed"),
    )


def status_of(seen: SeenGroup, members: Sequence[Member], why: str, now: str) -> Json:
    """Our part of the status of a group that has phases. `why`: what its members wait for, if any
    do; `now`: for times that begin."""
    counts = count(members)
    wanted: Json = {
        "phase": phase_of(seen, counts),
        "scheduled": counts.scheduled,
        "running": counts.running,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
    }
    occupied = seen.status.get("occupiedBy") or _occupied(seen, members)
    if occupied:
        wanted["occupiedBy"] = occupied
    started = seen.status.get("scheduleStartTime") or (now if counts.scheduled else None)
    if started:
        wanted["scheduleStartTime"] = started
    done = wanted["phase"] in (FINISHED, FAILED)
    return wanted | conditions_of(seen, counts.scheduled, why, now, done=done)


def phase_of(seen: SeenGroup, counts: Counts) -> str:
    """Who is done stays done until new members come."""
    minimum, before = seen.group.gang.minimum, seen.status.get("phase")
    if seen.group.wrong:
        return UNKNOWN
    if before in (FINISHED, FAILED) and counts.have_ended:
        return str(before)
    if counts.here < minimum:
        return PENDING
    if counts.succeeded >= minimum:
        return FINISHED
    if counts.failed and counts.failed + counts.running + counts.succeeded >= minimum:
        return FAILED
    if counts.running + counts.succeeded >= minimum:
        return RUNNING
    if seen.group.source == "scheduling.x-k8s.io":
        return SCHEDULING
    if counts.scheduled >= minimum:
        return SCHEDULED
    return SCHEDULING if counts.scheduled else PRE_SCHEDULING


def conditions_of(
    seen: SeenGroup, scheduled: int, why: str, now: str, *, done: bool = False
) -> Json:
    """The conditions with ours among them, or nothing where there is nothing to say. `done`: its
    members have come to an end, so that fewer of them have a node."""
    given = seen.status.get("conditions")
    stand = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    before = next((each for each in stand if each.get("type") == CONDITION), None)
    standing = before if before and not (done and before.get("status") == "True") else None
    said = _said(seen, scheduled, why, standing)
    if said is None or (before and before.get("status") == "True" and not seen.is_custom):
        return {"conditions": stand} if stand else {}  # theirs is never taken back
    status, reason, message = said
    since = before.get("lastTransitionTime") if before and before.get("status") == status else None
    ours = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST],
        "lastTransitionTime": since or now,
        "observedGeneration": seen.generation,
    }
    return {"conditions": [*(each for each in stand if each is not before), ours]}


def is_scheduled(status: Json) -> bool:
    """Whether it says that enough members have a node."""
    given = status.get("conditions")
    stand = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    return any(each.get("type") == CONDITION and each.get("status") == "True" for each in stand)


def without_words(status: Json) -> Json:
    """Without what may change often and matters little: messages."""
    conditions = status.get("conditions")
    if not isinstance(conditions, list):
        return status
    bare = [{**each, "message": ""} if isinstance(each, dict) else each for each in conditions]
    return {**status, "conditions": bare}


def _said(
    seen: SeenGroup, scheduled: int, why: str, before: Json | None
) -> tuple[str, str, str] | None:
    """Status, reason and message. `before`: what stands there and may not be true any more."""
    minimum = seen.group.gang.minimum
    if seen.group.wrong:
        return "False", "Invalid", seen.group.wrong
    if scheduled >= minimum:
        return "True", "Scheduled", f"at least {minimum} members have a node"
    over = before and (before.get("reason") == "Invalid" or before.get("status") == "True")
    if why or over:
        return "False", "Unschedulable", why or f"{scheduled} of {minimum} members have a node"
    return None


def _occupied(seen: SeenGroup, members: Sequence[Member]) -> str:
    """The owners of the first member."""
    first = min(members, key=lambda member: (member.created, member.name), default=None)
    owners = sorted(first.owners) if first is not None else []
    return ",".join(f"{seen.namespace}/{owner}" for owner in owners)
