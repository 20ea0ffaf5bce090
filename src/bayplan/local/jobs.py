"""What kube-controller-manager does for Jobs: pods until enough have succeeded or too many failed.

Only Jobs whose pods are alike (`NonIndexed`). No adoption of pods, no events.
"""

from bayplan.local.api import Api
from bayplan.local.bindings import is_ready
from bayplan.local.kinds import JOB, POD
from bayplan.local.metadata import seconds
from bayplan.local.objects import Deletion, Preconditions, Write
from bayplan.local.owners import Owners
from bayplan.local.pods import has_ended
from bayplan.local.problems import Problem
from bayplan.local.settling import AT_ONCE, Due, kept_going, made_by
from bayplan.local.store import Json, Key

TRACKED = "batch.kubernetes.io/job-tracking"  # holds a pod until it is counted
MANAGER = "kubernetes.io/job-controller"
BACKOFF_S, MOST_BACKOFF_S = 10.0, 600.0  # the job controller's own
_REACHED = ("CompletionsReached", "Reached expected number of succeeded pods")
_TOO_MANY = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
_TOO_LONG = ("DeadlineExceeded", "Job was active longer than specified deadline")


class Jobs:
    def __init__(self, api: Api, owners: Owners) -> None:
        self._api, self._store, self._owners = api, api.store, owners
        self._failures: dict[str, tuple[int, float]] = {}  # by uid: since a success, and the last

    def settle(self, due: Due) -> None:
        """The next steps of every Job; what only time can bring is told to `due`."""
        for key, stored in self._store.items(JOB.store):
            with kept_going(JOB, key):
                if (stored.value["spec"].get("managedBy") or MANAGER) == MANAGER:
                    self._settle(key, stored.value, due)
        self._owners.refresh()
        for key, stored in self._owners.held(TRACKED, POD):
            if not self._has_job(key, stored.value):
                with kept_going(POD, key):
                    self._release(stored.value)

    def _has_job(self, key: Key, pod: Json) -> bool:
        for owner in pod["metadata"].get("ownerReferences") or ():
            found = self._store.get(JOB.store, (key[0], owner["name"]))
            if found and found.value["metadata"]["uid"] == owner["uid"]:
                return True
        return False

    def _settle(self, key: Key, job: Json, due: Due) -> None:
        if is_finished(job):
            self._failures.pop(job["metadata"]["uid"], None)
            self._expire(key, job, due)
            return
        pods = [stored.value for _, stored in self._owners.owned(job, POD)]
        step = _Step(self._api, job, pods, due, self._failures)
        status = step.take()

        def told(old: Json) -> Json:
            return {**old, "status": status}

        self._api.objects.update(JOB, key, told, Write("status"))
        for pod in step.counted:
            self._release(pod)

    def _expire(self, key: Key, job: Json, due: Due) -> None:
        """A finished Job goes after the time that it gives itself."""
        kept_s = job["spec"].get("ttlSecondsAfterFinished")
        if kept_s is None or job["metadata"].get("deletionTimestamp"):
            return
        (ended,) = [c for c in job["status"]["conditions"] if c["type"] in ("Complete", "Failed")]
        left_s = seconds(ended["lastTransitionTime"]) + kept_s - self._api.clock.wall()
        if left_s > 0:
            due.after(left_s)
        else:
            self._api.objects.delete(JOB, key, Deletion(policy="Foreground"))

    def _release(self, pod: Json) -> None:
        release(self._api, pod)


