"""Which condition is written next: a pod has one slot, and what is newer takes it.

The first is due at once, later ones after a pause, so a slow API server makes us say less, not
later and later. A nomination does not wait: the room of others depends on it. Nothing is sent here.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush

from msgspec.structs import replace

from bayplan.kube.clock import Clock
from bayplan.scheduler.feed import Condition
from bayplan.scheduler.requests import Said

CONDITION_EVERY_S = 30.0  # per pod; the first is written at once


class Conditions:
    def __init__(self, clock: Clock, call: Callable[[], None]) -> None:
        """`call`: there is one more thing to do."""
        self._clock, self._call = clock, call
        self.ready: OrderedDict[str, Said] = OrderedDict()  # by uid
        self._later: dict[str, Said] = {}  # by uid: too soon after the one before
        self._due: list[tuple[float, str]] = []  # heap: when, uid of `_later`
        self._told_at: dict[str, float] = {}  # by uid: when a condition was last written
        self._nominated: set[str] = set()  # uids of pods whose nomination was ever written

    def __len__(self) -> int:
        return len(self.ready) + len(self._later)

    def tell(self, said: Said) -> None:
        uid = said.pod.uid
        older = self.ready.get(uid) or self._later.pop(uid, None)
        said = _with_nomination(said, older)
        last = self._told_at.get(uid)
        is_due = last is None or self._clock.time() - last >= CONDITION_EVERY_S
        if is_due or uid in self.ready or said.nominated is not None:
            self.ready[uid] = said
            self._call()
        else:
            self.put_off(said, CONDITION_EVERY_S)

    def put_off(self, said: Said, pause_s: float) -> None:
        """Until the pause since the last one is over. Something newer that waits for that, or for
        its turn, stays, but takes a nomination along."""
        uid = said.pod.uid
        if uid in self.ready:
            self.ready[uid] = _with_nomination(self.ready[uid], said)
        elif uid in self._told_at:
            newer = self._later.get(uid)
            self._later[uid] = said if newer is None else _with_nomination(newer, said)
            if newer is None or said.nominated is not None:
                heappush(self._due, (self._told_at[uid] + pause_s, uid))

    def take(self) -> Said:
        """The next one."""
        return self.ready.popitem(last=False)[1]

    def writing(self, uid: str) -> None:
        self._told_at[uid] = self._clock.time()

    def written(self, said: Said) -> None:
        if said.nominated is not None:
            self._nominated.add(said.pod.uid)

    def is_news(self, said: Said, before: Condition) -> bool:
        """Whether the API says something else. A nomination that we wrote a moment ago may not
        have come back yet, so once we wrote one, what the watch brought is not enough to go by."""
        if (before.reason, before.message) != (said.reason, said.text):
            return True
        uid, nominated = said.pod.uid, said.nominated
        return nominated is not None and (nominated != before.nominated or uid in self._nominated)

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self.ready.pop(uid, None)
        self._later.pop(uid, None)
        self._told_at.pop(uid, None)
        self._nominated.discard(uid)

    def tick(self, now: float) -> None:
        """Those whose pause is over get their turn."""
        while self._due and self._due[0][0] <= now:
            _, uid = heappop(self._due)
            said = self._later.pop(uid, None)
            if said is not None:
                self.ready[uid] = said
                self._call()

    def next_time(self) -> float | None:
        return self._due[0][0] if self._due else None

    def hurry(self) -> None:
        """There will be no later."""
        self.ready.update(self._later)
        self._later.clear()
        for _ in self.ready:
            self._call()


def _with_nomination(newer: Said, older: Said | None) -> Said:
    """The newer words, with the older nomination if they bring none."""
    if older is None or newer.nominated is not None or older.nominated is None:
        return newer
    return replace(newer, nominated=older.nominated)
