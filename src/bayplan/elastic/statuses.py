"""What a job's status says beside its grant. Pure; only what differs from what stands there."""

from typing import Any

from bayplan.elastic.curves import BadCurve, reported
from bayplan.elastic.ending import Outcome
from bayplan.elastic.memory import Memory, pods_of
from bayplan.elastic.seen import Seen
from bayplan.kube.elastic import horovod_names

Json = dict[str, Any]

NOTABLE = 0.05  # a change of the throughput that is written down; the allocator's threshold


def status_fields(seen: Seen, end: Outcome, memory: Memory, at: str) -> Json:
    """The fields to write; `at` is the time by the wall clock."""
    job, said = seen.job, seen.job.said
    phase = end or _phase(seen)
    fields: Json = {"phase": phase, "message": message(seen, end, memory)}
    if seen.is_horovod:
        names = horovod_names(job.name)
        fields["availableReplicas"] = seen.ready
        if seen.replicas is not None:
            fields["workers"] = f"statefulset.apps/{names['workers']}"
        if seen.launched:
            fields["launcher"] = f"job.batch/{names['launcher']}"
    else:
        fields |= {"workers": len(seen.living), "ready": seen.ready} | _failures(seen)
    fields |= _measured(seen, memory)
    if seen.ready and not job.status.start_time:
        fields["startTime"] = at
    if end in ("Complete", "Failed") and not job.status.completion_time:
        fields["completionTime"] = at
    fields["conditions"] = _conditions(seen, end, at)
    return {name: value for name, value in fields.items() if said.get(name) != value}


def _phase(seen: Seen) -> str:
    grant = seen.job.grant
    if not grant.workers and not seen.living:
        return "Pending"
    return "Running" if seen.ready >= min(seen.job.minimum, grant.workers or 1) else "Starting"


def message(seen: Seen, end: Outcome, memory: Memory) -> str:
    job, grant, confirmed = seen.job, seen.job.grant, seen.job.confirmed
    if job.wrong:
        return job.wrong
    if end == "Failed":
        if seen.launched == "Failed":
            return "the launcher has failed"
        return job.status.message or f"{job.status.failures} pods have failed"
    if end:
        return ""
    if job.suspend:
        return "suspended"
    if job.key in memory.refused:
        return memory.refused[job.key]
    if not seen.is_settled:
        if confirmed.generation == grant.generation and confirmed.message:
            return confirmed.message
        return f"{grant.workers} workers are granted; the scheduler has not confirmed them"
    if cap := memory.caps.get(job.key):
        return cap.why
    if not grant.workers:
        name, each = job.counted
        return f"waits until there is room for {job.minimum} workers of {each} {name}"
    return ""


def _measured(seen: Seen, memory: Memory) -> Json:
    """What the job gets done with so many workers, when all of them are at work."""
    job, size = seen.job, seen.job.grant.workers
    if not seen.report or not memory.is_of_now(seen):
        return {}
    if not size or seen.ready != size or not seen.is_settled:
        return {}
    try:
        items = reported(seen.report)
    except BadCurve:
        return {}
    known = dict(job.measured)
    if size in known and abs(items - known[size]) <= NOTABLE * known[size]:
        return {}
    noted = sorted((known | {size: items}).items())
    return {"measured": {str(each): value for each, value in noted}}


def _failures(seen: Seen) -> Json:
    """Each failed pod is counted once: those that are counted, and still there, are named."""
    status = seen.job.status
    failed = [pod.uid for pod in pods_of(seen) if pod.state == "failed" and not pod.excused]
    new = sum(uid not in status.counted for uid in failed)
    if not new and not set(status.counted) - set(failed):
        return {}
    return {"failures": status.failures + new, "counted": sorted(failed)}


def _conditions(seen: Seen, end: Outcome, at: str) -> list[Json]:
    job = seen.job
    given = job.said.get("conditions")
    before = {
        str(each.get("type")): each
        for each in (given if isinstance(given, list) else [])
        if isinstance(each, dict)
    }
    granted = bool(job.grant.workers) and seen.is_settled
    truths = {"Granted": granted}
    if end in ("Complete", "Failed"):
        truths[end] = True
    conditions = []
    for name, truth in truths.items():
        status = "True" if truth else "False"
        was = before.get(name, {})
        since = was.get("lastTransitionTime") if was.get("status") == status else at
        reason = name if truth else "NotGranted"
        conditions.append(
            {"type": name, "status": status, "reason": reason, "lastTransitionTime": since or at}
        )
    return conditions
