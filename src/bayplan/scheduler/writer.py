"""What leaves the scheduler: binds first, then conditions, then events.

A fixed set of workers takes whatever is most urgent. A bind's outcome goes back to the inbox as an
event. A pod has one slot for its condition and one per reason for its events: what is newer takes
the place of what was not written yet, so a slow API server makes us say less, not later and later.
"""

import asyncio
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush

import msgspec
from msgspec import Struct

from bayplan.core.model import events as on
from bayplan.core.model.effects import Bind, Park, Placement, Refuse
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
from bayplan.scheduler.feed import Condition
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox

WORKERS = 64
CONDITION_EVERY_S = 30.0  # per pod; the first is written at once
CONFLICT_S = 1.0  # until a condition is written again whose pod had changed
MOST_EVENTS = 50_000  # that wait to be written; beyond, the oldest are dropped, and counted
_AGAIN = Retry(tries=3, post=True)  # an event has a name of its own, so a second is no second
STOPPING = "the scheduler is stopping"
OK = 200
UNSCHEDULABLE, SCHEDULER_ERROR = "Unschedulable", "SchedulerError"
Prepare = Callable[[Placement], Awaitable[None]]  # what a pod needs before it is bound


class Said(Struct, frozen=True, gc=False):
    """Something to write about a pod."""

    pod: Pod
    reason: str
    text: str
    version: str = ""  # the pod's resourceVersion, for an event


