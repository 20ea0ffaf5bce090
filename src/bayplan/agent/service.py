"""`bayplan agent`, put together: inventory, plugins, the kubelet's account, the node's annotations.

Nothing is stored: after a restart all of it comes from the API, the kubelet and the devices.
"""

import asyncio
import logging
import random
import signal
from asyncio import TaskGroup
from functools import partial
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from bayplan.agent.counts import Counts, Told
from bayplan.agent.endpoint import Endpoint
from bayplan.agent.inventory import BadInventory, NodeNotSeen, Source, complete, must_fit
from bayplan.agent.plugin import Plugin, Ware
from bayplan.agent.pods import PodsHere
from bayplan.agent.profiler import PERIOD_S, Here, Profiler
from bayplan.agent.publish import Publisher
from bayplan.agent.reconcile import Reconciler
from bayplan.agent.samples import source_of
from bayplan.agent.status import serving
from bayplan.agent.truth import Served
from bayplan.agent.units import is_served
from bayplan.agent.usage import Kernel
from bayplan.core.model.devices import Devices, Inventory, write_inventory
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import Client
from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import Credentials, find_source
from bayplan.kube.http import HttpTransport, until
from bayplan.kube.reflector import Reflector

log = logging.getLogger("bayplan")

# A pod's patch, the node's, a question for which the kubelet waits, and the profiler's patches.
CONNECTIONS = 4


class Settings(Struct, frozen=True):
    node: str
    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    listen: str = ":10272"
    discover_s: float = 30.0
    reconcile_s: float = 10.0
    poll_s: float = 1.0  # of the sockets' files
    root: Path = Path("/")  # of the machine, for the files of devices and of its kernel
    profile: bool = False  # whether to tell what cards do
    profile_file: str = ""  # that says it; else NVML does
    profile_s: float = PERIOD_S


async def serve(
    settings: Settings, source: Source, vendors: Vendors, kubeconfig: str | None
) -> None:
    """Until SIGTERM or SIGINT."""
    clock = RealClock()
    credentials = Credentials(find_source(kubeconfig), clock)
    access = await credentials.access()
    log.info("node %s; the API server is %s", settings.node, access.server)
    transport = HttpTransport(credentials, clock, CONNECTIONS, user_agent="bayplan-agent")
    agent = Agent(settings, source, vendors, Client(transport, clock, random.Random()))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        async with serving(settings.listen, agent.counts, lambda: agent.is_ready) as port:
            log.info("health and metrics are on port %d", port)
            await until(stopped, agent.run())
    finally:
        await transport.close()


class Agent:
    def __init__(
        self, settings: Settings, source: Source, vendors: Vendors, client: Client
    ) -> None:
        self._settings, self._source, self._vendors = settings, source, vendors
        self._clock, self._client = client.clock, client
        self.counts = Counts()
        self._inventory: Inventory | None = None
        self.pods = PodsHere(client, settings.node)
        self.publisher = Publisher(client, settings.node, vendors, self.pods, self.counts)
        self.reconciler = Reconciler(
            client,
            Served(settings.node, vendors, {}),
            self.pods,
            settings.pod_resources,
            self.counts,
        )
        self.profiler = self._made_profiler() if settings.profile else None
        self._plugins: dict[str, tuple[Plugin, Endpoint]] = {}  # by resource
        self._trouble = Told()

    def _made_profiler(self) -> Profiler:
        settings = self._settings
        samples = source_of(settings.profile_file)
        here = Here(settings.node, samples, Kernel(settings.root), settings.profile_s)
        return Profiler(self._client, here, self.publisher, self.pods, self.counts)

    @property
    def is_ready(self) -> bool:
        return (
            self.publisher.is_published
            and self.pods.synced_once.is_set()
            and all(endpoint.is_registered for _, endpoint in self._plugins.values())
        )

    async def run(self) -> NoReturn:
        """Until cancelled. `BadInventory` when nobody can say at first which devices there are."""
        inventory = await self._discover()
        async with TaskGroup() as group:
            self._show(inventory, group)
            for name, what in (
                ("pods", self._follow_pods()),
                ("node", self._follow_node()),
                ("publish", self.publisher.run()),
                ("reconcile", self.reconciler.run(self._settings.reconcile_s)),
                ("discover", self._keep_discovering(group)),
            ):
                group.create_task(what, name=name)
            if self.profiler is not None:
                group.create_task(self.profiler.run(), name="profile")
        raise AssertionError("tasks without an end have ended")

    async def _follow_pods(self) -> NoReturn:
        await Reflector(self._client, self.pods.watched, self.pods, self._tell).run()

    async def _follow_node(self) -> NoReturn:
        await Reflector(self._client, self.publisher.watched, self.publisher, self._tell).run()

    def _tell(self, error: Exception) -> None:
        self.counts.troubles += 1
        log.warning("a watch broke off and is begun again: %s", error)

    async def _discover(self) -> Inventory:
        """In a thread: a driver may take its time."""
        try:
            inventory = await asyncio.to_thread(self._source.discover, self.publisher.machine)
        except NodeNotSeen:
            await self.publisher.look()
            inventory = await asyncio.to_thread(self._source.discover, self.publisher.machine)
        must_fit(write_inventory(inventory))
        return inventory

    async def _keep_discovering(self, group: TaskGroup) -> NoReturn:
        while True:
            await self._clock.sleep(self._settings.discover_s)
            try:
                self._show(await self._discover(), group)
                self._trouble.new([])
            except BadInventory as error:
                words = f"devices stay as they were last seen: {error}"
                self.counts.troubles += self._trouble.new([(str(error), words)])

    def _is_offered(self, plugin: Plugin) -> bool:
        """Whether the node's status has such devices, if it should have."""
        return not plugin.has_healthy or self.publisher.allocatable(plugin.resource) != 0

    def _show(self, inventory: Inventory, group: TaskGroup) -> None:
        inventory = complete(inventory, self._inventory)
        if inventory == self._inventory:
            return
        self._inventory = inventory
        self.publisher.show(inventory)
        self.reconciler.served = Served(self._settings.node, self._vendors, inventory.classes)
        for resource, (device_class, kind) in self._vendors.resources.items():
            devices = inventory.classes.get(device_class.name, Devices(()))
            if not is_served(kind):
                continue
            if resource not in self._plugins:
                if not devices.devices:
                    continue
                ware = Ware(kind, device_class, self._settings.root)
                plugin = Plugin(ware, self.reconciler, self.counts)
                endpoint = Endpoint(
                    plugin,
                    self._settings.device_plugins,
                    self._clock,
                    partial(self._is_offered, plugin),
                    self._settings.poll_s,
                )
                self._plugins[resource] = plugin, endpoint
                group.create_task(endpoint.keep(), name=resource)
            self._plugins[resource][0].show(devices)
