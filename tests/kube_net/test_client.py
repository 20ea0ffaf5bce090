"""Requests: paths, what a bad answer says, and when it is asked again."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from bayplan.kube.client import EVENTS, LEASES, NODES, PODS, Retry
from bayplan.kube.transport import ApiError, TransportError, Unauthorized
from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.rig import connected
from tests.kube_net.stand_in import StandIn, Step, answer, drop, refuse


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert NODES.path(name="n1") == "/api/v1/nodes/n1"
    assert PODS.path("ns", "a", "binding") == "/api/v1/namespaces/ns/pods/a/binding"
    assert LEASES.path("kube-system") == (
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    )
    assert EVENTS.path("ns", "../x?y") == "/apis/events.k8s.io/v1/namespaces/ns/events/..%2Fx%3Fy"


async def test_a_request_arrives_as_it_was_made(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(answer({"ok": True}))
    async with connected(server.url, clock, tmp_path) as client:
        body = await client.request(
            "PATCH",
            PODS.path("ns", "a", "status"),
            params={"fieldManager": "bay plan", "dryRun": "All"},
            body=b"{}",
            content_type="application/strategic-merge-patch+json",
        )
    assert body == b'{"ok": true}'
    seen = server.requests[0]
    assert (seen.method, seen.path, seen.body) == ("PATCH", PODS.path("ns", "a", "status"), b"{}")
    assert seen.query == {"fieldManager": "bay plan", "dryRun": "All"}
    assert seen.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert seen.headers["Accept"] == "application/json"
    assert seen.headers["Authorization"] == "Bearer secret"
    assert seen.headers["User-Agent"] == "bayplan"


async def test_a_status_becomes_an_error_with_its_parts(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(refuse(409, "Conflict", "pod a is assigned to node n1", name="a", kind="pods"))
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(ApiError) as raised:
            await client.request("POST", PODS.path("ns", "a", "binding"), body=b"{}")
    error = raised.value
    assert (error.status, error.reason) == (409, "Conflict")
    assert error.message == "pod a is assigned to node n1"
    assert error.details == {"name": "a", "kind": "pods"}
    assert error.retry_after is None
    assert str(error) == "pod a is assigned to node n1 (409)"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>\n Bad   Gateway</html>", "<html> Bad Gateway</html> (502)"),
        (b"", "no reason given (502)"),
        (b'{"message": 5}', '{"message": 5} (502)'),
        (b"\xff\xfe", "�� (502)"),
        (b"null", "null (502)"),
    ],
)
async def test_an_answer_that_is_no_status_is_quoted(
    server: StandIn, clock: ManualClock, tmp_path: Path, body: bytes, says: str
) -> None:
    async def step(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, body=body)

    server.then(step)
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(ApiError) as raised:
            await client.request("POST", PODS.path(), body=b"{}")
    assert str(raised.value) == says


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        (refuse(429, headers={"Retry-After": "5"}), 5),
        (refuse(429, retryAfterSeconds=6), 6),
        (refuse(504, retryAfterSeconds=1), 1),
        (refuse(503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), None),
        (refuse(429, retryAfterSeconds="soon"), None),
    ],
)
async def test_what_the_server_asks_for_is_waited(
    server: StandIn, clock: ManualClock, tmp_path: Path, step: Step, seconds: float | None
) -> None:
    server.then(step, answer())
    async with connected(server.url, clock, tmp_path) as client:
        await client.request("GET", PODS.path(), retry=Retry(tries=2, first_s=0.25))
    least = 0.25 if seconds is None else seconds
    assert least <= clock.slept[0] <= least + 1


async def test_nothing_is_tried_twice_unless_asked(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.otherwise = refuse(503)
    async with connected(server.url, clock, tmp_path) as client:
        for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
            with pytest.raises(ApiError):
                await client.request(method, PODS.path())
    assert len(server.requests) == 5
    assert clock.slept == []


async def test_a_post_is_tried_once_unless_told(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(refuse(503), drop(), refuse(503), refuse(429), answer())
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(ApiError):
            await client.request("POST", PODS.path(), body=b"{}", retry=Retry(tries=5))
        with pytest.raises(TransportError):
            await client.request("POST", PODS.path(), body=b"{}", retry=Retry(tries=5))
        assert len(server.requests) == 2

        await client.request("POST", PODS.path(), body=b"{}", retry=Retry(tries=5, post=True))
        assert len(server.requests) == 5


async def test_pauses_grow_and_tries_end(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.otherwise = refuse(500)
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(ApiError):
            await client.request("PUT", PODS.path(), retry=Retry(6, first_s=1, most_s=4))
    assert len(server.requests) == 6
    pauses = zip([1, 2, 4, 4, 4], clock.slept, strict=True)
    assert all(least <= s <= 2 * least for least, s in pauses)


@pytest.mark.parametrize("code", [400, 403, 404, 409, 410, 422])
async def test_a_no_that_will_stay_no_is_not_asked_again(
    server: StandIn, clock: ManualClock, tmp_path: Path, code: int
) -> None:
    server.otherwise = refuse(code)
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(ApiError):
            await client.request("GET", PODS.path(), retry=Retry(tries=5))
    assert len(server.requests) == 1


async def test_a_broken_connection_is_tried_again_when_asked(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.then(drop(), drop(), answer())
    async with connected(server.url, clock, tmp_path) as client:
        await client.request("PATCH", PODS.path(), body=b"{}", retry=Retry(tries=3))
    assert len(clock.slept) == 2


async def test_a_slow_answer_is_given_up(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    async with connected(server.url, clock, tmp_path) as client:
        task = asyncio.create_task(client.request("GET", PODS.path(), timeout_s=5))
        await server.has_seen(1)
        clock.advance(5)
        with pytest.raises(TransportError, match="no answer within 5 s"):
            await task


async def test_unauthorized_is_its_own_kind(
    server: StandIn, clock: ManualClock, tmp_path: Path
) -> None:
    server.otherwise = refuse(401, "Unauthorized", "Unauthorized")
    async with connected(server.url, clock, tmp_path) as client:
        with pytest.raises(Unauthorized):
            await client.request("GET", PODS.path())
