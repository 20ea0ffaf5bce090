"""Nodes whose kubelet refused a pod: they are left alone for a while, resource by resource.

The first refusal closes a node for 10 s to pods that ask for the resource, the next for twice as
long, up to 5 minutes; three within ten minutes close it for 30 minutes. Not so for NUMA zones: that
the same containers are refused again tells of them more than of the node. A node that changes what
it has to allocate of the resource, or goes, starts afresh. Time is an argument.
"""

import math
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.model.numa import ZONES

FIRST_S, LONGEST_S = 10.0, 300.0
MANY, WITHIN_S, CLOSED_S = 3, 600.0, 1800.0
FORGOTTEN_S = 1800.0  # after the last refusal: so long without one, and the next is the first


class Distrust(Struct, frozen=True):
    """What is remembered of a node and a resource."""

    at: tuple[float, ...]  # refusals of the last ten minutes
    doublings: int
    until: float
    closed: bool = True  # until `until`; afterwards it is only remembered


class Distrusted:
    """By node and resource. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done", "_touch")

    def __init__(self, done: Callable[..., None], touch: Callable[[str], None]) -> None:
        self.nodes: dict[str, dict[str, Distrust]] = {}  # by name, then resource
        self.next_end = math.inf  # when the first of them ends
        self._done = done
        self._touch = touch  # the node's row has changed

    def refused(self, node: str, resource: str, now: float) -> None:
        old = self.nodes.get(node, {}).get(resource)
        if old is None or now - old.at[-1] >= FORGOTTEN_S:
            old = Distrust((), -1, now)
        at = (*(time for time in old.at if now - time < WITHIN_S), now)
        doublings = min(old.doublings + 1, 16)  # 2 to the thousandth is no number of seconds
        many = len(at) >= MANY and not resource.startswith(ZONES)
        pause = CLOSED_S if many else min(FIRST_S * 2**doublings, LONGEST_S)
        self.put(node, resource, Distrust(at[-MANY:], doublings, max(old.until, now + pause)))

    def expire(self, now: float) -> None:
        """Whose time is over takes pods again, and what is long ago is forgotten."""
        for node, kept in list(self.nodes.items()):
            for resource, each in list(kept.items()):
                if each.until > now:
                    continue
                if now - each.at[-1] >= FORGOTTEN_S:
                    self.put(node, resource, None)
                elif each.closed:
                    self.put(node, resource, replace(each, closed=False))

    def forgive(self, node: str, resources: set[str] | None = None) -> bool:
        """Forgets what is known of the node, or of some of its resources. Whether there was any."""
        found = [
            name for name in self.nodes.get(node, ()) if resources is None or name in resources
        ]
        for name in found:
            self.put(node, name, None)
        return bool(found)

    def put(self, node: str, resource: str, new: Distrust | None) -> None:
        kept = self.nodes.setdefault(node, {})
        before = kept.get(resource)
        if new is not None:
            kept[resource] = new
        else:
            kept.pop(resource, None)
        if not kept:
            del self.nodes[node]
        ends = (each.until for kept in self.nodes.values() for each in kept.values() if each.closed)
        self.next_end = min(ends, default=math.inf)
        self._touch(node)
        self._done(self.put, node, resource, before)
