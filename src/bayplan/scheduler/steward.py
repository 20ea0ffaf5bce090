"""Partitions for pods: made before a pod is bound, deleted when the engine says so.

What is asked about one partition happens in the order in which it was asked. A partition that is to
go goes before any that is made after it on the same controller, because its devices may be planned
for that one. What every controller has is told to the engine at the start, and every minute from
when the pods are known; what was done while a controller answered counts more than its answer.

The fence is asked right before anything that makes or deletes is sent, as for binds.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.model import events as on
from bayplan.core.model.devices import Device
from bayplan.core.model.effects import Dismantle, Placement
from bayplan.core.model.holdings import at_once
from bayplan.core.model.partitions import Estate, Partition, Spot, divided
from bayplan.core.model.vendors import Vendors
from bayplan.kube.clock import Clock
from bayplan.kube.transport import BeforeSend, Fenced
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.volumes import NotReady
from bayplan.vipu import controller as vipu
from bayplan.vipu.controller import ACTIVE, ERROR, Controller, Inventory, Refused, VipuError

log = logging.getLogger("bayplan")

EVERY_S = 60.0  # controllers are asked for all that they have
AGAIN_S = 5.0  # one that did not answer
SOON_S = 1.0  # at least between two questions
LOOK_S = 0.5  # at a partition that is not ready yet …
READY_S = 60.0  # … for so long
HOST, PORT, ID = (f"vipu.bayplan.dev/{what}" for what in ("host", "port", "partition"))


_Key = tuple[str, str]  # a site, and the id of a partition there


class Site(Struct, frozen=True):
    """A controller, and the label of the nodes that reach it."""

    host: str
    port: int
    label: tuple[str, str]
    controller: Controller

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


class Place(Struct, frozen=True):
    """Where the partitions of an estate are made."""

    site: Site
    cluster: str
    allocation: str
    estate: Estate


class Prepared(Struct, frozen=True):
    """A placement with the devices that the pod really has, and how it finds its partition."""

    placement: Placement
    notes: dict[str, str] = {}  # annotations


def prefix_of(cluster: str) -> str:
    """Of the ids of all partitions that are a cluster's."""
    return f"bp-{hashlib.sha256(cluster.encode()).hexdigest()[:12]}-"


