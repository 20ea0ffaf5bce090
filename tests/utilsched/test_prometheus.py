"""A Prometheus query API, served by a test: what it has, what is missing, stale or no number, and
what it does wrong."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bayplan.core.model.utilisation import DeviceUse
from bayplan.kube.clock import RealClock
from bayplan.kube.http import HttpTransport
from bayplan.scheduler import prometheus
from bayplan.scheduler.config import ConfigError, read
from bayplan.scheduler.config import Prometheus as Settings
from bayplan.scheduler.prometheus import Found, Prometheus, ServerAccess

Json = dict[str, Any]
UTIL, COPY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
NODES = {"a", "b", "10.0.0.7"}


class Enough(Exception):
    """The test has seen enough."""


class Clock(RealClock):
    """Stands still, but for real time-outs."""

    now = 1_767_225_600.0

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.sixth: Callable[[], None] = lambda: None  # called in the sixth sleep

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 6:
            self.sixth()
        if len(self.slept) == 9:
            raise Enough


class Server:
    """Answers `/api/v1/query` with the series that it was given, as Prometheus does."""

    def __init__(self) -> None:
        self.series: list[tuple[Json, list[tuple[float, str]]]] = []
        self.asked: list[Json] = []
        self.headers: list[Any] = []
        self.broken: Callable[[web.Request], Any] | None = None

    def has(self, metric: str, value: Any, ago_s: float = 0.0, **labels: str) -> None:
        labels = {"Hostname": "a", "gpu": "0", **labels}
        samples = [(Clock.now - ago_s - 15, "1"), (Clock.now - ago_s, str(value))]
        self.series.append(({"__name__": metric, "UUID": "GPU-1", **labels}, samples))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.headers.append(request.headers)
        if self.broken is not None:
            answer: web.StreamResponse = await self.broken(request)
            return answer
        metric, _, window = request.query["query"].partition("[")
        assert window == "90s]"
        oldest = Clock.now - 300  # Prometheus would look back 90 s; one that looks further back
        found = [
            {"metric": labels, "values": [sample for sample in samples if sample[0] >= oldest]}
            for labels, samples in self.series
            if labels["__name__"] == metric
        ]
        return web.json_response(
            {"status": "success", "data": {"resultType": "matrix", "result": found}}
        )


@asynccontextmanager
async def served(server: Server, **settings: Any) -> AsyncIterator[tuple[Prometheus, list[Found]]]:
    app = web.Application()
    app.router.add_get("/prefix/api/v1/query", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    address = settings.pop("at", f"http://127.0.0.1:{port}/prefix/")
    chosen = Settings(**{"server": address, "timeout": 5.0, **settings})
    clock, told = Clock(), list[Found]()
    transport = HttpTransport(ServerAccess(chosen), clock, connections=1)
    try:
        yield Prometheus(transport, clock, chosen, NODES.__contains__, told.append), told
    finally:
        await transport.close()
        await runner.cleanup()


def asked(server: Server, **settings: Any) -> tuple[list[Found], int]:
    """What one round tells, and how often the server has failed in a row."""

    async def whole() -> tuple[list[Found], int]:
        async with served(server, **settings) as (source, told):
            await source.round()
            return told, source.failures

    return asyncio.run(whole())


def test_every_metric_is_read_for_every_device() -> None:
    server = Server()
    for metric, value in ((UTIL, 88), (COPY, 66), (USED, 11094), (FREE, 342)):
        server.has(metric, value, ago_s=10)
    server.has(UTIL, 5, gpu="7")
    server.has(UTIL, 1, Hostname="b")

    told, failures = asked(server)

    at_s = Clock.now - 10
    assert told == [
        {
            "a": (DeviceUse(0, 88, 66, 11094, 342, at_s), DeviceUse(7, 5, at_s=Clock.now)),
            "b": (DeviceUse(0, 1, at_s=Clock.now),),
        }
    ]
    assert failures == 0
    assert [each["query"] for each in server.asked] == [
        f"{m}[90s]" for m in (UTIL, COPY, USED, FREE)
    ]


@pytest.mark.parametrize(
    "labels",
    [
        {"Hostname": "dcgm-exporter-x1", "node": "a"},
        {"Hostname": "", "kubernetes_node": "a"},
        {"Hostname": "elsewhere", "instance": "a:9400"},
        {"Hostname": "a", "node": "b"},
    ],
    ids=str,
)
def test_a_node_is_found_by_the_first_label_that_names_one(labels: Json) -> None:
    server = Server()
    server.has(UTIL, 3, **labels)
    assert list(asked(server)[0][0]) == ["a"]


def test_an_instance_may_be_an_address() -> None:
    server = Server()
    server.has(UTIL, 3, Hostname="pod", instance="10.0.0.7:9400")
    assert list(asked(server)[0][0]) == ["10.0.0.7"]


def test_stale_series_count_for_nothing() -> None:
    server = Server()
    server.has(UTIL, 88, ago_s=91)
    server.has(COPY, 66, ago_s=89)
    server.has(USED, 1, ago_s=-200)  # of a clock that is far ahead
    server.has(UTIL, 1, ago_s=91, Hostname="b")
    assert asked(server) == ([{"a": (DeviceUse(0, copy_percent=66, at_s=Clock.now - 89),)}], 0)


def test_missing_series_leave_the_others() -> None:
    server = Server()
    server.has(USED, 4096)
    server.has(UTIL, 7, Hostname="of another cluster")
    assert asked(server)[0] == [{"a": (DeviceUse(0, used_mib=4096, at_s=Clock.now),)}]
    assert asked(Server()) == ([{}], 0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "101", "", "many", "0x10"])
def test_what_is_no_measure_is_left_out(value: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.has(UTIL, value)
    server.has(COPY, 3)
    with caplog.at_level(logging.WARNING):
        assert asked(server)[0] == [{"a": (DeviceUse(0, copy_percent=3, at_s=Clock.now),)}]
    (said,) = ours(caplog)
    assert said == f"Prometheus: {UTIL} of node a, gpu 0: {value!r} is no measure; it is left out"


@pytest.mark.parametrize("gpu", ["", "-1", "64", "99999999999", "GPU-1", "²"])
def test_a_device_without_a_number_is_left_out(gpu: str) -> None:
    server = Server()
    server.has(UTIL, 1, gpu=gpu)
    assert asked(server) == ([{}], 0)


def test_several_series_of_a_device_count_by_the_highest() -> None:
    server = Server()
    for value in (3, 9, 5):
        server.has(UTIL, value, pod=str(value))
    assert asked(server)[0][0]["a"][0].gpu_percent == 9


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged by us, not by the server of the test."""
    return [each.getMessage() for each in caplog.records if each.name == "bayplan"]


