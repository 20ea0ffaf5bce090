"""A V-IPU controller: what it has, what can be asked of it, and how it fails.

The values are messages of vipu.proto as well: a field's number there is its place here, and its
default is that of proto3. Nothing here knows how a controller is reached.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

# Called right before anything is sent; what it raises ends the call.
BeforeSend = Callable[[], None]

ACTIVE, ERROR = "ACTIVE", "ERROR"  # states of a partition; a controller may know others


class VipuError(Exception):
    """A controller cannot be used as was asked."""


class Refused(VipuError):
    """The controller says no, and nothing has changed."""


class Denied(VipuError):
    """The controller does not answer such a question of ours, whatever it is about."""


class Unavailable(VipuError):
    """There was no answer, or none in time: what was asked may happen, may have, or may not."""


class Ipu(Struct, frozen=True):
    agent: str = ""
    index: int = 0

    @property
    def name(self) -> str:
        return f"{self.agent}.{self.index}"


class Agent(Struct, frozen=True):
    """An IPU-Machine."""

    id: str = ""
    ipus: int = 0
    healthy: bool = False


class LinkDomain(Struct, frozen=True):
    """Agents whose IPUs are linked, in the order of the links."""

    id: str = ""
    agents: tuple[str, ...] = ()


class Cluster(Struct, frozen=True):
    id: str = ""
    link_domains: tuple[LinkDomain, ...] = ()


class Allocation(Struct, frozen=True):
    """Agents that belong together; a partition has IPUs of one allocation only."""

    id: str = ""
    cluster: str = ""
    agents: tuple[str, ...] = ()


class Partition(Struct, frozen=True):
    id: str = ""
    cluster: str = ""
    allocation: str = ""
    size: int = 0
    ipus: tuple[Ipu, ...] = ()
    state: str = ""
    reconfigurable: bool = False

    def fulfils(self, size: int, cluster: str, allocation: str) -> bool:
        """Whether it has the size and place that were asked for; an empty name is any place."""
        there = cluster in ("", self.cluster) and allocation in ("", self.allocation)
        return there and size == self.size


class Inventory(Struct, frozen=True):
    agents: tuple[Agent, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    allocations: tuple[Allocation, ...] = ()


class Controller(Protocol):
    """Every call raises Refused or Unavailable; every call can be repeated."""

    async def inventory(self) -> Inventory: ...

    async def partitions(self) -> tuple[Partition, ...]: ...

    async def create(
        self,
        id: str,
        size: int,
        *,
        cluster: str = "",
        allocation: str = "",
        reconfigurable: bool = False,
        before_send: BeforeSend | None = None,
    ) -> Partition:
        """The partition of that id, made if need be; Refused if its size or place is another."""

    async def get(self, id: str) -> Partition | None: ...

    async def delete(self, id: str, *, before_send: BeforeSend | None = None) -> bool:
        """False if it was not there."""

    async def close(self) -> None: ...
