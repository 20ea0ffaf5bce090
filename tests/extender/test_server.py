"""The verbs over HTTP, for clients that behave and for clients that do not."""

import asyncio
import errno
import json
import socket
import tracemalloc
from contextlib import suppress

import pytest

from bayplan.extender import wire
from bayplan.extender.server import serving
from bayplan.kube.read import Reader
from bayplan.web import door
from bayplan.web.door import Connection, Limits
from bayplan.web.server import BadAddress
from tests.extender.rig import BIND, FILTER, HOST, POD, Client, Stub, ask, connected, request

pytestmark = pytest.mark.usefixtures("quiet")

ANY = f"{HOST}:0"
HURRY = Limits(timeout_s=0.6)  # more than a busy machine's pauses
HEAD = b"POST /filter HTTP/1.1\r\nHost: x\r\n"


async def test_the_four_verbs() -> None:
    stub = Stub()
    victims = {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
    async with serving(ANY, stub) as port, connected(port) as client:
        answers = [
            await client.ask("/filter", FILTER),
            await client.ask("/prioritize", FILTER),
            await client.ask("/preempt", {"Pod": POD, "NodeNameToMetaVictims": victims}),
            await client.ask("/bind", BIND),
        ]
    assert [status for status, _, _ in answers] == [200] * 4
    assert {headers["content-type"] for _, headers, _ in answers} == {"application/json"}
    filtered, scores, kept, bound = (json.loads(body) for _, _, body in answers)
    assert filtered["NodeNames"] == ["n1", "n2"]
    assert scores == [{"Host": "n1", "Score": 7}, {"Host": "n2", "Score": 7}]
    assert kept == {"NodeNameToMetaVictims": victims}
    assert bound == {"Error": ""}
    assert stub.seen[3] == wire.BindArgs("p", "d", "u", "n1")


async def test_an_empty_list_of_nodes_and_nulls_everywhere() -> None:
    async with serving(ANY, Stub()) as port:
        nothing = {"Pod": POD, "Nodes": None, "NodeNames": None}
        for sent in (FILTER | {"NodeNames": []}, nothing, {"Pod": POD}):
            status, result = await ask(port, "/filter", sent)
            assert (status, result["NodeNames"], result["Error"]) == (200, [], "")
            assert await ask(port, "/prioritize", sent) == (200, [])
        all_null = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": None}
        assert await ask(port, "/preempt", all_null) == (200, {"NodeNameToMetaVictims": {}})


@pytest.mark.parametrize("sent", [b"", b"nonsense", b'{"Pod":' + b"[" * 99_999, {"Pod": None}])
async def test_a_request_that_makes_no_sense_is_told_where_the_user_sees_it(sent: object) -> None:
    async with serving(ANY, Stub()) as port, connected(port) as client:
        for path in ("/filter", "/bind"):
            status, _, body = await client.ask(path, sent)
            assert status == 200
            assert json.loads(body)["Error"]
        for path in ("/prioritize", "/preempt"):
            status, headers, body = await client.ask(path, sent)
            assert (status, headers["content-type"][:10]) == (400, "text/plain")
            assert body.endswith(b"\n")


class Reading(Stub):
    """Reads the pod, as the service does."""

    async def filter(self, args: wire.FilterArgs) -> wire.FilterResult:
        Reader().pod(args.pod)
        return await super().filter(args)


async def test_a_pod_that_cannot_be_read_is_a_sentence() -> None:
    async with serving(ANY, Reading()) as port:
        status, result = await ask(port, "/filter", {"Pod": 7, "NodeNames": []})
        assert (status, result["Error"]) == (200, "pod: Expected `object`, got `int`")


async def test_our_own_mistake_is_logged_and_told_and_the_server_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub = Stub()
    stub.mistake = RuntimeError("no such thing")
    words = "/{} failed, see the log: RuntimeError: no such thing"
    async with serving(ANY, stub) as port:
        status, result = await ask(port, "/filter", FILTER)
        assert (status, result["Error"]) == (200, words.format("filter"))
        assert await ask(port, "/bind", BIND) == (200, {"Error": words.format("bind")})
        expected = (500, words.format("prioritize") + "\n")
        assert await ask(port, "/prioritize", FILTER) == expected
        assert (await ask(port, "/preempt", FILTER))[0] == 500
        stub.mistake = None
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})
    assert [entry.exc_info is not None for entry in caplog.records] == [True] * 4
    assert "no such thing" in caplog.text
    caplog.clear()