def answering(status: int = 200, text: str = "", **facts: Any) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="application/json", **facts)

    return answer


async def hang(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b" " * 65_536)


async def hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


BAD = {
    "error": answering(400, '{"status": "error", "error": "parse error"}'),
    "unavailable": answering(503, "down"),
    "refused": answering(401, "{}"),
    "moved": answering(302, "", headers={"Location": "http://127.0.0.1:1/"}),
    "no json": answering(200, "<html>"),
    "another form": answering(200, '{"status": "success", "data": {"resultType": "scalar"}}'),
    "wrong types": answering(
        200, '{"status": "success", "data": {"resultType": "vector", "result": {"metric": 7}}}'
    ),
    "deep": answering(200, '{"status":"success","data":' + "[" * 100_000),
    "no data": answering(200, '{"status": "success"}'),
    "hang": hang,
    "hang up": hang_up,
    "endless": endless,
}


@pytest.mark.parametrize("how", BAD)
def test_whatever_the_server_does_wrong_is_one_failure(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "MOST_BYTES", 1 << 20)
    server = Server()
    server.broken = BAD[how]
    with caplog.at_level(logging.WARNING):
        assert asked(server, timeout=0.3 if how == "hang" else 5.0) == ([], 1)
    (said,) = ours(caplog)
    assert said.startswith("Prometheus: ")
    assert len(said) < 400


def test_nobody_there_is_a_failure_too() -> None:
    assert asked(Server(), at="http://127.0.0.1:1")[1] == 1
    assert asked(Server(), token_file="/nowhere/token")[1] == 1
    assert asked(Server(), at="https://127.0.0.1:1", ca_file="/nowhere/ca")[1] == 1


def test_the_token_is_shown_and_may_be_renewed(tmp_path: Path) -> None:
    async def whole() -> None:
        token.write_text("one\n")
        async with served(server, token_file=str(token)) as (source, _):
            await source.round()
            token.write_text("two\n")
            await source.round()

    server, token = Server(), tmp_path / "token"
    asyncio.run(whole())
    shown = [headers["Authorization"] for headers in server.headers]
    assert shown == ["Bearer one"] * 4 + ["Bearer two"] * 4


def test_a_server_that_fails_is_asked_less_and_less_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def whole() -> list[float]:
        async with served(server) as (source, _):
            assert isinstance(source._clock, Clock)
            source._clock.sixth = partial(setattr, server, "broken", None)
            with pytest.raises(Enough):
                await source.run()
            return source._clock.slept

    server = Server()
    server.broken = BAD["unavailable"]
    with caplog.at_level(logging.INFO):
        slept = asyncio.run(whole())
    assert slept[:6] == [60.0, 120.0, 240.0, 300.0, 300.0, 300.0]
    assert slept[6:] == [30.0, 30.0, 30.0]
    words = ours(caplog)
    assert [each for each in words if "answers again" in each] == ["Prometheus answers again"]
    assert len([each for each in words if "503" in each]) == 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{server: prometheus}", "prometheus.server"),
        ("{server: 'http://user@host'}", "prometheus.server"),
        ("{server: 'ftp://host'}", "prometheus.server"),
        ("{period: 0s}", "prometheus.period"),
        ("{timeout: 0s}", "prometheus.timeout"),
    ],
)
def test_the_configuration_is_checked(text: str, path: str) -> None:
    head = "apiVersion: bayplan.dev/v1alpha1\nkind: BayplanConfiguration\n"
    with pytest.raises(ConfigError, match=path):
        read(f"{head}prometheus: {text}", "file")


def test_one_series_that_cannot_be_read_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.has(UTIL, 7)
    server.series.append(({"__name__": UTIL, "Hostname": "a"}, [(Clock.now, 5)]))  # type: ignore[list-item]
    server.series.append(({"__name__": UTIL, "Hostname": 5}, []))
    assert asked(server) == ([{"a": (DeviceUse(0, 7, at_s=Clock.now),)}], 0)
    assert caplog.text.count("a series cannot be read") == 2


def test_answers_are_not_read_on_the_loop() -> None:
    """Those of 40,000 devices take more than a second."""
    server, threads = Server(), set[int]()
    server.has(UTIL, 7)

    def is_node(name: str) -> bool:
        threads.add(threading.get_ident())
        return name == "a"

    async def whole() -> None:
        async with served(server) as (source, told):
            source._is_node = is_node
            await source.round()
            assert len(told) == 1

    asyncio.run(whole())
    assert threads
    assert threading.get_ident() not in threads
