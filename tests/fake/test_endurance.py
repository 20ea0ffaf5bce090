"""What the embedded API and its pretend nodes outlast: odd objects, long lives, lost readers."""

import asyncio
import contextlib
import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.cli.embedded import Cluster, running
from bayplan.kube.clock import RealClock
from bayplan.local import store as stores
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.requests import Request
from bayplan.local.server import HOST, Server
from bayplan.local.spec import nodes
from bayplan.local.store import Store
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
NODE = "/api/v1/nodes/8xa100-0"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/8xa100-0"
MERGE = "application/merge-patch+json"


def ask(api: Api, method: str, path: str, body: Any = None, sort: str = "application/json") -> int:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    path, _, query = path.partition("?")
    params = dict(part.split("=") for part in query.split("&")) if query else {}
    return api.handle(Request(method, path, params, raw, sort)).status


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def test_a_mistake_of_ours_is_an_answer_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(RealClock())
    monkeypatch.setattr(api.objects, "create", lambda *rest: 1 // 0)
    request = Request("POST", PODS, body=json.dumps(pod("a")).encode())
    answer = api.handle(request)
    status = json.loads(answer.body)

    assert (answer.status, status["kind"], status["reason"]) == (500, "Status", "InternalError")
    assert "ZeroDivisionError" in status["message"]
    assert api.crashes == 1
    assert f"POST {PODS} failed" in caplog.text


def test_a_namespace_with_a_pod_that_may_take_for_ever_can_be_deleted() -> None:
    api = Api(RealClock())
    ask(api, "POST", "/api/v1/namespaces", {"metadata": {"name": "t"}})
    path = "/api/v1/namespaces/t/pods"
    lasting = pod("a", nodeName="n", terminationGracePeriodSeconds=300_000_000_000)
    assert ask(api, "POST", path, lasting) == 201
    assert ask(api, "DELETE", "/api/v1/namespaces/t") == 200
    Controllers(api).settle()
    assert ask(api, "DELETE", f"{path}/a?gracePeriodSeconds=0") == 200
    Controllers(api).settle()
    assert ask(api, "GET", "/api/v1/namespaces/t") == 404


def test_a_namespace_waits_for_its_own_finalizers() -> None:
    api = Api(RealClock())
    about = {"name": "t", "finalizers": ["example.com/a"]}
    ask(api, "POST", "/api/v1/namespaces", {"metadata": about})
    ask(api, "DELETE", "/api/v1/namespaces/t")
    Controllers(api).settle()
    assert ask(api, "GET", "/api/v1/namespaces/t") == 200
    none = {"metadata": {"finalizers": None}}
    ask(api, "PATCH", "/api/v1/namespaces/t", none, MERGE)
    assert ask(api, "GET", "/api/v1/namespaces/t") == 404


def test_one_odd_object_does_not_keep_the_controllers_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api(RealClock())
    for name in ("a", "b"):
        ask(api, "POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        ask(api, "DELETE", f"/api/v1/namespaces/{name}")
    controllers = Controllers(api)
    empty = controllers._empty

    def fails(name: str, stored: Any) -> None:
        if name == "a":
            raise KeyError(name)
        empty(name, stored)

    monkeypatch.setattr(controllers, "_empty", fails)
    controllers.settle()
    assert ask(api, "GET", "/api/v1/namespaces/a") == 200
    assert ask(api, "GET", "/api/v1/namespaces/b") == 404


def test_pretend_nodes_outlast_what_they_cannot_make_sense_of() -> None:
    async def story(cluster: Cluster, clock: VirtualClock) -> None:
        api = cluster.api
        odd = api.store.get("nodes", ("", "8xa100-0"))
        assert odd is not None
        value = odd.copy()
        value["status"]["allocatable"]["cpu"] = "-1"  # what no check lets in
        api.store.put("nodes", ("", "8xa100-0"), value)
        ask(api, "POST", PODS, pod("odd", nodeName="8xa100-0"))
        await clock.sleep(5)
        ask(api, "POST", PODS, pod("next", schedulerName="bayplan"))
        await clock.sleep(5)
        found = api.store.get("pods", ("default", "next"))
        assert found is not None
        assert found.value["status"]["phase"] == "Running"

    told(story)


def test_a_deleted_lease_is_made_again() -> None:
    async def story(cluster: Cluster, clock: VirtualClock) -> None:
        await clock.sleep(15)
        assert ask(cluster.api, "DELETE", LEASE) == 200
        await clock.sleep(25)
        assert ask(cluster.api, "GET", LEASE) == 200

    told(story)


def told(story: Any) -> None:
    async def play() -> None:
        clock = VirtualClock()
        async with running(nodes("8xA100*2"), Configuration(), clock, seed=1) as cluster:
            await story(cluster, clock)
            assert not any(task.done() for task in cluster.tasks)

    run(play())


def test_large_changes_are_kept_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "KEPT_BYTES", 100_000)
    store = Store()
    for number in range(200):
        value = {"kind": "K", "apiVersion": "v1", "metadata": {"name": "a"}, "data": "x" * 5_000}
        store.put("k", ("", f"{number}"), value)
        log = store.log("k")
        assert log.size == sum(len(change.last.raw) for change in log.changes) <= 100_000
    assert store.log("k").after(1) is None  # whoever is so far behind must list again


def test_events_are_kept_for_an_hour() -> None:
    class Clock(RealClock):
        now = 1_767_225_600.0

        def wall(self) -> float:
            return self.now

    clock = Clock()
    api = Api(clock)
    path = "/api/v1/namespaces/default/events"
    for number in range(300):
        clock.now += 60
        about = {"kind": "Pod", "name": "p", "namespace": "default"}
        event = {"metadata": {"name": f"e{number}"}, "involvedObject": about, "reason": "R"}
        assert ask(api, "POST", path, event) == 201
    assert api.store.count("events") <= 62


@pytest.mark.parametrize(
    "body",
    [
        b"a: &x [1]\nmetadata: {name: m}\ndata: *x\n",
        b"metadata: {name: m}\na: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
    ],
)
def test_yaml_with_aliases_is_refused(body: bytes) -> None:
    assert ask(Api(RealClock()), "POST", MAPS, body, "application/yaml") == 400


def test_a_watch_ends_with_its_reader() -> None:
    async def play() -> None:
        api = Api(RealClock())
        listen, ended = api.store.listen, asyncio.Event()
        left = 5

        def counted(kind: str, call: Callable[[], None]) -> Callable[[], None]:
            stop = listen(kind, call)

            def stopped() -> None:
                nonlocal left
                stop()
                left -= 1
                if left == 0:
                    ended.set()

            return stopped

        api.store.listen = counted  # type: ignore[method-assign]
        async with Server(api, RealClock()).serving() as port:
            await asyncio.to_thread(open_and_close, port)
            async with asyncio.timeout(10):
                await ended.wait()

    def open_and_close(port: int) -> None:
        for _ in range(5):
            connection = http.client.HTTPConnection(HOST, port, timeout=10)
            connection.request("GET", f"{MAPS}?watch=true&resourceVersion=1")
            connection.getresponse()
            connection.close()

    asyncio.run(play())


def test_a_long_selector_is_read() -> None:
    async def play() -> int:
        async with Server(Api(RealClock()), RealClock()).serving() as port:
            return await asyncio.to_thread(get, port)

    def get(port: int) -> int:
        names = ",".join(f"value-{i}" for i in range(2_000))
        connection = http.client.HTTPConnection(HOST, port, timeout=10)
        connection.request("GET", f"{MAPS}?labelSelector=a+in+({names})")
        with contextlib.closing(connection):
            return connection.getresponse().status

    assert asyncio.run(play()) == 200
