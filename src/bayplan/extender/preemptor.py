"""Others go for pods that kube-scheduler finds no place for.

It preempts for what it counts itself. Where nothing but devices is in the way that it does not
count, or counts but cannot tell apart, it finds no victims; they are looked for here. It has its
own chance first: nothing is done until a while after the pod was refused, nor for one that it makes
room for itself. It need not ask again for that: in a quiet cluster it would take minutes.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection

from msgspec import Struct

from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod
from bayplan.scheduler.loop import Loop

PAUSE_S = 1.0  # from a refusal to a look; kube-scheduler's back-off
MOST_REFUSED = 512  # pods that are remembered, each with the names of its nodes


class Refused(Struct, frozen=True):
    pod: Pod
    nodes: tuple[str, ...]  # where other pods' devices may be in the way
    due: float  # when others may go for it


class Preemptor:
    """Asks the engine, whose loop deletes the victims. Only what the watch knows counts: of a pod
    that is known its end is heard, and what was kept for it is free again."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._engine = loop, loop.engine
        self._refused: OrderedDict[str, Refused] = OrderedDict()  # by uid; the first is due first
        self.counts: Counter[str] = Counter()  # looks, by result

    def refused(self, pod: Pod, nodes: Collection[str], now: float) -> None:
        """The pod fits nowhere; on these nodes other pods' devices may be in the way."""
        home = self._engine.offers.home(pod.uid)
        if not pod.preempts or pod.nominated or (home and home in nodes):
            self.forget(pod.uid)
            return
        known = self._refused.get(pod.uid)
        due = now + PAUSE_S if known is None else known.due
        self._refused[pod.uid] = Refused(pod, tuple(nodes), due)
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)

    def forget(self, uid: str) -> None:
        self._refused.pop(uid, None)

    def next_time(self) -> float | None:
        return next((each.due for each in self._refused.values()), None)

    def tick(self, now: float) -> None:
        """Those whose pause is over."""
        while (at := self.next_time()) is not None and at <= now:
            _, refused = self._refused.popitem(last=False)
            if self._may_have_victims(refused.pod):
                self._loop.step(on.PlaceWanted(refused.pod, refused.nodes), now)
                found = self._engine.offers.home(refused.pod.uid)
                self.counts["found" if found else "no victims"] += 1

    def _may_have_victims(self, pod: Pod) -> bool:
        known = self._loop.watches.pods.known.get(pod.uid)
        if not isinstance(known, Pod) or known.node or known.terminating or known.nominated:
            return False
        return any(each < pod.priority for each in self._engine.cluster.census.priorities)
