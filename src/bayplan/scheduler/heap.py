"""How the C allocator is used: what a burst of pods took goes back to the system.

glibc raises its own thresholds when large blocks are freed, and from then on keeps them in a heap
that cannot shrink while anything above is in use; each thread gets a heap of its own, too. So each
burst would leave a little more behind. Here the thresholds are fixed, there is one heap, and free
pages in its midst are given back from time to time. Other C libraries do as they please.

A dict that is empty again keeps the room of its best days too, half a MiB after 20,000 pods, until
it is cleared.

The scheduler asks for nothing large again and again: a TLS connection is read by the record
(`kube.credentials`), not by the 256 KiB that event loops ask for. The extender has the other need:
each question brings some hundred KiB that are gone a millisecond later, so there the thresholds
are high.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bayplan.kube.clock import Clock

TRIM_EVERY_S = 5.0  # a trim takes up to 4 ms of a 20 MiB heap
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt's names, in glibc's malloc.h
FRUGAL = 128 << 10  # bytes; glibc's own first value for both thresholds
QUICK = 8 << 20


def settle(threshold: int = FRUGAL) -> bool:
    """Before any thread is started. Whether the allocator took it."""
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    wanted = ((_MMAP_THRESHOLD, threshold), (_TRIM_THRESHOLD, threshold), (_ARENA_MAX, 1))
    return all(bool(mallopt(name, value)) for name, value in wanted)


async def keep_trimming(clock: Clock, tables: Callable[[], Iterable[dict[Any, Any]]]) -> None:
    """Until cancelled."""
    trim = _function("malloc_trim")
    while True:
        await clock.sleep(TRIM_EVERY_S)
        for table in tables():
            if not table:
                table.clear()
        if trim is not None:
            trim(0)


def _function(name: str) -> "ctypes._NamedFuncPointer | None":
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
