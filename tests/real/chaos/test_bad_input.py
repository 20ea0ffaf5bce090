"""What a cluster can do to a running scheduler: one sentence says so, and nothing else stops."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import Json
from tests.real.chaos.load import TAINT, node, pod
from tests.real.chaos.proxy import Answer, Asked, Proxy, Rewrite, watch_of
from tests.real.chaos.replica import Replica, Start, free_port, kubeconfig
from tests.real.chaos.waiting import eventually

FAILED_LOGINS = re.compile(r'^authentication_attempts\{result="(?:failure|error)"\} (\d+)', re.M)
CLAIMS = "no new claims to deallocate, "  # what kube-scheduler's DynamicResources adds


def warnings(replica: Replica) -> list[str]:
    """What it warned of; more than a line each would be a story, not a sentence."""
    said = replica.said()
    assert all(line.startswith(("INFO ", "WARNING ", "ERROR ")) for line in said), said
    return [line for line in said if not line.startswith("INFO ")]


def told_twice(lines: list[str]) -> list[str]:
    """By who says it: each watch may tell of a trouble once."""
    who = Counter(line.partition(":")[0] for line in lines)
    return [line for line, times in who.items() if times > 1]


class Cluster:
    """A namespace, its pods, and where they are."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self._pods = plane, f"/api/v1/namespaces/{namespace}/pods"

    def add_node(self, name: str, zone: str = "east", **more: bool) -> None:
        self.plane.request("POST", "/api/v1/nodes", node(name, zone, **more))

    def add(self, name: str, scheduler: str = "", **what: object) -> None:
        body = pod(name, **what)  # type: ignore[arg-type]
        if scheduler:
            body["spec"]["schedulerName"] = scheduler
        self.plane.request("POST", self._pods, body)

    def get(self, name: str) -> Json:
        found: Json = self.plane.request("GET", f"{self._pods}/{name}")
        return found

    def touch(self, name: str) -> None:
        change = {"metadata": {"labels": {"touched": "yes"}}}
        self.plane.request("PATCH", f"{self._pods}/{name}", change)

    def node_of(self, name: str) -> str:
        """Waits until it has one."""
        found: str = eventually(lambda: self.get(name)["spec"].get("nodeName"), f"a node of {name}")
        return found

    def refusal_of(self, name: str) -> Json:
        """Its PodScheduled condition, when that says no."""

        def refusal() -> list[Json]:
            said = self.get(name)["status"].get("conditions", [])
            return [one for one in said if one["type"] == "PodScheduled" and one.get("message")]

        return eventually(refusal, f"a refusal of {name}")[0]

    def event_of(self, name: str) -> Json:
        path = self._pods.replace("/api/v1", "/apis/events.k8s.io/v1").replace("pods", "events")

        def about() -> list[Json]:
            events = self.plane.request("GET", path)["items"]
            return [one for one in events if one["regarding"]["name"] == name]

        return eventually(about, f"an event of {name}")[0]


@pytest.fixture
def cluster(empty: ControlPlane, namespace: str) -> Cluster:
    return Cluster(empty, namespace)


