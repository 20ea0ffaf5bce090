"""The device plugin of one resource: what the kubelet asks of it, and its answers.

The kubelet names devices, never pods. It takes the devices that it is told to prefer wherever it
can, and then Allocate answers for exactly the ones that it names.
"""

import logging
from asyncio import Event
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
from msgspec import Struct

from bayplan.agent import wire
from bayplan.agent.counts import Counts, Told
from bayplan.agent.pods import Wanted
from bayplan.agent.units import Unit, Units, units_of
from bayplan.core.model.devices import Devices
from bayplan.core.model.holdings import told
from bayplan.core.model.vendors import DeviceClass, Resource

log = logging.getLogger("bayplan")

Context = grpc.aio.ServicerContext  # of types that differ by method


class Chooser(Protocol):
    """Knows the pods; the plugin does not."""

    async def prefer(self, wanted: Wanted) -> frozenset[str] | None:
        """The devices of the pod that is most likely asked for; None: of no pod that is known."""

    def promised(self, resource: str) -> frozenset[str]:
        """Of its devices, or cores, those that pods were given by whatever name."""

    def allocated(self, resource: str, ids: frozenset[str]) -> None: ...


class Ware(Struct, frozen=True):
    """What a plugin gives: a resource of a class, on a machine whose files are under `root`."""

    resource: Resource
    device_class: DeviceClass
    root: Path = Path("/")

    @property
    def variable(self) -> str:
        return self.resource.environment or self.device_class.environment

    def path(self, index: int) -> str:
        """Of the device's file, or nothing."""
        return self.device_class.device_path.replace("{index}", str(index))

    def has_file(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()


class Plugin:
    def __init__(self, ware: Ware, chooser: Chooser, counts: Counts) -> None:
        self.resource, self._ware = ware.resource.name, ware
        self._chooser, self.counts = chooser, counts
        self._units: Units = {}
        self._no_file = Told()
        self._changed = Event()
        self._watches = 0
        self._period = 0  # of a server; its watches end with it

    def show(self, devices: Devices) -> None:
        """From now on these are the devices."""
        found = units_of(self._ware.resource, devices)
        if found != self._units:
            self._units = found
            self._wake()

    @property
    def is_watched(self) -> bool:
        """Whether a kubelet hears of the devices."""
        return self._watches > 0

    @property
    def has_healthy(self) -> bool:
        return any(unit.device.healthy for unit in self._units.values())

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
                yield wire.DeviceList(tuple(map(_shown, self._units.values())))
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
            if id not in self._units:
                why = f"{self.resource} {id} is not a device of this node"
                await self._refuse(context, code.NOT_FOUND, why)
            if not self._units[id].device.healthy:
                why = f"{self.resource} {id} is unhealthy"
                await self._refuse(context, code.FAILED_PRECONDITION, why)

    async def _refuse(
        self, context: "Context[Any, Any]", code: grpc.StatusCode, why: str
    ) -> NoReturn:
        self.counts.refusals += 1
        log.warning("refused to allocate: %s", why)
        await context.abort(code, why)

    def _answer(self, ids: frozenset[str]) -> wire.Allocated:
        given = [self._units[id] for id in self._ordered(ids)]
        names = told(self._ware.device_class, [unit.held for unit in given])
        variable = self._ware.variable
        return wire.Allocated(
            {variable: ",".join(names)} if variable else {}, files=tuple(self._files(given))
        )

    def _files(self, given: list[Unit]) -> list[wire.DeviceFile]:
        """Of the devices, or of those that have the cores. A file that is not there would keep the
        container from starting."""
        if not self._ware.device_class.device_path:
            return []
        paths = dict.fromkeys(self._ware.path(unit.device.index) for unit in given)
        missing = [path for path in paths if not self._ware.has_file(path)]
        words = f"{self.resource}: there is no {', '.join(missing)}; containers do without"
        self._no_file.new([("", words)] if missing else [])
        return [wire.DeviceFile(path, path, "rw") for path in paths if path not in missing]

    def _ordered(self, ids: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(ids, key=self._place))

    def _place(self, id: str) -> tuple[int, str]:
        unit = self._units.get(id)
        return (unit.held.index if unit else 1 << 16), id


OPTIONS = wire.Options(pre_start_required=False, get_preferred_allocation_available=True)


def _shown(unit: Unit) -> wire.Device:
    device = unit.device
    topology = wire.Topology((wire.NumaNode(device.numa),)) if device.numa >= 0 else None
    return wire.Device(unit.held.id, wire.HEALTHY if device.healthy else wire.UNHEALTHY, topology)
