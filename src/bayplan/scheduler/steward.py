"""Partitions for pods: made before a pod is bound, deleted when the engine says so.

What is asked about one partition happens in the order in which it was asked. A partition that is to
go goes before any that is made after it on the same controller, because its devices may be planned
for that one. What every controller has is told to the engine at the start and every minute; what
was done while a controller answered counts more than its answer.

The fence is asked before anything is made or deleted, as for binds.
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
from bayplan.vipu.controller import ERROR, Controller, Inventory, Refused, VipuError

log = logging.getLogger("bayplan")

EVERY_S = 60.0  # controllers are asked for all that they have
AGAIN_S = 5.0  # one that did not answer
SOON_S = 1.0  # at least between two questions
HOST, PORT, ID = (f"vipu.bayplan.dev/{what}" for what in ("host", "port", "partition"))


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
        cluster: Callable[[], Awaitable[str]],
    ) -> None:
        """`cluster` tells by what this cluster is known to controllers that serve several."""
        self._sites, self._vendors, self._cluster = sites, vendors, cluster
        self._inbox, self._fence, self._clock = inbox, fence, clock
        self._places: dict[str, Place] = {}  # by estate
        self._turns: dict[str, _Turn] = {}  # by partition: who is at it
        self._going: dict[asyncio.Task[None], str] = {}  # deletions: the site of each
        # by site, then id: what was done since the controller was last asked for all
        self._changed: dict[str, dict[str, vipu.Partition | None]] = {s.name: {} for s in sites}
        self._ask: dict[str, asyncio.Event] = {site.name: asyncio.Event() for site in sites}
        self.counts: Counter[tuple[str, str]] = Counter()  # by what was done, and how it ended

    # ---- for a pod that is bound

    async def prepare(self, placement: Placement, check: BeforeSend) -> Placement:
        """Makes the pod's partition. Gives the placement with the devices that it really has."""
        asks = [ask for ask in placement.pod.row.devices if ask.kind == "partition"]
        ours = [held for held in placement.held if held.resource in self._vendors.partitions]
        place = self._places.get(ours[0].pool) if ours else None
        if place is None:
            raise NotReady("the pod's partition: its controller is not known any more")
        uid, size = placement.pod.uid, at_once(asks)
        before = [task for task, site in self._going.items() if site == place.site.name]
        if before:
            await asyncio.wait(before)
        async with self._turn(place.estate.id_of(uid)):
            made = await self._make(place, place.estate.id_of(uid), size, check)
        known = {device.id: device for device in place.estate.devices}
        devices = [known.get(ipu.name) or Device(ipu.name, 0) for ipu in made.ipus]
        rest = (held for held in placement.held if held not in ours)
        held = (*rest, *divided(asks, place.estate.name, devices))
        self._inbox.add(on.PartitionMade(uid, held))
        return replace(placement, held=held)

    def annotations(self, placement: Placement) -> dict[str, str]:
        """How a container finds its partition."""
        found = (self._places.get(held.pool) for held in placement.held)
        place = next((each for each in found if each is not None), None)
        if place is None:
            return {}
        site, id = place.site, place.estate.id_of(placement.pod.uid)
        return {HOST: site.host, PORT: str(site.port), ID: id}

    async def _make(self, place: Place, id: str, size: int, check: BeforeSend) -> vipu.Partition:
        name = place.estate.name
        try:
            check()
            made = await self._created(place, id, size)
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

    async def _created(self, place: Place, id: str, size: int) -> vipu.Partition:
        """One that is left of an earlier decision and is not what is wanted now is replaced."""
        controller = place.site.controller
        create = partial(
            controller.create, id, size, cluster=place.cluster, allocation=place.allocation
        )
        try:
            made = await create()
        except Refused:
            left = await controller.get(id)
            if left is None or left.fulfils(size, place.cluster, place.allocation):
                raise
        else:
            if made.state != ERROR and len(made.ipus) == size:
                return made
        await controller.delete(id)
        made = await create()
        if made.state == ERROR or len(made.ipus) != size:
            raise Refused(f"it is made with {len(made.ipus)} IPUs, in state {made.state}")
        return made

    # ---- for one that has ended

    def dismantle(self, effect: Dismantle) -> None:
        place = self._places.get(effect.estate)
        if place is not None:
            work = self._dismantle(place, effect.id, self._fence.of_now())
            task = asyncio.create_task(work, name=f"delete {effect.id}")
            self._going[task] = place.site.name
            task.add_done_callback(lambda done: self._going.pop(done, None))

    async def _dismantle(self, place: Place, id: str, check: BeforeSend) -> None:
        """Where it fails, the controller will tell that it is still there."""
        try:
            async with self._turn(id):
                check()
                await place.site.controller.delete(id)
        except Fenced:
            return
        except VipuError as error:
            self.counts["delete", "failed"] += 1
            self._ask[place.site.name].set()
            log.warning("partition %s of %s is not deleted: %s", id, place.estate.name, error)
            return
        self.counts["delete", "done"] += 1
        self._changed[place.site.name][id] = None
        self._inbox.add(on.PartitionGone(place.estate.name, id))

    @asynccontextmanager
    async def _turn(self, id: str) -> AsyncIterator[None]:
        """One after the other for a partition, in the order in which they came."""
        turn = self._turns.setdefault(id, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[id]

    async def close(self, seconds: float) -> None:
        """Deletions are finished if there is time; what is left is found after the next start."""
        if self._going:
            with suppress(TimeoutError):
                async with self._clock.timeout(seconds):
                    await asyncio.wait(list(self._going))
        for task in list(self._going):
            task.cancel()
        for site in self._sites:
            await site.controller.close()

    # ---- what controllers have

    async def run(self) -> None:
        """Until cancelled."""
        prefix = prefix_of(await self._cluster())
        async with asyncio.TaskGroup() as group:
            for site in self._sites:
                group.create_task(self._follow(site, prefix))

    async def _follow(self, site: Site, prefix: str) -> None:
        asked, is_down = self._ask[site.name], False
        while True:
            asked.clear()
            try:
                await self._tell(site, prefix)
                pause_s, is_down = EVERY_S, False
            except VipuError as error:
                if not is_down:
                    log.warning("the V-IPU controller %s: %s", site.name, error)
                pause_s, is_down = AGAIN_S, True
                for name in self._of_site(site):
                    self._inbox.add(on.EstateLost(name, str(error)))
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
        places = {place.estate.name: place for place in places_of(site, inventory, prefix)}
        for name in self._of_site(site):
            if name not in places:
                del self._places[name]
                self._inbox.add(on.EstateGone(name))
        self._places |= places
        for place in places.values():
            self._inbox.add(on.EstateSeen(place.estate, tuple(_here(place, listed.values()))))

    def _of_site(self, site: Site) -> list[str]:
        return [name for name, place in self._places.items() if place.site is site]


class _Turn:
    def __init__(self) -> None:
        self.lock, self.waiting = asyncio.Lock(), 0


def _here(place: Place, listed: Iterable[vipu.Partition]) -> Iterator[Partition]:
    """Partitions of the estate; their ids say whose they are."""
    for each in listed:
        if (each.cluster, each.allocation) == (place.cluster, place.allocation):
            yield Partition(each.id, tuple(ipu.name for ipu in each.ipus))


def places_of(site: Site, inventory: Inventory, prefix: str) -> Iterator[Place]:
    """An estate for each allocation; for a cluster without any, one of all that it has."""
    agents = {agent.id: agent for agent in inventory.agents}
    for cluster in inventory.clusters:
        allocations = [each for each in inventory.allocations if each.cluster == cluster.id]
        named = [(each.id, frozenset(each.agents)) for each in allocations]
        for allocation, members in named or [("", frozenset(agents))]:
            devices: list[Device] = []
            spots: list[Spot] = []
            for number, domain in enumerate(cluster.link_domains):
                at = 0
                for agent in (agents[name] for name in domain.agents if name in agents):
                    for i in range(agent.ipus if agent.id in members else 0):
                        id = vipu.Ipu(agent.id, i).name
                        devices.append(Device(id, len(devices), healthy=agent.healthy))
                        spots.append(Spot(number, at + i))
                    at += agent.ipus
            name = f"{site.name}:{allocation or cluster.id}"
            estate = Estate(name, "ipu", site.label, tuple(devices), tuple(spots), prefix)
            yield Place(site, cluster.id, allocation, estate)
