"""How the C allocator is used: what a burst of pods took goes back to the system.

glibc raises its own thresholds when large blocks are freed, and from then on keeps them in a heap
that cannot shrink while anything above is in use; each thread gets a heap of its own, too. So each
burst would leave a little more behind. Here the thresholds are fixed, there is one heap, and free
pages in its midst are given back from time to time. Other C libraries do as they please.

The thresholds lie just above what every read of a TLS connection asks for and shrinks at once: at
glibc's own 128 KiB each read would be a mapping of its own, a third of the cost of a request.
"""

import ctypes
import sys

from bayplan.kube.clock import Clock

TRIM_EVERY_S = 5.0  # a trim takes up to 4 ms of a 20 MiB heap
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt's names, in glibc's malloc.h
_MAPPED = 320 << 10  # bytes; a read is given 256 KiB (uvloop's SSL_READ_MAX_SIZE)
_TRIMMED = 1 << 20


def settle() -> bool:
    """Before any thread is started. Whether the allocator took it."""
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    wanted = ((_MMAP_THRESHOLD, _MAPPED), (_TRIM_THRESHOLD, _TRIMMED), (_ARENA_MAX, 1))
    return all(bool(mallopt(name, value)) for name, value in wanted)


async def keep_trimming(clock: Clock) -> None:
    """Until cancelled."""
    trim = _function("malloc_trim")
    while True:
        await clock.sleep(TRIM_EVERY_S)
        if trim is not None:
            trim(0)


def _function(name: str) -> "ctypes._NamedFuncPointer | None":
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
