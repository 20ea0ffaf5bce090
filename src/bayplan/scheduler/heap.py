"""How the C allocator is used: what a burst of pods took goes back to the system.

glibc raises its own thresholds when large blocks are freed, and from then on keeps them in a heap
that cannot shrink while anything above is in use: each burst would leave a little more behind.
Fixed thresholds keep large blocks out of that heap. Other C libraries do as they please.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them, in glibc's malloc.h
_BYTES = 128 << 10  # glibc's own first value


def keep_thresholds() -> bool:
    """Whether the allocator took it."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _BYTES)) and bool(mallopt(_TRIM_THRESHOLD, _BYTES))
