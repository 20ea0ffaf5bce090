"""A V-IPU controller at the other end of a connection.

Every call has a time-out, which begins with its turn: only so many are under way at once. Until
then a server that is not there is asked again, because every call can be repeated.
"""

import asyncio
import random
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from bayplan.protobuf import BadMessage, decoder, encode
from bayplan.vipu import wire
from bayplan.vipu.controller import (
    BeforeSend,
    Controller,
    Denied,
    Inventory,
    Partition,
    Refused,
    Unavailable,
    VipuError,
)

if TYPE_CHECKING:
    import grpc.aio

T = TypeVar("T", bound=Struct)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_CHANNEL = (
    ("grpc.initial_reconnect_backoff_ms", 100),  # as we ask again, so it connects again
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A connection whose other end has gone away silently is given up after 20 s, not 15 minutes.
    # Servers in Go take more than a ping in 5 minutes for abuse.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.enable_http_proxy", 0),  # a proxy for the outside world does not lead to a controller
)
_REFUSALS = frozenset({"FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"})
_DENIALS = frozenset({"INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED"})


class Options(Struct, frozen=True):
    timeout_s: float = 10.0
    at_once: int = 16
    roots: bytes | None = None  # certificates to trust, in PEM; with them, TLS
    user_id: str = ""
    access_key: str = ""


class _Missing(Refused):
    """There is no such thing."""


class _Exists(Refused):
    """There is one by that id."""


class Client:
    """To be made where the event loop runs."""

    def __init__(
        self, address: str, options: Options | None = None, rng: random.Random | None = None
    ) -> None:
        options = options or Options()
        self._address, self._timeout_s = address, options.timeout_s
        self._turns = asyncio.Semaphore(options.at_once)
        self._rng = rng or random.Random()
        self._metadata = _metadata(options)
        self._channel = _channel(address, options.roots)
        self._closed = False

    async def inventory(self) -> Inventory:
        return await self._ask(wire.INVENTORY, wire.Empty(), Inventory)

    async def partitions(self) -> tuple[Partition, ...]:
        return (await self._ask(wire.LIST, wire.Empty(), wire.PartitionList)).partitions

    async def create(
        self,
        id: str,
        size: int,
        *,
        cluster: str = "",
        allocation: str = "",
        reconfigurable: bool = False,
        before_send: BeforeSend | None = None,
    ) -> Partition:
        asked = wire.CreatePartition(id, size, cluster, allocation, reconfigurable)
        try:
            made = await self._partition(wire.CREATE, id, asked, before_send)
        except _Exists:
            found = await self.get(id)
            if found is None:
                raise Unavailable(f"{self._address}: partition {id} went away") from None
            made = found
        if not made.fulfils(size, cluster, allocation):
            raise Refused(f"{self._address}: partition {id} exists with another size or place")
        return made

    async def get(self, id: str) -> Partition | None:
        try:
            return await self._partition(wire.GET, id, wire.PartitionId(id))
        except _Missing:
            return None

    async def delete(self, id: str, *, before_send: BeforeSend | None = None) -> bool:
        try:
            await self._ask(wire.DELETE, wire.PartitionId(id), wire.Empty, before_send)
        except _Missing:
            return False
        return True

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    async def _partition(
        self, method: str, id: str, asked: Struct, before_send: BeforeSend | None = None
    ) -> Partition:
        found = (await self._ask(method, asked, wire.PartitionReply, before_send)).partition
        if found is None or found.id != id:
            raise Unavailable(f"{self._address}: {method} was answered without partition {id}")
        return found

    async def _ask(
        self,
        method: str,
        asked: Struct,
        answer: type[T],
        before_send: BeforeSend | None = None,
    ) -> T:
        async with self._turns:
            raw = await self._call(f"/{wire.SERVICE}/{method}", encode(asked), before_send)
        try:
            return decoder(answer)(raw)
        except BadMessage as error:
            raise Unavailable(f"{self._address}: {method} was answered badly: {error}") from None

    async def _call(self, path: str, body: bytes, before_send: BeforeSend | None) -> bytes:
        import grpc.aio

        now = asyncio.get_running_loop().time
        until, longest_s = now() + self._timeout_s, _FIRST_PAUSE_S
        while not self._closed:
            if before_send is not None:
                before_send()
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(path)
            try:
                return await call(body, timeout=until - now(), metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                pause_s = longest_s * (1 + self._rng.random()) / 2
                if error.code() is not grpc.StatusCode.UNAVAILABLE or now() + pause_s >= until:
                    raise self._error(error) from None
            except asyncio.CancelledError:  # closing the channel looks as if we were cancelled
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
                break
            longest_s = min(2 * longest_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
        raise Unavailable(f"{self._address}: the connection was closed")

    def _error(self, error: "grpc.aio.AioRpcError") -> VipuError:
        code = error.code().name
        why = f"{self._address}: {error.details() or code}"
        if code == "NOT_FOUND":
            return _Missing(why)
        if code == "ALREADY_EXISTS":
            return _Exists(why)
        if code in _DENIALS:
            return Denied(why)
        return Refused(why) if code in _REFUSALS else Unavailable(why)


def _metadata(options: Options) -> tuple[tuple[str, str], ...]:
    both = (wire.USER_ID, options.user_id), (wire.ACCESS_KEY, options.access_key)
    for name, value in both:
        if not value.isascii() or not value.isprintable():
            raise VipuError(f"the {name} of V-IPU should be printable ASCII in one line")
    return tuple((name, value) for name, value in both if value)


def _channel(address: str, roots: bytes | None) -> "grpc.aio.Channel":
    wire.need_grpc()
    import grpc.aio

    if roots is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL)
    trusted = grpc.ssl_channel_credentials(roots)
    return grpc.aio.secure_channel(address, trusted, options=_CHANNEL)


_: type[Controller] = Client
