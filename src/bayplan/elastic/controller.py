"""The controller: watches in, plans, writes out. One loop; time comes from the client's clock.

    watches ──▶ cluster ──snapshot──▶ plan ──steps──▶ writer
                   ▲                                    │
                   └──────── what the API answered ◀────┘

Only whoever holds the lease plans and writes. What fails is planned again after a pause.
"""

import asyncio
import logging
import socket
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn

from msgspec import Struct

from bayplan.elastic.cluster import Cluster
from bayplan.elastic.memory import Memory
from bayplan.elastic.planner import Settings, plan
from bayplan.elastic.seen import MakeLauncher, MakeWorkers, Scale, Snapshot, Step, Write
from bayplan.elastic.telling import Events, told
from bayplan.elastic.writer import Stale, Unowned, Writer
from bayplan.kube.client import Client
from bayplan.kube.elastic import Job
from bayplan.kube.lease import NEVER, Lease
from bayplan.kube.reflector import Reflector
from bayplan.kube.transport import ApiError, Fenced, TransportError

log = logging.getLogger("bayplan")

MOMENT_S = 0.05  # what happens within it is looked at together
AGAIN_S = 1.0  # after a write that was refused because something had changed
NEEDED = ("node", "pod")  # without them nothing is planned: there would be no room, and no workers
LOOK_S = 30.0  # at the latest, whatever happens
FIRST_REST_S, LAST_REST_S = 1.0, 60.0  # of a job whose writes fail


class Rest(Struct, frozen=True):
    """Of a job whose write was refused, or failed."""

    until: float = NEVER
    delay_s: float = 0.0
    version: str = ""  # that was out of date: the rest ends when another is seen

    def holds(self, job: Job, now: float) -> bool:
        return now < self.until and self.version in ("", job.version)


