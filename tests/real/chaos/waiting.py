"""Waiting for what nobody tells: looked at again and again, and in the end an error."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


def eventually(said: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """The first true answer; `what` is what did not come."""
    deadline = time.monotonic() + timeout_s
    while not (answer := said()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(POLL_S)
    return answer
