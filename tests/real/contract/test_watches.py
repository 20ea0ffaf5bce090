"""Watches: both back ends tell the same, from wherever a watcher begins."""

import base64
import http.client
import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.embedded import EmbeddedPlane
from tests.real.contract.asks import (
    BUDGETS,
    CLAIMS,
    CORE_EVENTS,
    EVENTS,
    LEASES,
    MAPS,
    NODES,
    PODS,
    STORAGE_CLASSES,
    Ask,
    binding,
    node,
    pod,
)
from tests.real.contract.conftest import Both
from tests.real.contract.exchange import MERGE, Server
from tests.real.contract.workload_scripts import JOBS, SETS

LAST = "the-last"
INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
CHANGES = [
    Ask("POST", PODS, pod("a")),
    Ask("POST", PODS, pod("b")),
    Ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "web"}}}, MERGE),
    Ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "web", "x": "y"}}}, MERGE),
    Ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "train"}}}, MERGE),
    binding("b", "n1"),
    Ask("PATCH", f"{PODS}/b/status", {"status": {"phase": "Running"}}, MERGE),
    Ask("DELETE", f"{PODS}/a"),
    Ask("DELETE", f"{PODS}/b?gracePeriodSeconds=0"),
]


def _ask(server: Server, *asks: Ask) -> None:
    for ask in asks:
        assert server.ask(*ask[:5]).status < 300, ask


def _told(server: Server, path: str, **more: str) -> list[Any]:
    """All that a short watch brings."""
    params = "&".join(f"{name}={quote(value)}" for name, value in more.items())
    return server.told(f"{path}?watch=true&timeoutSeconds=1&{params}")


@pytest.mark.parametrize("since", ["", "&resourceVersion=0", "&resourceVersion="])
def test_a_watch_without_a_revision_begins_with_what_there_is(since: str, both: Both) -> None:
    told = []
    for server in both:
        _ask(server, *CHANGES[:3], binding("b", "n1"), Ask("POST", PODS, pod(LAST)))
        told.append(server.watch(f"{PODS}?watch=true&timeoutSeconds=5{since}", LAST))

    assert told[1] == told[0]
    assert len(told[0]) == 2


@pytest.mark.parametrize("since", ["", "&resourceVersion=0"])
def test_a_bookmark_ends_what_there_is(since: str, both: Both) -> None:
    told = []
    for server in both:
        _ask(server, *CHANGES[:2], Ask("POST", MAPS, {"metadata": {"name": "a"}}))
        _ask(server, Ask("POST", NODES, node("n1")))
        first = (PODS, MAPS, NODES, LEASES, EVENTS, CORE_EVENTS, BUDGETS, CLAIMS, STORAGE_CLASSES)
        lists = (*first, SETS, JOBS)
        told.append(
            {
                path: server.watch(f"{path}?watch=true&timeoutSeconds=5&{INITIAL}{since}", None)
                for path in lists
            }
        )

    assert told[1] == told[0]
    assert [len(events) for events in told[0].values()] == [3, 2, 2, *[1] * 8]


@pytest.mark.parametrize(
    "params",
    [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
        "resourceVersion=x",
        "resourceVersion=99999999",
        "labelSelector=app%3Dnobody",
        "fieldSelector=spec.colour%3Dred",
    ],
)
def test_what_a_watch_may_ask_for(params: str, both: Both) -> None:
    told = []
    for server in both:
        _ask(server, *CHANGES[:2])
        path = f"{PODS}?watch=true&timeoutSeconds=1&{params}"
        answer = server.ask("GET", path)
        told.append(server.told(path) if answer.status == 200 else [answer])

    assert told[1] == told[0]


@pytest.mark.parametrize(
    "selector",
    [
        "labelSelector=app%3Dtrain",
        "labelSelector=app%21%3Dtrain",
        "labelSelector=x",
        "fieldSelector=spec.nodeName%3D",
        "fieldSelector=spec.nodeName%21%3D",
        "fieldSelector=metadata.name%3Db",
        "fieldSelector=status.phase%3DPending",
        "fieldSelector=status.phase%3DPending&labelSelector=app%3Dtrain",
    ],
)
def test_pods_enter_and_leave_a_selection(selector: str, both: Both) -> None:
    told = []
    for server in both:
        since = server.revision(PODS)
        _ask(server, *CHANGES)
        path = f"{PODS}?watch=true&timeoutSeconds=1&resourceVersion={since}&{selector}"
        told.append(server.told(path))

    assert told[1] == told[0]
    assert told[0]


def test_a_watch_goes_on_from_any_revision(both: Both) -> None:
    told: list[list[Any]] = []
    for server in both:
        revisions = [server.revision(PODS)]
        for change in CHANGES:
            _ask(server, change)
            revisions.append(server.revision(PODS))
        paths = [f"{PODS}?watch=true&timeoutSeconds=1&resourceVersion={r}" for r in revisions[::3]]
        told.append([server.told(path) for path in paths])

    assert told[1] == told[0]


def test_a_revision_that_is_forgotten(
    both: Both, control_plane: ControlPlane, bare_embedded: EmbeddedPlane
) -> None:
    told, pages, rests = [], [], []
    for server in both:
        _ask(server, *[Ask("POST", MAPS, {"metadata": {"name": name}}) for name in "abc"])
        server.ask("GET", f"{MAPS}?limit=1")
        if server is both.real:
            _compact(control_plane, server.revision(MAPS))
            control_plane.restart_apiserver()  # what it has in memory reaches further back
        else:
            _ask(server, Ask("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, MERGE))
            bare_embedded.compact()
        told.append(_told(server, MAPS, resourceVersion="1"))
        pages.append(server.ask("GET", f"{MAPS}?limit=1&continue={{continue}}"))
        rests.append(server.ask("GET", f"{MAPS}?limit=1&continue={{continue}}"))

    assert _shape(told[1]) == _shape(told[0])
    assert told[0][0]["object"]["code"] == 410
    assert pages[1].status == pages[0].status == 410
    assert pages[1] == pages[0]
    assert rests[1] == rests[0]


def _shape(told: list[Any]) -> list[Any]:
    """Without the oldest revision that is still known."""
    whole: list[Any] = json.loads(re.sub(r"\(\d+\)", "(N)", json.dumps(told)))
    return whole


def _compact(plane: ControlPlane, revision: str) -> None:
    """Every revision up to this one is forgotten by etcd; the next is what there is."""
    key = base64.b64encode(b"x").decode()
    for path, body in (
        ("/v3/kv/put", {"key": key, "value": key}),
        ("/v3/kv/compaction", {"revision": str(int(revision) + 1), "physical": True}),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", plane._etcd_port, timeout=10)
        connection.request("POST", path, json.dumps(body))
        assert connection.getresponse().status == 200
        connection.close()
