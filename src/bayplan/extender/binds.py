"""Binds that kube-scheduler has asked for, and pods that go for others: sent behind the fence. Who
waits for a bind is answered.

kube-scheduler writes conditions and events itself, so nothing else leaves from here but the event
of a pod that was deleted.
"""

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable

from bayplan.core.model import events as on
from bayplan.core.model.effects import Bind, Confirm, Dismantle, Evict, Park, Preempt, Refuse
from bayplan.core.model.vendors import Vendors
from bayplan.extender.preemptor import Preemptor
from bayplan.kube.client import EVENTS, Client, Retry
from bayplan.kube.transport import ApiError, BeforeSend, Fenced, TransportError
from bayplan.scheduler import requests
from bayplan.scheduler.assignments import annotations_of
from bayplan.scheduler.binding import Binder, Outcome
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.loop import Output
from bayplan.scheduler.removing import Counts, Desk, Removals

STOPPING = "the extender is stopping"
WORKERS = 8  # for deletions and events
MOST_EVENTS = 10_000  # that wait to be written; beyond, the oldest are dropped, and counted
_AGAIN = Retry(tries=3, post=True)  # an event has a name of its own, so a second is no second


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
        self._client, self._clock, self._binder = client, client.clock, Binder(client, timeout_s)
        self._inbox, self._fence, self._vendors = inbox, fence, vendors
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = True
        self.asked: dict[str, Asked] = {}  # by uid: under way
        self.busy: Counter[str] = Counter()  # requests on their way that are no binds
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._notes: deque[requests.Note] = deque()
        self._called = asyncio.Event()  # there is something for a worker
        counts = Counts(self.busy, self.done, self.failed, self.dropped)
        desk = Desk(client, inbox, fence, counts, self._called.set, self._note)
        self._removals = Removals(desk, timeout_s)
        self.preemptor: Preemptor | None = None

    @property
    def queued(self) -> dict[str, int]:
        return {"bind": len(self._tasks), "event": len(self._notes), **self._removals.queued}

    def bind(self, effect: Bind) -> None:
        placement = effect.placement
        asked = Asked(placement.node)
        self.asked[placement.pod.uid] = asked
        self._removals.forget(placement.pod.uid)
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

    # ---- pods that go for others

    def preempt(self, effect: Preempt) -> None:
        self._removals.preempt(effect)

    def forget(self, uid: str) -> None:
        """The pod is gone: nobody need go for it."""
        self._removals.forget(uid)

    def abandon(self, why: str) -> None:
        """Deletions that were not sent are forgotten; the fence stops binds."""
        self._removals.abandon(why)

    def tick(self, now: float) -> None:
        self._removals.tick(now)
        if self.preemptor is not None:
            self.preemptor.tick(now)

    def next_time(self) -> float | None:
        times = [self._removals.next_time()]
        if self.preemptor is not None:
            times.append(self.preemptor.next_time())
        return min((at for at in times if at is not None), default=None)

    async def run(self) -> None:
        """Until cancelled; binds are tasks of their own."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"removals {number}")

    async def _work(self) -> None:
        while True:
            if self._removals.deletes:
                await self._removals.remove(self._removals.deletes.popleft())
            elif self._notes:
                await self._tell(self._notes.popleft())
            else:
                self._called.clear()
                await self._called.wait()

    def _note(self, note: requests.Note) -> None:
        self._notes.append(note)
        if len(self._notes) > MOST_EVENTS:
            self._notes.popleft()
            self.dropped["event"] += 1
        self._called.set()

    async def _tell(self, note: requests.Note) -> None:
        """What fails here is only words."""
        self.busy["event"] += 1
        try:
            await self._client.request(
                "POST",
                EVENTS.path(note.pod.namespace),
                body=requests.event(note, socket.gethostname(), self._clock.wall()),
                before_send=self._fence.check,
                retry=_AGAIN,
            )
            self.done["event"] += 1
        except (ApiError, TransportError, Fenced):
            self.failed["event"] += 1
        finally:
            self.busy["event"] -= 1

    # ---- stopping

    async def close(self, binds_s: float, rest_s: float) -> None:
        """Every bind and every deletion that was sent is finished; the others are forgotten."""
        self._accepting = False
        self._removals.stop_accepting()
        self._removals.abandon(STOPPING)
        until = self._clock.time() + binds_s
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=binds_s)
            self.dropped["bind"] += len(late)
        await self._until(lambda: not self.busy["delete"], until)
        self._removals.stop_sending()
        self._removals.abandon(STOPPING)
        until = self._clock.time() + rest_s
        await self._until(lambda: not self._notes and not self.busy["event"], until)
        self.dropped["event"] += len(self._notes)

    async def _until(self, is_done: Callable[[], bool], deadline: float) -> None:
        while not is_done() and self._clock.time() < deadline:
            await self._clock.sleep(0.02)

    # ---- what nobody asks for here

    def refuse(self, effect: Refuse) -> None:
        """Whoever asked is told by the answer."""

    def dismantle(self, effect: Dismantle) -> None:
        """kube-scheduler binds no pod that asks for a partition through us."""

    def confirm(self, effect: Confirm) -> None:
        """Grants are the scheduler's."""

    def evict(self, effect: Evict) -> None:
        """Nothing is for the best here."""

    def park(self, effect: Park) -> None:
        """Nobody waits here, so nobody is parked."""


_: type[Output] = Binds
