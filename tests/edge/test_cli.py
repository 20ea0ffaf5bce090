"""The command line: arguments and files in, text and a status out. The documents' examples too."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bayplan.bench import engine as engine_bench
from bayplan.cli import sources
from bayplan.cli.clusters import load_cluster, load_pod
from bayplan.cli.main import main
from bayplan.cli.tables import amount, table
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.engine.questions import fits, why_not
from bayplan.core.model.effects import Bind
from bayplan.core.model.events import NodeSeen, PodSeen, Tick
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod, RowKey

ROOT = Path(__file__).resolve().parents[2]
CLUSTER, FITS = str(ROOT / "examples/cluster.json"), str(ROOT / "examples/fits.yaml")
TOO_LARGE = str(ROOT / "examples/too-large.yaml")
DEPLOYMENT = str(ROOT / "examples/deployment.yaml")
GPU = "nvidia.com/gpu"

Json = dict[str, Any]
Write = Callable[[str, object], str]


def run(*args: str, given: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, list(args), input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def error_of(*args: str, given: str | bytes | None = None) -> str:
    """The one line that bad input gives."""
    result = run(*args, given=given)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("Error: ").strip()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: object) -> str:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def node(name: str, cpu: str = "4", **more: object) -> Json:
    allocatable = {"cpu": cpu, "pods": "10"}
    return {
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": allocatable},
    } | more


def pod(name: str, cpu: str = "3", on: str | None = None, phase: str = "Running") -> Json:
    spec: Json = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
    if on is not None:
        spec["nodeName"] = on
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def dump(*items: Json) -> Json:
    return {"kind": "List", "items": list(items)}


# ---- fits


def test_fits_lists_the_nodes_that_take_the_pod() -> None:
    result = run("fits", CLUSTER, FITS)

    assert result.exit_code == 0
    assert result.stdout.startswith("fits on 2 of 5 nodes\n\nNODE ")
    assert re.findall(r"^gpu-\d", result.stdout, re.M) == ["gpu-2", "gpu-3"]
    assert result.stderr == ""


def test_fits_says_why_nothing_takes_the_pod() -> None:
    result = run("fits", CLUSTER, TOO_LARGE)

    assert result.exit_code == 1
    assert "\n0/5 nodes are available: 1 Insufficient nvidia.com/gpu, " in result.stdout
    cluster = load_cluster([CLUSTER])
    refusal = why_not(cluster.verdicts, load_pod(TOO_LARGE, cluster))
    assert refusal is not None
    assert refusal.message in result.stdout


def test_fits_prints_json() -> None:
    yes, no = (
        run("fits", CLUSTER, FITS, "-o", "json"),
        run("fits", CLUSTER, TOO_LARGE, "-o", "json"),
    )

    assert (yes.exit_code, no.exit_code) == (0, 1)
    assert json.loads(yes.stdout)["feasible"] == ["gpu-2", "gpu-3"]
    assert "message" not in json.loads(yes.stdout)
    answer = json.loads(no.stdout)
    assert answer["feasible"] == []
    assert answer["reasons"]["gpu-3"] == [f"Insufficient {GPU}"]
    assert answer["message"].startswith("0/5 nodes are available: ")


def test_fits_asks_about_one_node() -> None:
    assert run("fits", CLUSTER, FITS, "--node", "gpu-2").exit_code == 0
    refused = run("fits", CLUSTER, FITS, "--node", "gpu-1", "-o", "json")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout) == {
        "feasible": [],
        "reasons": {"gpu-1": [f"Insufficient {GPU}"]},
        "message": f"0/1 nodes are available: 1 Insufficient {GPU}.",
    }
    assert error_of("fits", CLUSTER, FITS, "--node", "gpu_3") == (
        "the cluster has no node gpu_3; did you mean gpu-3?"
    )


def test_fits_takes_anything_with_a_template(write: Write) -> None:
    template = {"spec": pod("x", cpu="5")["spec"]}
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    cron = {"kind": "CronJob", "metadata": {"name": "j"}, "spec": {"jobTemplate": job}}
    cluster = write("c.json", dump(node("a"), node("b", cpu="8")))

    for manifest in (job, cron):
        answer = json.loads(run("fits", cluster, write("m.json", manifest), "-o", "json").stdout)
        assert answer == {"feasible": ["b"], "reasons": {"a": ["Insufficient cpu"]}}
    answer = json.loads(run("fits", CLUSTER, DEPLOYMENT, "-o", "json").stdout)
    assert answer["feasible"] == ["gpu-3", "gpu-4"]


def test_a_service_beside_the_deployment_does_no_harm(write: Write) -> None:
    service = "kind: Service\nmetadata: {name: s}\nspec: {ports: []}\n---\n"
    both = write("both.yaml", service + Path(DEPLOYMENT).read_text())
    assert run("fits", CLUSTER, both).exit_code == 0
    assert "but describes 2" in error_of(
        "fits",
        CLUSTER,
        write("two.yaml", Path(FITS).read_text() + "---\n" + Path(FITS).read_text()),
    )
    assert "there is no pod in it" in error_of("fits", CLUSTER, write("service.yaml", service))


def test_standard_input_is_the_cluster_or_the_pod() -> None:
    assert run("fits", "-", FITS, given=Path(CLUSTER).read_bytes()).exit_code == 0
    assert run("fits", CLUSTER, "-", given=Path(FITS).read_bytes()).exit_code == 0
    assert "only one file" in error_of("fits", "-", "-")


def test_a_cluster_in_several_files_is_one(write: Write) -> None:
    nodes = write(
        "nodes.yaml", "kind: Node\nmetadata: {name: a}\nstatus:\n  allocatable: {cpu: 4, pods: 9}\n"
    )
    pods = write("pods.json", dump(pod("old", cpu="2", on="a")))
    question = write("pod.json", pod("new"))

    assert run("fits", nodes, question).exit_code == 0
    assert run("fits", pods, nodes, question).exit_code == 1
    assert run("fits", nodes, nodes, question).exit_code == 0


def test_classes_of_the_dump_complete_the_pod(write: Write) -> None:
    runtime = {
        "kind": "RuntimeClass",
        "metadata": {"name": "vm"},
        "overhead": {"podFixed": {"cpu": "2"}},
    }
    question = pod("new")
    question["spec"]["runtimeClassName"] = "vm"

    with_class = write("with.json", dump(node("a"), runtime))
    assert run("fits", with_class, write("p.json", question)).exit_code == 1
    assert run("fits", write("no.json", dump(node("a"))), write("p.json", question)).exit_code == 0


def test_pods_that_wait_or_have_ended_do_not_count(write: Write) -> None:
    ended = [pod("s", on="a", phase="Succeeded"), pod("f", on="a", phase="Failed")]
    cluster = write("c.json", dump(node("a"), pod("waits", phase="Pending"), *ended))
    assert run("fits", cluster, write("p.json", pod("new"))).exit_code == 0


def test_twenty_nodes_are_shown_unless_all_are_wanted(write: Write) -> None:
    cluster = write("c.json", dump(*(node(f"n{i:02d}") for i in range(25))))
    question = write("p.json", pod("new"))

    short, long = run("fits", cluster, question), run("fits", cluster, question, "--all")

    assert len(re.findall(r"^n\d\d", short.stdout, re.M)) == 20
    assert "… and 5 more (--all)" in short.stdout
    assert len(re.findall(r"^n\d\d", long.stdout, re.M)) == 25


# ---- fits: what cannot be read


def test_an_unreadable_pod_closes_its_node(write: Write) -> None:
    broken = pod("old", cpu="lots", on="a")
    cluster = write("c.json", dump(node("a"), node("b"), broken))

    result = run("fits", cluster, write("p.json", pod("new")), "-o", "json")

    assert json.loads(result.stdout) == {
        "feasible": ["b"],
        "reasons": {"a": ["node(s) had a pod that cannot be read"]},
    }
    assert result.stderr.startswith(f"warning: {cluster}: pod default/old: spec.containers[0]")
    assert result.stderr.endswith("; its node a takes no more pods\n")


def test_a_pod_that_cannot_be_decoded_closes_its_node_too(write: Write) -> None:
    broken = pod("old", on="a") | {"metadata": {"name": 7}}
    cluster = write("c.json", dump(node("a"), broken))
    assert run("fits", cluster, write("p.json", pod("new"))).exit_code == 1


def test_what_cannot_be_read_is_told_ten_times_at_most(write: Write) -> None:
    broken = [node(f"bad-{i:02d}", cpu="many") for i in range(13)]
    shapeless = [{"kind": "Namespace"}, {"kind": "PriorityClass", "value": "high"}]
    cluster = write("c.json", dump(node("a"), *broken, *shapeless))

    result = run("fits", cluster, write("p.json", pod("new")))

    assert result.exit_code == 0
    assert result.stdout.startswith("fits on 1 of 1 node\n")
    lines = result.stderr.splitlines()
    assert len(lines) == 11
    assert all(line.startswith(f"warning: {cluster}: ") for line in lines[:10])
    assert lines[10] == "warning: 5 more objects cannot be read"


def test_bad_files_are_one_line_and_status_2(write: Write, tmp_path: Path) -> None:
    good = write("p.json", pod("new"))
    assert error_of("fits", "missing.json", FITS) == "missing.json: No such file or directory"
    assert error_of("fits", CLUSTER, str(tmp_path)) == f"{tmp_path}: Is a directory"
    text = write("text.yaml", "a: [1\nb: }")
    assert error_of("fits", text, FITS).startswith(f"{text}: not valid YAML: ")
    assert error_of("fits", CLUSTER, text).startswith(f"{text}: not valid YAML: ")
    number = write("number.json", "5")
    assert "not an object but int" in error_of("fits", number, good)
    assert "no node in it" in error_of("fits", write("empty.json", ""), good)
    assert "no node in it" in error_of("fits", "-", good, given='{"kind": "List", "items": []}')
    assert "describes none" in error_of("fits", CLUSTER, write("nothing.yaml", "---\n"))
    assert "are needed" in error_of("fits", CLUSTER)


def test_the_wrong_field_of_the_pod_is_named(write: Write) -> None:
    path = write("p.json", pod("new", cpu="3 cores"))
    assert error_of("fits", CLUSTER, path) == (
        f"{path}: pod default/new: spec.containers[0].resources.requests: "
        "'3 cores' is not a quantity"
    )
    strange = pod("new")
    strange["spec"]["containers"] = {"name": "c"}
    path = write("q.json", strange)
    assert (
        error_of("fits", CLUSTER, path)
        == f"{path}: pod default/new: containers: it should be a list"
    )


def test_a_node_that_is_there_twice_must_be_the_same(write: Write) -> None:
    cluster = write("c.json", dump(node("a"), node("a", cpu="8")))
    assert error_of("fits", cluster, FITS) == f"{cluster}: node a is there twice, and not the same"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3_000,
        '{"a":' * 3_000,
        "\x00\x01",
        "\ufeff",
        "&a [*a]",
        "- 1\n- 2",
        '"\\ud800"',
        "null",
    ],
)
def test_no_file_gives_a_traceback(write: Write, text: str) -> None:
    path = write("strange", text)
    error_of("fits", path, FITS)
    error_of("fits", CLUSTER, path)


# ---- fits --cases


def cases(*lines: object) -> list[Json]:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    result = run("fits", "--cases", given=text)
    assert result.exit_code == 0
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_case_gets_its_answer() -> None:
    case = {"nodes": [node("b"), node("a"), node("c", cpu="1")], "pod": pod("new")}
    full = case | {"pods": [pod("old", on="a")], "namespaces": [{"metadata": {"name": "default"}}]}

    assert cases(case, full) == [
        {"feasible": ["a", "b"], "reasons": {"c": ["Insufficient cpu"]}},
        {"feasible": ["b"], "reasons": {"a": ["Insufficient cpu"], "c": ["Insufficient cpu"]}},
    ]


def test_a_case_leaves_nothing_behind() -> None:
    empty = {"nodes": [node("a")], "pod": pod("new")}
    full = empty | {"pods": [pod("old", on="a")]}
    yes, no = (
        {"feasible": ["a"], "reasons": {}},
        {"feasible": [], "reasons": {"a": ["Insufficient cpu"]}},
    )

    assert cases(empty, full, empty, full, {"pod": pod("new")}) == [
        *(yes, no, yes, no),
        {"feasible": [], "reasons": {}},
    ]


def test_pods_that_use_nothing_do_not_count_in_a_case() -> None:
    idle = [pod("s", on="a", phase="Failed"), pod("waits"), pod("lost", on="elsewhere")]
    assert cases({"nodes": [node("a")], "pods": idle, "pod": pod("new")}) == [
        {"feasible": ["a"], "reasons": {}}
    ]


def test_a_case_that_cannot_be_read_is_an_error_and_the_next_goes_on() -> None:
    good = {"nodes": [node("a")], "pod": pod("new")}

    found = cases(
        good | {"nodes": [node("a", cpu="x")]},
        good | {"nodes": [node("a"), node("a")]},
        good | {"pods": [pod("old", cpu="x", on="a")]},
        good | {"pods": [pod("old", on="a"), pod("old", on="a")]},
        good | {"pod": pod("new", cpu="y")},
        good | {"nodes": 5},
        {"nodes": []},
        "not json",
        "[" * 100_000,
        "",
        good,
    )

    assert [answer.get("error") for answer in found[:5]] == [
        "node a: status.allocatable[cpu]: 'x' is not a quantity",
        "node a: metadata.name: the case has it twice",
        "pod default/old: spec.containers[0].resources.requests[cpu]: 'x' is not a quantity",
        "pod default/old: metadata.uid: the case has it twice",
        "pod default/new: spec.containers[0].resources.requests[cpu]: 'y' is not a quantity",
    ]
    assert "$.nodes" in found[5]["error"]
    assert "`pod`" in found[6]["error"]
    assert found[7]["error"].startswith("line 8: not a case: ")
    assert set(found[8]) == {"error"}
    assert found[9:] == [{"feasible": ["a"], "reasons": {}}]


def test_our_own_mistake_spoils_one_case_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([True, False])

    def broken(*args: Any) -> Any:
        if next(calls):
            raise KeyError("x")
        return fits(*args)

    monkeypatch.setattr("bayplan.cli.cases.fits", broken)
    good = {"nodes": [node("a")], "pod": pod("new")}
    assert cases(good, good) == [
        {"error": "line 1: Bayplan failed: KeyError: 'x'"},
        {"feasible": ["a"], "reasons": {}},
    ]


def test_cases_takes_no_files() -> None:
    assert "--cases takes no files" in error_of("fits", "--cases", CLUSTER)


def test_cases_answers_before_the_next_line_comes() -> None:
    line = json.dumps({"nodes": [node("a")], "pod": pod("new")}).encode() + b"\n"
    command = [sys.executable, "-m", "bayplan", "fits", "--cases"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == b'{"feasible":["a"],"reasons":{}}\n'
        process.stdin.close()
        assert process.wait() == 0


# ---- bench


def test_bench_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(sizes: tuple[int, ...], progress: Callable[[str], None]) -> Json:
        progress("measuring")
        row = {"decisions_per_s": 12345.6, "bare_loop_per_s": 2e4, "ratio": 0.617}
        row |= {"same_scores_loop_per_s": 15_000.4, "same_scores_ratio": 0.823}
        row |= {"bytes_per_pod": 900.4, "rss_mib": 99.6}
        results = [{"nodes": size, **row} for size in sizes]
        return {"results": results, "fits_one_us_p99": 91.23, "fits_all_ms_p99": 0.4567}

    monkeypatch.setattr(engine_bench, "run", measured)

    text = run("bench", "engine", "--nodes", "1000,20000")
    assert text.stdout.splitlines() == [
        " NODES  DECISIONS/S  BARE LOOP/S  RATIO  SAME SCORES/S  RATIO  BYTES/POD  RSS MIB",
        " 1,000       12,346       20,000   0.62         15,000   0.82        900      100",
        "20,000       12,346       20,000   0.62         15,000   0.82        900      100",
        "fits on one node: p99 91.2 µs",
        "fits on all nodes: p99 0.457 ms",
    ]
    assert text.stderr == "measuring\n"
    quick = json.loads(run("bench", "engine", "--quick", "-o", "json").stdout)
    assert [row["nodes"] for row in quick["results"]] == [1000]
    for wrong in ("many", "1", "1000,"):
        assert "'--nodes'" in error_of("bench", "engine", "--nodes", wrong)


# ---- the shell


def test_a_wrong_word_gets_the_nearest() -> None:
    assert error_of("fit") == "No such command 'fit'; did you mean fits? (see bayplan --help)"
    assert "did you mean engine?" in error_of("bench", "engin")
    assert "there are: contiguous, engine" in error_of("bench")
    assert "--node" in error_of("fits", "--nod", "x")


@pytest.mark.parametrize("words", [[], ["fits"], ["bench"], ["bench", "engine"]])
def test_help_has_an_example(words: list[str]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert re.search(r"Examples?:\n +(kubectl|bayplan) ", result.stdout)


def test_python_m_bayplan_is_bayplan() -> None:
    def output(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    script = str(Path(sys.executable).with_name("bayplan"))
    assert output(sys.executable, "-m", "bayplan", "--version").startswith("bayplan, version ")
    assert output(script, "--help") == output(sys.executable, "-m", "bayplan", "--help") != ""


def test_tables_and_amounts() -> None:
    assert (
        table(("NODE", "FREE"), [("a", "5"), ("long", "10")])
        == "NODE  FREE\na        5\nlong    10"
    )
    amounts = [
        ("cpu", 1500),
        ("memory", 3 << 29),
        ("memory", 100),
        (GPU, 8),
        ("memory", -(2 << 30)),
    ]
    assert [amount(*pair) for pair in amounts] == ["1.5", "1.5Gi", "100", "8", "-2Gi"]
    assert sources.warnings(["a\nb"]) == ["a b"]


# ---- the documents


def examples() -> Iterator[Any]:
    for name in ("README.md", "docs/fits.md"):
        blocks = re.findall(r"```console\n\$ (.*?)\n(.*?)```", (ROOT / name).read_text(), re.S)
        assert blocks
        for command, output in blocks:
            yield pytest.param(command, output, id=f"{name}: {command}")


@pytest.mark.parametrize(("command", "output"), list(examples()))
def test_every_example_prints_what_its_document_says(command: str, output: str) -> None:
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


def module_of(readme_name: str, directory: Path) -> None:
    """Writes the Python block that begins with this file name."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (block,) = [block for block in blocks if block.startswith(f"# {readme_name}\n")]
    (directory / readme_name).write_text(block)


