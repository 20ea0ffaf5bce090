"""What leaves the scheduler: binds first, then deletions, conditions, evictions, and events.

A fixed set of workers takes whatever is most urgent. A bind's outcome goes back to the inbox as an
event. A pod has one slot for its condition and one per reason for its events: what is newer takes
the place of what was not written yet, so a slow API server makes us say less, not later and later.
"""

import asyncio
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from bayplan.core.engine.advice import hint
from bayplan.core.model import events as on
from bayplan.core.model.effects import (
    Bind,
    Confirm,
    Dismantle,
    Evict,
    Park,
    Preempt,
    Refuse,
)
from bayplan.core.model.pods import Pod
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import EVENTS, PODS, Client, Retry
from bayplan.kube.transport import (
    STRATEGIC_PATCH,
    ApiError,
    BeforeSend,
    Fenced,
    TransportError,
)
from bayplan.scheduler import requests
from bayplan.scheduler.assignments import annotations_of
from bayplan.scheduler.binding import Binder, Outcome
from bayplan.scheduler.confirming import Confirming
from bayplan.scheduler.feed import Condition
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.pacing import CONDITION_EVERY_S, Conditions
from bayplan.scheduler.preparing import Preparing
from bayplan.scheduler.removing import Counts, Desk, Removals
from bayplan.scheduler.requests import Note, Said

WORKERS = 64
HOLD_S = 0.005  # while more waits than the workers can send
FEW = 4  # answers in that time; to gather so few saves nothing
SLOW_S = 0.05  # until it is tried again then
CONFLICT_S = 1.0  # until a condition is written again whose pod had changed
MOST_EVENTS = 50_000  # that wait to be written; beyond, the oldest are dropped, and counted
_AGAIN = Retry(tries=3, post=True)  # an event has a name of its own, so a second is no second
STOPPING = "the scheduler is stopping"
OK = 200
UNSCHEDULABLE, SCHEDULER_ERROR = "Unschedulable", "SchedulerError"


class Settings(Struct, frozen=True):
    workers: int = WORKERS
    bind_timeout_s: float = 5.0
    prepare: Preparing | None = None
    vendors: Vendors = msgspec.field(default_factory=Vendors)


class _Ready(Struct, frozen=True):
    """A bind that can be sent, with the fence of its term and annotations of its own."""

    effect: Bind
    check: BeforeSend
    notes: dict[str, str] = {}