async def test_a_replica_that_does_not_lead_says_so_and_sends_its_clients_away() -> None:
    stub = Stub()
    stub.leads = False
    async with serving(ANY, stub) as port:
        for path in ("/filter", "/prioritize", "/preempt"):
            async with connected(port) as client:
                status, _, body = await client.ask(path, FILTER)
                assert (status, body) == (503, b"another replica of the extender leads\n")
                assert await client.ended() == b""
        async with connected(port) as client:
            status, _, body = await client.ask("/bind", BIND)
            assert (status, body) == (200, b'{"Error":"another replica of the extender leads"}')
            assert await client.ended() == b""


@pytest.mark.parametrize(
    ("path", "method", "more", "status"),
    [
        ("/", "POST", "", 404),
        ("/filter/", "POST", "", 404),
        ("/filter", "GET", "", 405),
        ("/bind", "PUT", "", 405),
        ("/filter", "POST", "Content-Encoding: gzip\r\n", 415),
    ],
)
async def test_other_paths_methods_and_forms(
    path: str, method: str, more: str, status: int
) -> None:
    async with serving(ANY, Stub()) as port, connected(port) as client:
        assert (await client.ask(path, FILTER, method, more))[0] == status


async def test_a_client_that_waits_to_be_told_to_go_on() -> None:
    async with serving(ANY, Stub()) as port, connected(port) as client:
        sent = request("/bind", BIND, more="Expect: 100-continue\r\n")
        head, body = sent.split(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.answer())[0] == 200


async def test_requests_one_after_another_without_waiting() -> None:
    async with serving(ANY, Stub()) as port, connected(port) as client:
        await client.send(request("/bind", BIND) * 50)
        assert [(await client.answer())[0] for _ in range(50)] == [200] * 50


# Too much


async def flood(client: Client, head: bytes, piece: bytes, pieces: int) -> int:
    """Sends as long as it may, and gives the status."""
    await client.send(head)
    answer = asyncio.ensure_future(client.answer())
    with suppress(ConnectionError):
        for _ in range(pieces):
            await client.send(piece)
    return (await answer)[0]


@pytest.mark.parametrize("how", ["told", "chunked"])
async def test_a_hundred_megabytes_are_refused_and_leave_no_trace_in_memory(how: str) -> None:
    piece = bytes(1 << 20)
    told = HEAD + b"Content-Length: %d\r\n\r\n" % (100 << 20)
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    if how == "chunked":
        piece = b"100000\r\n" + piece + b"\r\n"
    limits = Limits(max_body=1 << 20)
    async with serving(ANY, Stub(), limits) as port, connected(port) as client:
        tracemalloc.start()
        try:
            status = await flood(client, told if how == "told" else chunked, piece, 100)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert status == 413
        assert peak < 8 << 20
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})


async def test_a_body_that_is_told_to_be_too_large_is_refused_before_it_comes() -> None:
    async with serving(ANY, Stub(), Limits(max_body=100)) as port, connected(port) as client:
        await client.send(HEAD + b"Content-Length: 101\r\n\r\n")
        status, headers, body = await client.answer()
        assert (status, body) == (413, b"a request may have 100 bytes\n")
        assert headers["connection"] == "close"


