"""Binds that kube-scheduler has asked for: sent behind the fence, answered to whoever waits.

kube-scheduler writes conditions and events itself, so nothing else leaves from here.
"""

import asyncio
from collections import Counter

from bayplan.core.model import events as on
from bayplan.core.model.effects import Bind, Evict, Park, Preempt, Refuse
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import Client
from bayplan.kube.transport import BeforeSend
from bayplan.scheduler.assignments import annotations_of
from bayplan.scheduler.binding import Binder, Outcome
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.loop import Output

STOPPING = "the extender is stopping"


class Asked:
    """One bind, and who waits for it."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class Binds:
    """The output of the loop."""

    def __init__(
        self, client: Client, inbox: Inbox, fence: Fence, vendors: Vendors, timeout_s: float
    ) -> None:
        self._binder, self._clock = Binder(client, timeout_s), client.clock
        self._inbox, self._fence, self._vendors = inbox, fence, vendors
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = True
        self.asked: dict[str, Asked] = {}  # by uid: under way
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    @property
    def queued(self) -> dict[str, int]:
        return {"bind": len(self._tasks)}

    def bind(self, effect: Bind) -> None:
        placement = effect.placement
        asked = Asked(placement.node)
        self.asked[placement.pod.uid] = asked
        task = asyncio.create_task(self._bind(effect, asked, self._fence.of_now()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bind(self, effect: Bind, asked: Asked, check: BeforeSend) -> None:
        placement = effect.placement
        try:
            if self._accepting:
                noted = annotations_of(placement, self._vendors, self._clock.wall())
                outcome = await self._binder.bind(placement, noted, check)
            else:
                outcome = Outcome(False, STOPPING)
        except Exception as error:  # whatever it is, the devices must not be lost
            outcome = Outcome(False, str(error) or type(error).__name__, is_ours=True)
        uid = placement.pod.uid
        del self.asked[uid]
        (self.done if outcome.bound else self.failed)["bind"] += 1
        self._inbox.add(on.BindDone(uid) if outcome.bound else on.BindFailed(uid, outcome.why))
        asked.outcome.set_result(outcome)

    async def close(self, binds_s: float, rest_s: float) -> None:
        """Every bind that was sent is finished."""
        self._accepting = False
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=binds_s)
            self.dropped["bind"] += len(late)

    async def run(self) -> None:
        """Until cancelled; binds are tasks of their own."""
        await asyncio.Event().wait()

    def refuse(self, effect: Refuse) -> None:
        """Whoever asked is told by the answer."""

    def preempt(self, effect: Preempt) -> None:
        """kube-scheduler deletes for its pods."""

    def evict(self, effect: Evict) -> None:
        """Nothing is for the best here."""

    def park(self, effect: Park) -> None:
        """Nobody waits here, so nobody is parked."""

    def forget(self, uid: str) -> None:
        """Nothing is kept of a pod that is gone."""

    def abandon(self, why: str) -> None:
        """The fence stops what was not sent."""

    def tick(self, now: float) -> None:
        """Nothing is put off."""

    def next_time(self) -> float | None:
        return None


_: type[Output] = Binds
