"""The support bundle: all of it is there, and nothing secret is."""

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.budgets import Budget
from bayplan.core.model.pods import Gang
from bayplan.core.model.verdicts import Refusal
from bayplan.kube.read import Reader
from bayplan.scheduler.bundle import LEFT_OUT, Decisions, bundle, without_secrets
from bayplan.scheduler.config import Configuration
from bayplan.testing import world
from tests.scheduler.test_audit import error_of, run, scheduler
from tests.scheduler.test_journal import SECRETIVE, WORDS

GPU = "nvidia.com/gpu"


def filled() -> tuple[Engine, Decisions]:
    engine, decisions = Engine(), Decisions()
    events: list[on.Event] = [
        on.NodeSeen(world.node("a", 4, taints=world.tainted("t", "PreferNoSchedule"))),
        on.NodeSeen(world.node("b", 0)),
        on.NamespaceSeen("red", {"env": "prod"}),
        on.PodSeen(world.pod("bound", gpus=1, node="a")),
        on.PodSeen(world.pod("lost", node="gone")),
        on.PodSeen(world.pod("fits", gpus=1)),
        on.PodSeen(world.pod("large", gpus=9, labels={"app": "x"})),
        on.PodSeen(world.pod("held", gates=("g",))),
        on.PodUnreadable("odd", "b"),
        on.Tick(),
    ]
    for now, event in enumerate(events):
        for effect in engine.handle(event, float(now)):
            decisions.add(effect, float(now))
    return engine, decisions


def made(config: object = None) -> Any:
    """The bundle, through JSON."""
    engine, decisions = filled()
    found = bundle(engine, Configuration() if config is None else config, decisions, "1.2.3")
    return json.loads(msgspec.json.encode(found))


def test_nodes_say_what_they_have_and_what_is_free() -> None:
    first, second = made()["nodes"]
    assert (first["name"], first["pods"], first["unreadablePods"]) == ("a", 2, 0)
    assert (first["allocatable"][GPU], first["free"][GPU]) == (4, 2)
    assert first["taints"] == [{"key": "t", "value": "", "effect": "PreferNoSchedule"}]
    assert (second["name"], second["unreadablePods"]) == ("b", 1)


def test_pods_are_where_they_are() -> None:
    found = made()
    placed = {node: [pod["name"] for pod in pods] for node, pods in found["pods"].items()}
    assert placed == {"a": ["default/bound", "default/fits"], "gone": ["default/lost"]}
    assert [pod["assumed"] for pod in found["pods"]["a"]] == [False, True]
    assert [pod["name"] for pod in found["assumed"]] == ["default/fits"]
    (held,) = found["held"]
    assert (held["name"], held["why"]) == ("default/held", "waiting for scheduling gates: [g]")
    assert found["unreadable"] == [{"uid": "odd", "node": "b"}]
    assert found["namespaces"] == {"red": {"env": "prod"}}


def test_the_queue_says_why_pods_wait() -> None:
    found = made()
    (large,) = found["waiting"]
    assert (large["name"], large["attempts"], large["restsUntil"]) == ("default/large", 1, 10.0)
    assert large["message"].startswith("0/2 nodes are available: ")
    assert large["reasons"]["Insufficient nvidia.com/gpu"] == {"count": 1, "nodes": ["a"]}
    assert large["sleepsUntil"] == 309.0
    queue = found["queue"]
    assert (queue["waiting"], queue["groups"], queue["groupsAsleep"]) == (1, 1, 1)
    assert (queue["assumed"], queue["maxInFlight"], queue["held"]) == (1, 512, 1)


def test_the_last_decisions_are_there() -> None:
    found = made()
    bind, refuse = found["decisions"]
    assert (bind["now"], bind["do"], bind["pod"], bind["node"]) == (
        9.0,
        "Bind",
        "default/fits",
        "a",
    )
    assert (refuse["do"], refuse["pod"]) == ("Refuse", "default/large")
    assert refuse["message"].startswith("0/2 nodes")
    assert found["version"] == {"bayplan": "1.2.3", "state": filled()[0].cluster.version}


def test_a_thousand_decisions_are_kept() -> None:
    decisions = Decisions()
    pod, refusal = world.pod("p"), Refusal("m", {}, frozenset(), 0)
    for now in range(1500):
        decisions.add(do.Refuse(pod, refusal), float(now))
    assert len(decisions) == 1000
    assert next(iter(decisions))[0] == 500.0
    decisions.add(do.Report("odd"), 1.0)
    decisions.add(do.Preempt(pod, "n", (world.pod("q"),)), 2.0)
    *_, report, preempt = bundle(Engine(), {}, decisions, "")["decisions"]
    assert report == {"now": 1.0, "do": "Report", "text": "odd"}
    assert preempt == {
        "now": 2.0,
        "do": "Preempt",
        "pods": ("uid-p",),
        "pod": "default/p",
        "node": "n",
        "victims": ["default/q"],
    }


