"""Who is placed, counted by what matters to those who might take their room."""

from collections import Counter
from typing import TypeVar

from bayplan.core.model.pods import Pod, Worker

_Key = TypeVar("_Key")


class Census:
    """Priorities, gangs and elastic jobs of the placed pods. Whoever places or removes a pod calls
    `count`."""

    def __init__(self) -> None:
        self.priorities: Counter[int] = Counter()
        self.gangs: dict[str, dict[str, None]] = {}  # by gang: uids
        self.workers: dict[Worker, dict[str, None]] = {}  # by elastic job, as they name it: uids

    def count(self, pod: Pod, sign: int) -> None:
        priority = pod.priority
        left = self.priorities.get(priority, 0) + sign
        if left:
            self.priorities[priority] = left
        else:
            del self.priorities[priority]
        if pod.gang is not None:
            _count(self.gangs, pod.gang.key, pod.uid, sign)
        if pod.worker is not None:
            _count(self.workers, pod.worker, pod.uid, sign)


def _count(by_key: dict[_Key, dict[str, None]], key: _Key, uid: str, sign: int) -> None:
    members = by_key.setdefault(key, {})
    if sign > 0:
        members[uid] = None
    else:
        del members[uid]
        if not members:
            del by_key[key]
