"""A stand-in for the kubelet: what it says to device plugins and about them, and no containers.

It does as the kubelet does (facts of its device manager): when it starts it deletes every socket in
its directory; it takes the devices that the plugin prefers where it can; it remembers what pods
hold across its own restarts.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct

from bayplan.agent import wire
from bayplan.protobuf import decoder, encode

Key = tuple[str, str]
Place = tuple[str, str]


class Admitted(Struct, frozen=True):
    ids: frozenset[str]
    environment: dict[str, str]
    files: tuple[wire.DeviceFile, ...]


class Refused(Exception):
    """The plugin refused to allocate; the pod would fail with UnexpectedAdmissionError."""


class StandInKubelet:
    def __init__(self, folder: Path) -> None:
        self.plugins, self.pod_resources = folder / "plugins", folder / "pods.sock"
        self.plugins.mkdir(exist_ok=True)
        self.held: dict[Key, dict[Place, frozenset[str]]] = {}
        self.devices: dict[str, dict[str, str]] = {}  # by resource: health by id
        self.numa: dict[str, list[int]] = {}  # by id
        self.registered: list[wire.Registration] = []
        self.lists = 0  # how often it was asked what pods hold
        self._endpoints: dict[str, grpc.aio.Channel] = {}
        self._servers: list[grpc.aio.Server] = []
        self._readers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()

    async def start(self, wipe: bool = True) -> None:
        """`wipe`: as a kubelet does; a test may leave others' sockets where they are."""
        for path in self.plugins.iterdir() if wipe else ():
            path.unlink()
        self.devices.clear()
        register = wire.unary(self._register, wire.Registration)
        listing = wire.unary(self._list, wire.Empty)
        for path, service, method, handler in (
            (self.pod_resources, "v1.PodResourcesLister", "List", listing),
            (self.plugins / "kubelet.sock", "v1beta1.Registration", "Register", register),
        ):
            server = grpc.aio.server()
            handlers = {method: handler}
            generic = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((generic,))
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        for reader in self._readers:
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        for channel in self._endpoints.values():
            await channel.close()
        for server in self._servers:
            await server.stop(None)
        self._readers, self._endpoints, self._servers = [], {}, []

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def hang_up(self, resource: str) -> None:
        """As it does to a plugin when an older one of the same resource ends."""
        async with self._changed:
            self.devices.pop(resource)
        await self._endpoints.pop(resource).close()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(is_so)

    async def has(self, resource: str, **health: str) -> None:
        """Until the plugin shows exactly these devices; names have _ for -."""
        wanted = {id.replace("_", "-"): word for id, word in health.items()}
        await self.until(lambda: self.devices.get(resource) == wanted)

    async def admit(
        self, pod: str, resource: str, count: int, *, container: str = "main", insist: str = ""
    ) -> Admitted:
        """Devices for a container of a pod; `insist`: those ids, whatever the plugin prefers."""
        in_use = {
            id
            for places in self.held.values()
            for place, ids in places.items()
            if place[1] == resource
            for id in ids
        }
        healthy = {id for id, word in self.devices[resource].items() if word == wire.HEALTHY}
        available = healthy - in_use
        assert len(available) >= count, "requested number of devices unavailable"
        wish = wire.Wishes((wire.Wish(tuple(sorted(available)), (), count),))
        preferred = await self._call(resource, "GetPreferredAllocation", wish, wire.IdsPerContainer)
        ids = [id for id in preferred.containers[0].ids if id in available]
        ids = [*ids, *sorted(available - set(ids))][:count]
        return await self.allocate(pod, resource, insist.split(",") if insist else ids, container)

    async def allocate(
        self, pod: str, resource: str, ids: list[str], container: str = "main"
    ) -> Admitted:
        asked = wire.IdsPerContainer((wire.Ids(tuple(ids)),))
        try:
            answer = await self._call(resource, "Allocate", asked, wire.AllocatedPerContainer)
        except grpc.aio.AioRpcError as error:
            raise Refused(error.details()) from None
        places = self.held.setdefault(("default", pod), {})
        places[container, resource] = frozenset(ids)
        given = answer.containers[0]
        return Admitted(frozenset(ids), dict(given.environment), given.files)

    async def _call(self, resource: str, method: str, asked: Struct, answer: Any) -> Any:
        path = f"/{wire.PLUGIN}/{method}"
        return await wire.call(self._endpoints[resource], path, answer)(asked)

    # What the agent asks

    async def _register(self, asked: wire.Registration, context: Any) -> wire.Empty:
        assert asked.version == "v1beta1"
        assert "/" not in asked.endpoint  # it is relative to the directory
        old = self._endpoints.pop(asked.resource_name, None)
        if old is not None:
            await old.close()
        channel = wire.channel(str(self.plugins / asked.endpoint))
        self._endpoints[asked.resource_name] = channel
        self.registered.append(asked)
        reading = self._read(asked.resource_name, channel)
        self._readers.append(asyncio.create_task(reading, name=asked.endpoint))
        return wire.Empty()

    async def _read(self, resource: str, channel: grpc.aio.Channel) -> None:
        path = f"/{wire.PLUGIN}/ListAndWatch"
        stream = channel.unary_stream(path, encode, decoder(wire.DeviceList))(wire.Empty())
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for shown in stream:
                async with self._changed:
                    self.devices[resource] = {each.id: each.health for each in shown.devices}
                    for each in shown.devices:
                        nodes = each.topology.nodes if each.topology else ()
                        self.numa[each.id] = [node.id for node in nodes]
                    self._changed.notify_all()

    async def _list(self, asked: wire.Empty, context: Any) -> wire.Pods:
        self.lists += 1
        async with self._changed:
            self._changed.notify_all()
        return wire.Pods(
            tuple(
                wire.Pod(name, namespace, tuple(_containers(places)))
                for (namespace, name), places in self.held.items()
            )
        )


def _containers(places: dict[Place, frozenset[str]]) -> list[wire.Container]:
    """One entry per device, as a kubelet that knows NUMA nodes may give them."""
    names = dict.fromkeys(container for container, _ in places)
    return [
        wire.Container(
            name,
            tuple(
                wire.ContainerDevices(resource, (id,))
                for (container, resource), ids in places.items()
                if container == name
                for id in sorted(ids)
            ),
        )
        for name in names
    ]
