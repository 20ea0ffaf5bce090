"""Leading: the election itself, and a thread of its own for what must not wait behind decisions.

That thread has the lease, health and metrics, its own event loop and its own connections. Nobody
renews when the main loop has not ticked for a while: a replica that hangs must not keep the others
from working.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from bayplan.kube.clock import Clock
from bayplan.kube.http import run
from bayplan.kube.lease import NEVER, Lease
from bayplan.web.server import Answer, serving, text

log = logging.getLogger("bayplan")

HUNG_AFTER_S = 5.0
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Watched(Protocol):
    """What is seen of the main loop; plain reads, from any thread."""

    ticked_at: float
    is_ready: bool


class Turns(Struct, frozen=True):
    """Whom to tell."""

    on_lead: Callable[[], None]
    on_lost: Callable[[], None]


class Elector:
    """Asks for the lease, keeps it, and loses it, again and again."""

    def __init__(self, main: Watched, clock: Clock, turns: Turns) -> None:
        self._main, self._clock, self._turns = main, clock, turns
        self._lease: Lease | None = None
        self.term = 0  # how often the lease was lost

    def deadline(self) -> float:
        """Until when we may write."""
        return NEVER if self._lease is None else self._lease.deadline

    def is_alive(self) -> bool:
        return self._clock.time() - self._main.ticked_at < HUNG_AFTER_S

    async def run(self, lease: Lease) -> None:
        """Until cancelled."""
        self._lease = lease
        while True:
            await self._until_alive()
            await lease.acquire(self.is_alive)
            log.info("holding the lease")
            self._turns.on_lead()
            keeping = asyncio.create_task(lease.keep())
            try:
                while not keeping.done():
                    if not self.is_alive():
                        log.error("the main loop hangs: the lease is not renewed any more")
                        break
                    await asyncio.wait([keeping], timeout=1.0)
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            self.term += 1  # before we ask for it again
            log.warning("the lease is lost")
            self._turns.on_lost()

    async def _until_alive(self) -> None:
        """A replica that is not synced, or hangs, does not ask for the lease."""
        while not (self._main.is_ready and self.is_alive()):
            await self._clock.sleep(0.2)


class Duties(Struct, frozen=True):
    """What the thread is for. `lease` is made on its own event loop; None: no leader election."""

    listen: str
    metrics: Callable[[], bytes]
    lease: Callable[[], Awaitable[Lease]] | None


class Sidecar:
    def __init__(self, main: Watched, elector: Elector, duties: Duties) -> None:
        self._main, self._elector, self._duties = main, elector, duties
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease and health", daemon=True)
        self.port = 0

    def start(self) -> None:
        """Returns when it serves, or raises what kept it from serving."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Gives up the lease, so that a standby need not wait for it to run out."""
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            run(self._serve())
        except BaseException as error:
            self._failure = error
            log.error("the thread for lease and health ended: %s", error)
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        routes = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._expose}
        async with serving(self._duties.listen, routes) as self.port:
            self._started.set()
            if self._duties.lease is None:
                await self._stopped.wait()
                return
            lease = await self._duties.lease()
            election = asyncio.create_task(self._elector.run(lease))
            stopped = asyncio.create_task(self._stopped.wait())
            await asyncio.wait([election, stopped], return_when=asyncio.FIRST_COMPLETED)
            if election.done():
                await election  # it never ends by itself: the thread ends, and health with it
            election.cancel()
            await asyncio.gather(election, return_exceptions=True)
            await lease.release()

    async def _livez(self) -> Answer:
        return text("ok") if self._elector.is_alive() else text("the main loop hangs", 500)

    async def _readyz(self) -> Answer:
        return text("ok") if self._main.is_ready else text("not synced yet", 503)

    async def _expose(self) -> Answer:
        return Answer(self._duties.metrics(), content_type=PROMETHEUS)
