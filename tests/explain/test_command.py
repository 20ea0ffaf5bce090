"""`bayplan explain`: a cluster in files or a server in, an explanation and a status out."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bayplan.cli.main import main
from bayplan.testing import World
from bayplan.testing.world import HOSTNAME
from tests.what_if.served import HOST, Served

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = str(ROOT / "examples/cluster.json")
GPU = "nvidia.com/gpu"


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["explain", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(*args: str) -> str:
    """The one line that bad input gives."""
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()


def pod(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    amounts = {GPU: str(gpus)}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"name": name, "namespace": "ml"} | more.pop("metadata", {})
    spec = {"containers": [container], **more.pop("spec", {})}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, **more}


def ask(tmp_path: Path, name: str, *pods: dict[str, Any]) -> Result:
    dump = tmp_path / "pods.json"
    dump.write_text(json.dumps({"kind": "List", "items": pods}))
    return run("--cluster", CLUSTER, "--cluster", str(dump), name, "-o", "json")


def test_a_pod_that_waits(tmp_path: Path) -> None:
    result = ask(tmp_path, "ml/new", pod("new", 7))
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["state"], found["ok"], found["pod"]) == ("waits", False, "ml/new")
    assert found["message"].startswith("0/5 nodes are available: ")
    first = found["suggestions"][0]
    assert first == {
        "kind": "request",
        "text": f"ask for 6 {GPU} instead of 7",
        "node": "gpu-3",
        "change": {
            "requests": [{"resource": GPU, "was": "7", "now": "6", "container": "c"}],
        },
    }


def test_pods_that_need_no_help(tmp_path: Path) -> None:
    fits = ask(tmp_path, "ml/new", pod("new", 1, spec={"schedulerName": "somebody"}))
    runs = run("--cluster", CLUSTER, "team-a/train-0")
    assert (fits.exit_code, runs.exit_code) == (0, 0)
    assert json.loads(fits.stdout)["state"] == "fits"
    assert runs.stdout == "team-a/train-0 is on gpu-1\n"


def test_pods_that_are_not_to_be_placed(tmp_path: Path) -> None:
    gated = pod("gated", 1, spec={"schedulingGates": [{"name": "later"}]})
    leaving = pod("leaving", 1, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    answers = [ask(tmp_path, f"ml/{name}", gated, leaving) for name in ("gated", "leaving")]
    assert [each.exit_code for each in answers] == [1, 1]
    states = [json.loads(each.stdout)["state"] for each in answers]
    assert states == ["held", "leaving"]


def test_a_gang_in_files(tmp_path: Path) -> None:
    words = {"bayplan.dev/gang": "g", "bayplan.dev/gang-min": "3"}
    members = [pod(f"g-{i}", 6, metadata={"annotations": words}) for i in range(3)]
    found = json.loads(ask(tmp_path, "ml/g-0", *members).stdout)
    assert found["gang"] == {"name": "ml/g", "minimum": 3, "bound": 0, "waiting": 3, "fit": 1}
    assert found["suggestions"][0]["change"] == {"minimum": 1}


def test_bad_input(tmp_path: Path) -> None:
    assert error_of("--cluster", CLUSTER, "ml/nobody") == (
        "the cluster has no pod ml/nobody that has not ended"
    )
    assert "a pod is named namespace/name" in error_of("--cluster", CLUSTER, "a/b/c")
    assert "do not go together" in error_of("--cluster", CLUSTER, "--server", "x:1", "a/b")
    assert "No such file" in error_of("--cluster", str(tmp_path / "none"), "a/b")
    assert "Missing argument" in error_of()


def test_the_page_says_what_is_printed() -> None:
    blocks = re.findall(
        r"```console\n\$ (.*?)\n(.*?)```", (ROOT / "docs/explain.md").read_text(), re.S
    )
    assert blocks
    for command, output in blocks:
        words = [str(ROOT / w) if w.startswith("examples/") else w for w in shlex.split(command)]
        assert words[:2] == ["bayplan", "explain"]
        assert run(*words[2:]).stdout == output


# ---- a running scheduler


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    world = World(a=8, b=8)
    for i, node in enumerate("ab"):
        world.submit(f"old-{i}", 2, node_selector=((HOSTNAME, node),))
    world.submit("big", 8)
    world.submit("bad name %", 16)
    with Served(world) as running:
        yield running


def test_a_scheduler_is_asked(served: Served) -> None:
    server = f"http://{HOST}:{served.port}"
    waits, runs = run("--server", server, "big"), run("--server", server, "default/old-0")
    assert (waits.exit_code, runs.exit_code) == (1, 0)
    assert waits.stdout.startswith("default/big waits\n0/2 nodes are available: 2 Insufficient")
    assert f"ask for 6 {GPU} instead of 8" in waits.stdout
    assert run("--server", server, "bad name %").exit_code == 1
    assert "404" in error_of("--server", server, "nobody")


def test_the_path(served: Served) -> None:
    found = served.ask("GET", "/v1/explain/default/big")
    assert (found.status, found.json["state"]) == (200, "waits")
    statuses = [
        served.ask(method, path).status
        for method, path in (
            ("GET", "/v1/explain/default/nobody"),
            ("GET", "/v1/explain/default"),
            ("GET", "/v1/explain/default/a/b"),
            ("GET", "/v1/explain/"),
            ("GET", "/v1/explain"),
            ("POST", "/v1/explain/default/big"),
        )
    ]
    assert statuses == [404, 404, 404, 404, 404, 405]


def test_a_scheduler_that_is_not_ready(served: Served) -> None:
    served.is_ready = False
    try:
        assert served.ask("GET", "/v1/explain/default/big").status == 503
    finally:
        served.is_ready = True
