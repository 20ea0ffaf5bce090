"""The running scheduler: one thread that hears, decides and never waits for the API.

    watches ─▶ inbox ─▶ engine ─▶ effects ─▶ writer
                 ▲                              │
                 └────────── outcomes ──────────┘

A replica that does not lead hears everything and decides nothing, so that it can take over at once.
"""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.clock import Clock
from bayplan.kube.transport import ApiError, TransportError
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.watches import Watches

log = logging.getLogger("bayplan")

EVENTS_PER_ROUND = 1024
TRIES_PER_ROUND = 64  # pods; some milliseconds, so that binds are sent meanwhile
LONGEST_WAIT_S = 1.0  # the loop shows that it is alive
GATHER_S = 0.01  # for events to come together, where no bind is sent later for it
BACKED_UP = 64  # binds that wait to be sent: as many as the writer sends at a time
GC_THRESHOLDS = (100_000, 20, 100)


class Recorder(Protocol):
    """Hears every event with what the engine made of it."""

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None: ...
    def flush(self) -> None: ...


class Output(Protocol):
    """Carries effects out, and answers through the inbox a Bind, and a Preempt that fails."""

    done: Counter[str]
    failed: Counter[str]
    dropped: Counter[str]  # not written when we stopped

    @property
    def queued(self) -> dict[str, int]: ...

    def bind(self, effect: do.Bind) -> None: ...
    def refuse(self, effect: do.Refuse) -> None: ...
    def preempt(self, effect: do.Preempt) -> None: ...
    def evict(self, effect: do.Evict) -> None: ...
    def dismantle(self, effect: do.Dismantle) -> None: ...
    def confirm(self, effect: do.Confirm) -> None: ...
    def park(self, effect: do.Park) -> None: ...
    def forget(self, uid: str) -> None: ...
    def abandon(self, why: str) -> None: ...
    def tick(self, now: float) -> None: ...
    def next_time(self) -> float | None: ...
    async def run(self) -> None: ...
    async def close(self, binds_s: float, rest_s: float) -> None: ...


class Parts(Struct):
    """What the loop holds together."""

    engine: Engine
    inbox: Inbox
    watches: Watches
    writer: Output
    fence: Fence
    clock: Clock
    recorders: list[Recorder]


