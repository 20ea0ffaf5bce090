"""The fence: nothing is written once our right to write may have passed to another replica."""

import math
from collections.abc import Callable
from functools import partial

from bayplan.kube.clock import Clock
from bayplan.kube.transport import Fenced


class Fence:
    """Open while the monotonic clock has not reached the deadline.

    Without leader election it never does. With it, the deadline is the lease's, which a thread of
    its own moves; that is one number, written whole, so no lock is needed. A `term` ends when we
    lose the lease: what was decided in it is not sent in a later one.
    """

    def __init__(self, clock: Clock, deadline: Callable[[], float] = lambda: math.inf) -> None:
        self._clock = clock
        self.deadline = deadline
        self.term: Callable[[], int] = lambda: 0

    @property
    def is_open(self) -> bool:
        return self._clock.time() < self.deadline()

    def check(self, term: int | None = None) -> None:
        """Called with a connection in hand, right before the bytes are written. `term`: in which it
        was decided, if that matters."""
        if term is not None and term != self.term():
            raise Fenced("it was decided before the lease was lost")
        if not self.is_open:
            raise Fenced("the lease was not renewed in time")

    def of_now(self) -> Callable[[], None]:
        """A check for what is decided now."""
        return partial(self.check, self.term())
