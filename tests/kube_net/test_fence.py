"""The fence is asked when the connection is in hand, right before the bytes are written."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.http_writer import StreamWriter

from bayplan.kube.client import Client, Retry
from bayplan.kube.transport import Fenced, TransportError
from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.rig import connected
from tests.kube_net.stand_in import StandIn, answer, drop, hang, refuse

BINDING = "/api/v1/namespaces/default/pods/a/binding"


class Fence:
    def __init__(self, *passes: bool) -> None:
        self.is_open = True
        self.asked = 0
        self._passes = list(passes)  # the first answers

    def __call__(self) -> None:
        self.asked += 1
        if not (self._passes.pop(0) if self._passes else self.is_open):
            raise Fenced("the renew deadline has passed")


class Wire:
    """A server that keeps every byte that reaches it, and answers each request."""

    def __init__(self) -> None:
        self.got = b""
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Wire"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        begun = b""
        while data := await reader.read(65536):
            self.got += data
            begun += data
            head, end, body = begun.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if end and len(body) >= int(length[1] if length else 0):
                begun = b""
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()


@pytest.fixture
def patient() -> ManualClock:
    return ManualClock(skips=False)


async def test_with_an_exhausted_pool_the_fence_is_asked_after_the_wait_for_a_connection(
    server: StandIn, patient: ManualClock, tmp_path: Path
) -> None:
    free = asyncio.Event()
    server.then(hang(until=free), answer())
    fence = Fence()
    async with connected(server.url, patient, tmp_path, connections=1) as client:
        first = asyncio.create_task(client.request("POST", BINDING, body=b"1"))
        await server.has_seen(1)
        second = asyncio.create_task(client.request("POST", BINDING, body=b"2", before_send=fence))
        await asyncio.sleep(0.02)
        assert fence.asked == 0  # it waits for the one connection

        fence.is_open = False  # the deadline passes meanwhile
        free.set()
        await first
        with pytest.raises(Fenced, match="renew deadline"):
            await second

        assert fence.asked == 1
        assert [seen.body for seen in server.requests] == [b"1"]


@pytest.mark.parametrize("body", [b'{"kind":"Binding"}', None, b"x" * 200_000])
async def test_an_open_fence_lets_through_and_a_closed_one_lets_no_byte_through(
    patient: ManualClock, tmp_path: Path, body: bytes | None
) -> None:
    wire, fence = Wire(), Fence()
    method = "POST" if body else "DELETE"
    async with (
        wire.listening(),
        connected(wire.url, patient, tmp_path, connections=1) as client,
    ):
        await client.request(method, BINDING, body=body, before_send=fence)
        before = wire.got
        assert before
        assert fence.asked >= 1

        fence.is_open = False
        with pytest.raises(Fenced):
            await client.request(method, BINDING, body=body, before_send=fence)
        await asyncio.sleep(0.01)

        assert wire.got == before
        assert wire.connections == 1  # the second had the first's connection in hand


async def test_a_closed_fence_leaves_a_new_connection_without_a_byte_and_the_transport_good(
    patient: ManualClock, tmp_path: Path
) -> None:
    wire, fence = Wire(), Fence(False)
    async with wire.listening(), connected(wire.url, patient, tmp_path) as client:
        with pytest.raises(Fenced):
            await client.request("POST", BINDING, body=b"{}", before_send=fence)
        await asyncio.sleep(0.01)

        assert fence.asked == 1
        assert wire.connections == 1
        assert wire.got == b""
        assert await client.request("POST", BINDING, body=b"{}", before_send=fence) == b"{}"


async def test_no_other_task_runs_between_the_fence_and_the_bytes(
    patient: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    written = StreamWriter._writelines

    def write(writer: StreamWriter, chunks: Any) -> None:
        turns.append("written")
        written(writer, chunks)

    monkeypatch.setattr(StreamWriter, "_writelines", write)

    def fence() -> None:
        turns.append("asked")
        asyncio.get_running_loop().call_soon(turns.append, "another's turn")

    wire = Wire()
    async with wire.listening(), connected(wire.url, patient, tmp_path) as client:
        await client.request("POST", BINDING, body=b"{}", before_send=fence)
    assert turns == ["asked", "written", "another's turn"]


async def test_each_try_is_fenced(server: StandIn, clock: ManualClock, tmp_path: Path) -> None:
    server.then(refuse(429), answer())
    fence = Fence(True, False)
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(Fenced):
            await client.request(
                "POST", BINDING, body=b"{}", before_send=fence, retry=Retry(tries=3, post=True)
            )
    assert len(server.requests) == 1


async def test_a_fenced_request_does_not_hold_a_connection(
    server: StandIn, patient: ManualClock, tmp_path: Path
) -> None:
    server.otherwise = answer()
    fence = Fence()
    fence.is_open = False
    async with connected(server.url, patient, tmp_path, connections=2) as client:
        for _ in range(5):
            with pytest.raises(Fenced):
                await client.request("POST", BINDING, body=b"{}", before_send=fence)
        await client.request("POST", BINDING, body=b"{}")


async def test_what_was_not_sent_says_so(
    server: StandIn, patient: ManualClock, tmp_path: Path
) -> None:
    server.then(hang(), drop())
    async with connected(server.url, patient, tmp_path, connections=1) as client:
        late = asyncio.create_task(_error(client))
        await server.has_seen(1)
        waits = asyncio.create_task(_error(client))
        await asyncio.sleep(0.02)
        patient.advance(31)

        assert (await late).sent
        assert str(late.result()) == f"POST {BINDING}: no answer within 30.0 s"
        assert not (await waits).sent  # it waited for a connection all the time
        assert (await _error(client)).sent  # dropped
    await server.stop()
    async with connected(server.url, patient, tmp_path) as client:
        unreachable = await _error(client)
        assert not unreachable.sent
        assert "127.0.0.1" in str(unreachable)


async def _error(client: Client) -> TransportError:
    with pytest.raises(TransportError) as raised:
        await client.request("POST", BINDING, body=b"{}")
    return raised.value
