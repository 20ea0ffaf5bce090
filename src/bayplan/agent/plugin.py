"""The device plugin of one resource: what the kubelet asks of it, and its answers.

The kubelet names devices, never pods. It takes the devices that it is told to prefer wherever it
can, and then Allocate answers for exactly the ones that it names.
"""

import logging
from asyncio import Event
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from bayplan.agent import wire
from bayplan.agent.counts import Counts
from bayplan.agent.pods import Wanted
from bayplan.core.model.devices import Device, Devices
from bayplan.core.model.holdings import told
from bayplan.core.model.vendors import DeviceClass

log = logging.getLogger("bayplan")

Context = grpc.aio.ServicerContext  # of types that differ by method


class Chooser(Protocol):
    """Knows the pods; the plugin does not."""

    async def prefer(self, wanted: Wanted) -> frozenset[str] | None:
        """The devices of the pod that is most likely asked for; None: of no pod that is known."""

    def promised(self, resource: str) -> frozenset[str]:
        """Devices that pods were given, as wholes or in part."""

    def allocated(self, resource: str, ids: frozenset[str]) -> None: ...


class Plugin:
    def __init__(
        self, resource: str, device_class: DeviceClass, chooser: Chooser, counts: Counts
    ) -> None:
        self.resource, self._class = resource, device_class
        self._chooser, self.counts = chooser, counts
        self._devices: dict[str, Device] = {}
        self._changed = Event()
        self._watches = 0
        self._period = 0  # of a server; its watches end with it

    def show(self, devices: Devices) -> None:
        """From now on these are the devices."""
        found = {device.id: device for device in devices.devices}
        if found != self._devices:
            self._devices = found
            self._wake()

    @property
    def is_watched(self) -> bool:
        """Whether a kubelet hears of the devices."""
        return self._watches > 0

    @property
    def has_healthy(self) -> bool:
        return any(device.healthy for device in self._devices.values())

    def hang_up(self) -> None:
        """Ends the watches, so that a server that stops need only wait for real questions."""
        self._period += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server, until `hang_up`."""
        return grpc.method_handlers_generic_handler(
            wire.PLUGIN,
            {
                "GetDevicePluginOptions": wire.unary(self.options, wire.Empty),
                "ListAndWatch": wire.streaming(partial(self.watch, self._period), wire.Empty),
                "GetPreferredAllocation": wire.unary(self.prefer, wire.Wishes),
                "Allocate": wire.unary(self.allocate, wire.IdsPerContainer),
                "PreStartContainer": wire.unary(self.pre_start, wire.Ids),
            },
        )

    async def options(self, asked: wire.Empty, context: "Context[Any, Any]") -> wire.Options:
        return OPTIONS

    async def pre_start(self, asked: wire.Ids, context: "Context[Any, Any]") -> wire.Empty:
        return wire.Empty()

    async def watch(
        self, period: int, asked: wire.Empty, context: "Context[Any, Any]"
    ) -> AsyncIterator[wire.DeviceList]:
        """The devices, and all of them again whenever one has changed."""
        self._watches += 1
        try:
            while period == self._period:
                changed = self._changed
                yield wire.DeviceList(tuple(map(_shown, self._devices.values())))
                await changed.wait()
        finally:
            self._watches -= 1

    async def prefer(
        self, asked: wire.Wishes, context: "Context[Any, Any]"
    ) -> wire.IdsPerContainer:
        return wire.IdsPerContainer(
            tuple([wire.Ids(await self._preferred(wish)) for wish in asked.containers])
        )

    async def _preferred(self, asked: wire.Wish) -> tuple[str, ...]:
        wanted = Wanted(
            self.resource, asked.size, frozenset(asked.available), frozenset(asked.must_include)
        )
        ids = await self._chooser.prefer(wanted)
        if ids is None:
            ids = self._any(wanted)
        return self._ordered(ids)

    def _any(self, wanted: Wanted) -> frozenset[str]:
        """Nobody is known to wait: rather those that nobody was given."""
        promised = self._chooser.promised(self.resource)
        free = sorted(
            wanted.available - wanted.must_include,
            key=lambda id: (id in promised, self._place(id)),
        )
        return wanted.must_include | set(free[: max(wanted.size - len(wanted.must_include), 0)])

    async def allocate(
        self, asked: wire.IdsPerContainer, context: "Context[Any, Any]"
    ) -> wire.AllocatedPerContainer:
        for container in asked.containers:
            await self._must_have(container.ids, context)
        answers = tuple(self._answer(frozenset(container.ids)) for container in asked.containers)
        for container in asked.containers:
            self.counts.allocations += 1
            log.info("%s: the kubelet took %s", self.resource, ", ".join(container.ids))
            self._chooser.allocated(self.resource, frozenset(container.ids))
        return wire.AllocatedPerContainer(answers)

    async def _must_have(self, ids: tuple[str, ...], context: "Context[Any, Any]") -> None:
        code = grpc.StatusCode
        if not ids or len(set(ids)) < len(ids):
            await self._refuse(context, code.INVALID_ARGUMENT, "no devices, or one of them twice")
        for id in ids:
            if id not in self._devices:
                why = f"{self.resource} {id} is not a device of this node"
                await self._refuse(context, code.NOT_FOUND, why)
            if not self._devices[id].healthy:
                why = f"{self.resource} {id} is unhealthy"
                await self._refuse(context, code.FAILED_PRECONDITION, why)

    async def _refuse(
        self, context: "Context[Any, Any]", code: grpc.StatusCode, why: str
    ) -> NoReturn:
        self.counts.refusals += 1
        log.warning("refused to allocate: %s", why)
        await context.abort(code, why)

    def _answer(self, ids: frozenset[str]) -> wire.Allocated:
        if not self._class.environment:
            return wire.Allocated()
        devices = [self._devices[id] for id in self._ordered(ids)]
        return wire.Allocated({self._class.environment: ",".join(told(self._class, devices))})

    def _ordered(self, ids: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(ids, key=self._place))

    def _place(self, id: str) -> tuple[int, str]:
        device = self._devices.get(id)
        return (device.index if device else 1 << 16), id


OPTIONS = wire.Options(pre_start_required=False, get_preferred_allocation_available=True)


def _shown(device: Device) -> wire.Device:
    topology = wire.Topology((wire.NumaNode(device.numa),)) if device.numa >= 0 else None
    return wire.Device(device.id, wire.HEALTHY if device.healthy else wire.UNHEALTHY, topology)