class Loop:
    def __init__(self, parts: Parts, *, leads: bool) -> None:
        self.engine, self.inbox = parts.engine, parts.inbox
        self.watches, self.writer = parts.watches, parts.writer
        self._fence, self._clock, self.recorders = parts.fence, parts.clock, parts.recorders
        self.leads = leads
        self._must_read = False  # pods and promises, once, before we decide as a new leader
        self._turns = 0  # how often we were told to lead
        self._stopping = False
        self.ticked_at = self._clock.time()
        self.is_ready = False
        self.tries = TRIES_PER_ROUND
        self.is_asked = False  # for every decision, by somebody who hears the inbox first
        self.turned: Callable[[bool], None] = lambda leads: None  # told who leads from now on
        self.cycled: Callable[[float], None] = lambda seconds: None  # told how long rounds take

    # ---- from outside; on the loop's own thread

    def lead(self) -> None:
        """This replica holds the lease."""
        self._must_read, self._turns = True, self._turns + 1
        self.inbox.wake()

    def step_down(self) -> None:
        """The lease is lost: nothing is decided any more, and binds not sent are forgotten."""
        self.leads = self._must_read = False
        self.writer.abandon("the lease was lost")
        self.turned(False)

    def stop(self) -> None:
        self._stopping = True
        self.inbox.wake()

    # ---- the loop

    async def run(self) -> None:
        """Until `stop`."""
        await self._sync()
        while not self._stopping:
            began = self._clock.time()
            self.hear()
            if self._must_read:
                await self._read_now()
                continue
            busy = self._decide() if self.leads and self._fence.is_open else False
            for recorder in self.recorders:
                recorder.flush()
            self.ticked_at = self._clock.time()
            if busy or self.inbox:
                await asyncio.sleep(0)  # the writer's turn
                if busy:
                    self.cycled(self._clock.time() - began)
            if self._stopping or self._must_read:
                continue
            if self.is_asked or self._is_backed_up:
                await self.inbox.wait(self._pause())
                await self._clock.sleep(GATHER_S)
            elif not busy and not self.inbox:
                await self.inbox.wait(self._pause())

    async def _sync(self) -> None:
        gc.collect()  # now, when there is little: what is listed leaves nothing to collect
        gc.set_threshold(*GC_THRESHOLDS)
        while not self.watches.synced and not self._stopping:
            self.hear()
            self.ticked_at = self._clock.time()
            await self.inbox.wait(LONGEST_WAIT_S)
        while self.inbox and not self._stopping:
            self.hear()
            self.ticked_at = self._clock.time()
            await asyncio.sleep(0)
        gc.collect(0)
        gc.freeze()  # what was listed stays: the collector need not walk it again and again
        self.is_ready = True
        if self.leads:
            self.turned(True)
        cluster = self.engine.cluster
        log.info("ready: %d nodes, %d pods", cluster.node_count, len(self.watches.pods.known))

    async def _read_now(self) -> None:
        """A new leader reads pods and promises once, as they are now: no watch may be behind the
        last bind or word of the leader before. The watches go on meanwhile; what they bring late is
        older, and does not undo a bind, nor a grant. A read that began under an earlier lease does
        not count: another may have led and bound since."""
        turn = self._turns
        reading = asyncio.create_task(self.watches.read_now())
        while not reading.done() and not self._stopping:
            self.ticked_at = self._clock.time()
            await asyncio.wait([reading], timeout=LONGEST_WAIT_S)
        if self._stopping:
            reading.cancel()
            return
        try:
            await reading
        except (ApiError, TransportError) as error:
            log.warning("pods and promises could not be read before leading: %s", error)
            await self._clock.sleep(LONGEST_WAIT_S)
            return
        while self.inbox:
            self.hear()
        if self._must_read and turn == self._turns:  # the leader still, and since before the read
            self._must_read, self.leads = False, True
            self.turned(True)
            log.info("leading")

    def hear(self) -> None:
        """What has arrived becomes known."""
        now = self._clock.time()
        for event in self.inbox.take(EVENTS_PER_ROUND):
            self.step(event, now)
            match event:  # looking for an attribute takes its time
                case on.PodGone():
                    self.writer.forget(event.uid)
                case on.BindDone():
                    if self._has(event.uid):
                        self.watches.pods.bound(event.uid)

    def _has(self, uid: str) -> bool:
        """Whether the pod is on a node, as far as we know; its end may have been heard first."""
        cluster = self.engine.cluster
        return uid in cluster.pods or cluster.orphan(uid) is not None

    def _decide(self) -> bool:
        """One round; whether there may be more to decide right away."""
        now = self._clock.time()
        self.writer.tick(now)
        if self.engine.is_idle(now):
            return False
        return bool(self.step(on.Tick(self.tries, self._clock.wall()), now))

    def step(self, event: on.Event, now: float) -> list[do.Effect]:
        """Tells the engine, and carries out what it wants."""
        effects = self.engine.handle(event, now)
        for recorder in self.recorders:
            recorder.step(event, now, effects)
        for effect in effects:
            self._carry_out(effect)
        return effects

    def _carry_out(self, effect: do.Effect) -> None:
        match effect:
            case do.Bind():
                self.writer.bind(effect)
            case do.Refuse():
                self.writer.refuse(effect)
            case do.Preempt():
                self.writer.preempt(effect)
            case do.Evict() if self.leads:  # a standby may know too little
                self.writer.evict(effect)
            case do.Dismantle() if self.leads:
                self.writer.dismantle(effect)
            case do.Confirm() if self.leads:
                self.writer.confirm(effect)
            case do.Park(pod, error):
                log.error("pod %s: a plugin failed with %s\n%s", pod.key, error, effect.story)
                self.writer.park(effect)
            case do.Report(text):
                log.warning("%s", text)

    @property
    def _is_backed_up(self) -> bool:
        """Whether what is decided next would only wait behind binds that wait already."""
        return self.engine.is_full and self.writer.queued.get("bind", 0) >= BACKED_UP

    def _pause(self) -> float:
        """How long nothing can happen by itself."""
        if self.engine.is_full or not self.leads or not self._fence.is_open:
            return LONGEST_WAIT_S
        now = self._clock.time()
        times = (self.engine.next_time(now), self.writer.next_time())
        soonest = min((at for at in times if at is not None), default=now + LONGEST_WAIT_S)
        return min(max(soonest - now, 0.0), LONGEST_WAIT_S)
