"""The client over real connections: to the pretend controller, and to servers that misbehave."""

import asyncio
import builtins
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from bayplan.protobuf import encode
from bayplan.vipu import wire
from bayplan.vipu.client import Client, Options
from bayplan.vipu.controller import (
    Controller,
    Denied,
    Partition,
    Refused,
    Unavailable,
    VipuError,
)
from bayplan.vipu.fake import FakeVipu, one_cluster
from bayplan.vipu.faults import Chances, Faulty
from bayplan.vipu.server import Server, handler
from tests.kube_net.manual_clock import ManualClock

Answer = Callable[[bytes, Any], Awaitable[bytes]]


class Slow(Faulty):
    """Partitions are made at once, and the answers kept back until the test says so."""

    def __init__(self) -> None:
        super().__init__(FakeVipu(), ManualClock())
        self.answering, self.enough = asyncio.Event(), asyncio.Event()
        self.under_way = self.most = 0
        self.awaited = 1  # so many calls are enough

    async def create(self, *given: Any, **named: Any) -> Partition:
        made = await super().create(*given, **named)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way >= self.awaited:
            self.enough.set()
        try:
            await self.answering.wait()
        finally:
            self.under_way -= 1
        return made


class Counted(random.Random):
    """Draws one number per pause, and says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.drawn, self.first = 0, asyncio.Event()

    def random(self) -> float:
        self.drawn += 1
        self.first.set()
        return super().random()


def plain(fake: FakeVipu | None = None) -> Faulty:
    return Faulty(fake or FakeVipu(), ManualClock())


@asynccontextmanager
async def connected(
    controller: Controller, timeout_s: float = 10.0, at_once: int = 16
) -> AsyncIterator[Client]:
    server = Server(controller)
    port = await server.start()
    client = Client(f"127.0.0.1:{port}", Options(timeout_s, at_once))
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


@asynccontextmanager
async def answered(methods: dict[str, Answer], timeout_s: float = 10.0) -> AsyncIterator[Client]:
    """A client of a server that answers with any bytes."""
    server = grpc.aio.server()
    calls: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(each) for name, each in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, calls),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = Client(f"127.0.0.1:{port}", Options(timeout_s))
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


def aborts(code: grpc.StatusCode) -> Answer:
    async def answer(_: bytes, context: Any) -> bytes:
        await context.abort(code, "so it is")
        raise AssertionError

    return answer


def says(raw: bytes) -> Answer:
    async def answer(_: bytes, context: Any) -> bytes:
        return raw

    return answer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


# ---- a server that behaves


async def test_everything_that_can_be_asked() -> None:
    fake = FakeVipu(one_cluster(64, 32, {"x": 4, "y": 12}))
    async with connected(plain(fake)) as client:
        made = await client.create("a", 4, cluster="cluster", allocation="y", reconfigurable=True)

        assert fake.partitions() == (made,)
        assert made.reconfigurable
        assert [ipu.name for ipu in made.ipus] == ["ag5.0", "ag5.1", "ag5.2", "ag5.3"]
        assert await client.inventory() == fake.inventory()
        assert await client.partitions() == (made,)
        assert await client.get("a") == made
        assert await client.get("b") is None


async def test_created_twice_is_one_partition_and_deleted_twice_is_none() -> None:
    fake = FakeVipu()
    async with connected(plain(fake)) as client:
        assert await client.create("a", 4) == await client.create("a", 4)
        assert len(fake.partitions()) == 1
        with pytest.raises(Refused, match="another size or place"):
            await client.create("a", 8)
        assert (await client.delete("a"), await client.delete("a")) == (True, False)
        assert fake.partitions() == ()


async def test_a_refusal_says_why_and_where() -> None:
    async with connected(plain()) as client:
        with pytest.raises(Refused, match=r"^127.0.0.1:\d+: 3 IPUs: .* power of two$"):
            await client.create("a", 3)


async def test_only_so_many_calls_at_once() -> None:
    slow = Slow()
    slow.awaited = 4
    async with connected(slow, at_once=4) as client, asyncio.TaskGroup() as group:
        calls = [group.create_task(client.create(f"p{i}", 2)) for i in range(32)]
        await slow.enough.wait()
        other = Client(client._address)
        for _ in range(5):  # what was sent with the four would be here by now
            await other.partitions()
        await other.close()
        assert slow.most == 4
        slow.answering.set()
    assert slow.most == 4
    assert {call.result().id for call in calls} == {f"p{i}" for i in range(32)}
    assert len({ipu for each in slow.fake.partitions() for ipu in each.ipus}) == 64


# ---- a server that is late, down or gone


async def test_an_answer_that_is_late() -> None:
    slow = Slow()
    async with connected(slow, timeout_s=0.3) as client:
        with pytest.raises(Unavailable, match=r"(?i)deadline exceeded"):
            await client.create("a", 4)
        assert len(slow.fake.partitions()) == 1
        slow.answering.set()
        assert await client.create("a", 4) == slow.fake.get("a")


async def test_a_server_that_is_down_is_asked_until_the_time_is_up() -> None:
    rng, now = Counted(), asyncio.get_running_loop().time
    client = Client(f"127.0.0.1:{free_port()}", Options(timeout_s=0.6), rng)
    began = now()
    with pytest.raises(Unavailable, match=r"(?i)connect|deadline"):  # which depends on the last try
        await client.create("a", 4)
    took_s = now() - began
    await client.close()

    assert rng.drawn >= 3
    assert took_s < 2.0


async def test_a_server_that_comes_up_meanwhile() -> None:
    rng, port, fake = Counted(), free_port(), FakeVipu()
    client, server = Client(f"127.0.0.1:{port}", rng=rng), Server(plain(fake))
    call = asyncio.create_task(client.create("a", 4))
    await rng.first.wait()
    await server.start(port=port)

    assert await call == fake.get("a")
    await client.close()
    await server.stop()


async def test_a_server_that_fails_now_and_then_is_asked_again() -> None:
    controller = Faulty(FakeVipu(), ManualClock(), Chances(down=0.3), random.Random(1))
    async with connected(controller) as client:
        await asyncio.gather(*(client.create(str(i), 1) for i in range(8)))

    assert controller.met["down"] > 1
    assert len(controller.fake.partitions()) == 8


async def test_a_server_that_never_says_a_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = Client(address, Options(timeout_s=0.3))
        with pytest.raises(Unavailable):
            await client.partitions()
        await client.close()


async def test_closing_ends_calls_that_are_under_way_and_later_ones() -> None:
    slow = Slow()
    async with connected(slow) as client:
        call = asyncio.create_task(client.create("a", 4))
        await slow.enough.wait()
        await client.close()
        for each in (call, client.get("a")):
            with pytest.raises(Unavailable, match="the connection was closed"):
                await each


async def test_who_is_cancelled_is_cancelled() -> None:
    slow = Slow()
    async with connected(slow) as client:
        call = asyncio.create_task(client.create("a", 4))
        await slow.enough.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_who_is_cancelled_while_the_client_closes_is_cancelled_too() -> None:
    slow = Slow()
    async with connected(slow) as client:
        call = asyncio.create_task(client.create("a", 4))
        await slow.enough.wait()
        closing = asyncio.create_task(client.close())
        call.cancel()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await call


# ---- what a server can answer

REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
DENIALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
}
CODES = sorted(
    set(grpc.StatusCode) - {grpc.StatusCode.OK, grpc.StatusCode.ALREADY_EXISTS},
    key=lambda code: code.name,
)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_a_status_is_a_refusal_or_a_denial_or_leaves_it_open(code: grpc.StatusCode) -> None:
    kind = Refused if code in REFUSALS else Denied if code in DENIALS else Unavailable
    async with answered({wire.CREATE: aborts(code)}, timeout_s=0.3) as client:
        with pytest.raises(VipuError, match="so it is") as raised:
            await client.create("a", 4)
    assert isinstance(raised.value, kind)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Partition("a", "c", "x", 4), None),
        (Partition("a", "c", "x", 8), Refused),
        (Partition("a", "d", "x", 4), Refused),
        (Partition("a", "c", "y", 4), Refused),
        (None, Unavailable),
    ],
)
async def test_one_that_exists_is_read_back(
    found: Partition | None, expected: type[VipuError] | None
) -> None:
    read = says(encode(wire.PartitionReply(found))) if found else aborts(grpc.StatusCode.NOT_FOUND)
    exists = aborts(grpc.StatusCode.ALREADY_EXISTS)
    async with answered({wire.CREATE: exists, wire.GET: read}) as client:
        call = client.create("a", 4, cluster="c", allocation="x")
        if expected is None:
            assert await call == found
            return
        with pytest.raises(expected):
            await call


@pytest.mark.parametrize(
    "raw", [b"", b"\x0a", b"\xff", encode(wire.PartitionReply(Partition("other", size=4)))]
)
async def test_answers_that_make_no_sense_leave_it_open(raw: bytes) -> None:
    async with answered({wire.CREATE: says(raw), wire.GET: says(raw)}) as client:
        with pytest.raises(Unavailable, match="was answered"):
            await client.create("a", 4)
        with pytest.raises(Unavailable, match="was answered"):
            await client.get("a")


async def test_bad_bytes_are_told_by_the_server() -> None:
    async with connected(plain()) as client:
        create: Any = client._channel.unary_unary(f"/{wire.SERVICE}/{wire.CREATE}")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await create(b"\x0a")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- who may ask


async def test_tls_and_who_is_asking() -> None:
    ca, seen = trustme.CA(), list[tuple[str, str]]()

    class Looks(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.extend(details.invocation_metadata)
            return await continuation(details)

    cert = ca.issue_cert("localhost")
    chain = b"".join(each.bytes() for each in cert.cert_chain_pems)
    credentials = grpc.ssl_server_credentials([(cert.private_key_pem.bytes(), chain)])
    server = grpc.aio.server(interceptors=(Looks(),))
    server.add_generic_rpc_handlers((handler(plain()),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()

    async def ask(authority: trustme.CA) -> None:
        trusted = authority.cert_pem.bytes()
        client = Client(f"localhost:{port}", Options(1.0, 16, trusted, "me", "secret"))
        try:
            await client.partitions()
        finally:
            await client.close()

    await ask(ca)
    assert {(wire.USER_ID, "me"), (wire.ACCESS_KEY, "secret")} <= set(seen)
    with pytest.raises(Unavailable):
        await ask(trustme.CA())
    await server.stop(None)


@pytest.mark.parametrize("secret", ["one\n", "é", "\0"])
async def test_a_secret_that_cannot_be_sent(secret: str) -> None:
    with pytest.raises(VipuError, match="the api-access-key of V-IPU should be printable ASCII"):
        Client("127.0.0.1:1", Options(access_key=secret))


# ---- without grpcio


def test_grpcio_is_not_imported_before_it_is_used() -> None:
    modules = "client, bayplan.vipu.faults, bayplan.vipu.server"
    code = f"import sys, bayplan.vipu.{modules}; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_without_grpcio_one_sentence_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *given: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "grpc":
            raise ModuleNotFoundError(name=name)
        return real(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    sentence = r"^V-IPU needs the package grpcio; install bayplan\[vipu\]$"
    with pytest.raises(VipuError, match=sentence):
        Client("127.0.0.1:1")
    with pytest.raises(VipuError, match=sentence):
        await Server(plain()).start()
