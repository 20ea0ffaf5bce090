"""A whole cluster in one process: the embedded API, pretend nodes, and the scheduler."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec import Struct

from bayplan.kube.client import Client
from bayplan.kube.clock import Clock
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.faults import Faults
from bayplan.local.kubelets import Kubelets
from bayplan.local.transport import DirectTransport
from bayplan.scheduler.config import Configuration, Pool
from bayplan.scheduler.service import Options, Service
from bayplan.scheduler.sites import site_of
from bayplan.scheduler.steward import Site

Json = dict[str, Any]


class Cluster(Struct, frozen=True):
    api: Api
    client: Client  # a user's
    kubelets: Kubelets
    service: Service
    tasks: tuple[asyncio.Task[None], ...]  # each runs until the block ends, unless it fails


@asynccontextmanager
async def running(
    nodes: Iterable[Json],
    config: Configuration,
    clock: Clock,
    faults: Faults | None = None,
    seed: int | None = None,
    reach: Callable[[Pool], Site] = site_of,
) -> AsyncIterator[Cluster]:
    """The cluster, inside the block. Faults are met by the scheduler alone. `reach`: how the
    controllers of pools are found."""
    rng = random.Random(seed)
    api = Api(clock, rng)
    user = Client(DirectTransport(api, clock), clock, rng)
    kubelets = Kubelets(user, nodes, rng)
    ours = Client(DirectTransport(api, clock, faults), clock, rng)
    service = Service(config, Options(), ours, reach)
    tasks = [
        asyncio.create_task(kubelets.run(), name="pretend nodes"),
        asyncio.create_task(Controllers(api).run(), name="controllers"),
    ]
    await kubelets.registered.wait()
    scheduling = asyncio.create_task(service.run(), name="scheduler")
    try:
        yield Cluster(api, user, kubelets, service, (scheduling, *tasks))
    finally:
        service.loop.stop()
        try:
            await scheduling
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
