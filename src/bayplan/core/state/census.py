"""Who is placed, counted by what matters to those who might take their room."""

from collections import Counter

from bayplan.core.model.pods import Pod


class Census:
    """Priorities and gangs of the placed pods. Whoever places or removes a pod calls `count`."""

    def __init__(self) -> None:
        self.priorities: Counter[int] = Counter()
        self.gangs: dict[str, dict[str, None]] = {}  # by gang: uids

    def count(self, pod: Pod, sign: int) -> None:
        left = self.priorities[pod.priority] + sign
        if left:
            self.priorities[pod.priority] = left
        else:
            del self.priorities[pod.priority]
        if pod.gang is not None:
            members = self.gangs.setdefault(pod.gang.key, {})
            if sign > 0:
                members[pod.uid] = None
            else:
                del members[pod.uid]
                if not members:
                    del self.gangs[pod.gang.key]
