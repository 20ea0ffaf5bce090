"""How a job ends: who says that it is over, and what is done then."""

from typing import Any, Literal

from bayplan.elastic.memory import pods_of
from bayplan.elastic.seen import RemovePods, Seen, Step, TearDown, Write
from bayplan.kube.elastic import Grant

Outcome = Literal["", "Finishing", "Complete", "Failed"]


def outcome(seen: Seen) -> Outcome:
    """What has come of it; "" while it goes on. An end that was written down stays."""
    job, phase = seen.job, seen.job.status.phase
    if phase in ("Complete", "Failed"):
        return "Complete" if phase == "Complete" else "Failed"
    if seen.launched == "Failed" or job.status.failures > job.backoff_limit:
        return "Failed"
    succeeded = any(pod.state == "succeeded" for pod in pods_of(seen))
    if not (succeeded or phase == "Finishing" or seen.launched == "Complete"):
        return ""
    left = any(pod.lives or pod.state == "going" for pod in pods_of(seen))
    return "Finishing" if left or seen.replicas else "Complete"


def ended_steps(seen: Seen, end: Outcome, fields: dict[str, Any]) -> list[Step]:
    """Whoever still works does so to the end, unless the end was the launcher's; nobody new."""
    steps: list[Step] = []
    job, grant = seen.job, seen.job.grant
    workers = min(grant.workers, seen.used)
    given_back = None
    if grant.passing or workers < grant.workers:
        counts = {name: each * workers for name, each in job.requests if "/" in name}
        newest = max(grant.generation, job.confirmed.generation)
        given_back = Grant(newest + 1, workers, 0, counts)
    if given_back is not None or fields:
        steps.append(Write(job, given_back, fields))
    if seen.is_horovod:
        return [*steps, TearDown(job)] if seen.replicas is not None else steps
    launcher = seen.launcher
    all_go = end == "Failed" or (launcher is not None and launcher.state == "succeeded")
    going = [w for w in seen.workers if w.lives and (all_go or w.state == "waiting")]
    going += [pod for pod in pods_of(seen) if pod.state == "lost"]
    if end == "Failed" and launcher is not None and launcher.lives:
        going.append(launcher)
    return [*steps, RemovePods(job, tuple(going))] if going else steps
