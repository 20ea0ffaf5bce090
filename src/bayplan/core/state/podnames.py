"""Placed pods by name, for questions that name them.

Derived from the cluster on demand: what changed since the last question is read row by row from
the load log. So a scheduler that nobody asks by name pays nothing for it.
"""

from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster

SPARE = 1024  # names of pods that are gone may stay, up to so many more than there are pods


class PodNames:
    """Finds a pod that is on a node, or bound to one that is not known, by `namespace/name`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._uids: dict[str, str] = {}  # by name; some are of pods that are gone
        self._position = -1  # in the load log

    def find(self, key: str) -> Pod | None:
        """The pod, if it is there now and was there at the last `refresh`."""
        uid = self._uids.get(key, "")
        resident = self._cluster.pods.get(uid)
        pod = self._cluster.orphan(uid) if resident is None else resident.pod
        return pod if pod is not None and pod.key == key else None

    def refresh(self) -> None:
        """Not to be called in a trial: what is there only for a question is not kept here."""
        cluster, log = self._cluster, self._cluster.load_log
        rows = log.since(self._position) if self._position >= 0 else None
        if rows is None or len(self._uids) > 2 * len(cluster.pods) + SPARE:
            self._uids = {each.pod.key: uid for uid, each in cluster.pods.items()}
        else:
            for row in set(rows.tolist()):
                for uid, each in cluster.residents[row].items():
                    self._uids[each.pod.key] = uid
        for orphans in cluster.orphans.values():
            self._uids |= {pod.key: uid for uid, pod in orphans.items()}
        self._position = log.head
