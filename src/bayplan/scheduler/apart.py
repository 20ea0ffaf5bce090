"""Work on a copy of this process: large questions take the scheduler's state, not its time.

A fork has the whole state of the moment, and what it does to it nobody else sees. It costs nothing
while nobody asks, and no second stream of events can fall behind or go astray. The copy computes,
writes its answer into a pipe and ends; it never returns into the program around it. It has none of
the other threads, so it takes no lock that one of them may hold: it does not log, and opens
nothing.
"""

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress

from bayplan.web.desk import Refused

MOST_AT_ONCE = 2  # copies; each may come to need as much memory as the original
LONGEST_S = 30.0
READ_BYTES = 1 << 16
_ANSWERED, _REFUSED, _FAILED = b"A", b"R", b"F"


class Apart:
    """Runs pieces of work on copies. `longest_s`: after that a copy is killed."""

    def __init__(self, longest_s: float = LONGEST_S, most: int = MOST_AT_ONCE) -> None:
        self._longest_s, self._most = longest_s, most
        self.running = 0
        self.done = 0

    async def run(self, work: Callable[[], bytes]) -> bytes:
        """What the work gives, or the `Refused` that it raises."""
        if self.running >= self._most:
            words = f"{self._most} large questions are being answered already; try again later"
            raise Refused(503, words)
        self.running += 1
        try:
            said = await self._answer(*_fork(work))
        finally:
            self.running -= 1
        self.done += 1
        tag, body = said[:1], said[1:]
        if tag == _ANSWERED:
            return body
        if tag == _REFUSED:
            status, _, words = body.decode().partition(" ")
            raise Refused(int(status), words)
        raise Refused(500, body.decode() or "the copy of the scheduler ended without an answer")

    async def _answer(self, pid: int, pipe: int) -> bytes:
        loop, said = asyncio.get_running_loop(), bytearray()
        ended: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            with suppress(BlockingIOError):
                chunk = os.read(pipe, READ_BYTES)
                said.extend(chunk)
                if not chunk and not ended.done():
                    ended.set_result(None)

        os.set_blocking(pipe, False)
        loop.add_reader(pipe, read)
        try:
            async with asyncio.timeout(self._longest_s):
                await ended
            return bytes(said)
        except TimeoutError:
            words = f"the question takes longer than {self._longest_s:g} s; ask for less at once"
            raise Refused(503, words) from None
        finally:  # whoever asked may have gone, too
            loop.remove_reader(pipe)
            os.close(pipe)
            os.kill(pid, signal.SIGKILL)
            await asyncio.shield(loop.run_in_executor(None, os.waitpid, pid, 0))


def _fork(work: Callable[[], bytes]) -> tuple[int, int]:
    """The copy's process id, and the end of the pipe on which it will answer."""
    here, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see above
        pid = os.fork()
    if pid:
        os.close(there)
        return pid, here
    try:
        _copy(work, there)
    finally:
        os._exit(1)


def _copy(work: Callable[[], bytes], pipe: int) -> None:
    gc.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    for low, high in ((3, pipe), (pipe + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(low, high)  # connections must end when their owner ends them
    try:
        said = _ANSWERED + work()
    except Refused as refused:
        said = _REFUSED + f"{refused.status} {refused}".encode()
    except Exception as error:
        said = _FAILED + f"{type(error).__name__}: {error}".encode()
    rest = memoryview(said)
    while rest:
        rest = rest[os.write(pipe, rest) :]
    os._exit(0)
