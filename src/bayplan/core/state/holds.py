"""Room that is kept on a node for a pod that is not there yet.

A hold counts like a pod for amounts and devices, and for nothing else: labels, ports and claims are
a pod's own. It ends when whoever made it says so, or when its node goes.
"""

from collections.abc import Callable, Iterable

from bayplan.core.model.pods import Pod


class Holds:
    """By pod and by row. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done", "_count")

    def __init__(self, done: Callable[..., None], count: Callable[[Pod, int, int], None]) -> None:
        self.rows: dict[str, int] = {}  # by uid
        self.pods: dict[int, dict[str, Pod]] = {}  # by row, then uid
        self._done, self._count = done, count

    def hold(self, pod: Pod, row: int) -> None:
        assert pod.uid not in self.rows
        self.rows[pod.uid] = row
        self.pods.setdefault(row, {})[pod.uid] = pod
        self._count(pod, row, 1)
        self._done(self.release, pod.uid)

    def release(self, uid: str) -> None:
        row = self.rows.pop(uid)
        pod = self.pods[row].pop(uid)
        if not self.pods[row]:
            del self.pods[row]
        self._count(pod, row, -1)
        self._done(self.hold, pod, row)

    def taken(self, uids: Iterable[str]) -> list[tuple[Pod, int]]:
        """Releases what is held for these. Gives what it was, with the rows."""
        found = [
            (self.pods[self.rows[uid]][uid], self.rows[uid]) for uid in uids if uid in self.rows
        ]
        for pod, _ in found:
            self.release(pod.uid)
        return found

    def on(self, row: int) -> Iterable[Pod]:
        return tuple(self.pods.get(row, {}).values())
