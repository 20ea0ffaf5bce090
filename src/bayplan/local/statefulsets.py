"""What kube-controller-manager does for StatefulSets: pods with ordinals, in order or all at once.

It makes no volume claims and no ControllerRevisions, adopts no pods that it did not make, and
writes no events.
"""

import hashlib

from bayplan.local.api import Api
from bayplan.local.bindings import is_ready
from bayplan.local.kinds import POD, STATEFUL_SET
from bayplan.local.metadata import CHARACTERS, seconds
from bayplan.local.objects import Deletion, Preconditions, Write
from bayplan.local.owners import Owners
from bayplan.local.pods import has_ended
from bayplan.local.problems import Problem
from bayplan.local.settling import AT_ONCE, Due, kept_going, made_by
from bayplan.local.store import Json, Key, encode

REVISION = "controller-revision-hash"
POD_NAME, POD_INDEX = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


class StatefulSets:
    def __init__(self, api: Api, owners: Owners) -> None:
        self._api, self._store, self._owners = api, api.store, owners

    def settle(self, due: Due) -> None:
        """The next steps of every set; what only time can bring is told to `due`."""
        for key, stored in self._store.items(STATEFUL_SET.store):
            with kept_going(STATEFUL_SET, key):
                value = stored.value
                if not value["metadata"].get("deletionTimestamp"):
                    _Steps(self._api, value, self._pods(value), due).take()
                self._owners.refresh()
                self._tell(key, value, due)

    def _pods(self, value: Json) -> dict[int, Json]:
        """By ordinal."""
        prefix = f"{value['metadata']['name']}-"
        found = {}
        for (_, name), stored in self._owners.owned(value, POD):
            tail = name.removeprefix(prefix)
            if name.startswith(prefix) and tail.isdecimal():
                found[int(tail)] = stored.value
        return found

    def _tell(self, key: Key, value: Json, due: Due) -> None:
        spec, pods = value["spec"], self._pods(value).values()
        newest = revision(value)
        before = value.get("status") or {}
        current = before.get("currentRevision") or newest
        ready = [pod for pod in pods if is_ready(pod) and not has_ended(pod)]
        wall, least_s = self._api.clock.wall(), spec.get("minReadySeconds") or 0
        staying = [pod for pod in pods if not _is_leaving(pod)]
        updated = [pod for pod in staying if _revision_of(pod) == newest]
        if (
            spec["updateStrategy"]["type"] == "RollingUpdate"
            and len(updated) == len(ready) == len(pods) == spec["replicas"]
        ):
            current = newest
        counts = {
            "readyReplicas": len(ready),
            "currentReplicas": sum(1 for pod in staying if _revision_of(pod) == current),
            "updatedReplicas": len(updated),
        }
        status = {
            "observedGeneration": value["metadata"]["generation"],
            "replicas": len(pods),
            **{name: count for name, count in counts.items() if count},
            "currentRevision": current,
            "updateRevision": newest,
            "collisionCount": 0,
            "availableReplicas": sum(1 for pod in ready if is_available(pod, least_s, wall, due)),
        }

        def told(old: Json) -> Json:
            return {**old, "status": {**_others(old), **status}}

        self._api.objects.update(STATEFUL_SET, key, told, Write("status"))


class _Steps:
    """What is to be done for one set now."""

    def __init__(self, api: Api, value: Json, pods: dict[int, Json], due: Due) -> None:
        self._api, self._value, self._pods, self._due = api, value, pods, due
        self._wall, self._spec = api.clock.wall(), value["spec"]
        first = (self._spec.get("ordinals") or {}).get("start") or 0
        self._wanted = range(first, first + self._spec["replicas"])
        self._in_order = self._spec["podManagementPolicy"] == "OrderedReady"

    def take(self) -> None:
        if not (self._fill() and self._shrink()):
            return
        if self._spec["updateStrategy"]["type"] == "RollingUpdate":
            self._update()

    def _fill(self) -> bool:
        """Whether all is well so far; in order, each pod waits for the one before."""
        made = 0
        for ordinal in self._wanted:
            pod = self._pods.get(ordinal)
            if pod is None:
                made += 1
                if made > AT_ONCE:
                    return False
                self._create(ordinal)
            elif has_ended(pod) and not _is_leaving(pod):
                self._delete(pod)
            if self._in_order and (pod is None or self._is_missing(pod)):
                return False
        return True

    def _shrink(self) -> bool:
        """The highest first."""
        surplus = [self._pods[i] for i in sorted(self._pods, reverse=True) if i not in self._wanted]
        missing = [pod for pod in reversed(surplus) if self._is_missing(pod)]
        for pod in surplus:
            if self._in_order and self._is_missing(pod) and pod is not missing[0]:
                return False
            if not _is_leaving(pod):
                self._delete(pod)
            if self._in_order:
                return False
        return True

    def _update(self) -> None:
        """One pod at a time, from the highest down, takes what the template says now."""
        newest = revision(self._value)
        for ordinal in reversed(self._wanted):
            pod = self._pods.get(ordinal)
            if pod is None:
                return
            if _revision_of(pod) != newest and not _is_leaving(pod):
                self._delete(pod)
                return
            if self._is_missing(pod):
                return

    def _is_missing(self, pod: Json) -> bool:
        least_s = self._spec.get("minReadySeconds") or 0
        available = is_available(pod, least_s, self._wall, self._due)
        return _is_leaving(pod) or has_ended(pod) or not available

    def _create(self, ordinal: int) -> None:
        about = self._value["metadata"]
        name = f"{about['name']}-{ordinal}"
        pod = made_by(STATEFUL_SET, self._value)
        pod["metadata"]["name"] = name
        own = {POD_NAME: name, POD_INDEX: str(ordinal), REVISION: revision(self._value)}
        pod["metadata"]["labels"] = {**(pod["metadata"].get("labels") or {}), **own}
        pod["spec"]["hostname"] = name
        if self._spec.get("serviceName"):
            pod["spec"]["subdomain"] = self._spec["serviceName"]
        try:
            self._api.objects.create(POD, pod)
        except Problem:  # such as another pod of that name
            self._due.retry()

    def _delete(self, pod: Json) -> None:
        about = pod["metadata"]
        options = Deletion(preconditions=Preconditions(about["uid"]))
        self._api.objects.delete(POD, (about["namespace"], about["name"]), options)


def revision(value: Json) -> str:
    """A name for what the template says."""
    digest = hashlib.sha256(encode(value["spec"]["template"])).digest()
    tail = "".join(CHARACTERS[byte % len(CHARACTERS)] for byte in digest[:10])
    return f"{value['metadata']['name']}-{tail}"


def is_available(pod: Json, least_s: int, wall: float, due: Due) -> bool:
    """Ready, and for long enough."""
    if not is_ready(pod):
        return False
    since = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    if not least_s or not since.get("lastTransitionTime"):
        return not least_s
    left_s = seconds(since["lastTransitionTime"]) + least_s - wall
    if left_s > 0:
        due.after(left_s)
    return left_s <= 0


def _is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _revision_of(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION, ""))


def _others(value: Json) -> Json:
    """What somebody else wrote to the status."""
    known = ("readyReplicas", "currentReplicas", "updatedReplicas")
    return {k: v for k, v in (value.get("status") or {}).items() if k not in known}
