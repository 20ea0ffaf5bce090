"""Places that are kept for pods: while their victims go, while a bind that failed is retried, or
until those who have them end by themselves.

An *owner* is who the places and the victims belong to: a pod's uid, or a gang's key.
"""

import math
from collections.abc import Iterable

from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster


class Nominations:
    """The places are holds of the cluster; who they are for, and what they wait for, is here."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._holds = cluster, cluster.holds
        self.owners: dict[str, str] = {}  # by uid of a pod with a place
        # By uid of a victim: whom it goes for. One that was told to go goes, even if nobody is left
        # for whom; it stays here until it is gone, or somebody says that it will not be deleted.
        self.doomed: dict[str, dict[str, None]] = {}
        # By owner: whose end its places wait for, and whether they were lent to that one.
        self.awaited: dict[str, dict[str, bool]] = {}
        self.spared: dict[str, float] = {}  # by uid: who could not be deleted, and till when nobody
        # asks again

    def __contains__(self, uid: str) -> bool:
        """Whether a place is kept for the pod; it ends with its node."""
        return uid in self.owners and uid in self._holds.rows

    def keep(self, pod: Pod, row: int, owner: str) -> bool:
        """The pod, with the devices that it would get, has its place on the row. Gives whether it
        had one before."""
        had = self.forget(pod.uid)
        self._holds.hold(pod, row)
        self.owners[pod.uid] = owner
        return had

    def release(self, uid: str) -> int:
        """Only the place, and only for the trial that this is part of. Gives its row."""
        row = self._holds.rows[uid]
        self._holds.release(uid)
        return row

    def forget(self, uid: str) -> bool:
        """Nothing is kept for the pod any more. Gives whether anything was."""
        owner = self.owners.pop(uid, None)
        if owner is None:
            return False
        if owner not in self.owners.values():
            self.awaited.pop(owner, None)
            for owners in self.doomed.values():
                owners.pop(owner, None)
        if uid in self._holds.rows:
            self._holds.release(uid)
        return True

    def doom(self, victims: Iterable[Pod], owner: str) -> tuple[Pod, ...]:
        """The victims go for the owner. Gives those that nobody has told to go yet."""
        fresh = []
        for pod in victims:
            if pod.uid not in self.doomed and not pod.terminating:
                fresh.append(pod)
            self.doomed.setdefault(pod.uid, {})[owner] = None
        return tuple(fresh)

    def expect(self, owner: str, uids: Iterable[str], *, lent: bool = False) -> None:
        """The owner's places wait until these end, too."""
        self.awaited.setdefault(owner, {}).update(dict.fromkeys(uids, lent))

    def unexpected(self, uid: str) -> list[str]:
        """One whose end places wait for needs its own place back: they are given up."""
        owners = [owner for owner, awaited in self.awaited.items() if uid in awaited]
        pods = self.pods_of(owners)
        for pod in pods:
            self.forget(pod)
        return pods

    def waits(self, owner: str) -> bool:
        """Whether victims are still to go."""
        return any(owner in owners for owners in self.doomed.values())

    def gone(self, uid: str) -> list[str]:
        """A pod is gone: the pods that waited for nobody else."""
        self.spared.pop(uid, None)
        if not self.doomed and not self.awaited:
            return []
        owners: dict[str, None] = dict(self.doomed.pop(uid, {}))
        for owner, awaited in self.awaited.items():
            if uid in awaited:
                del awaited[uid]
                owners[owner] = None
        if not owners:
            return []
        free = [each for each in owners if not self.waits(each) and not self.awaited.get(each)]
        return self.pods_of(free)

    def in_the_way(self, owner: str) -> list[str]:
        """The pods that will not be there any more when the owner's pods are."""
        going = [uid for uid, owners in self.doomed.items() if owner in owners]
        return [*going, *self.awaited.get(owner, ())]

    def given_up(self, uid: str) -> list[str]:
        """A victim stays: what was kept for whom it was to go is given up."""
        pods = self.pods_of(self.doomed.pop(uid, {}))
        for pod in pods:
            self.forget(pod)
        return pods

    def leave_alone(self, uid: str, until: float) -> None:
        """The pod could not be deleted: for a while it is nobody's victim."""
        self.spared[uid] = until
        self._cluster.note_victim(uid)

    @property
    def next_end(self) -> float:
        """When the next of them may be asked again."""
        return min(self.spared.values(), default=math.inf)

    def expire(self, now: float) -> bool:
        """Whether some were left alone for long enough."""
        over = [uid for uid, until in self.spared.items() if until <= now]
        for uid in over:
            del self.spared[uid]
            self._cluster.note_victim(uid)
        return bool(over)

    def pods_of(self, owners: Iterable[str]) -> list[str]:
        found = set(owners)
        return [pod for pod, owner in self.owners.items() if owner in found]
