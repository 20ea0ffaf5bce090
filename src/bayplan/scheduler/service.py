"""`bayplan run`, put together: credentials, watches, engine, writer, lease, health.

Every part is made here and handed what it needs; nothing else knows them all. The extender is the
same but for who decides and what is written.
"""

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.picking import Picking
from bayplan.core.engine.profile import Profile, ProfileConfig
from bayplan.core.model.groups import SOURCES
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.registry import installed
from bayplan.core.plugins.utilsched import UtilSched
from bayplan.core.state.waiting import Rests
from bayplan.kube.client import Client
from bayplan.kube.clock import Clock, RealClock
from bayplan.kube.credentials import Credentials, Source, find_source
from bayplan.kube.http import HttpTransport
from bayplan.kube.lease import Lease, LeaseConfig
from bayplan.scheduler import heap
from bayplan.scheduler.apart import Apart
from bayplan.scheduler.config import Configuration, Pool
from bayplan.scheduler.feed import Unread
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.groupkeeper import GroupKeeper
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.journal import Journal, software
from bayplan.scheduler.kinds import NODE, TOPOLOGY, group_what
from bayplan.scheduler.leader import Duties, Elector, Sidecar, Turns
from bayplan.scheduler.live import Live
from bayplan.scheduler.loop import Loop, Output, Parts, Recorder
from bayplan.scheduler.maps import UsageMaps
from bayplan.scheduler.metrics import Metrics
from bayplan.scheduler.nodefeed import NodeSink
from bayplan.scheduler.preparing import Preparing
from bayplan.scheduler.prometheus import Prometheus, transport_to
from bayplan.scheduler.questions import LiveQuestions, access_of, table
from bayplan.scheduler.refusals import Refusals
from bayplan.scheduler.requests import FAILED, of_topology
from bayplan.scheduler.shadow import Shadow
from bayplan.scheduler.sites import cluster_name, site_of
from bayplan.scheduler.steward import Site, Steward
from bayplan.scheduler.volumes import KnownClaims, VolumeBinder
from bayplan.scheduler.watches import Watches
from bayplan.scheduler.writer import Settings, Writer
from bayplan.web.api import serving

log = logging.getLogger("bayplan")

NEVER_S = 1e9  # a dry run makes no partitions, so none is missed
FINISH_BINDS_S = 10.0
FINISH_WORDS_S = 5.0


class Options(Struct, frozen=True):
    """What the command line adds to the configuration."""

    kubeconfig: str | None = None
    dry_run: bool = False


async def serve(
    config: Configuration,
    options: Options,
    make: "type[Service] | None" = None,
) -> None:
    """Until SIGTERM or SIGINT."""
    make = make or Service
    heap.settle(make.HEAP)
    clock = RealClock()
    source = find_source(options.kubeconfig or config.client_connection.kubeconfig)
    async with AsyncExitStack() as stack:
        client = await connect(source, clock, config, stack)
        service = make(config, options, client)
        trimming = asyncio.create_task(heap.keep_trimming(clock, service.tables), name="heap")
        stack.callback(trimming.cancel)
        sidecar = service.sidecar(lambda: client_apart(source))
        sidecar.start()
        stack.callback(sidecar.stop)
        await stack.enter_async_context(service.doors())
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, service.loop.stop)
        await service.run()


async def connect(
    source: Source, clock: Clock, config: Configuration, stack: AsyncExitStack
) -> Client:
    """A client whose credentials were read, so that what is wrong with them is known at once."""
    credentials = Credentials(source, clock)
    access = await credentials.access()
    log.info("the API server is %s (%s)", access.server, source)
    transport = HttpTransport(credentials, clock, config.client_connection.connections)
    stack.push_async_callback(transport.close)
    return Client(transport, clock, random.Random())


def client_apart(source: Source) -> Client:
    """For the event loop of another thread: nothing is shared with the main one."""
    clock = RealClock()
    transport = HttpTransport(Credentials(source, clock), clock, connections=2)
    return Client(transport, clock, random.Random())


