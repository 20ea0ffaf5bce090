"""Garbage in: the embedded API says no, loses nothing, and goes on."""

import asyncio
import http.client
import json
import resource
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.kube.clock import RealClock
from bayplan.local.api import Api
from bayplan.local.requests import LARGEST_BODY, Request
from bayplan.local.server import HOST, Server
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock

PODS = "/api/v1/namespaces/default/pods"
PATCHES = ["json-patch", "merge-patch", "strategic-merge-patch", "zebra-patch", "apply-patch"]
PATHS = [
    "/",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/policy/v1",
    "/api/v1/pods",
    PODS,
    f"{PODS}/a",
    f"{PODS}/a/status",
    f"{PODS}/a/binding",
    f"{PODS}/a/eviction",
    f"{PODS}/a/log",
    f"{PODS}/%00",
    "/api/v1/nodes",
    "/api/v1/nodes/n",
    "/api/v1/nodes/n/status",
    "/api/v1/namespaces",
    "/api/v1/namespaces/default",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases/l",
    "/apis/events.k8s.io/v1/namespaces/default/events",
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/openapi/v3/api/v1",
    "/../../etc/passwd",
]
NAMES = st.sampled_from(
    [
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "annotations",
        "containers",
        "resources",
        "requests",
        "limits",
        "conditions",
        "type",
        "taints",
        "allocatable",
        "capacity",
        "kind",
        "apiVersion",
        "target",
        "uid",
        "finalizers",
        "value",
        "selector",
        "minAvailable",
        "group",
        "versions",
        "names",
        "schedulingGates",
        "tolerations",
        "initContainers",
        "involvedObject",
        "regarding",
        "nodeName",
        "image",
        "op",
        "path",
        "from",
        "gracePeriodSeconds",
        "preconditions",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "n", "default", "1Gi", "-1", "Pod", "v1", "Not A Name", "\x00"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=25,
)
PARAMS = st.dictionaries(
    st.sampled_from(
        [
            "limit",
            "continue",
            "labelSelector",
            "fieldSelector",
            "resourceVersion",
            "dryRun",
            "gracePeriodSeconds",
            "includeObject",
            "resourceVersionMatch",
        ]
    ),
    st.sampled_from(["", "1", "-1", "x", "All", "a=b", "a in (b", "spec.nodeName=", "9" * 30]),
    max_size=2,
)
ACCEPTS = ["", "application/json", "*/*", "application/json;as=Table;v=v1;g=meta.k8s.io"]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    sort = draw(st.sampled_from([*PATCHES, "", "yaml", "octet-stream"]))
    content = f"application/{sort}+json" if sort in PATCHES else f"application/{sort or 'json'}"
    value: Any = draw(VALUES)
    if draw(st.booleans()) and isinstance(value, dict):
        value["metadata"] = {"name": draw(st.sampled_from(["a", "n", "l"]))}
    body = json.dumps(value).encode()
    if draw(st.integers(0, 9)) == 0:
        body = draw(st.binary(max_size=20))
    return Request(
        method=draw(st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "ZEBRA"])),
        path=draw(st.sampled_from(PATHS)),
        params=draw(PARAMS),
        body=body,
        content_type=content,
        accept=draw(st.sampled_from(ACCEPTS)),
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(requests(), min_size=1, max_size=25))
def test_every_request_gets_an_answer_and_what_is_stored_can_be_read(asked: list[Request]) -> None:
    api = Api(_Still())
    api.handle(Request("POST", PODS, body=json.dumps(_pod("a")).encode()))
    api.handle(Request("POST", "/api/v1/nodes", body=b'{"metadata":{"name":"n"}}'))
    for request in asked:
        answer = api.handle(request)
        assert answer.status < 500 or answer.status in (500, 501, 504), (request, answer)
        if answer.status >= 400:
            status = json.loads(answer.body)
            assert status["kind"] == "Status"
            assert status["message"], (request, answer)
            assert not (answer.status == 500 and status.get("reason") == "InternalError"), request
    for accept in ACCEPTS:
        for kind in api.kinds:
            group = f"/apis/{kind.group}" if kind.group else "/api"
            listed = api.handle(
                Request("GET", f"{group}/{kind.version}/{kind.plural}", accept=accept)
            )
            assert listed.status == 200, (kind.plural, listed)


class _Still(RealClock):
    """Always the same moment."""

    def time(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1_767_225_600.0


def _pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.mark.parametrize("size", [LARGEST_BODY + 1, 100 << 20])
def test_a_body_that_is_too_large_is_refused_and_not_kept(size: int) -> None:
    def send(port: int) -> tuple[int, str]:
        connection = http.client.HTTPConnection(HOST, port, timeout=60)
        connection.putrequest("POST", PODS)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        piece = b" " * (1 << 20)
        try:
            for start in range(0, size, len(piece)):
                connection.send(piece[: size - start])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        answer = connection.getresponse()
        said = answer.read().decode()
        connection.close()
        return answer.status, said

    async def exchange() -> tuple[int, str]:
        async with Server(Api(RealClock()), RealClock()).serving() as port:
            return await asyncio.to_thread(send, port)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, said = asyncio.run(exchange())

    assert (status, "limit is 3145728" in said) == (413, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # KiB


def test_the_direct_transport_gives_the_same_answers() -> None:
    async def ask() -> int:
        clock = VirtualClock()
        transport = DirectTransport(Api(clock), clock)
        return (await transport.request("POST", PODS, body=b"{")).status

    from bayplan.local.virtual import run

    assert run(ask()) == 400