@pytest.mark.timeout(120, func_only=True)
def test_a_server_that_is_not_there_yet_is_waited_for(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    replica = start(kubeconfig=kubeconfig(tmp_path / "config", f"http://{address}"))
    eventually(lambda: warnings(replica), "a warning")

    assert replica.ask("/readyz")[0] == 503
    assert replica.ask("/livez")[0] == 200
    cluster.add_node("a")
    cluster.add("web")
    with Proxy(cluster.plane, port):
        assert cluster.node_of("web") == "a"
        assert replica.is_ready
        assert all(address in line for line in warnings(replica))
        assert told_twice(warnings(replica)) == []
        replica.kill()


@pytest.mark.timeout(120, func_only=True)
def test_a_refused_token_is_told_and_a_good_one_is_taken_up(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    plane = cluster.plane
    config = tmp_path / "config"
    good = plane.kubeconfig.read_text()
    config.write_text(good.replace(plane.token, "expired"))

    def refused() -> int:
        found = FAILED_LOGINS.findall(plane.kubectl("get", "--raw", "/metrics"))
        return sum(int(count) for count in found)

    before = refused()
    replica = start(kubeconfig=config)
    eventually(lambda: refused() > before + 8, "it keeps trying")

    assert replica.ask("/readyz")[0] == 503
    assert replica.ask("/livez")[0] == 200
    lines = warnings(replica)
    assert all("credentials" in line and "401" in line for line in lines)
    assert not [line for line in lines if "expired" in line], "the token is a secret"
    assert told_twice(lines) == []

    cluster.add_node("a")
    cluster.add("web")
    config.write_text(good)
    assert cluster.node_of("web") == "a"


@pytest.mark.timeout(120, func_only=True)
def test_a_pod_that_never_fits_is_refused_in_kube_schedulers_words(
    cluster: Cluster, start: Start
) -> None:
    cluster.add_node("plain")
    cluster.add_node("dedicated", zone="west", tainted=True)
    cluster.add_node("cordoned", zone="west")
    cluster.plane.request("PATCH", "/api/v1/nodes/cordoned", {"spec": {"unschedulable": True}})
    shapes: dict[str, Json] = {
        "gpus": {"gpus": 9},
        "everything": {"gpus": 9, "cpu": "100", "memory": "1Ti"},
        "nowhere": {"nodeSelector": {"zone": "north"}},
        "tolerant": {"gpus": 9, "tolerations": [TAINT | {"operator": "Equal"}]},
        "west": {"nodeSelector": {"zone": "west"}},
    }
    kube_scheduler = cluster.plane.start_kube_scheduler()
    replica = start()
    try:
        for name, shape in shapes.items():
            cluster.add(name, **shape)
            cluster.add(f"{name}-kube", "default-scheduler", **shape)
        for name in shapes:
            compare(cluster, name, f"{name}-kube")
    finally:
        kube_scheduler.stop()
    cluster.add("small")
    assert cluster.node_of("small") == "plain"
    assert warnings(replica) == []


def compare(cluster: Cluster, ours: str, theirs: str) -> None:
    refusal, theirs_refusal = cluster.refusal_of(ours), cluster.refusal_of(theirs)
    words = theirs_refusal["message"].replace(CLAIMS, "")
    assert words != theirs_refusal["message"], "kube-scheduler says it in another way now"
    assert refusal["message"] == words
    event, theirs_event = cluster.event_of(ours), cluster.event_of(theirs)
    assert event["note"].partition(" | ")[0] == refusal["message"]
    assert event["regarding"]["uid"] == cluster.get(ours)["metadata"]["uid"]
    for one in (refusal, theirs_refusal):
        del one["message"], one["lastTransitionTime"]
    assert refusal == theirs_refusal
    same = ("type", "reason", "action")
    assert [event[key] for key in same] == [theirs_event[key] for key in same]
    kinds = ("kind", "apiVersion", "namespace")
    regarding = [event["regarding"][key] for key in kinds]
    assert regarding == [theirs_event["regarding"][key] for key in kinds]


# ---- objects that cannot be decoded


def spoil(name: str, change: Json) -> Rewrite:
    """Gives an object's spec other values, until it is touched."""

    def line(raw: bytes) -> bytes:
        event = json.loads(raw)
        metadata = event["object"]["metadata"]
        if metadata.get("name") != name or "touched" in metadata.get("labels", {}):
            return raw
        event["object"]["spec"] |= change
        return json.dumps(event).encode()

    return Rewrite(line)


@pytest.mark.timeout(120, func_only=True)
def test_what_cannot_be_decoded_is_told_and_left_out(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    """A line that is no JSON, a pod and a node with fields of the wrong type: the rest goes on."""

    def garbage(raw: bytes) -> bytes:
        return raw.replace(b'"ADDED"', b'"ADDED') if b'"garbage"' in raw else raw

    cluster.add_node("a")
    with Proxy(cluster.plane) as proxy:
        proxy.rule(watch_of("/pods"), spoil("strange", {"containers": "none"}))
        proxy.rule(watch_of("/pods"), Rewrite(garbage))
        proxy.rule(watch_of("/nodes"), spoil("odd", {"taints": {"key": "not a list"}}))
        replica = start(kubeconfig=kubeconfig(tmp_path / "config", proxy.url))
        replica.wait_until_ready()
        cluster.add_node("odd")
        for name in ("garbage", "strange", "web", "db"):
            cluster.add(name)

        assert {cluster.node_of("web"), cluster.node_of("db")} == {"a"}
        assert "nodeName" not in cluster.get("strange")["spec"]
        lines = warnings(replica)
        for about in ("garbage", "strange", "odd"):
            assert any(about in line for line in lines), (about, lines)
        assert replica.total("bayplan_unread_objects_total") >= 3

        cluster.touch("strange")  # now it can be read
        assert cluster.node_of("strange") == "a"
        replica.kill()


@pytest.mark.timeout(120, func_only=True)
def test_a_bound_pod_that_cannot_be_decoded_closes_its_node_until_it_can(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    """Nobody knows what it holds."""
    cluster.add_node("a")
    cluster.add("strange", nodeName="a")
    with Proxy(cluster.plane) as proxy:
        proxy.rule(watch_of("/pods"), spoil("strange", {"containers": "none"}))
        replica = start(kubeconfig=kubeconfig(tmp_path / "config", proxy.url))
        replica.wait_until_ready()
        cluster.add("web")
        refusal = cluster.refusal_of("web")["message"]
        assert refusal.startswith("0/1 nodes are available: 1 ")
        assert any("strange" in line and "node a" in line for line in warnings(replica))

        cluster.touch("strange")
        assert cluster.node_of("web") == "a"
        replica.kill()


@pytest.mark.timeout(120, func_only=True)
def test_a_condition_that_could_not_be_written_is_written_later(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    """An autoscaler looks for it, and nothing about the pod will change by itself."""

    def condition(asked: Asked) -> bool:
        return asked.method == "PATCH" and asked.path.endswith("/pods/large/status")

    cluster.add_node("a")
    with Proxy(cluster.plane) as proxy:
        away = proxy.rule(condition, Answer(503))
        replica = start(kubeconfig=kubeconfig(tmp_path / "config", proxy.url))
        cluster.add("large", gpus=9)
        cluster.add("small")
        assert cluster.node_of("small") == "a"
        eventually(lambda: proxy.seen(condition) >= 3, "it tries again")
        asked = len(proxy.asked)
        away()
        proxy.wait_for(condition, since=asked, timeout_s=60.0)
        assert cluster.refusal_of("large")["reason"] == "Unschedulable"
        replica.kill()
