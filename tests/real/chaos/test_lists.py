"""A whole list is read once, at the start: no trouble with a watch is a reason to read it again.

Three counts must agree: the scheduler's own, what went through the proxy, and the API server's.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.chaos.load import node, pod
from tests.real.chaos.proxy import (
    Answer,
    Asked,
    Drop,
    Proxy,
    Rewrite,
    Shorten,
    any_list,
    watch_of,
)
from tests.real.chaos.replica import Replica, Start, kubeconfig
from tests.real.chaos.waiting import eventually

Trouble = Callable[[Proxy], None]

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
BUSY = Answer(429, {"Retry-After": "1"}, b"")
EXPIRED = Answer(410, body=json.dumps(GONE).encode())


NOT_THERE = (
    "/podgroups",
    "/noderesourcetopologies",
    "/elasticjobs",
    "/elastichorovodjobs",
)  # asked for now and then nonetheless


def a_list(asked: Asked) -> bool:
    """Of a kind that the server has."""
    return any_list(asked) and not asked.path.endswith(NOT_THERE)


class Rig:
    """A replica that speaks through a proxy."""

    def __init__(self, plane: ControlPlane, proxy: Proxy, namespace: str, replica: Replica) -> None:
        self.plane, self.proxy, self.replica = plane, proxy, replica
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._made = 0

    def wait_until_watching(self) -> None:
        """One watch of each kind that the server has is open."""

        def is_watching() -> bool:
            kinds = sum(count > 0 for count in self.replica.lists().values())
            return self.proxy.open_watches(watch_of()) == kinds

        eventually(is_watching, "all watches are open")

    def bind_one_more(self) -> None:
        """A pod that fits only on a new node: both must have been heard of."""
        self._made += 1
        name = f"new-{self._made}"
        self.plane.request("POST", "/api/v1/nodes", node(name, zone=name))
        self.plane.request("POST", self._pods, pod(name, nodeSelector={"zone": name}))
        path = f"{self._pods}/{name}"
        eventually(lambda: self.plane.request("GET", path)["spec"].get("nodeName"), "a bind")

    def counts(self) -> tuple[float, int, int]:
        """Lists by the scheduler's count, by the proxy's and by the server's."""
        counts = self.plane.request_counts()
        there = [asked for asked in self.proxy.asked if not asked.path.endswith(NOT_THERE)]
        kinds = {asked.path.rpartition("/")[2] for asked in there if asked.watches}
        served = sum(n for of, n in counts.items() if of.verb == "LIST" and of.resource in kinds)
        return sum(self.replica.lists().values()), self.proxy.seen(a_list), served


@pytest.fixture
def rig(empty: ControlPlane, namespace: str, start: Start, tmp_path: Path) -> Iterator[Rig]:
    with Proxy(empty) as proxy:
        replica = start(kubeconfig=kubeconfig(tmp_path / "proxied", proxy.url))
        replica.wait_until_ready()
        yield Rig(empty, proxy, namespace, replica)
        replica.kill()


def enough(proxy: Proxy) -> int:
    """So many requests that each watch meets the trouble, and some of them twice."""
    return proxy.open_watches(watch_of()) + 2


def closed(proxy: Proxy) -> None:
    assert proxy.cut(watch_of())


def broken(proxy: Proxy) -> None:
    assert proxy.cut(watch_of(), broken=True)


def busy(proxy: Proxy) -> None:
    proxy.rule(watch_of(), BUSY, times=enough(proxy))
    closed(proxy)


def unreachable(proxy: Proxy) -> None:
    proxy.rule(watch_of(), Drop(), times=enough(proxy))
    broken(proxy)


def unavailable(proxy: Proxy) -> None:
    proxy.rule(watch_of(), Answer(503), times=enough(proxy))
    broken(proxy)


def closed_by_the_server(proxy: Proxy) -> None:
    proxy.rule(watch_of(), Shorten(1), times=enough(proxy))
    closed(proxy)


TROUBLES = [closed_by_the_server, broken, busy, unreachable]
if os.environ.get("BAYPLAN_PROVE") == "1":
    TROUBLES += [closed, unavailable]


@pytest.mark.timeout(120, func_only=True)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_with_a_watch_is_no_reason_to_list(rig: Rig, trouble: Trouble) -> None:
    rig.wait_until_watching()
    rig.bind_one_more()
    before, asked = rig.counts(), len(rig.proxy.asked)
    trouble(rig.proxy)
    rig.proxy.wait_for(watch_of("/pods"), since=asked)
    rig.bind_one_more()
    rig.wait_until_watching()
    assert rig.counts() == before


@pytest.mark.timeout(120, func_only=True)
def test_a_watch_without_bookmarks_is_taken_up_where_it_ended(rig: Rig) -> None:
    """Its version falls behind all that other kinds do meanwhile; it is still good."""

    def without_bookmarks(line: bytes) -> bytes | None:
        return None if line.startswith(b'{"type":"BOOKMARK"') else line

    rig.wait_until_watching()
    rig.proxy.rule(watch_of(), Rewrite(without_bookmarks))
    closed(rig.proxy)
    for _ in range(5):
        rig.bind_one_more()
    before = rig.counts()
    closed(rig.proxy)
    rig.bind_one_more()
    rig.wait_until_watching()
    assert rig.counts() == before


def expired(proxy: Proxy) -> None:
    proxy.rule(watch_of("/nodes"), EXPIRED, times=1)
    assert proxy.cut(watch_of("/nodes"))


def expired_in_the_stream(proxy: Proxy) -> None:
    line = json.dumps({"type": "ERROR", "object": GONE}).encode()
    proxy.rule(watch_of("/nodes"), Rewrite(lambda _: line), times=1)
    assert proxy.cut(watch_of("/nodes"))


@pytest.mark.timeout(120, func_only=True)
@pytest.mark.parametrize("trouble", [expired, expired_in_the_stream])
def test_a_version_that_the_server_forgot_is_a_reason_to_list_once(
    rig: Rig, trouble: Trouble
) -> None:
    rig.wait_until_watching()
    own, passed, _ = rig.counts()
    asked = len(rig.proxy.asked)
    trouble(rig.proxy)
    for _ in range(2):
        rig.bind_one_more()
    rig.proxy.wait_for(a_list, since=asked)
    rig.wait_until_watching()
    rig.bind_one_more()
    assert rig.counts()[:2] == (own + 1, passed + 1)


@pytest.mark.timeout(120, func_only=True)
def test_a_list_that_is_needed_is_read_at_once(rig: Rig) -> None:
    """The server has answered, so it is there: what went wrong before is no reason to wait."""
    nodes = watch_of("/nodes")
    rig.wait_until_watching()
    asked = len(rig.proxy.asked)
    rig.proxy.rule(nodes, Drop(), times=3)
    rig.proxy.rule(nodes, EXPIRED, times=1)
    rig.proxy.cut(nodes)
    eventually(lambda: rig.proxy.seen(nodes, asked) >= 4, "the fourth try", 60.0)
    refused = [one for one in rig.proxy.asked[asked:] if nodes(one)][3]
    listed = rig.proxy.wait_for(a_list, since=asked)
    assert listed.at - refused.at < 3.0