def gpu_node(name: str, gpus: int) -> Node:
    labels = {"gpu": "a100"} if gpus else {}
    return Node(name, name, labels, {"pods": 10, "cpu": 4000, GPU: gpus})


def test_the_plugin_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module_of("keep_gpus.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from importlib import import_module

    from bayplan.core.plugins.registry import installed

    plugin = import_module("keep_gpus").KeepGpus
    config = ProfileConfig(plugins={"filter": PluginSet(enabled=(Enabled("KeepGpus"),))})
    engine = Engine([Profile(config, installed() | {"KeepGpus": plugin})])
    for made in (gpu_node("plain", 0), gpu_node("gpus", 8)):
        engine.handle(NodeSeen(made), 0.0)

    small = fits(engine.verdicts["bayplan"], Pod("u", "default", "small", {}, RowKey()))
    large = fits(engine.verdicts["bayplan"], Pod("v", "default", "large", {}, RowKey(((GPU, 1),))))

    assert small.feasible == ["plain"]
    assert small.reasons == {"gpus": ["node(s) are kept for pods with GPUs"]}
    assert large.feasible == ["gpus"]


def test_the_picker_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module_of("tightest.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    engine = Engine([Profile(ProfileConfig(picker="tightest:pick"))])
    for made in (gpu_node("a", 8), gpu_node("b", 2), gpu_node("c", 4)):
        engine.handle(NodeSeen(made), 0.0)
    question = Pod("u", "default", "new", {}, RowKey(((GPU, 1),)), scheduler="bayplan")

    engine.handle(PodSeen(question), 0.0)
    (effect,) = engine.handle(Tick(), 0.0)

    assert isinstance(effect, Bind)
    assert effect.placement.node == "b"
    assert engine.picking.fallbacks == {}


def with_claim(name: str) -> Json:
    found = pod("web", cpu="1")
    found["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": name}}]
    return found