class Steward:
    def __init__(
        self,
        sites: Sequence[Site],
        vendors: Vendors,
        inbox: Inbox,
        fence: Fence,
        clock: Clock,
        grace_s: float = EVERY_S,
    ) -> None:
        """`grace_s`: how long the engine waits before it judges what is left of a bad time."""
        self._sites, self._vendors, self._grace_s = sites, vendors, grace_s
        self._class = next(c.name for c in vendors.classes.values() if c.model == "partition")
        self._inbox, self._fence, self._clock = inbox, fence, clock
        self._places: dict[str, Place] = {}  # by estate, also of those that are no more
        self._told: dict[str, list[str]] = {}  # by site: the estates that it has
        self._turns: dict[_Key, _Turn] = {}  # who is at a partition
        self._going: dict[_Key, asyncio.Task[None]] = {}  # the last deletion of a partition
        # by site, then id: what was done since the controller was last asked for all
        self._changed: dict[str, dict[str, vipu.Partition | None]] = {s.name: {} for s in sites}
        self._ask: dict[str, asyncio.Event] = {site.name: asyncio.Event() for site in sites}
        self.counts: Counter[tuple[str, str]] = Counter()  # by what was done, and how it ended

    # ---- for a pod that is bound

    async def prepare(self, placement: Placement, check: BeforeSend) -> Prepared:
        """Makes the pod's partition."""
        asks = placement.pod.row.partitions
        ours = [held for held in placement.held if held.resource in self._vendors.partitions]
        place = self._places.get(ours[0].pool) if ours else None
        if place is None:
            raise NotReady("the pod's partition: its controller is not known any more")
        uid, size = placement.pod.uid, at_once(asks)
        id = place.estate.id_of(uid)
        key = (place.site.name, id)
        # Of now: whoever is to go later may be waiting for us.
        before = [each for at, each in self._going.items() if at[0] == key[0] and at != key]
        async with self._turn(key, makes=1):
            if before:
                await asyncio.wait(before)
            made = await self._make(place, id, size, check)
        known = {device.id: device for device in place.estate.devices}
        devices = [known.get(ipu.name) or Device(ipu.name, 0) for ipu in made.ipus]
        rest = (held for held in placement.held if held not in ours)
        held = (*rest, *divided(asks, place.estate.name, devices))
        self._inbox.add(on.PartitionMade(uid, held))
        notes = {HOST: place.site.host.strip("[]"), PORT: str(place.site.port), ID: id}
        return Prepared(replace(placement, held=held), notes)

    async def _make(self, place: Place, id: str, size: int, check: BeforeSend) -> vipu.Partition:
        name = place.estate.name
        try:
            made = await self._created(place, id, size, check)
        except Refused as refused:
            self.counts["make", "refused"] += 1
            self._inbox.add(on.PartitionRefused(name, size))
            raise NotReady(f"{name} refused a partition of {size}: {refused}") from None
        except VipuError as error:
            self.counts["make", "failed"] += 1
            self._ask[place.site.name].set()
            raise NotReady(f"a partition of {size} from {name}: {error}") from None
        self.counts["make", "done"] += 1
        self._changed[place.site.name][id] = made
        return made

    async def _created(self, place: Place, id: str, size: int, check: BeforeSend) -> vipu.Partition:
        """One that is left of an earlier decision and is not what is wanted now is replaced."""
        controller = place.site.controller
        create = partial(
            controller.create,
            id,
            size,
            cluster=place.cluster,
            allocation=place.allocation,
            before_send=check,
        )
        try:
            made = await self._ready(controller, await create())
        except Refused:
            left = await controller.get(id)
            if left is None or left.fulfils(size, place.cluster, place.allocation):
                raise
        else:
            if is_whole(made, size):
                return made
        await controller.delete(id, before_send=check)
        made = await self._ready(controller, await create())
        if not is_whole(made, size):
            raise Refused(f"it is made with {len(made.ipus)} IPUs, in state {made.state}")
        return made

    async def _ready(self, controller: Controller, made: vipu.Partition) -> vipu.Partition:
        """A controller may make it after it has answered."""
        until = self._clock.time() + READY_S
        while made.state not in (ACTIVE, ERROR) and self._clock.time() < until:
            await self._clock.sleep(LOOK_S)
            made = await controller.get(made.id) or made
        return made

    # ---- for one that has ended

    def dismantle(self, effect: Dismantle) -> None:
        place = self._places.get(effect.estate)
        key = ("" if place is None else place.site.name, effect.id)
        turn = self._turns.get(key)
        if place is None or (key in self._going and not (turn and turn.makes)):
            return  # it goes already, and nobody makes it
        work = self._dismantle(place, effect.id, self._fence.of_now())
        task = self._going[key] = asyncio.create_task(work, name=f"delete {effect.id}")
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: _Key, done: asyncio.Task[None]) -> None:
        if self._going.get(key) is done:
            del self._going[key]

    async def _dismantle(self, place: Place, id: str, check: BeforeSend) -> None:
        """Where it fails, the controller will tell that it is still there."""
        try:
            async with self._turn((place.site.name, id)):
                freed = await place.site.controller.delete(id, before_send=check)
        except Fenced:
            return
        except Exception as error:
            self.counts["delete", "failed"] += 1
            self._ask[place.site.name].set()
            log.warning("partition %s of %s is not deleted: %s", id, place.estate.name, error)
            return
        self.counts["delete", "done"] += 1
        self._changed[place.site.name][id] = None
        self._inbox.add(on.PartitionGone(place.estate.name, id, freed))

    @asynccontextmanager
    async def _turn(self, key: _Key, makes: int = 0) -> AsyncIterator[None]:
        """One after the other for a partition, in the order in which they came."""
        turn = self._turns.setdefault(key, _Turn())
        turn.waiting += 1
        turn.makes += makes
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            turn.makes -= makes
            if not turn.waiting:
                del self._turns[key]

    async def close(self, seconds: float) -> None:
        """Deletions are finished if there is time; what is left is found after the next start."""
        going = list(self._going.values())
        if going:
            with suppress(TimeoutError):
                async with self._clock.timeout(seconds):
                    await asyncio.wait(going)
        for task in going:
            task.cancel()
        for site in self._sites:
            await site.controller.close()

    # ---- what controllers have

    async def run(
        self, cluster: Callable[[], Awaitable[str]], is_ready: Callable[[], bool]
    ) -> None:
        """Until cancelled. `cluster` tells by what this cluster is known to controllers that serve
        several; `is_ready`: whether the pods are known. Before that a controller tells all once
        only, and the engine judges nothing that it has not been told twice."""
        prefix = prefix_of(await self._name(cluster))
        async with asyncio.TaskGroup() as group:
            for site in self._sites:
                group.create_task(self._follow(site, prefix, is_ready))

    async def _name(self, cluster: Callable[[], Awaitable[str]]) -> str:
        while True:
            try:
                return await cluster()
            except Exception as error:
                log.warning("the name of this cluster for V-IPU controllers: %s", error)
                await self._clock.sleep(AGAIN_S)

    async def _follow(self, site: Site, prefix: str, is_ready: Callable[[], bool]) -> None:
        asked, is_down, is_new = self._ask[site.name], False, True
        while True:
            asked.clear()
            try:
                await self._tell(site, prefix)
                pause_s = min(self._grace_s, EVERY_S) if is_down or is_new else EVERY_S
                is_down = is_new = False
            except Exception as error:  # whatever it is, the other controllers are followed
                if not is_down:
                    log.warning("the V-IPU controller %s: %s", site.name, error)
                pause_s, is_down = AGAIN_S, True
                for name in self._told.get(site.name, ()):
                    self._inbox.add(on.EstateLost(name, str(error)))
            while self._told.get(site.name) and not is_ready():
                await self._clock.sleep(SOON_S)
            with suppress(TimeoutError):
                async with self._clock.timeout(pause_s):
                    await asked.wait()
                    await self._clock.sleep(SOON_S)

    async def _tell(self, site: Site, prefix: str) -> None:
        inventory = await site.controller.inventory()
        done = self._changed[site.name] = {}
        listed = {each.id: each for each in await site.controller.partitions()}
        for id, changed in done.items():
            if changed is None:
                listed.pop(id, None)
            else:
                listed[id] = changed
        found = places_of(site, inventory, prefix, self._class)
        places = {place.estate.name: place for place in found}
        for name in self._told.get(site.name, ()):
            if name not in places:
                self._inbox.add(on.EstateLost(name, "the controller has it no more"))
        self._told[site.name] = list(places)
        self._places |= places
        for place in places.values():
            self._inbox.add(on.EstateSeen(place.estate, tuple(_here(place, listed.values()))))


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = self.makes = 0  # who are at it, and those of them who make it