def test_gangs_nominations_and_budgets_are_there() -> None:
    engine = Engine()
    gang = Gang("default/train", 2)
    engine.handle(on.NodeSeen(world.node("a", 4)), 0.0)
    member = replace(world.pod("m", node="a"), gang=gang, nominated="a")
    engine.handle(on.PodSeen(member), 0.0)
    engine.handle(on.BudgetSeen(Budget("red/b", "red", None, 1, frozenset("yx"))), 0.0)
    found = bundle(engine, {}, Decisions(), "")
    (pod,) = found["pods"]["a"]
    assert (pod["gang"]["key"], pod["gang"]["minimum"]) == ("default/train", 2)
    assert pod["nominated"] == "a"
    (budget,) = found["budgets"]
    assert (budget["key"], budget["allowed"], budget["disrupted"]) == ("red/b", 1, ["x", "y"])


# ---- secrets


class Odd(Struct, rename="camel"):
    """A configuration with everything that should not be there."""

    client: dict[str, Any]
    bearer_token: str = "hunter2"
    api: str = "https://me:s3cr3t@host:6443/path"


def test_secrets_are_left_out_of_the_configuration() -> None:
    client = {
        "client-key-data": "opensesame",
        "users": [{"name": "admin", "user": {"password": 12345, "username": "me"}}],
        "env": [{"name": "API_TOKEN", "value": "swordfish"}, {"name": "HOME", "value": "/"}],
        "credentials": {"a": {"b": "xyzzy"}},
        "kubeconfig": "/etc/kubeconfig",
        "tokenIsNeeded": True,
    }
    found = made(Odd(client))
    text = json.dumps(found)
    assert not [word for word in (*WORDS, "12345") if word in text]
    shown = found["configuration"]
    assert shown["bearerToken"] == LEFT_OUT
    assert shown["api"] == "https://host:6443/path"
    assert shown["client"]["kubeconfig"] == "/etc/kubeconfig"
    assert shown["client"]["tokenIsNeeded"] is True
    assert shown["client"]["env"][1] == {"name": "HOME", "value": "/"}
    assert shown["client"]["users"][0]["user"]["username"] == "me"


def test_nothing_of_an_ordinary_configuration_is_left_out() -> None:
    assert LEFT_OUT not in json.dumps(without_secrets(msgspec.to_builtins(Configuration())))


def test_environment_arguments_and_annotations_of_pods_are_not_in_it() -> None:
    engine, decisions = filled()
    engine.handle(on.PodSeen(Reader().pod(msgspec.json.encode(SECRETIVE))), 20.0)
    for effect in engine.handle(on.Tick(), 20.0):
        decisions.add(effect, 20.0)
    text = msgspec.json.encode(bundle(engine, {}, decisions, "")).decode()
    assert "red/p" in text
    assert not [word for word in WORDS if word in text]


# ---- the command


def answer(path: str) -> tuple[int, bytes]:
    assert path == "/v1/dump"
    return 200, msgspec.json.encode(made())


def test_dump_writes_one_file_and_prints_its_path(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    with scheduler(answer) as url:
        result = run("dump", "--server", url, "-f", str(path))
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        names = archive.getnames()
        nodes = archive.extractfile("bundle/nodes.json")
        assert nodes is not None
        assert [node["name"] for node in json.load(nodes)] == ["a", "b"]
    assert sorted(names) == sorted(f"bundle/{name}.json" for name in made())


def test_dump_names_the_file_by_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with scheduler(answer) as url:
        result = run("dump", env={"BAYPLAN_SERVER": url})
    (file,) = tmp_path.iterdir()
    assert result.stdout == f"{file.name}\n"
    assert file.name.startswith("bayplan-")


def test_dump_can_print_it_all(tmp_path: Path) -> None:
    with scheduler(answer) as url:
        assert json.loads(run("dump", "--server", url, "-o", "json").stdout) == made()
        nowhere = str(tmp_path / "no" / "b.tar.gz")
        assert error_of("dump", "--server", url, "-f", nowhere) == (
            f"{nowhere}: No such file or directory"
        )
    assert "-o json prints the bundle" in error_of("dump", "-f", "x", "-o", "json")
    assert "no answer" in error_of("dump", "--server", url)
