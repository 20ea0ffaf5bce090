"""`bayplan elastic`, put together: the controller, the lease, health and metrics.

Nothing is stored: after a restart all of it comes from the API.
"""

import asyncio
import logging
import os
import random
import secrets
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bayplan.elastic.config import Configuration
from bayplan.elastic.controller import Controller
from bayplan.kube.client import Client
from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import Credentials, find_source
from bayplan.kube.http import HttpTransport, until
from bayplan.kube.lease import Lease, LeaseConfig
from bayplan.web.server import Answer, serving, text

log = logging.getLogger("bayplan")

CONNECTIONS = 8  # steps go one by one; the rest is for the lease
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def serve(config: Configuration, kubeconfig: str | None) -> None:
    """Until SIGTERM or SIGINT; then the lease is given up."""
    async with connected(kubeconfig) as client:
        controller = Controller(client, config.settings, lease_of(config, client))
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with serving(config.listen, Health(controller).routes) as port:
            log.info("health and metrics are on port %d", port)
            await until(stopped, controller.run())


async def foresee(config: Configuration, kubeconfig: str | None) -> list[str]:
    """What would be done now."""
    async with connected(kubeconfig) as client:
        return await Controller(client, config.settings).foresee()


@asynccontextmanager
async def connected(kubeconfig: str | None) -> AsyncIterator[Client]:
    clock = RealClock()
    credentials = Credentials(find_source(kubeconfig), clock)
    access = await credentials.access()
    log.info("the API server is %s", access.server)
    transport = HttpTransport(credentials, clock, CONNECTIONS, user_agent="bayplan-elastic")
    try:
        yield Client(transport, clock, random.Random())
    finally:
        await transport.close()


def lease_of(config: Configuration, client: Client) -> Lease | None:
    election = config.leader_election
    if not election.leader_elect:
        return None
    identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    chosen = LeaseConfig(
        election.resource_namespace,
        election.resource_name,
        identity,
        election.lease_seconds,
        election.renew_seconds,
        election.retry_seconds,
    )

    def tell(error: Exception) -> None:
        log.warning("the lease: %s", error)

    return Lease(client, chosen, tell)


class Health:
    """What is answered over HTTP."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self.routes = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._expose}

    async def _livez(self) -> Answer:
        """It is the same loop that answers and that works."""
        return text("ok")

    async def _readyz(self) -> Answer:
        waiting = self._controller.unsynced()
        return text(f"waits for: {', '.join(waiting)}", 503) if waiting else text("ok")

    async def _expose(self) -> Answer:
        return Answer(generate_latest(self._registry), content_type=PROMETHEUS)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        controller = self._controller
        steps = CounterMetricFamily("bayplan_elastic_steps", "What was done.", labels=["step"])
        for name, many in controller.writer.counts.items():
            steps.add_metric([name], many)
        troubles = CounterMetricFamily("bayplan_elastic_troubles", "What failed.", labels=["what"])
        for name, many in controller.troubles.items():
            troubles.add_metric([name], many)
        yield steps
        yield troubles
        yield CounterMetricFamily("bayplan_elastic_looks", "Plans made.", value=controller.looks)
        yield GaugeMetricFamily("bayplan_elastic_leads", "1: holds the lease.", controller.leads)
        yield from _jobs(controller)


def _jobs(controller: Controller) -> Iterator[Metric]:
    """As they were last looked at; a standby has none."""
    phases: Counter[str] = Counter()
    workers: Counter[tuple[str, str]] = Counter()  # by resource, and what of them
    for seen in controller.last.jobs if controller.last is not None else ():
        resource = seen.job.counted[0]
        phases[seen.job.status.phase or "Pending"] += 1
        workers[resource, "granted"] += seen.job.grant.workers
        workers[resource, "passing"] += seen.job.grant.passing
        workers[resource, "living"] += len(seen.living)
        workers[resource, "ready"] += seen.ready
    jobs = GaugeMetricFamily("bayplan_elastic_jobs", "Elastic jobs.", labels=["phase"])
    for phase, many in phases.items():
        jobs.add_metric([phase], many)
    sizes = GaugeMetricFamily(
        "bayplan_elastic_workers", "Workers of all jobs.", labels=["resource", "which"]
    )
    for (resource, which), many in workers.items():
        sizes.add_metric([resource, which], many)
    yield jobs
    yield sizes
