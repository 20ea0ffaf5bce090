"""The transport over HTTP: TLS, refused credentials, compression, connections and their limits."""

import asyncio
import base64
import gc
import gzip
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from aiohttp import ClientResponse, web

from bayplan.kube import http
from bayplan.kube.client import PODS, Client
from bayplan.kube.transport import ApiError, TransportError, Unauthorized
from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.rig import connected
from tests.kube_net.stand_in import Json, StandIn, answer, hang, refuse, watch
from tests.kube_net.test_credentials import token_plugin


def encoded(pem: trustme.Blob) -> str:
    return base64.b64encode(pem.bytes()).decode()


@asynccontextmanager
async def secure(ca: trustme.CA, host: str = "127.0.0.1") -> AsyncIterator[StandIn]:
    """A server that says who the client's certificate is for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host).configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL

    async def who(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        shown = request.transport.get_extra_info("peercert") or {}
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "email"]
        return web.json_response({"names": names})

    async with StandIn(context) as server:
        server.otherwise = who
        yield server


async def get(client: Client) -> bytes:
    return await client.request("GET", PODS.path())


async def begin(client: Client) -> None:
    async with client.stream(PODS.path(), {}, timeout_s=5):
        pass


async def read_on(client: Client) -> None:
    async with client.stream(PODS.path(), {}) as stream:
        async for _ in stream.chunks:
            pass


async def test_the_servers_certificate_is_checked_and_ours_is_shown(
    ca: trustme.CA, clock: ManualClock, tmp_path: Path
) -> None:
    leaf = ca.issue_cert("me@test")
    user = {
        "client-certificate-data": encoded(leaf.cert_chain_pems[0]),
        "client-key-data": encoded(leaf.private_key_pem),
    }
    trust: Json = {"certificate-authority-data": encoded(ca.cert_pem)}
    async with (
        secure(ca) as server,
        connected(server.url, clock, tmp_path, user=user, **trust) as client,
    ):
        assert await get(client) == b'{"names": ["me@test"]}'


async def test_a_stream_that_is_left_does_not_wait_for_the_other_end(
    ca: trustme.CA, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []
    make = http._socket

    def noted(address: tuple[Any, ...]) -> socket.socket:
        opened.append(make(address))
        return opened[-1]

    monkeypatch.setattr(http, "_socket", noted)
    trust: Json = {"certificate-authority-data": encoded(ca.cert_pem)}
    async with secure(ca) as server, connected(server.url, clock, tmp_path, **trust) as client:
        server.then(watch({"a": 1}, end="silent"))
        async with client.stream(PODS.path(), {}) as stream:
            assert await anext(stream.chunks) == b'{"a": 1}\n'
        await asyncio.sleep(0)  # the loop closes what was dropped on its next turn
        assert [left.fileno() for left in opened] == [-1]


@pytest.mark.parametrize("why", ["another authority", "another name"])
async def test_a_server_that_is_not_the_one_is_refused(
    ca: trustme.CA, clock: ManualClock, tmp_path: Path, why: str
) -> None:
    host, authority = ("127.0.0.1", trustme.CA()) if why == "another authority" else ("kube", ca)
    trust: Json = {"certificate-authority-data": encoded(authority.cert_pem)}
    async with secure(ca, host) as server:
        async with connected(server.url, clock, tmp_path, **trust) as client:
            with pytest.raises(TransportError, match="certificate verify failed") as raised:
                await get(client)
            assert not raised.value.sent
        if why == "another name":
            trust |= {"tls-server-name": "kube"}
        else:
            trust = {"insecure-skip-tls-verify": True}
        async with connected(server.url, clock, tmp_path, **trust) as client:
            assert await get(client) == b'{"names": []}'


async def test_after_a_401_credentials_are_read_again_and_the_request_is_made_once_more(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(refuse(401), answer({"ok": 1}), refuse(401), watch({"a": 1}, end="silent"))
    user = token_plugin(tmp_path)
    async with connected(server.url, clock, tmp_path, user=user) as client:
        assert await client.request("POST", PODS.path(), body=b"{}") == b'{"ok": 1}'
        clock.advance(10)
        async with client.stream(PODS.path(), {}) as stream:
            assert await anext(stream.chunks) == b'{"a": 1}\n'
    shown = [seen.headers["Authorization"] for seen in server.requests]
    assert shown == [f"Bearer token{n}" for n in (0, 1, 1, 2)]
    assert server.requests[0].body == server.requests[1].body == b"{}"


async def test_many_401_at_once_run_the_plugin_once(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    async def only_new(request: web.Request) -> web.StreamResponse:
        old = request.headers["Authorization"] == "Bearer token0"
        return web.json_response({}, status=401 if old else 200)

    server.otherwise = only_new
    async with (
        connected(server.url, clock, tmp_path, user=token_plugin(tmp_path)) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(20):
            group.create_task(get(client))
    assert {seen.headers["Authorization"][-1] for seen in server.requests} == {"0", "1"}


@pytest.mark.parametrize("stream", [False, True])
async def test_credentials_that_stay_refused_are_one_sentence(
    server: StandIn, clock: ManualClock, tmp_path: Path, stream: bool
) -> None:
    server.otherwise = refuse(401, "Unauthorized", "Unauthorized")
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(Unauthorized) as raised:
            await (begin(client) if stream else get(client))
    assert len(server.requests) == 2
    assert str(raised.value) == (
        f"the API server at {server.url} refuses our credentials, fresh ones too (401)"
    )


async def test_a_token_that_cannot_be_refreshed_says_why(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.otherwise = refuse(401)
    async with connected(server.url, clock, tmp_path, user=token_plugin(tmp_path)) as client:
        await client.transport._credentials.access()  # type: ignore[attr-defined]
        (tmp_path / "plugin.py").write_text("import sys; sys.exit('log in first')")
        with pytest.raises(Unauthorized) as raised:
            await get(client)
    assert str(raised.value) == (
        "the API server refuses our credentials, and new ones are not to be had: "
        f"kubeconfig {tmp_path}/config: exec: process returned 1. log in first (401)"
    )


async def test_an_expired_token_does_not_stop_those_that_come_after_its_renewal(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    async def only_new(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {}, status=200 if "new" in request.headers["Authorization"] else 401
        )

    server.otherwise = only_new
    async with connected(server.url, clock, tmp_path, user={"tokenFile": str(token)}) as client:
        with pytest.raises(Unauthorized):
            await get(client)
        token.write_text("new")
        clock.advance(10)
        assert await get(client) == b"{}"


async def test_lists_come_compressed_and_writes_do_not_ask_for_it(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    body = b"[" + b"1," * 3_000_000 + b"1]"

    async def compressed(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(body, 1), headers=headers)

    server.then(compressed, answer(), watch(end="close"))
    async with connected(server.url, clock, tmp_path) as client:
        assert await get(client) == body
        await client.request("POST", PODS.path(), body=b"{}")
        async with client.stream(PODS.path(), {}):
            pass
    asked = [seen.headers.get("Accept-Encoding") for seen in server.requests]
    assert asked[0] == "gzip"
    assert asked[2] == "identity"


async def test_streams_do_not_take_connections_from_requests(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(watch(end="silent"), watch(end="silent"), answer(), answer())
    async with (
        connected(server.url, clock, tmp_path, connections=1) as client,
        client.stream(PODS.path(), {}),
        client.stream(PODS.path(), {}),
    ):
        await get(client)
        await get(client)
    assert server.requests[2].connection == server.requests[3].connection  # kept and used again


async def test_a_stream_that_is_left_closes_its_connection(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
        except ConnectionError:
            gone.set()
            raise

    server.then(endless)
    async with connected(server.url, clock, tmp_path) as client:
        async with client.stream(PODS.path(), {}) as stream:
            await anext(stream.chunks)
        await gone.wait()


async def test_an_answer_that_breaks_off_is_not_kept(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    """It may be megabytes of a list, and the collector comes by seldom."""
    server.otherwise = watch(b"[" * 1000, end="drop")
    gc.collect()
    gc.disable()
    try:
        async with connected(server.url, clock, tmp_path) as client:
            for _ in range(3):
                with pytest.raises(TransportError, match="in the middle of the answer"):
                    await get(client)
                with pytest.raises(TransportError, match="in the middle of the answer"):
                    await read_on(client)
        assert [kept for kept in gc.get_objects() if isinstance(kept, ClientResponse)] == []
    finally:
        gc.enable()


async def test_a_stream_that_is_refused_says_why(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(refuse(403, "Forbidden", "pods is forbidden"))
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(ApiError, match="pods is forbidden"):
            await begin(client)


async def test_a_stream_that_does_not_begin_is_given_up(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(hang())
    async with connected(server.url, clock, tmp_path) as client:
        task = asyncio.create_task(begin(client))
        await server.has_seen(1)
        clock.advance(5)
        with pytest.raises(TransportError, match="no answer within 5 s"):
            await task


async def test_a_proxy_is_used(server: StandIn, clock: ManualClock, tmp_path: Path) -> None:
    server.otherwise = answer({"via": "proxy"})
    proxy: Json = {"proxy-url": server.url}
    async with connected("http://kube.invalid", clock, tmp_path, **proxy) as client:
        assert await get(client) == b'{"via": "proxy"}'
    assert server.requests[0].headers["Host"] == "kube.invalid"


def test_sockets_notice_a_dead_peer() -> None:
    made = http._socket((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if sys.platform == "linux":
            options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            numbers = [getattr(socket, name) for name in options]
            set_to = [made.getsockopt(socket.IPPROTO_TCP, number) for number in numbers]
            assert set_to == [15, 5, 3, 30_000]


@pytest.mark.parametrize("installed", [True, False])
def test_run_takes_uvloop_where_it_is(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Faster(asyncio.SelectorEventLoop):
        pass

    async def takes_it() -> bool:
        return isinstance(asyncio.get_running_loop(), Faster)

    stand_in = SimpleNamespace(new_event_loop=Faster) if installed else None
    monkeypatch.setitem(sys.modules, "uvloop", stand_in)
    assert http.run(takes_it()) == installed