class Settings(Struct, frozen=True):
    workers: int = WORKERS
    bind_timeout_s: float = 5.0
    prepare: Prepare | None = None
    vendors: Vendors = msgspec.field(default_factory=Vendors)


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
        self._binds: deque[tuple[Bind, BeforeSend]] = deque()  # with the fence of their term
        self._preparing: dict[asyncio.Task[None], Bind] = {}
        self._conditions: OrderedDict[str, Said] = OrderedDict()  # by uid
        self._later: dict[str, Said] = {}  # by uid: too soon after the one before
        self._due: list[tuple[float, str]] = []  # heap: when, uid of `_later`
        self._told_at: dict[str, float] = {}  # by uid: when a condition was last written
        self._events: OrderedDict[tuple[str, str], Said] = OrderedDict()  # by uid, reason
        self._idle: deque[asyncio.Future[None]] = deque()
        self.busy: Counter[str] = Counter()  # requests on their way, by kind
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()  # not written when we stopped

    # ---- what to write

    def bind(self, effect: Bind) -> None:
        if not self._accepting:
            self._answer(effect, Outcome(False, STOPPING))
        elif self._prepare is not None and effect.placement.pod.row.claims:
            work = self._prepare_and_bind(self._prepare, effect, self._fence.of_now())
            task = asyncio.create_task(work)
            self._preparing[task] = effect
            task.add_done_callback(lambda done: self._preparing.pop(done, None))
        else:
            self._queue(effect, self._fence.of_now())

    def _queue(self, effect: Bind, check: BeforeSend) -> None:
        self._binds.append((effect, check))
        self._call()

    async def _prepare_and_bind(self, prepare: Prepare, effect: Bind, check: BeforeSend) -> None:
        """Volumes can take minutes, so this is no worker's task."""
        try:
            await prepare(effect.placement)
        except Exception as error:
            self._answer(effect, Outcome(False, str(error), is_ours=True))
        else:
            self._queue(effect, check)

    def refuse(self, effect: Refuse) -> None:
        self._tell(Said(effect.pod, UNSCHEDULABLE, effect.refusal.message))

    def park(self, effect: Park) -> None:
        self._tell(Said(effect.pod, SCHEDULER_ERROR, effect.story.strip().splitlines()[-1]))

    def note(self, pod: Pod, reason: str, text: str, version: str = "") -> None:
        """An event about the pod."""
        self._events[pod.uid, reason] = Said(pod, reason, text, version)
        if len(self._events) > MOST_EVENTS:
            self._events.popitem(last=False)
            self.dropped["event"] += 1
        self._call()

    def forget(self, uid: str) -> None:
        """The pod is bound or gone: nothing more is said of its waiting."""
        self._conditions.pop(uid, None)
        self._later.pop(uid, None)
        self._told_at.pop(uid, None)
        self._events.pop((uid, requests.FAILED), None)

    def _tell(self, said: Said) -> None:
        uid = said.pod.uid
        last = self._told_at.get(uid)
        waits = uid in self._conditions
        if last is None or waits or self._clock.time() - last >= CONDITION_EVERY_S:
            self._later.pop(uid, None)
            self._conditions[uid] = said
            self._call()
            return
        self._later.pop(uid, None)
        self._put_off(said, CONDITION_EVERY_S)

    def _put_off(self, said: Said, pause_s: float) -> None:
        """Until the pause since the last one is over, unless something newer waits for that."""
        uid = said.pod.uid
        if uid not in self._later and uid not in self._conditions and uid in self._told_at:
            self._later[uid] = said
            heappush(self._due, (self._told_at[uid] + pause_s, uid))

    def tick(self, now: float) -> None:
        """Conditions whose pause is over get their turn."""
        while self._due and self._due[0][0] <= now:
            _, uid = heappop(self._due)
            said = self._later.pop(uid, None)
            if said is not None:
                self._conditions[uid] = said
                self._call()

    def next_time(self) -> float | None:
        return self._due[0][0] if self._due else None

    @property
    def queued(self) -> dict[str, int]:
        return {
            "bind": len(self._binds),
            "condition": len(self._conditions) + len(self._later),
            "event": len(self._events),
        }

    # ---- stopping

    async def close(self, binds_s: float, rest_s: float) -> None:
        """Finishes or forgets every bind, then says what there is time to say."""
        self._accepting = False
        await self._until(lambda: not self._binds and not self.busy["bind"], binds_s)
        self._sends_binds = False
        self.abandon(STOPPING)
        self._conditions.update(self._later)
        self._later.clear()
        for _ in self._conditions:
            self._call()
        await self._until(
            lambda: not self._conditions and not self._events and not any(self.busy.values()),
            rest_s,
        )
        self.dropped["condition"] += len(self._conditions)
        self.dropped["event"] += len(self._events)

    def abandon(self, why: str) -> None:
        """Binds that were not sent are forgotten."""
        while self._binds:
            self._answer(self._binds.popleft()[0], Outcome(False, why))
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
            for _ in range(self._workers):
                group.create_task(self._work())

    def _call(self) -> None:
        """There is one more thing to do: wakes a worker that has nothing."""
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return

    async def _work(self) -> None:
        while True:
            if self._binds:
                await self._bind(*self._binds.popleft())
            elif self._conditions:
                await self._write_condition(self._conditions.popitem(last=False)[1])
            elif self._events:
                await self._write_event(self._events.popitem(last=False)[1])
            else:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(future)
                await future

    async def _bind(self, effect: Bind, check: BeforeSend) -> None:
        self.busy["bind"] += 1

        def check_all() -> None:
            if not self._sends_binds:
                raise Fenced(STOPPING)
            check()

        try:
            noted = annotations_of(effect.placement, self._vendors, self._clock.wall())
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
            self.note(pod, requests.SCHEDULED, text)
            return
        self.failed["bind"] += 1
        self._inbox.add(on.BindFailed(pod.uid, outcome.why))
        if outcome.is_ours:
            self._tell(Said(pod, SCHEDULER_ERROR, f"binding to {node} failed: {outcome.why}"))

    async def _write_condition(self, said: Said) -> None:
        pod = said.pod
        before = self._condition_of(pod.uid)
        if before is None:
            return
        self._told_at[pod.uid] = self._clock.time()
        self.note(pod, requests.FAILED, said.text, before.resource_version)
        if (before.reason, before.message) != (said.reason, said.text):
            body = requests.condition(pod.uid, said.reason, said.text, before, self._clock.wall())
            path = PODS.path(pod.namespace, pod.name, "status")
            status = await self._write("condition", "PATCH", path, body, STRATEGIC_PATCH)
            if status != OK:  # an autoscaler looks for it
                self._put_off(said, CONFLICT_S if status == 409 else CONDITION_EVERY_S)

    async def _write_event(self, said: Said) -> None:
        body = requests.event(
            said.pod, said.reason, said.text, said.version, self._instance, self._clock.wall()
        )
        await self._write("event", "POST", EVENTS.path(said.pod.namespace), body)

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