def is_whole(made: vipu.Partition, size: int) -> bool:
    return made.state == ACTIVE and len(set(made.ipus)) == len(made.ipus) == size


def _here(place: Place, listed: Iterable[vipu.Partition]) -> Iterator[Partition]:
    """Partitions with IPUs of the estate, whatever they were made in; their ids say whose they
    are."""
    own = {device.id for device in place.estate.devices}
    for each in listed:
        names = tuple(ipu.name for ipu in each.ipus)
        if not own.isdisjoint(names):
            yield Partition(each.id, names)


def places_of(
    site: Site, inventory: Inventory, prefix: str, device_class: str = "ipu"
) -> Iterator[Place]:
    """An estate for each allocation; for a cluster without any, one of all that it has. An IPU that
    is told twice counts where it is told first."""
    agents = {agent.id: agent for agent in inventory.agents}
    seen: set[str] = set()
    for cluster in inventory.clusters:
        allocations = [each for each in inventory.allocations if each.cluster == cluster.id]
        named = [(each.id, frozenset(each.agents)) for each in allocations]
        for allocation, members in named or [("", frozenset(agents))]:
            devices: list[Device] = []
            spots: list[Spot] = []
            for number, domain in enumerate(cluster.link_domains):
                at = 0
                for agent in (agents[name] for name in domain.agents if name in agents):
                    if agent.id in members and agent.id not in seen:
                        seen.add(agent.id)
                        for i in range(agent.ipus):
                            id = vipu.Ipu(agent.id, i).name
                            devices.append(Device(id, len(devices), healthy=agent.healthy))
                            spots.append(Spot(number, at + i))
                    at += agent.ipus
            name = ":".join(filter(None, (site.name, cluster.id, allocation)))
            estate = Estate(
                name, device_class, site.label, tuple(devices), tuple(spots), prefix, site.name
            )
            yield Place(site, cluster.id, allocation, estate)