async def test_the_bodies_of_all_requests_together_are_bounded() -> None:
    stub = Stub()
    stub.go.clear()
    body = json.dumps(BIND).encode().ljust(100)
    async with (
        serving(ANY, stub, Limits(max_body=100)) as port,
        asyncio.TaskGroup() as group,
    ):
        at_work = [group.create_task(ask(port, "/bind", body)) for _ in range(4)]
        for _ in at_work:
            await stub.begun.acquire()
        assert await ask(port, "/bind", body) == (503, "too many large requests at once\n")
        stub.go.set()
        assert [(await task)[0] for task in at_work] == [200] * 4
        assert (await ask(port, "/bind", body))[0] == 200


async def test_when_all_places_are_taken_the_longest_idle_client_has_to_go() -> None:
    async with (
        serving(ANY, Stub(), Limits(connections=3)) as port,
        connected(port) as silent,
        connected(port) as second,
        connected(port) as third,
    ):
        await second.ask("/bind", BIND)
        await third.ask("/bind", BIND)
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})
        assert await silent.ended() == b""
        for client in (second, third):
            assert (await client.ask("/bind", BIND))[0] == 200


async def test_when_all_are_at_work_the_newcomer_has_to_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub = Stub()
    stub.go.clear()
    async with (
        serving(ANY, stub, Limits(connections=2)) as port,
        asyncio.TaskGroup() as group,
    ):
        at_work = [group.create_task(ask(port, "/bind", BIND)) for _ in range(2)]
        for _ in at_work:
            await stub.begun.acquire()
        for _ in range(3):
            async with connected(port) as client:
                assert await client.ended() == b""
        stub.go.set()
    assert [await task for task in at_work] == [(200, {"Error": ""})] * 2
    assert [entry.getMessage() for entry in caplog.records] == [
        "all 2 connections are at work; clients are refused"
    ]
    caplog.clear()


async def test_hundreds_of_clients_at_once() -> None:
    async with serving(ANY, Stub()) as port, asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(port, "/bind", BIND)) for _ in range(300)]
    assert {(await task)[0] for task in tasks} == {200}


# Too slow


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"P", id="a byte"),
        pytest.param(HEAD, id="half a head"),
        pytest.param(HEAD + b"Content-Length: 9\r\n\r\n{", id="half a body"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\n{", id="half a chunk"),
    ],
)
async def test_a_client_that_stops_in_the_middle_is_cut_off(sent: bytes) -> None:
    async with serving(ANY, Stub(), HURRY) as port, connected(port) as client:
        await client.send(sent)
        assert await client.ended() == b""
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})


@pytest.mark.parametrize("before_the_answer", [True, False])
async def test_a_client_that_stops_in_its_second_request_is_cut_off(
    before_the_answer: bool,
) -> None:
    stub = Stub()
    async with serving(ANY, stub, HURRY) as port, connected(port) as client:
        stub.go.clear()
        await client.send(request("/bind", BIND))
        await stub.begun.acquire()
        if before_the_answer:
            await client.send(HEAD)
            assert (await ask(port, "/nowhere", b""))[0] == 404  # so the half has come
        stub.go.set()
        assert (await client.answer())[0] == 200
        if not before_the_answer:
            await client.send(HEAD)
        assert await client.ended() == b""


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"Content-Length: 999\r\n\r\n"])
async def test_a_trickle_does_not_buy_time(sent: bytes) -> None:
    async with serving(ANY, Stub(), HURRY) as port, connected(port) as client:
        await client.send(sent)
        ended = asyncio.ensure_future(client.ended())
        while not ended.done():
            client.writer.write(b"x")
            await asyncio.wait([ended], timeout=0.02)
        assert await ended == b""


async def test_the_next_request_has_its_own_time() -> None:
    """Both arrive in time, though together they take longer than one may."""
    async with serving(ANY, Stub(), Limits(timeout_s=1.5)) as port, connected(port) as client:
        for _ in range(2):
            sent = request("/bind", BIND)
            await client.send(sent[:20])
            await asyncio.sleep(0.9)
            await client.send(sent[20:])
            assert (await client.answer())[0] == 200


async def test_a_verb_may_take_longer_than_a_client() -> None:
    stub = Stub()
    stub.go.clear()
    async with serving(ANY, stub, HURRY) as port, connected(port) as client:
        asyncio.get_running_loop().call_later(0.9, stub.go.set)
        assert (await client.ask("/bind", BIND))[0] == 200


