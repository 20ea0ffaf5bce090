"""What the agent counts, and what it has to tell; each thing is told once while it lasts."""

import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("bayplan")


class Counts:
    """Since the process began."""

    def __init__(self) -> None:
        self.registrations = 0
        self.allocations = 0
        self.refusals = 0  # of Allocate
        self.swapped = 0  # pods whose assignment was put right
        self.written = 0  # assignments for pods that had none
        self.marked = 0  # pods that say in Neuron's words that they have got their devices
        self.drift = 0  # devices in use that nobody was given
        self.refused_assignments = 0  # another node's, of a newer version, or unreadable
        self.published = 0  # writes of the node's annotation or status
        self.profiled = 0  # writes of what cards do, to the node and to pods
        self.troubles = 0  # what failed and is tried again


class Told:
    """A kind of trouble: every case is told and counted when it comes, and not again until it has
    been away."""

    def __init__(self) -> None:
        self._now: set[Any] = set()

    def new(self, cases: Iterable[tuple[Any, str]]) -> int:
        """All cases as they are now, each with its words; how many there were not before."""
        found = dict(cases)
        fresh = [case for case in found if case not in self._now]
        for case in fresh:
            log.warning("%s", found[case])
        self._now = set(found)
        return len(fresh)
