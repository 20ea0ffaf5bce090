"""`bayplan what-if`: files or a server in, answers and a status out. The page's examples too."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bayplan.cli.main import main
from bayplan.testing import World
from bayplan.web.api import Access, Token
from tests.what_if.served import Served

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = str(ROOT / "examples/cluster.json")
GPU = "nvidia.com/gpu"


def run(*args: str, given: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["what-if", *args], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(*args: str, given: str | None = None) -> str:
    """The one line that bad input gives."""
    result = run(*args, given=given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()


def steps(*given: Any) -> str:
    return json.dumps({"steps": given})


def pod(gpus: int) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {GPU: gpus}}}
    return {"metadata": {"name": "x"}, "spec": {"containers": [container]}}


def test_the_status_says_whether_every_answer_is_ok() -> None:
    yes = run("--cluster", CLUSTER, "-", given=steps({"fits": {"pod": pod(4)}}))
    no = run("--cluster", CLUSTER, "-", given=steps({"fits": {"pod": pod(99)}}))
    unknown = run("--cluster", CLUSTER, "-", given=steps({"evict": ["a/b"]}, {"evict": []}))

    assert [yes.exit_code, no.exit_code, unknown.exit_code] == [0, 1, 1]
    (answer,) = json.loads(yes.stdout)["answers"]
    assert answer["ok"]
    assert json.loads(no.stdout)["answers"][0]["message"].startswith("0/5 nodes are available: ")
    assert json.loads(unknown.stdout)["answers"] == [
        {"ok": False, "error": "there is no pod a/b"},
        {"ok": True, "changed": 0},
    ]


def test_text_has_a_line_a_step() -> None:
    gang = {"name": "g", "count": 2, "pod": pod(4)}
    given = steps(
        {"place": {"pod": pod(4)}},
        {"place": {"gang": gang | {"count": 9}}},
        {"nodes": {"add": {"like": "gpu-1", "count": 4}}},
        {"place": {"gang": gang}},
        {"capacity": {"pod": pod(1), "limit": 3}},
        {"evict": ["x"]},
        {"evict": ["y"]},
        7,
    )

    result = run("--cluster", CLUSTER, "-", "-o", "text", given=given)

    table, notes = result.stdout.split("\n\n")
    rows = [line.split(maxsplit=3)[1:] for line in table.splitlines()]
    assert rows.pop(4)[2].startswith("2 placed on gpu-1-new-")
    assert rows == [
        ["ASKED", "OK", "ANSWER"],
        ["place", "yes", "gpu-3"],
        ["place", "no", "1 would fit on gpu-2"],
        ["nodes", "yes", "4 changed: gpu-1-new-1, gpu-1-new-2, gpu-1-new-3, …"],
        ["capacity", "yes", "3 and more"],
        ["evict", "yes", "1 changed"],
        ["evict", "no", "-"],
        ["no", "-"],
    ]
    assert [line.partition(":")[0] for line in notes.splitlines()] == ["2", "7", "8"]
    assert run("--cluster", CLUSTER, "-", "-o", "text", given=steps()).stdout == "no steps\n"


def test_a_running_scheduler_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with Served(World(a=8), Access(Token(str(token)))) as served:
        address = f"http://127.0.0.1:{served.port}"
        monkeypatch.setenv("BAYPLAN_SERVER", address)
        given = steps({"capacity": {"pod": pod(1)}})
        good = run("--token-file", str(token), "-", given=given)
        refused = error_of("-", given=given)
        bad = error_of("--token-file", str(token), "-", given=steps(*[{}] * 1_001))
        monkeypatch.setenv("BAYPLAN_TOKEN_FILE", str(token))
        named = run("--server", address, "-", given=given)

    assert json.loads(good.stdout)["answers"] == [{"ok": True, "count": 8}]
    assert named.stdout == good.stdout
    assert "the server answered 401 Unauthorized: a token is needed" in refused
    assert "400 Bad Request: a question may have 1000 steps, not 1001" in bad


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    some = steps({"evict": []})

    assert "no such file" in error_of("--cluster", CLUSTER, str(tmp_path / "none")).lower()
    assert error_of("--cluster", CLUSTER, str(empty)).endswith(
        "it should be one question, but is none"
    )
    assert "a question may have 1000 steps" in error_of(
        "--cluster", CLUSTER, "-", given=steps(*[{}] * 1_001)
    )
    assert "do not go together" in error_of("--cluster", CLUSTER, "--server", "x:1", "-")
    assert "only one file can be" in error_of("--cluster", "-", "-", given=some)
    assert "no answer" in error_of("--server", "127.0.0.1:1", "-", given=some)
    assert "no node in it" in error_of("--cluster", str(empty), "-", given=some)
    for option, words in (
        (("--token-file", str(empty)), "no token in it"),
        (("--token-file", str(tmp_path / "none")), "No such file"),
        (("--client-cert", str(empty)), "--client-cert and --client-key go together"),
        (("--server-ca", str(tmp_path / "none")), "--server-ca"),
        (("--client-cert", str(empty), "--client-key", str(empty)), "--client-cert"),
    ):
        assert words in error_of("--server", "https://127.0.0.1:1", *option, "-", given=some)


def examples() -> Iterator[Any]:
    text = (ROOT / "docs/what-if.md").read_text()
    blocks = re.findall(r"```console\n\$ (.*?)\n(.*?)```", text, re.S)
    assert blocks
    for command, output in blocks:
        yield pytest.param(command, output, id=command)


@pytest.mark.parametrize(("command", "output"), list(examples()))
def test_every_example_prints_what_the_document_says(command: str, output: str) -> None:
    programs = Path(sys.executable).parent
    result = subprocess.run(
        ["bash", "-c", f"export PATH={shlex.quote(str(programs))}:$PATH; {command}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUTF8": "1"},
    )
    assert result.stdout == output


def test_the_steps_of_the_document_are_understood() -> None:
    text = (ROOT / "docs/what-if.md").read_text()
    every = re.findall(r"```yaml\n(steps:.*?)```", text, re.S)
    assert every
    for given in every:
        result = run("--cluster", CLUSTER, "-", given=given)
        for answer in json.loads(result.stdout)["answers"]:
            assert "error" not in answer, answer