class Controller:
    """`lease`: None where nobody else runs."""

    def __init__(self, client: Client, settings: Settings, lease: Lease | None = None) -> None:
        self._client, self._clock, self.settings = client, client.clock, settings
        self._lease = lease
        self.cluster = Cluster()
        self.memory = Memory()
        self.writer = Writer(client, self.cluster, self._fence)
        self._events = Events(client, self._fence, socket.gethostname())
        self.troubles: Counter[str] = Counter()
        self.looks = 0
        self.last: Snapshot | None = None  # as it was last looked at
        self._missing: set[str] = set()  # kinds that the server does not have
        self._rests: dict[str, Rest] = {}  # by job
        self._leads = lease is None

    @property
    def is_ready(self) -> bool:
        return not self.unsynced()

    @property
    def leads(self) -> bool:
        if self._lease is None:
            return True
        return self._leads and self._clock.time() < self._lease.deadline

    def unsynced(self) -> list[str]:
        return [
            table.what
            for _, table in self.cluster.watched()
            if not table.is_synced and table.what not in self._missing
        ]

    async def run(self) -> NoReturn:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for watched, table in self.cluster.watched():
                    reflector = Reflector(
                        self._client, watched, table, partial(self._tell, table.what)
                    )
                    group.create_task(reflector.run(), name=f"watch {table.what}")
                if self._lease is not None:
                    group.create_task(self._elect(self._lease), name="lease")
                group.create_task(self._events.run(), name="events")
                group.create_task(self._loop(), name="elastic jobs")
        finally:
            if self._lease is not None and self._lease.renewed_at != NEVER:
                await self._lease.release()
        raise AssertionError("tasks without an end have ended")

    async def _elect(self, lease: Lease) -> NoReturn:
        while True:
            await lease.acquire(lambda: self.is_ready)
            log.info("holding the lease")
            self.memory = Memory()  # somebody else may have tried in the meantime
            self._leads = True
            self.cluster.changed.set()
            await lease.keep()
            self._leads = False
            log.warning("the lease is lost")

    async def _loop(self) -> NoReturn:
        while True:
            with suppress(TimeoutError):
                async with self._clock.timeout(self._pause_s()):
                    await self.cluster.changed.wait()
            await self._clock.sleep(MOMENT_S)
            self.cluster.changed.clear()
            if self.leads and self.is_ready:
                await self.look()

    def _pause_s(self) -> float:
        due = min([self.memory.due, *(rest.until for rest in self._rests.values())])
        return min(max(due - self._clock.time(), 0.0), LOOK_S)

    async def look(self) -> int:
        """Plans once and carries it out; how many steps were done."""
        self.looks += 1
        steps = self._plan()
        assert self.last is not None
        done = 0
        for step in steps:
            if not self._rests.get(step.job.key, Rest()).holds(step.job, self._clock.time()):
                done += await self._try(step)
        keys = {seen.job.key for seen in self.last.jobs}
        self._rests = {
            key: rest
            for key, rest in self._rests.items()
            if key in keys and rest.until > self._clock.time()
        }
        return done

    def _plan(self) -> list[Step]:
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.last = self.cluster.snapshot(at)
        return plan(self.last, self.memory, self.settings, self._clock.time())

    async def foresee(self) -> list[str]:
        """What it would do now, in words, from one read of everything. Nothing is written."""
        for watched, table in self.cluster.watched():
            tell = partial(self._tell, table.what)
            try:
                await Reflector(self._client, watched, table, tell).read()
            except ApiError as error:
                if error.status not in (403, 404) or table.what in NEEDED:
                    raise
                tell(error)
        return [f"{step.job.key} {told(step).words}" for step in self._plan()]

    async def _try(self, step: Step) -> bool:
        key = step.job.key
        try:
            await self.writer.carry_out(step)
            self._rests.pop(key, None)
            if not isinstance(step, Write):
                self.memory.refused.pop(key, None)
            about = told(step)
            log.log(about.level, "%s %s", key, about.words)
            self._events.say(step.job, about)
            return True
        except Fenced:
            self._leads = self._lease is None
        except Stale:
            self._rest(step.job, AGAIN_S)
        except (ApiError, TransportError) as error:
            conflict = isinstance(error, ApiError) and _is_passing(step, error)
            self._rest(step.job, AGAIN_S if conflict else None)
            if not conflict:
                if isinstance(error, ApiError) and not isinstance(step, Write):
                    self.memory.refused[key] = f"{type(step).__name__}: {error}"[:500]
                self.troubles[type(error).__name__] += 1
                log.warning("%s %s: not done: %s", key, told(step).words, error)
        return False

    def _rest(self, job: Job, seconds: float | None) -> None:
        before = self._rests.get(job.key, Rest(delay_s=FIRST_REST_S / 2)).delay_s
        chosen = min(before * 2, LAST_REST_S) if seconds is None else seconds
        version = "" if seconds is None else job.version
        self._rests[job.key] = Rest(self._clock.time() + chosen, chosen, version)

    def _fence(self) -> None:
        if not self.leads:
            raise Fenced("the lease is not ours")

    def _tell(self, what: str, error: Exception) -> None:
        """A kind that the server does not have, or does not show us, is none; it is asked for
        again now and then."""
        if isinstance(error, ApiError) and error.status in (403, 404) and what not in NEEDED:
            if what not in self._missing:
                log.warning("going without: %s: %s", what, error)
            self._missing.add(what)
            self.cluster.changed.set()
            return
        self.troubles["watch"] += 1
        log.warning("the watch of each %s broke off and is begun again: %s", what, error)


def _is_passing(step: Step, error: ApiError) -> bool:
    """Whether the answer says only that something has changed. What cannot be made because its
    name is taken, or its kind is not there, is for the job's owner to know."""
    if isinstance(error, Unowned) or isinstance(step, MakeWorkers | MakeLauncher):
        return False
    return error.status == 409 if isinstance(step, Scale) else error.status in (404, 409)
