"""A controller served over gRPC, as vipu.proto says."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from bayplan.protobuf import BadMessage, decoder, encode
from bayplan.vipu import wire
from bayplan.vipu.controller import Controller, Inventory, Refused, Unavailable, VipuError

if TYPE_CHECKING:
    import grpc.aio

T = TypeVar("T", bound=Struct)

_ONE_AT_A_PORT = (("grpc.so_reuseport", 0),)  # else two servers would share it, unseen


class _Missing(Exception):
    """There is no such partition."""


class Server:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """The port, which is any free one for 0."""
        wire.need_grpc()
        import grpc.aio

        server = grpc.aio.server(options=_ONE_AT_A_PORT)
        server.add_generic_rpc_handlers((handler(self._controller),))
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            found = server.add_insecure_port(where)
        except RuntimeError:
            raise VipuError(f"{where}: nobody can listen there; is the port in use?") from None
        await server.start()
        self._server = server
        return found

    async def stop(self) -> None:
        """At once; who waits for an answer is hung up on."""
        if self._server is not None:
            await self._server.stop(grace=None)


def handler(controller: Controller) -> "grpc.GenericRpcHandler":
    import grpc

    calls = _Calls(controller)
    methods = {
        wire.CREATE: _method(calls.create, wire.CreatePartition),
        wire.GET: _method(calls.get, wire.PartitionId),
        wire.DELETE: _method(calls.delete, wire.PartitionId),
        wire.LIST: _method(calls.list, wire.Empty),
        wire.INVENTORY: _method(calls.inventory, wire.Empty),
    }
    return grpc.method_handlers_generic_handler(wire.SERVICE, methods)


class _Calls:
    """The controller's methods with messages for arguments."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def create(self, asked: wire.CreatePartition) -> wire.PartitionReply:
        made = await self._controller.create(
            asked.id,
            asked.size,
            cluster=asked.cluster,
            allocation=asked.allocation,
            reconfigurable=asked.reconfigurable,
        )
        return wire.PartitionReply(made)

    async def get(self, asked: wire.PartitionId) -> wire.PartitionReply:
        found = await self._controller.get(asked.id)
        if found is None:
            raise _Missing(f"there is no partition {asked.id}")
        return wire.PartitionReply(found)

    async def delete(self, asked: wire.PartitionId) -> wire.Empty:
        if not await self._controller.delete(asked.id):
            raise _Missing(f"there is no partition {asked.id}")
        return wire.Empty()

    async def list(self, _: wire.Empty) -> wire.PartitionList:
        return wire.PartitionList(await self._controller.partitions())

    async def inventory(self, _: wire.Empty) -> Inventory:
        return await self._controller.inventory()


def _method(
    work: Callable[[T], Awaitable[Struct]], asked: type[T]
) -> "grpc.RpcMethodHandler[Any, Any]":
    import grpc

    read = decoder(asked)

    async def handle(raw: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        try:
            return encode(await work(read(raw)))
        except BadMessage as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except _Missing as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except Refused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    return grpc.unary_unary_rpc_method_handler(handle)
