"""Memory against a fresh list, and the command that asks a running scheduler for it."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, invariant
from msgspec.structs import replace

from bayplan.cli.main import main
from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster
from bayplan.scheduler.audit import Audit, Difference, differences, lasting
from bayplan.testing import world
from tests.law.test_laws import Laws

GPU = "nvidia.com/gpu"


class Listed(Laws):
    """Whatever happens, memory is what a list would say at that moment."""

    @initialize()
    def start(self) -> None:
        self.engine = Engine()
        self.now, self.made = 0.0, 0
        self.known: dict[str, Pod] = {}
        self.binding: dict[str, str] = {}
        self.nodes: dict[str, Node] = {}
        self.spaces: dict[str, dict[str, str]] = {}
        self.unread: set[str] = set()

    def tell(self, event: on.Event) -> None:
        match event:
            case on.NodeSeen(node):
                self.nodes[node.name] = node
            case on.NodeGone(name):
                self.nodes.pop(name, None)
            case on.NamespaceSeen(name, labels):
                self.spaces[name] = labels
            case on.NamespaceGone(name):
                self.spaces.pop(name, None)
            case on.PodSeen(pod):
                self.unread.discard(pod.uid)
            case on.PodUnreadable(uid, _):
                self.unread.add(uid)
        for effect in self.engine.handle(event, self.now):
            if isinstance(effect, do.Bind):
                self.binding[effect.placement.pod.uid] = effect.placement.node

    @invariant()
    def memory_is_what_a_list_says(self) -> None:
        if not hasattr(self, "engine"):
            return
        pods = [pod for pod in self.known.values() if pod.uid not in self.unread]
        assert differences(self.engine, pods, self.nodes.values(), self.spaces).counts == {}

    try_and_drop = ask = relist = None  # type: ignore[assignment]
    the_laws_hold = who_sleeps_could_not_be_helped = None  # type: ignore[assignment]


TestListed = Listed.TestCase
TestListed.settings = settings(
    max_examples=500 if os.environ.get("BAYPLAN_PROVE") else 30,
    stateful_step_count=30,
    deadline=None,
    derandomize="BAYPLAN_PROVE" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


# ---- what is a difference

NODES = (world.node("a", 4), world.node("b", 4))
BOUND = world.pod("bound", gpus=1, node="a", labels={"app": "x"})
WAITS = world.pod("waits", gpus=9)
HELD = world.pod("held", gates=("g",))
LOST = world.pod("lost", node="nowhere")
FOREIGN = world.pod("foreign", scheduler="another")
PODS = (BOUND, WAITS, HELD, LOST, FOREIGN)
SPACES = {"red": {"env": "prod"}}


def engine_of(*pods: Pod) -> Engine:
    engine = Engine()
    for node in NODES:
        engine.handle(on.NodeSeen(node), 0.0)
    for name, labels in SPACES.items():
        engine.handle(on.NamespaceSeen(name, labels), 0.0)
    for pod in pods:
        engine.handle(on.PodSeen(pod), 0.0)
    engine.handle(on.Tick(), 0.0)
    return engine


def found(
    *changed: Pod, without: tuple[str, ...] = (), memory: tuple[Pod, ...] = PODS
) -> list[tuple[str, str, str, str]]:
    """Differences, where the list has these pods in place of ours."""
    listed = {pod.uid: pod for pod in (*PODS, *changed) if pod.name not in without}
    audit = differences(engine_of(*memory), listed.values(), NODES, SPACES)
    assert audit.total == len(audit.differences)
    return [(one.kind, one.name, one.memory, one.listed) for one in audit.differences]


def test_the_same_cluster_has_no_differences() -> None:
    audit = differences(engine_of(*PODS), PODS, NODES, SPACES)
    assert audit == Audit(5, 2, 1, {}, [])


def test_pods_that_memory_lacks_or_that_are_gone() -> None:
    new = world.pod("new", node="b")
    assert found(new) == [("pod_missing", "default/new", "not known", "b")]
    assert found(world.pod("new")) == [("pod_missing", "default/new", "not known", "waits")]
    assert found(world.pod("new", scheduler="another")) == []
    assert found(without=("bound",)) == [("pod_extra", "default/bound", "a", "not known")]
    assert found(without=("waits",)) == [("pod_extra", "default/waits", "waits", "not known")]
    assert found(without=("held",)) == [("pod_extra", "default/held", "waits", "not known")]
    ours_no_more = replace(WAITS, scheduler="another")
    assert found(ours_no_more) == [("pod_other", "default/waits", *two("scheduler", "bayplan"))]


def two(name: str, ours: str) -> tuple[str, str]:
    return f"{name} {ours}", f"{name} another"


def test_pods_on_another_node() -> None:
    assert found(replace(BOUND, node="b")) == [("pod_elsewhere", "default/bound", "a", "b")]
    assert found(replace(LOST, node="a")) == [("pod_elsewhere", "default/lost", "nowhere", "a")]
    assert found(replace(WAITS, node="b")) == [("pod_elsewhere", "default/waits", "waits", "b")]
    assert found(replace(BOUND, node="")) == [("pod_elsewhere", "default/bound", "a", "waits")]
    gone = replace(BOUND, node="", scheduler="another")
    assert found(gone) == [("pod_extra", "default/bound", "a", "not ours")]


def test_pods_with_other_requests_labels_and_the_rest() -> None:
    more = world.pod("bound", gpus=2, node="a", labels={"app": "x"})
    assert found(more) == [
        ("pod_requests", "default/bound", "nvidia.com/gpu 1", "nvidia.com/gpu 2")
    ]
    assert found(replace(BOUND, labels={"app": "y"})) == [
        ("pod_labels", "default/bound", "app=x", "app=y")
    ]
    leaving = replace(BOUND, terminating=True)
    assert found(leaving) == [
        ("pod_other", "default/bound", "terminating False", "terminating True")
    ]
    restless = world.pod("waits", gpus=9, node_selector=(("disk", "ssd"),))
    ((kind, _, memory, listed),) = found(restless)
    assert (kind, memory, listed) == (
        "pod_other",
        "node_selector ()",
        "node_selector (('disk', 'ssd'),)",
    )


def test_a_bind_in_flight_is_no_difference() -> None:
    pod = world.pod("flies", gpus=1, labels={"app": "x"})
    engine = engine_of(pod)
    node = engine.cluster.name(engine.cluster.pods[pod.uid].row)
    other = "b" if node == "a" else "a"
    assert pod.uid in engine.assumed

    def kinds(*listed: Pod) -> dict[str, int]:
        return differences(engine, listed, NODES, SPACES).counts

    assert kinds(pod) == kinds(replace(pod, node=node)) == kinds() == {}
    assert kinds(replace(pod, labels={})) == {}
    assert kinds(replace(pod, node=other)) == {"pod_elsewhere": 1}
    engine.handle(on.BindDone(pod.uid), 0.0)
    assert kinds(pod) == {"pod_elsewhere": 1}


@pytest.mark.parametrize(
    ("listed", "difference"),
    [
        ((NODES[0],), ("node_extra", "b", "known", "not listed")),
        ((*NODES, world.node("c")), ("node_missing", "c", "not known", "listed")),
        (
            (NODES[0], replace(NODES[1], allocatable={"cpu": 1})),
            (
                "node_allocatable",
                "b",
                "cpu 64000, memory 549755813888, nvidia.com/gpu 4, pods 110",
                "cpu 1",
            ),
        ),
        (
            (NODES[0], replace(NODES[1], labels={"disk": "ssd"})),
            ("node_labels", "b", "kubernetes.io/hostname=b", "disk=ssd"),
        ),
        (
            (NODES[0], replace(NODES[1], unschedulable=True)),
            ("node_other", "b", "unschedulable False", "unschedulable True"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_nodes(listed: tuple[Node, ...], difference: tuple[str, str, str, str]) -> None:
    assert differences(engine_of(), (), listed, SPACES).differences == [Difference(*difference)]


def test_free_amounts_that_do_not_add_up() -> None:
    engine = engine_of(BOUND)
    engine.cluster.free[0, engine.cluster.resource_columns[GPU]] -= 1
    (difference,) = differences(engine, (BOUND,), NODES, SPACES).differences
    assert (difference.kind, difference.name) == ("node_free", "a")
    assert "nvidia.com/gpu 2" in difference.memory
    assert "nvidia.com/gpu 3" in difference.listed


def test_a_place_that_is_kept_for_a_pod_is_no_difference() -> None:
    engine = engine_of(BOUND)
    engine.cluster.holds.hold(world.pod("preemptor", gpus=2), 0)
    assert differences(engine, (BOUND,), NODES, SPACES).differences == []


def test_namespaces() -> None:
    engine = engine_of()

    def kinds(listed: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
        audit = differences(engine, (), NODES, listed)
        return [(one.kind, one.name) for one in audit.differences]

    assert kinds({}) == [("namespace_extra", "red")]
    assert kinds({"red": {}}) == [("namespace_labels", "red")]
    assert kinds({**SPACES, "blue": {}}) == [("namespace_missing", "blue")]


def test_many_differences_are_counted_and_the_first_named() -> None:
    pods = [world.pod(f"p{i}", node="a") for i in range(50)]
    audit = differences(engine_of(), pods, (), {}, most=10)
    assert audit.counts == {"node_extra": 2, "pod_missing": 50, "namespace_extra": 1}
    assert (audit.total, len(audit.differences)) == (53, 10)


def test_what_passes_by_itself_does_not_last() -> None:
    passing, staying = (Difference("pod_missing", name, "not known", "a") for name in "xy")
    before = Audit(2, 1, 0, {"pod_missing": 2}, [passing, staying])
    after = Audit(2, 1, 0, {"pod_missing": 1, "pod_extra": 1}, [
        Difference("pod_extra", "z", "a", "not known"), staying
    ])  # fmt: skip
    assert lasting(before, after) == Audit(2, 1, 0, {"pod_missing": 1}, [staying])


def test_a_forgotten_removal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(BOUND)
    monkeypatch.setattr(Cluster, "remove", lambda *_: None)
    engine.handle(on.PodGone(BOUND.uid), 0.0)
    assert differences(engine, (), NODES, SPACES).counts == {"pod_extra": 1}


# ---- the command


@contextmanager
def scheduler(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """Something that answers as a scheduler would; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(main, list(args), env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(*args: str, env: dict[str, str] | None = None) -> str:
    result = run(*args, env=env)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return result.stderr.removeprefix("Error: ").strip()


def answering(audit: Audit) -> Callable[[str], tuple[int, bytes]]:
    def answer(path: str) -> tuple[int, bytes]:
        assert path == "/v1/check"
        return 200, msgspec.json.encode(audit)

    return answer


def test_check_live_when_all_is_well() -> None:
    with scheduler(answering(Audit(1234, 5, 6, {}, []))) as url:
        result = run("check", "--live", "--server", url + "/")
        assert result.stdout == "no differences: 1,234 pods, 5 nodes, 6 namespaces\n"
        assert result.exit_code == 0
        told = run("check", "--live", env={"BAYPLAN_SERVER": url.removeprefix("http://")})
        assert told.stdout == result.stdout


def test_check_live_when_something_differs() -> None:
    audit = Audit(3, 2, 1, {"pod_extra": 70}, [Difference("pod_extra", "red/p", "a", "not known")])
    with scheduler(answering(audit)) as url:
        result = run("check", "--live", "--server", url)
        assert result.exit_code == 1
        assert result.stdout == (
            "70 differences (70 pod_extra) in 3 pods, 2 nodes, 1 namespaces\n\n"
            "KIND       NAME   MEMORY  LISTED\n"
            "pod_extra  red/p  a       not known\n"
            "… and 69 more\n"
        )
        assert json.loads(run("check", "--live", "--server", url, "-o", "json").stdout) == (
            msgspec.to_builtins(audit)
        )


def test_a_server_that_does_not_help_is_one_clear_line() -> None:
    with scheduler(lambda _: (503, b'{"error":"not synced\\nyet"}')) as url:
        said = error_of("check", "--live", "--server", url)
        assert said == (
            f"{url}/v1/check: the server answered 503 Service Unavailable: not synced yet"
        )
    assert "no answer: Connection refused (is `bayplan run` there?" in error_of(
        "check", "--live", "--server", url
    )
    with scheduler(lambda _: (200, b"<html>")) as url:
        assert "this is not the answer of a scheduler" in error_of("check", "--live", env=at(url))
    with scheduler(lambda _: (404, b"")) as url:
        assert error_of("check", "--live", env=at(url)).endswith(
            "the server answered 404 Not Found"
        )
    for wrong in ("file:///etc/passwd", "http://", "http://a:b:c", "http://host:99999"):
        assert "not a URL such as" in error_of("check", "--live", "--server", wrong)


def at(url: str) -> dict[str, str]:
    return {"BAYPLAN_SERVER": url}
