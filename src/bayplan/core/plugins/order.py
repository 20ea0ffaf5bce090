"""Which waiting pod is tried first."""

from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Order


class PrioritySort:
    """Higher priority first, then the earlier arrival."""

    name = "PrioritySort"

    def key(self, pod: Pod, arrival: int) -> tuple[float, ...]:
        return (-pod.priority, arrival)

    def started(self, pod: Pod, key: tuple[float, ...]) -> None:
        """Nothing to remember."""


class NamespaceShare:
    """Higher priority first; within a priority namespaces take turns.

    Start-time fair queueing: a pod's tag is one more than the later of its namespace's last tag
    and the tag of the pod taken last. A namespace that arrives late starts at the present, so one
    user's 20,000 pods do not stand in front of another's first.
    """

    name = "NamespaceShare"

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], float] = {}  # priority, namespace: the newest tag
        self._present: dict[int, float] = {}  # priority: the tag of the pod taken last

    def key(self, pod: Pod, arrival: int) -> tuple[float, ...]:
        place = (pod.priority, pod.namespace)
        tag = max(self._last.get(place, 0.0), self._present.get(pod.priority, 0.0)) + 1
        self._last[place] = tag
        return (-pod.priority, tag, arrival)

    def started(self, pod: Pod, key: tuple[float, ...]) -> None:
        tag = key[1]
        self._present[pod.priority] = max(tag, self._present.get(pod.priority, 0.0))
        if self._last.get((pod.priority, pod.namespace)) == tag:
            del self._last[pod.priority, pod.namespace]  # its next pod starts at the present


_: type[Order] = PrioritySort
__: type[Order] = NamespaceShare
