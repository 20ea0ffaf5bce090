"""Which waiting pod is tried first."""

from collections import Counter

from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Order


class PrioritySort:
    """Higher priority first, then the earlier arrival."""

    name = "PrioritySort"

    def key(self, pod: Pod, arrival: int) -> tuple[float, ...]:
        return (-pod.priority, arrival)

    def started(self, pod: Pod, key: tuple[float, ...]) -> None:
        """Nothing to remember."""

    def left(self, pod: Pod) -> None:
        """Nothing to remember."""


class NamespaceShare:
    """Higher priority first; within a priority namespaces take turns.

    Fair queueing: a pod's tag is the present (the tag of the pod taken last) plus the number of
    pods that its namespace has waiting. A namespace that comes late starts at the present, so one
    user's 20,000 pods do not stand in front of another's first.
    """

    name = "NamespaceShare"

    def __init__(self) -> None:
        self._waiting: Counter[tuple[int, str]] = Counter()  # by priority and namespace
        self._present: dict[int, float] = {}  # by priority

    def key(self, pod: Pod, arrival: int) -> tuple[float, ...]:
        place = (pod.priority, pod.namespace)
        self._waiting[place] += 1
        return (-pod.priority, self._present.get(pod.priority, 0.0) + self._waiting[place], arrival)

    def started(self, pod: Pod, key: tuple[float, ...]) -> None:
        self._present[pod.priority] = max(key[1], self._present.get(pod.priority, 0.0))

    def left(self, pod: Pod) -> None:
        place = (pod.priority, pod.namespace)
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._waiting[place]


_: type[Order] = PrioritySort
__: type[Order] = NamespaceShare