async def test_an_idle_client_is_left_alone_for_a_while_and_then_closed() -> None:
    limits = Limits(timeout_s=0.6, idle_s=1.6)
    async with serving(ANY, Stub(), limits) as port, connected(port) as client:
        for _ in range(3):
            assert (await client.ask("/bind", BIND))[0] == 200
            await asyncio.sleep(0.8)
        async with asyncio.timeout(5):
            assert await client.ended() == b""


async def test_a_client_that_does_not_take_its_answer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut, really = asyncio.Event(), Connection.cut

    def noted(connection: Connection) -> None:
        really(connection)
        cut.set()

    monkeypatch.setattr(Connection, "cut", noted)
    stub = Stub()
    stub.padding = "x" * (16 << 20)
    async with serving(ANY, stub, HURRY) as port, connected(port) as client:
        await client.send(request("/filter", FILTER))
        await cut.wait()
        assert len(await client.ended()) < 16 << 20


# Gone, or not speaking HTTP


@pytest.mark.parametrize(
    "sent", [b"", b"PO", HEAD, HEAD + b"Content-Length: 99\r\n\r\n{", request("/bind", BIND)]
)
@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_leaves_is_nobodys_business(sent: bytes, reset: bool) -> None:
    stub = Stub()
    async with serving(ANY, stub) as port:
        for _ in range(10):
            async with connected(port) as client:
                await client.send(sent)
                if reset:
                    client.writer.transport.abort()
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})


async def test_a_bind_goes_on_when_its_client_leaves() -> None:
    stub = Stub()
    stub.go.clear()
    async with serving(ANY, stub) as port:
        async with connected(port) as client:
            await client.send(request("/bind", BIND))
            await stub.begun.acquire()
            client.writer.transport.abort()
        assert (await ask(port, "/nowhere", b""))[0] == 404
        stub.go.set()
    assert stub.seen == [wire.BindArgs("p", "d", "u", "n1")]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"\x00" * 1000,
        b"hello\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        HEAD + b"".join(b"X%d: y\r\n" % n for n in range(5_000)) + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"POST http://[/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=lambda sent: repr(sent[-12:]),
)
async def test_garbage_is_answered_with_400_and_the_door(sent: bytes) -> None:
    async with serving(ANY, Stub(), HURRY) as port:
        async with connected(port) as client:
            await client.send(sent)
            assert (await client.ended()).startswith(b"HTTP/1.0 400 ") or sent.startswith(HEAD)
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})


# Beginning and end


async def test_every_address_of_the_machine_in_both_families() -> None:
    async with serving(":0", Stub()) as port:
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})
        if socket.has_dualstack_ipv6():
            _, writer = await asyncio.open_connection("::1", port)
            writer.close()


async def test_a_door_that_fails_to_open_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "_AGAIN_S", 0.05)
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = socket.socket.accept

    def failing(listener: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    async with serving(ANY, Stub()) as port:
        assert await ask(port, "/bind", BIND) == (200, {"Error": ""})
    assert caplog.messages == ["cannot accept a connection: Too many open files"] * 2
    caplog.clear()


async def test_an_address_that_is_taken_is_one_sentence() -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = f"{HOST}:{taken.getsockname()[1]}"
        with pytest.raises(BadAddress, match=f"cannot listen on {address}"):
            async with serving(address, Stub()):
                pass


async def test_the_end_waits_for_an_answer_under_way_but_for_no_idle_client() -> None:
    stub = Stub()
    stub.go.clear()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        async with serving(ANY, stub) as port:
            idle = await asyncio.open_connection(HOST, port)
            answer = group.create_task(ask(port, "/bind", BIND))
            await stub.begun.acquire()
            loop.call_later(0.1, stub.go.set)
            ends_at = loop.time()
        assert loop.time() - ends_at < 3
        assert await answer == (200, {"Error": ""})
    assert await idle[0].read() == b""
    idle[1].close()