class _Step:
    """What is to be done for one Job now."""

    def __init__(
        self,
        api: Api,
        job: Json,
        pods: list[Json],
        due: Due,
        failures: dict[str, tuple[int, float]],
    ) -> None:
        self._api, self._job, self._due, self._failures = api, job, due, failures
        self._spec, self._uid = job["spec"], job["metadata"]["uid"]
        self._status: Json = {**(job.get("status") or {})}
        self._conditions: list[Json] = list(self._status.get("conditions") or ())
        self._now, self._wall = api.objects.now(), api.clock.wall()
        self._pods = pods
        self._active = [pod for pod in pods if not has_ended(pod) and not _is_leaving(pod)]
        self._leaving = sum(1 for pod in pods if _is_leaving(pod) and not has_ended(pod))
        self.counted: list[Json] = []  # pods that are in the status from now on

    def take(self) -> Json:
        """The Job's new status."""
        self._count()
        if not self._status.get("startTime") and not self._spec["suspend"]:
            self._status["startTime"] = self._now
        target = self._failure()
        if target:
            self._fail(target)
        else:
            self._go_on()
        return self._told()

    def _count(self) -> None:
        """Pods that ended, once each. One that is deleted while it runs has failed."""
        for pod in self._pods:
            succeeded = (pod.get("status") or {}).get("phase") == "Succeeded"
            if not _is_tracked(pod) or not (has_ended(pod) or _is_leaving(pod)):
                continue
            self.counted.append(pod)
            self._add("succeeded" if succeeded else "failed")
            failures, _ = self._failures.get(self._uid, (0, 0.0))
            self._failures[self._uid] = (0, 0.0) if succeeded else (failures + 1, self._wall)

    def _add(self, what: str) -> None:
        self._status[what] = self._status.get(what, 0) + 1

    # ---- how it ends

    def _failure(self) -> tuple[str, str] | None:
        """Why the Job fails, if it does."""
        for condition in self._conditions:
            if condition["type"] == "FailureTarget":
                return condition["reason"], condition["message"]
        limit, restarts = self._spec["backoffLimit"], self._restarts()
        if self._status.get("failed", 0) > limit or restarts >= max(limit, 1):
            return _TOO_MANY
        if self._spec.get("activeDeadlineSeconds") is None or self._spec["suspend"]:
            return None
        since = seconds(self._status["startTime"])
        left_s = since + self._spec["activeDeadlineSeconds"] - self._wall
        if left_s > 0:
            self._due.after(left_s)
            return None
        return _TOO_LONG

    def _restarts(self) -> int:
        """Of containers, where they are started again in the same pod."""
        if self._spec["template"]["spec"]["restartPolicy"] != "OnFailure":
            return 0
        statuses = [
            (pod.get("status") or {}).get("containerStatuses") or () for pod in self._active
        ]
        return sum(one.get("restartCount") or 0 for told in statuses for one in told)

    def _fail(self, target: tuple[str, str]) -> None:
        self._say("FailureTarget", "True", *target)
        for pod in self._active:
            self._add("failed")
            self.counted.append(pod)
            self._leaving += self._delete(pod)
        self._active = []
        if not self._leaving:
            self._say("Failed", "True", *target)

    def _succeed(self) -> None:
        self._say("SuccessCriteriaMet", "True", *_REACHED)
        if not self._leaving:
            self._say("Complete", "True", *_REACHED)
            self._status["completionTime"] = self._now

    # ---- how it goes on

    def _go_on(self) -> None:
        if not self._job["metadata"].get("deletionTimestamp"):
            self._manage()
        succeeded, wanted = self._status.get("succeeded", 0), self._spec.get("completions")
        enough = succeeded > 0 if wanted is None else succeeded >= wanted
        if enough and not self._active:
            self._succeed()
        elif self._spec["suspend"]:
            if self._say("Suspended", "True", "JobSuspended", "Job suspended"):
                self._status.pop("startTime", None)
        elif self._has("Suspended", "True"):
            self._say("Suspended", "False", "JobResumed", "Job resumed")
            self._status["startTime"] = self._now

    def _manage(self) -> None:
        """As many pods as there should be."""
        wanted = 0 if self._spec["suspend"] else self._wanted()
        surplus = len(self._active) - wanted
        if surplus > 0:
            for pod in sorted(self._active, key=_rank)[:surplus]:
                self._active.remove(pod)
                release(self._api, pod)  # nobody counts it
                self._leaving += self._delete(pod)
            return
        if surplus < 0:
            left_s = self._backoff_s()
            if left_s > 0:
                self._due.after(left_s)
                return
            for _ in range(min(-surplus, AT_ONCE)):
                self._create()

    def _wanted(self) -> int:
        succeeded = int(self._status.get("succeeded", 0))
        parallel = int(self._spec["parallelism"])
        if self._spec.get("completions") is None:
            return len(self._active) if succeeded else parallel
        return max(min(int(self._spec["completions"]) - succeeded, parallel), 0)

    def _backoff_s(self) -> float:
        failures, last = self._failures.get(self._uid, (0, 0.0))
        if not failures:
            return 0.0
        pause_s = min(BACKOFF_S * 2.0 ** min(failures - 1, 30), MOST_BACKOFF_S)
        return last + pause_s - self._wall

    def _create(self) -> None:
        pod = made_by(JOB, self._job)
        finalizers = pod["metadata"].get("finalizers") or []
        pod["metadata"]["finalizers"] = [*finalizers, TRACKED]
        try:
            self._active.append(self._api.objects.create(POD, pod).value)
        except Problem:
            self._due.retry()

    def _delete(self, pod: Json) -> int:
        """1 if it takes its time."""
        about = pod["metadata"]
        key = (about["namespace"], about["name"])
        options = Deletion(preconditions=Preconditions(about["uid"]))
        self._api.objects.delete(POD, key, options)
        left = self._api.store.get(POD.store, key)
        return 1 if left and left.value["metadata"].get("deletionGracePeriodSeconds") else 0

    # ---- what it says

    def _has(self, sort: str, status: str) -> bool:
        return any(c["type"] == sort and c["status"] == status for c in self._conditions)

    def _say(self, sort: str, status: str, reason: str, message: str) -> bool:
        """Whether it is news."""
        if self._has(sort, status):
            return False
        new = {
            "type": sort,
            "status": status,
            "lastProbeTime": self._now,
            "lastTransitionTime": self._now,
            "reason": reason,
            "message": message,
        }
        self._conditions = [c for c in self._conditions if c["type"] != sort] + [new]
        return True

    def _told(self) -> Json:
        active = len(self._active)
        told = {key: part for key, part in self._status.items() if key != "active"}
        told |= {"active": active} if active else {}
        told |= {"conditions": self._conditions} if self._conditions else {}
        ready = sum(map(is_ready, self._active))
        return {**told, "terminating": self._leaving, "uncountedTerminatedPods": {}, "ready": ready}


def is_finished(job: Json) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def release(api: Api, pod: Json) -> None:
    """A pod that is counted, or need not be, may go."""
    about = pod["metadata"]
    key = (about["namespace"], about["name"])
    if api.store.get(POD.store, key) is None:
        return

    def let_go(old: Json) -> Json:
        left = [name for name in old["metadata"].get("finalizers") or () if name != TRACKED]
        return {**old, "metadata": {**old["metadata"], "finalizers": left}}

    api.objects.update(POD, key, let_go, Write())


def _is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _is_tracked(pod: Json) -> bool:
    return TRACKED in (pod["metadata"].get("finalizers") or ())


def _rank(pod: Json) -> tuple[bool, bool]:
    """Which pods go first: those that wait, those that are not ready."""
    return bool(pod["spec"].get("nodeName")), is_ready(pod)