class Service:
    HEAP = heap.FRUGAL

    def __init__(
        self,
        config: Configuration,
        options: Options,
        client: Client,
        reach: Callable[[Pool], Site] = site_of,
    ) -> None:
        """`reach`: how the controllers of pools are found."""
        self.config, self.options, self.client = config, options, client
        self._clock = clock = client.clock
        self.elects = config.leader_election.leader_elect and not options.dry_run
        self.recorders: list[Recorder] = []
        self.inbox = Inbox(clock)
        self.fence = Fence(clock)
        self.profiles = self.choose_profiles()
        self.engine = Engine(
            [Profile(profile, installed()) for profile in self.profiles],
            picking=Picking(clock.time, report=lambda words: log.warning("%s", words)),
            max_in_flight=config.max_in_flight,
            rests=Rests(config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds),
            patience=config.patience,
            grace_s=NEVER_S if options.dry_run else config.partition_grace_s,
        )
        self.steward = self.make_steward(reach)
        self.refusals = Refusals(self.engine, self.inbox)
        self.watches, self.writer = self.connect()
        maps = UsageMaps(
            self.engine.cluster,
            client,
            config.vendors,
            self.fence,
            lambda: self.writer.done["bind"],
        )
        self.metrics = Metrics(self.engine, self.watches, self.writer)
        spaces = "namespace" in self.watches.named
        self.live = Live(self.engine, client, config, self.metrics, spaces)
        self.journal: Journal | None = None
        if config.journal.path:
            self.journal = Journal(
                config.journal.path,
                self.profiles,
                max_bytes=config.journal.max_size,
                keep=config.journal.keep,
                report=lambda words: log.error("%s", words),
            )
            self.metrics.journal_errors = lambda: self.journal.errors if self.journal else 0
        self.recorders += [self.metrics, self.live]
        self.recorders += [] if self.journal is None else [self.journal]
        parts = Parts(
            self.engine, self.inbox, self.watches, self.writer, self.fence, clock, self.recorders
        )
        self.loop = Loop(parts, leads=not self.elects)
        self.chores: list[Callable[[], Awaitable[None]]] = []
        if maps.classes and not options.dry_run:
            self.chores.append(lambda: maps.run(lambda: self.loop.leads and self.loop.is_ready))
        if not options.dry_run and group_what(SOURCES[0]) in self.watches.named:
            self.chores.append(self.keep_groups)
        if config.prometheus.server and self.reads_use:
            self.chores.append(self.measure_use)
        if config.check_live_every:
            self.chores.append(self.live.run)
        if self.steward is not None:
            name = partial(cluster_name, config, client)
            steward = self.steward
            self.chores.append(lambda: steward.run(name, lambda: self.loop.is_ready))
            self.metrics.partitions = self.steward.counts
        self.metrics.leads = lambda: self.loop.leads
        self.loop.cycled = self.metrics.cycles.observe
        self.metrics.kubelet_refusals = self.refusals.counts

    def make_steward(self, reach: Callable[[Pool], Site]) -> Steward | None:
        """Who has partitions made, where the configuration has controllers."""
        config, client = self.config, self.client
        if not config.pools:
            return None
        sites = [reach(pool) for pool in config.pools]
        grace_s = config.partition_grace_s
        return Steward(sites, config.vendors, self.inbox, self.fence, client.clock, grace_s)

    async def keep_groups(self) -> None:
        """Keeps the statuses of PodGroups true, while we lead."""
        named, pods = self.watches.named, self.watches.pods.known

        def is_bound(uid: str) -> bool:
            pod = pods.get(uid)
            return isinstance(pod, Pod) and bool(pod.node)

        keeper = GroupKeeper(self.engine, self.client, self.fence, is_bound)
        await keeper.run(
            lambda: self.loop.leads and self.loop.is_ready,
            lambda source: named[group_what(source)].is_synced,
        )

    @property
    def reads_use(self) -> bool:
        """Whether any profile asks what is used of devices."""
        scores = (plugin for each in self.engine.profiles.values() for _, plugin in each.scores)
        return any(isinstance(plugin, UtilSched) for plugin in scores)

    async def measure_use(self) -> None:
        """Asks for what is used of devices, whether we lead or not."""
        settings, nodes = self.config.prometheus, self.watches.named[NODE]
        assert isinstance(nodes, NodeSink)
        transport = transport_to(settings, self._clock)
        is_node = nodes.known.__contains__
        await Prometheus(transport, self._clock, settings, is_node, nodes.measure).run()

    def choose_profiles(self) -> Sequence[ProfileConfig]:
        return self.config.profiles

    def connect(self) -> tuple[Watches, Output]:
        """What the engine hears, and who carries out what it wants."""
        config, client = self.config, self.client
        shadow = Shadow(self.engine, self.inbox) if self.options.dry_run else None
        watches = Watches(
            client,
            self.inbox,
            lambda words: log.warning("%s", words),
            self.refusals.on_failed,
            shadow.adopt if shadow else None,
            config.vendors,
        )
        claims = KnownClaims(self.engine)
        self.recorders.append(claims)
        if shadow is not None:
            self.recorders.append(shadow)
            return watches, shadow
        writer = Writer(
            client,
            self.inbox,
            self.fence,
            watches.pods.conditions.get,
            Settings(
                workers=config.bind_workers,
                bind_timeout_s=self.bind_timeout_s,
                prepare=Preparing(
                    VolumeBinder(client, claims, client.clock, self.fence.check), self.steward
                ),
                vendors=config.vendors,
            ),
        )
        self.refusals.note = writer.note

        def tell(item: Unread) -> None:
            if item.scheduler in self.engine.profiles:
                writer.note(item.stand_in, FAILED, item.why)

        watches.pods.on_waiting_unread = tell
        first = next(iter(self.engine.profiles))
        watches.named[TOPOLOGY].on_unread = lambda item: writer.say(of_topology(item, first))
        return watches, writer

    @property
    def bind_timeout_s(self) -> float:
        """A bind that was sent at the deadline is over before the lease is."""
        election = self.config.leader_election
        return election.lease_duration - election.renew_deadline

    def tables(self) -> Iterator[dict[str, Any]]:
        """What a burst of pods fills."""
        pods = self.watches.pods
        yield from (self.engine.cluster.pods, self.engine.waiting.pods)
        yield from (pods.known, pods.conditions, self.metrics.first_seen)

    @asynccontextmanager
    async def doors(self) -> AsyncIterator[None]:
        """What others can ask, inside the block."""
        async with self.api():
            yield

    def api(self) -> AbstractAsyncContextManager[int]:
        """Serves questions inside the block; gives the port."""
        asked = LiveQuestions(
            self.engine,
            self.config.vendors,
            self.client,
            lambda: self.loop.is_ready,
            Apart() if self.config.questions == "apart" else None,
        )
        paths = table(asked, self.live.routes(), software())
        return serving(self.config.api, paths, access_of(self.config.api_access))

    def elector(self, turns: Turns | None = None) -> Elector:
        """Leads and steps down, and closes the fence with the lease."""
        turns = turns or Turns(self.loop.lead, self.loop.step_down)
        elector = Elector(self.loop, self._clock, turns)
        if self.elects:
            self.fence.deadline = elector.deadline
            self.fence.term = lambda: elector.term
        return elector

    def lease(self, client: Client) -> Lease:
        """The one that the configuration names, for this process."""
        election = self.config.leader_election
        tail = client.rng.randbytes(4).hex()
        return Lease(
            client,
            LeaseConfig(
                namespace=election.resource_namespace,
                name=election.resource_name,
                identity=f"{socket.gethostname()}_{os.getpid()}_{tail}",
                lease_s=round(election.lease_duration),
                renew_deadline_s=election.renew_deadline,
                retry_s=election.retry_period,
            ),
            lambda error: log.warning("the lease: %s", error),
        )

    def sidecar(self, own_client: Callable[[], Client]) -> Sidecar:
        """A thread with a client of its own, for the lease, health and metrics."""
        main = asyncio.get_running_loop()
        turns = Turns(
            on_lead=lambda: _soon(main, self.loop.lead),
            on_lost=lambda: _soon(main, self.loop.step_down),
        )

        async def lease() -> Lease:
            return self.lease(own_client())

        duties = Duties(
            listen=self.config.listen,
            metrics=self.metrics.expose,
            lease=lease if self.elects else None,
        )
        return Sidecar(self.loop, self.elector(turns), duties)

    async def run(self) -> None:
        """Until `loop.stop`; then every bind is finished or forgotten."""
        if self.journal is not None:
            self.journal.open(self.engine, self._clock.time())
        tasks = [
            asyncio.create_task(self.watches.run(), name="watches"),
            asyncio.create_task(self.writer.run(), name="writer"),
        ]
        tasks += [asyncio.ensure_future(chore()) for chore in self.chores]
        deciding = asyncio.create_task(self.loop.run(), name="loop")
        try:
            await asyncio.wait([deciding, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if deciding.done():
                await deciding
        finally:
            deciding.cancel()
            closing = asyncio.create_task(self.writer.close(FINISH_BINDS_S, FINISH_WORDS_S))
            while not closing.done():  # that is no hang: the lease is kept for the last binds
                self.loop.ticked_at = self._clock.time()
                await asyncio.wait([closing], timeout=1.0)
            await closing
            if self.steward is not None:
                await self.steward.close(FINISH_WORDS_S)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
            if self.journal is not None:
                self.journal.close()
        dropped = {kind: count for kind, count in self.writer.dropped.items() if count}
        log.info("stopped%s", f"; not written: {dropped}" if dropped else "")


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Calls on another thread's event loop, if that still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
