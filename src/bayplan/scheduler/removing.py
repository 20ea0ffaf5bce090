"""Pods that have to go: deleted for another pod, or evicted if their budgets allow it.

A victim is first marked as the target of a disruption, which is what a Job's failure policy looks
at, and then deleted, by its uid and with the time to end that it asks for itself. Both go through
the fence of the term in which it was decided, as binds do. Whatever may pass is tried again later,
and no worker waits for that. A deletion that is given up goes back to the inbox; an eviction that
is given up is only told, since nobody needed it.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Literal

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from bayplan.core.model import events as on
from bayplan.core.model.effects import Evict, Preempt
from bayplan.core.model.pods import Pod
from bayplan.kube import wire
from bayplan.kube.client import PASSING, PODS, Client
from bayplan.kube.transport import (
    JSON,
    STRATEGIC_PATCH,
    ApiError,
    BeforeSend,
    Fenced,
    TransportError,
)
from bayplan.scheduler import requests
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox

log = logging.getLogger("bayplan")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
GIVE_UP_S = 60.0  # after the first try of a deletion; its preemptor waits for it
LEFT_ALONE_S = 300.0  # after that it is given up; others are asked meanwhile
STOPPING = "the scheduler is stopping"
NO_NEED = "the pod that it was to make room for is placed or gone"
EVICTION_TRIES = 5
EVICTION_PAUSE_S = 10.0  # as the API server asks for while a budget is being counted
_decode_pod = Decoder(wire.Pod).decode
Kind = Literal["delete", "eviction"]
How = Literal["done", "gone", "later", "refused", "fenced"]


class Counts(Struct):
    """Of requests, by kind."""

    busy: Counter[str]  # on their way
    done: Counter[str]
    failed: Counter[str]
    dropped: Counter[str]  # not written when we stopped


class Desk(Struct):
    """What removals have of the writer."""

    client: Client
    inbox: Inbox
    fence: Fence
    counts: Counts
    call: Callable[[], None]  # there is one more thing to do
    note: Callable[[requests.Note], None]


class Answer(Struct, frozen=True, gc=False):
    how: How
    why: str = ""
    asked_s: float | None = None  # the pause that the server asks for


DONE, GONE = Answer("done"), Answer("gone")


class Removal(Struct, eq=False):
    """A pod on its way out."""

    pod: Pod
    check: BeforeSend  # the fence of its term
    since: float
    preemptor: Pod | None = None  # None: it is evicted
    node: str = ""
    why: str = ""
    is_marked: bool = False  # as the target of a disruption
    tries: int = 0

    @property
    def kind(self) -> Kind:
        return "eviction" if self.preemptor is None else "delete"


class Removals:
    def __init__(self, desk: Desk, timeout_s: float) -> None:
        self._client, self._clock, self._fence = desk.client, desk.client.clock, desk.fence
        self._inbox, self.counts = desk.inbox, desk.counts
        self._call, self._note = desk.call, desk.note
        self._timeout_s = timeout_s
        # the server gives up first: nothing of ours is carried out under another's lease
        self._params = {"timeout": f"{max(1, int(timeout_s) - 1)}s"}
        self._accepting = self._sends = True
        self.deletes: deque[Removal] = deque()
        self.evictions: deque[Removal] = deque()
        self._known: dict[str, Removal] = {}  # by uid: queued, put off or on its way
        self._for: dict[str, list[Removal]] = {}  # by the uid of the preemptor
        self._due: list[tuple[float, int, Removal]] = []  # heap: when, a number
        self._number = 0

    # ---- what is to go

    def preempt(self, effect: Preempt) -> None:
        names = ", ".join(victim.key for victim in effect.victims)
        log.info("pod %s preempts %s on node %s", effect.pod.key, names, effect.node)
        check = self._fence.of_now()
        for victim in effect.victims:
            if not self._accepting:
                self._inbox.add(on.VictimSpared(victim.uid, STOPPING, effect.pod.uid))
                continue
            known = self._known.get(victim.uid)
            if known is None or known.preemptor is None:
                now = self._clock.time()
                removal = Removal(victim, check, now, effect.pod, effect.node)
                self._for.setdefault(effect.pod.uid, []).append(removal)
                self._add(removal)

    def evict(self, effect: Evict) -> None:
        if self._accepting and effect.pod.uid not in self._known:
            log.info("pod %s is to be evicted: %s", effect.pod.key, effect.why)
            now = self._clock.time()
            self._add(Removal(effect.pod, self._fence.of_now(), now, why=effect.why))

    def _add(self, removal: Removal) -> None:
        self._known[removal.pod.uid] = removal
        self._queue(removal)

    def _queue(self, removal: Removal) -> None:
        (self.evictions if removal.preemptor is None else self.deletes).append(removal)
        self._call()

    def forget(self, uid: str) -> None:
        """The pod is bound or gone: nobody need go for it any more."""
        for removal in self._for.pop(uid, ()):
            if self._is_current(removal):
                del self._known[removal.pod.uid]
                self._inbox.add(on.VictimSpared(removal.pod.uid, NO_NEED, uid))

    def tick(self, now: float) -> None:
        """Those whose pause is over get their turn."""
        while self._due and self._due[0][0] <= now:
            self._queue(heappop(self._due)[2])

    def next_time(self) -> float | None:
        return self._due[0][0] if self._due else None

    @property
    def queued(self) -> dict[str, int]:
        put_off = len(self._due)
        return {"delete": len(self.deletes), "eviction": len(self.evictions), "put off": put_off}

    @property
    def are_deleted(self) -> bool:
        """Whether no deletion waits for its turn or for an answer."""
        return not self.deletes and not self.counts.busy["delete"]

    def stop_accepting(self) -> None:
        self._accepting = False

    def stop_sending(self) -> None:
        self._sends = False

    def abandon(self, why: str) -> None:
        """What was not sent is given up."""
        waiting = [*self.deletes, *self.evictions, *(removal for _, _, removal in self._due)]
        self.deletes.clear()
        self.evictions.clear()
        self._due.clear()
        for removal in waiting:
            if removal.preemptor is not None:
                self._spare(removal, why)
            elif self._is_current(removal):
                self.counts.dropped["eviction"] += 1
                self._drop(removal)

    # ---- a worker's turn

    async def remove(self, removal: Removal) -> None:
        if not self._is_current(removal):
            return
        kind, busy = removal.kind, self.counts.busy
        busy[kind] += 1
        removal.tries += 1
        try:
            answer = await (self._evict(removal) if kind == "eviction" else self._delete(removal))
        except Fenced as fenced:
            answer = Answer("fenced", str(fenced))
        except ApiError as error:
            passes = error.status in PASSING
            answer = Answer("later" if passes else "refused", str(error), error.retry_after)
        except TransportError as error:
            answer = Answer("later", str(error))
        except Exception as error:  # whatever it is, the preemptor must not wait for ever
            answer = Answer("refused", str(error) or type(error).__name__)
        finally:
            busy[kind] -= 1
        self._settle(removal, answer)

    async def _delete(self, removal: Removal) -> Answer:
        pod, preemptor = removal.pod, removal.preemptor
        assert preemptor is not None
        if not removal.is_marked:
            body = requests.disrupted(pod, preemptor, self._clock.wall())
            try:
                await self._send(removal, "PATCH", "status", body)
            except ApiError as error:
                if error.status == 404:
                    return GONE
                if error.status in (409, 422):
                    return await self._look(removal, error)
                raise
            removal.is_marked = True
        try:
            await self._send(removal, "DELETE", "", requests.deletion(pod))
        except ApiError as error:
            if error.status == 404:
                return GONE
            if error.status == 409:  # most likely another pod has its name now
                return await self._look(removal, error)
            raise
        return DONE

    async def _evict(self, removal: Removal) -> Answer:
        try:
            await self._send(removal, "POST", "eviction", requests.eviction(removal.pod))
        except ApiError as error:
            if error.status in (404, 409):
                return GONE
            raise
        return DONE

    async def _send(self, removal: Removal, method: str, sub: str, body: bytes) -> None:
        def check() -> None:
            if not self._sends:
                raise Fenced(STOPPING)
            if not self._is_current(removal):
                raise Fenced(NO_NEED)
            removal.check()

        await self._client.request(
            method,
            PODS.path(removal.pod.namespace, removal.pod.name, sub),
            params=self._params,
            body=body,
            content_type=STRATEGIC_PATCH if method == "PATCH" else JSON,
            timeout_s=self._timeout_s,
            before_send=check,
        )

    async def _look(self, removal: Removal, refusal: ApiError) -> Answer:
        """It was refused: perhaps because another pod has the name now."""
        pod = removal.pod
        try:
            body = await self._client.request("GET", PODS.path(pod.namespace, pod.name))
            seen = _decode_pod(body)
        except ApiError as error:
            if error.status == 404:
                return GONE
            raise
        except MsgspecError as error:
            return Answer("later", str(error))
        if seen.metadata is None or seen.metadata.uid != pod.uid:
            return GONE
        return Answer("later" if refusal.status == 409 else "refused", str(refusal))

    # ---- what became of it

    def _settle(self, removal: Removal, answer: Answer) -> None:
        if not self._is_current(removal):  # there is no need any more
            return
        pod, kind = removal.pod, removal.kind
        match answer.how:
            case "later" if self._has_time(removal) and self._sends:
                self._put_off(removal, answer.asked_s)
            case "later" | "refused":
                self._spare(removal, answer.why, LEFT_ALONE_S)
            case "fenced":
                self._spare(removal, answer.why)
            case _:
                self._drop(removal)
                if answer.how == "done":
                    self.counts.done[kind] += 1
                    self._note(requests.removed(pod, removal.preemptor, removal.node, removal.why))

    def _has_time(self, removal: Removal) -> bool:
        if removal.preemptor is None:
            return removal.tries < EVICTION_TRIES
        return self._clock.time() - removal.since < GIVE_UP_S

    def _put_off(self, removal: Removal, asked_s: float | None) -> None:
        own_s = min(FIRST_PAUSE_S * 2 ** (removal.tries - 1), LONGEST_PAUSE_S)
        pause_s = EVICTION_PAUSE_S if removal.preemptor is None else own_s
        pause_s = pause_s * (1 + self._client.rng.random()) if asked_s is None else asked_s
        self._number += 1
        heappush(self._due, (self._clock.time() + pause_s, self._number, removal))

    def _spare(self, removal: Removal, why: str, for_s: float = 0.0) -> None:
        if not self._is_current(removal):
            return
        pod, preemptor = removal.pod, removal.preemptor
        self._drop(removal)
        self.counts.failed[removal.kind] += 1
        if preemptor is None:
            log.warning("pod %s is not evicted: %s", pod.key, why)
            return
        log.warning("pod %s is not deleted for pod %s: %s", pod.key, preemptor.key, why)
        self._inbox.add(on.VictimSpared(pod.uid, why, preemptor.uid, for_s))

    def _drop(self, removal: Removal) -> None:
        del self._known[removal.pod.uid]
        if removal.preemptor is not None:
            others = self._for[removal.preemptor.uid]
            others.remove(removal)
            if not others:
                del self._for[removal.preemptor.uid]

    def _is_current(self, removal: Removal) -> bool:
        return self._known.get(removal.pod.uid) is removal