class Writer:
    """`condition_of` tells what the API holds now; None for a pod that is bound or gone."""

    def __init__(
        self,
        client: Client,
        inbox: Inbox,
        fence: Fence,
        condition_of: Callable[[str], Condition | None],
        settings: Settings,
    ) -> None:
        self._client, self._clock, self._inbox, self._fence = client, client.clock, inbox, fence
        self._condition_of, self._prepare = condition_of, settings.prepare
        self._vendors = settings.vendors
        self._binder = Binder(client, settings.bind_timeout_s)
        self._instance = socket.gethostname()
        self._workers = settings.workers
        self._accepting = self._sends_binds = True
        self._binds: deque[_Ready] = deque()
        self._preparing: dict[asyncio.Task[None], Bind] = {}
        self._conditions = Conditions(client.clock, self._call)
        self._events: OrderedDict[tuple[str, str], Note] = OrderedDict()  # by uid, reason
        self._idle: deque[asyncio.Future[None]] = deque()
        self._crowd = asyncio.Event()  # there was one
        self._answers = 0  # to anything
        self.busy: Counter[str] = Counter()  # requests on their way, by kind
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()  # not written when we stopped
        counts = Counts(self.busy, self.done, self.failed, self.dropped)
        desk = Desk(client, inbox, fence, counts, self._call, self.say)
        self._removals = Removals(desk, settings.bind_timeout_s)
        self._confirming = Confirming(desk)

    # ---- what to write

    def bind(self, effect: Bind) -> None:
        if not self._accepting:
            self._answer(effect, Outcome(False, STOPPING))
        elif self._prepare is not None and self._prepare.concerns(effect.placement):
            work = self._prepare_and_bind(self._prepare, effect, self._fence.of_now())
            task = asyncio.create_task(work)
            self._preparing[task] = effect
            task.add_done_callback(lambda done: self._preparing.pop(done, None))
        else:
            self._queue(_Ready(effect, self._fence.of_now()))

    def _queue(self, ready: "_Ready") -> None:
        self._binds.append(ready)
        self._call()

    async def _prepare_and_bind(self, prepare: Preparing, effect: Bind, check: BeforeSend) -> None:
        """Volumes can take minutes, so this is no worker's task."""
        ready, outcome = None, Outcome(False)
        try:
            found = await prepare.prepare(effect.placement, check)
            effect = msgspec.structs.replace(effect, placement=found.placement)
            ready = _Ready(effect, check, found.notes)
        except Fenced as fenced:
            outcome = Outcome(False, str(fenced))
        except Exception as error:
            outcome = Outcome(False, str(error), is_ours=True)
        task = asyncio.current_task()
        if task is not None:
            self._preparing.pop(task, None)  # from here on it is answered as others are
        if ready is not None:
            self._queue(ready)
        else:
            self._answer(effect, outcome)

    def refuse(self, effect: Refuse) -> None:
        text, words = effect.refusal.sentence, "" if effect.nominated else hint(effect.refusal)
        self._conditions.tell(Said(effect.pod, UNSCHEDULABLE, text, effect.nominated, words))

    def preempt(self, effect: Preempt) -> None:
        self._removals.preempt(effect)

    def evict(self, effect: Evict) -> None:
        self._removals.evict(effect)

    def dismantle(self, effect: Dismantle) -> None:
        if self._prepare is not None:
            self._prepare.dismantle(effect)

    def confirm(self, effect: Confirm) -> None:
        self._confirming.tell(effect)

    def park(self, effect: Park) -> None:
        self._conditions.tell(
            Said(effect.pod, SCHEDULER_ERROR, effect.story.strip().splitlines()[-1])
        )

    def note(self, pod: Pod, reason: str, text: str, version: str = "") -> None:
        """An event about the pod."""
        self.say(Note(pod, reason, text, version))

    def say(self, note: Note) -> None:
        self._events[note.pod.uid, note.reason] = note
        if len(self._events) > MOST_EVENTS:
            self._events.popitem(last=False)
            self.dropped["event"] += 1
        self._call()

    def forget(self, uid: str) -> None:
        """The pod is bound or gone: nothing more is said of its waiting."""
        self._conditions.forget(uid)
        self._removals.forget(uid)
        self._events.pop((uid, requests.FAILED), None)

    def tick(self, now: float) -> None:
        """What was put off long enough gets its turn."""
        self._removals.tick(now)
        self._confirming.tick(now)
        self._conditions.tick(now)

    def next_time(self) -> float | None:
        parts = (self._conditions, self._removals, self._confirming)
        times = (part.next_time() for part in parts)
        return min((at for at in times if at is not None), default=None)

    @property
    def queued(self) -> dict[str, int]:
        return {
            "bind": len(self._binds),
            "condition": len(self._conditions),
            "event": len(self._events),
            "confirmation": len(self._confirming.ready),
            **self._removals.queued,
        }

    # ---- stopping

    async def close(self, binds_s: float, rest_s: float) -> None:
        """Finishes or forgets every bind and deletion, then says what there is time to say."""
        self._accepting = False
        self._removals.stop_accepting()
        await self._until(
            lambda: not self._binds and not self.busy["bind"] and self._removals.are_deleted,
            binds_s,
        )
        self._sends_binds = False
        self._removals.stop_sending()
        self.abandon(STOPPING)
        self._conditions.hurry()
        await self._until(
            lambda: not self._conditions.ready and not self._events and not any(self.busy.values()),
            rest_s,
        )
        self.dropped["condition"] += len(self._conditions.ready)
        self.dropped["event"] += len(self._events)

    def abandon(self, why: str) -> None:
        """Binds and deletions that were not sent are forgotten."""
        self._removals.abandon(why)
        self._confirming.abandon()
        while self._binds:
            self._answer(self._binds.popleft().effect, Outcome(False, why))
        for task, effect in list(self._preparing.items()):
            task.cancel()
            self._answer(effect, Outcome(False, why))

    async def _until(self, is_done: Callable[[], bool], seconds: float) -> None:
        deadline = self._clock.time() + seconds
        while not is_done() and self._clock.time() < deadline:
            await self._clock.sleep(0.02)

    # ---- the workers

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._gather())
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _gather(self) -> None:
        """While there is a crowd, answers are dealt with together and not each when it comes. The
        workers would only wait for more of them; an eighth of the CPU time is saved."""
        while True:
            await self._crowd.wait()
            while self._is_crowded:
                before = self._answers
                await self._clock.hold(HOLD_S)
                if self._answers - before < FEW:  # the server is slow
                    await self._clock.sleep(SLOW_S)
            self._crowd.clear()

    @property
    def _is_crowded(self) -> bool:
        """Whether more waits than can be sent next."""
        return len(self._binds) + len(self._events) > self._workers

    def _call(self) -> None:
        """There is one more thing to do: wakes a worker that has nothing."""
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return
        if not self._crowd.is_set() and self._is_crowded:
            self._crowd.set()

    async def _work(self) -> None:
        while True:
            self._answers += 1
            if self._binds:
                await self._bind(self._binds.popleft())
            elif self._removals.deletes:
                await self._removals.remove(self._removals.deletes.popleft())
            elif self._confirming.ready:
                await self._confirming.write()
            elif self._conditions.ready:
                await self._write_condition(self._conditions.take())
            elif self._removals.evictions:
                await self._removals.remove(self._removals.evictions.popleft())
            elif self._events:
                await self._write_event(self._events.popitem(last=False)[1])
            else:
                self._events.clear()  # it would keep the room of its best days
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(future)
                await future

    async def _bind(self, ready: "_Ready") -> None:
        effect = ready.effect
        self.busy["bind"] += 1

        def check_all() -> None:
            if not self._sends_binds:
                raise Fenced(STOPPING)
            ready.check()

        try:
            noted = annotations_of(effect.placement, self._vendors, self._clock.wall())
            noted |= ready.notes
            outcome = await self._binder.bind(effect.placement, noted, check_all)
        except Exception as error:  # whatever it is, the pod must not be lost
            outcome = Outcome(False, str(error) or type(error).__name__, is_ours=True)
        finally:
            self.busy["bind"] -= 1
        self._answer(effect, outcome)

    def _answer(self, effect: Bind, outcome: Outcome) -> None:
        pod, node = effect.placement.pod, effect.placement.node
        if outcome.bound:
            self.done["bind"] += 1
            self.forget(pod.uid)
            self._inbox.add(on.BindDone(pod.uid))
            text = f"Successfully assigned {pod.namespace}/{pod.name} to {node}"
            self.say(Note(pod, requests.SCHEDULED, text))
            return
        self.failed["bind"] += 1
        self._inbox.add(on.BindFailed(pod.uid, outcome.why))
        if outcome.is_ours:
            self._conditions.tell(
                Said(pod, SCHEDULER_ERROR, f"binding to {node} failed: {outcome.why}")
            )

    async def _write_condition(self, said: Said) -> None:
        pod = said.pod
        before = self._condition_of(pod.uid)
        if before is None:
            return
        self._conditions.writing(pod.uid)
        self.note(pod, requests.FAILED, said.note, before.resource_version)
        if self._conditions.is_news(said, before):
            body = requests.condition(said, before, self._clock.wall())
            path = PODS.path(pod.namespace, pod.name, "status")
            status = await self._write("condition", "PATCH", path, body, STRATEGIC_PATCH)
            if status != OK:  # an autoscaler looks for it
                pause_s = CONFLICT_S if status == 409 else CONDITION_EVERY_S
                self._conditions.put_off(said, pause_s)
            else:
                self._conditions.written(said)

    async def _write_event(self, note: Note) -> None:
        body = requests.event(note, self._instance, self._clock.wall())
        await self._write("event", "POST", EVENTS.path(note.pod.namespace), body)

    async def _write(
        self, kind: str, method: str, path: str, body: bytes, content: str = "application/json"
    ) -> int:
        """OK, or the status of the answer, 0 without one; what fails here is only words."""
        self.busy[kind] += 1
        try:
            await self._client.request(
                method,
                path,
                body=body,
                content_type=content,
                before_send=self._fence.check,
                retry=_AGAIN,
            )
            self.done[kind] += 1
            return OK
        except (ApiError, TransportError, Fenced) as error:
            self.failed[kind] += 1
            return error.status if isinstance(error, ApiError) else 0
        finally:
            self.busy[kind] -= 1