def test_volumes_of_the_dump_decide(write: Write) -> None:
    metadata = {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    claim = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"volumeName": "v"}}
    here = {"matchExpressions": [{"key": "host", "operator": "In", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}}
    volume = {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": affinity}
    nodes = [node("a", metadata={"name": "a", "labels": {"host": "a"}}), node("b")]
    cluster = write("cluster.json", dump(*nodes, claim, volume))

    result = run("fits", cluster, write("pod.json", with_claim("data")), "-o", "json")

    assert json.loads(result.stdout) == {
        "feasible": ["a"],
        "reasons": {"b": ["node(s) didn't match PersistentVolume's node affinity"]},
    }


def test_a_pod_that_is_refused_as_a_whole_counts_no_nodes(write: Write) -> None:
    result = run("fits", write("c.json", dump(node("a"))), write("p.json", with_claim("data")))

    assert result.exit_code == 1
    text = '0/1 nodes are available: persistentvolumeclaim "data" not found.'
    assert text in result.stdout.splitlines()
    assert "the cluster's files have none" in result.stderr


def test_an_unbound_claim_needs_its_class_in_the_dump(write: Write) -> None:
    claim: Json = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    claim["spec"] = {"storageClassName": "fast"}
    waits: Json = {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "csi.x"}
    waits["volumeBindingMode"] = "WaitForFirstConsumer"
    asked = write("pod.json", with_claim("data"))

    unknown = run("fits", write("one.json", dump(node("a"), claim)), asked)
    known = run("fits", write("two.json", dump(node("a"), claim, waits)), asked)

    assert 'its storageclass "fast" is not known' in unknown.stdout
    assert known.exit_code == 0


def test_device_classes_of_the_dump_are_named(write: Write) -> None:
    served: Json = {"kind": "DeviceClass", "metadata": {"name": "gpu"}}
    served["spec"] = {"extendedResourceName": GPU}
    asked = pod("train")
    asked["spec"]["containers"][0]["resources"]["requests"] = {GPU: "1"}

    result = run("fits", write("c.json", dump(node("a"), served)), write("p.json", asked))

    assert f"node(s) could have {GPU} only through a DeviceClass" in result.stdout


def test_volumes_do_not_decide_a_case() -> None:
    asked = with_claim("data")
    asked["spec"]["resourceClaims"] = [{"name": "gpu"}]
    (answer,) = cases({"nodes": [node("a")], "pod": asked})

    assert answer == {"feasible": ["a"], "reasons": {}}
