"""Says in the statuses of elastic jobs how many places they have. A job has one slot: what is newer
takes it, and waits until what was said before has been answered.

What could not be written comes back as an event after a pause; the engine says then what is true.
"""

from collections import OrderedDict
from heapq import heappop, heappush

import msgspec
from msgspec import Struct

from bayplan.core.model import events as on
from bayplan.core.model.effects import Confirm
from bayplan.core.model.grants import Confirmed
from bayplan.kube.elastic import path_of
from bayplan.kube.transport import MERGE_PATCH, ApiError, BeforeSend, Fenced, TransportError
from bayplan.scheduler.removing import Desk

PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # after what failed; doubles as long as it does
_REFUSED = (400, 403, 413, 422)  # whoever asks again hears the same for a while
KIND = "confirmation"


class _Said(Struct, frozen=True):
    confirmed: Confirmed
    uid: str  # of the job: another of the same name is not meant
    check: BeforeSend  # the fence of its term


class Confirming:
    def __init__(self, desk: Desk) -> None:
        self._desk, self._clock = desk, desk.client.clock
        self.ready: OrderedDict[str, _Said] = OrderedDict()  # by job
        self._later: dict[str, _Said] = {}  # by job: one is on its way
        self._busy: set[str] = set()
        self._failed: list[tuple[float, str]] = []  # heap: when to tell of it, job
        self._pauses: dict[str, float] = {}  # by job: the last, while its writes fail

    def tell(self, effect: Confirm) -> None:
        said = _Said(effect.confirmed, effect.uid, self._desk.fence.of_now())
        if effect.job in self._busy:
            self._later[effect.job] = said
        else:
            self.ready[effect.job] = said
            self._desk.call()

    async def write(self) -> None:
        job, said = self.ready.popitem(last=False)
        self._busy.add(job)
        counts = self._desk.counts
        counts.busy[KIND] += 1
        try:
            await self._desk.client.request(
                "PATCH",
                path_of(job, "status"),
                body=body_of(said.confirmed, said.uid),
                content_type=MERGE_PATCH,
                before_send=said.check,
            )
            counts.done[KIND] += 1
            self._pauses.pop(job, None)
        except (ApiError, TransportError, Fenced) as error:
            counts.failed[KIND] += 1
            heappush(self._failed, (self._clock.time() + self._pause_s(job, error), job))
            self._desk.inbox.wake()  # there is a new time to wait for
        finally:
            counts.busy[KIND] -= 1
            self._busy.discard(job)
            if job in self._later:
                self.ready[job] = self._later.pop(job)
                self._desk.call()

    def _pause_s(self, job: str, error: Exception) -> float:
        """Who may not write, or not this, asks less and less often."""
        if not isinstance(error, ApiError) or error.status not in _REFUSED:
            self._pauses.pop(job, None)
            return PAUSE_S
        before = self._pauses.get(job, PAUSE_S / 2)
        self._pauses[job] = min(before * 2, LONGEST_PAUSE_S)
        return self._pauses[job]

    def tick(self, now: float) -> None:
        while self._failed and self._failed[0][0] <= now:
            self._desk.inbox.add(on.ConfirmFailed(heappop(self._failed)[1]))

    def next_time(self) -> float | None:
        return self._failed[0][0] if self._failed else None

    def abandon(self) -> None:
        """What was not sent is not said."""
        for job in (*self.ready, *self._later):
            self._desk.inbox.add(on.ConfirmFailed(job))
        self.ready.clear()
        self._later.clear()
        self._pauses.clear()


def body_of(confirmed: Confirmed, uid: str) -> bytes:
    """A list of the nodes: a merge patch would keep those that are no longer in an object."""
    kept = [{"node": node, "workers": count} for node, count in confirmed.kept]
    said = {
        "generation": confirmed.generation,
        "workers": confirmed.places,
        "kept": kept,
        "message": confirmed.why,
    }
    whose = {"metadata": {"uid": uid}} if uid else {}
    return msgspec.json.encode({**whose, "status": {"confirmed": said}})
