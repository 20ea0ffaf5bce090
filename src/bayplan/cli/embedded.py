"""A whole cluster in one process: the embedded API, pretend nodes, the scheduler, and the
controller of elastic jobs."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from bayplan.cli.manifests import render
from bayplan.elastic.controller import Controller
from bayplan.elastic.planner import Settings
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
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Cluster(Struct, frozen=True):
    api: Api
    client: Client  # a user's
    kubelets: Kubelets
    service: Service
    tasks: tuple[asyncio.Task[None], ...]  # each runs until the block ends, unless it fails


class Elastic(Struct, frozen=True):
    """Elastic jobs: the kinds are there, and run in this way, if we run them."""

    settings: Settings | None = Settings()


@asynccontextmanager
async def running(
    nodes: Iterable[Json],
    config: Configuration,
    clock: Clock,
    faults: Faults | None = None,
    seed: int | None = None,
    reach: Callable[[Pool], Site] = site_of,
    elastic: Elastic | None = None,
) -> AsyncIterator[Cluster]:
    """The cluster, inside the block. Faults are met by the scheduler alone. `reach`: how the
    controllers of pools are found. `elastic`: if None, there are no such kinds."""
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
    if elastic is not None:
        await _define_elastic(user)  # before anybody looks for the kinds
    if elastic is not None and elastic.settings is not None:
        theirs = Client(DirectTransport(api, clock), clock, rng)
        controller = Controller(theirs, elastic.settings)
        tasks.append(asyncio.create_task(controller.run(), name="elastic jobs"))
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


async def _define_elastic(client: Client) -> None:
    """The kinds, as if kubectl had applied them: whoever applies them too is not warned, and
    changes nothing."""
    for made in yaml.safe_load_all(render("elastic-crds", {})):
        notes = made["metadata"].setdefault("annotations", {})
        notes[APPLIED] = msgspec.json.encode(made, order="sorted").decode() + "\n"
        await client.request("POST", DEFINITIONS, body=msgspec.json.encode(made))
