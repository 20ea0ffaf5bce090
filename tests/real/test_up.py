"""`bayplan up` as a process of its own, and an unchanged kubectl beside it."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from bayplan.testing.binaries import find

START_S, WAIT_S, END_S = 30.0, 20.0, 10.0
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {annotations}
spec:
  schedulerName: {scheduler}
  restartPolicy: Never
  containers:
  - name: main
    image: train:1
    resources: {{limits: {{cpu: 4, memory: 16Gi, nvidia.com/gpu: {gpus}}}}}
"""
PICKER = """
def pick(pod, candidates):
    return max(range(len(candidates)), key=lambda i: candidates[i].node)
"""
CONFIG = """
apiVersion: bayplan.dev/v1alpha1
kind: BayplanConfiguration
profiles:
- {schedulerName: mine, picker: "mine:pick"}
"""


class Up(NamedTuple):
    process: subprocess.Popen[str]
    folder: Path
    said: str  # until it was ready

    @property
    def kubeconfig(self) -> Path:
        return self.folder / ".bayplan" / "kubeconfig"

    def kubectl(self, *args: str, reads: str | None = None) -> str:
        env = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl-cache"),
            "KUBERC": "off",
        }
        command = [str(find("kubectl").path), *args]
        done = subprocess.run(
            command, env=env, input=reads, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(
        self, name: str, annotations: str = "{}", scheduler: str = "bayplan", gpus: int = 3
    ) -> None:
        manifest = POD.format(name=name, annotations=annotations, scheduler=scheduler, gpus=gpus)
        self.kubectl("apply", "-f", "-", reads=manifest)

    def phase(self, name: str) -> str:
        return self.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}")

    def end(self, number: signal.Signals) -> float:
        """How long it took to end, with status 0."""
        begin = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(END_S) == 0
        return time.monotonic() - begin


def command(*options: str) -> list[str]:
    free = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    return [sys.executable, "-m", "bayplan", "up", *free, *options]


@contextmanager
def up(folder: Path, *options: str) -> Iterator[Up]:
    """Running, in a folder of its own."""
    env = os.environ | {"PYTHONPATH": str(folder), "COVERAGE_PROCESS_START": ""}
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        command(*options), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True
    )
    with log, process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("end:"):
                break
        try:
            yield Up(process, folder, said)
        finally:
            if process.poll() is None:
                process.kill()


def soon(found: Callable[[], object], wanted: object) -> None:
    end = time.monotonic() + WAIT_S
    while (last := found()) != wanted:
        assert time.monotonic() < end, f"it is {last}, not {wanted}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("up"), "--nodes", "8xA100*2,cpu*1") as found:
        yield found


def test_it_says_where_everything_is(running: Up) -> None:
    lines = re.sub(r":\d{4,5}\b", ":PORT", running.said).splitlines()

    assert lines == [
        "kubeconfig: .bayplan/kubeconfig",
        "API:        http://127.0.0.1:PORT  (3 pretend nodes)",
        "metrics:    http://127.0.0.1:PORT/metrics",
        "questions:  http://127.0.0.1:PORT",
        "try:        kubectl --kubeconfig .bayplan/kubeconfig get nodes",
        "end:        Ctrl-C",
    ]
    for name, path in (("metrics", ""), ("questions", "/v1/check"), ("API", "/readyz")):
        address = re.search(rf"{name}:\s+(\S+)", running.said)
        assert address is not None
        with urllib.request.urlopen(f"{address[1]}{path}", timeout=10) as answer:
            assert answer.status == 200


def test_the_nodes_are_ready(running: Up) -> None:
    lines = running.kubectl("get", "nodes", "--no-headers").splitlines()

    assert [line.split()[:2] for line in lines] == [
        ["8xa100-0", "Ready"],
        ["8xa100-1", "Ready"],
        ["cpu-0", "Ready"],
    ]


def test_a_pod_runs_until_it_is_deleted(running: Up) -> None:
    running.apply("stays")

    soon(lambda: running.phase("stays"), "Running")
    assert "Successfully assigned default/stays to 8xa100-" in running.kubectl(
        "describe", "pod", "stays"
    )
    running.kubectl("delete", "pod", "stays")
    assert running.kubectl("get", "pod", "stays", "--ignore-not-found") == ""


def test_a_pod_succeeds_after_its_seconds(running: Up) -> None:
    running.apply("short", '{bayplan.dev/run-seconds: "1"}')

    soon(lambda: running.phase("short"), "Succeeded")
    assert "Reason:       Completed" in running.kubectl("describe", "pod", "short")
    running.kubectl("delete", "pod", "short")


def test_a_pod_that_fits_nowhere_is_told_why(running: Up) -> None:
    running.apply("large", gpus=9)

    def said() -> bool:
        events = running.kubectl("get", "events", "--field-selector", "involvedObject.name=large")
        return "0/3 nodes are available: 3 Insufficient nvidia.com/gpu." in events

    soon(said, True)
    running.kubectl("delete", "pod", "large")


def test_a_node_that_refuses(running: Up) -> None:
    nodes = ("8xa100-0", "8xa100-1")
    running.kubectl("annotate", "node", *nodes, "bayplan.dev/pretend=refuse")
    running.apply("refused")

    soon(lambda: running.phase("refused"), "Failed")
    line = running.kubectl("get", "pod", "refused", "--no-headers")
    assert line.split()[2] == "UnexpectedAdmissionError"
    running.kubectl("annotate", "node", *nodes, "bayplan.dev/pretend-")
    running.kubectl("delete", "pod", "refused")


def test_a_node_that_fails_and_comes_back(running: Up) -> None:
    def ready() -> str:
        return running.kubectl("get", "node", "cpu-0", "--no-headers").split()[1]

    running.kubectl("annotate", "node", "cpu-0", "bayplan.dev/pretend=fail")
    soon(ready, "NotReady")
    running.kubectl("annotate", "node", "cpu-0", "bayplan.dev/pretend-")
    soon(ready, "Ready")


def test_a_drain_empties_a_node(running: Up) -> None:
    running.apply("moves")
    soon(lambda: running.phase("moves"), "Running")
    node = running.kubectl("get", "pod", "moves", "-o", "jsonpath={.spec.nodeName}")

    said = running.kubectl("drain", node, "--force")

    assert said.splitlines()[-1] == f"node/{node} drained"
    assert running.kubectl("get", "pods", "--ignore-not-found") == ""
    running.kubectl("uncordon", node)


def test_a_scheduler_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PICKER)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    with up(tmp_path, "--config", "mine.yaml", "--nodes", "8xA100*3") as own:
        own.apply("train", scheduler="mine")
        soon(lambda: own.phase("train"), "Running")

        node = own.kubectl("get", "pod", "train", "-o", "jsonpath={.spec.nodeName}")
        assert node == "8xa100-2"


@pytest.mark.parametrize("option", ["--port", "--listen", "--api"])
def test_a_port_that_is_taken_is_said_in_one_line(option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = str(port) if option == "--port" else f"127.0.0.1:{port}"
        done = subprocess.run(
            command(option, given),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_S,
        )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: cannot listen on 127.0.0.1:{port}: Address already in use; "
        f"{option} chooses another address\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_soon_although_somebody_watches(
    number: signal.Signals, tmp_path: Path
) -> None:
    with up(tmp_path, "--nodes", "cpu*1") as own:
        env = os.environ | {"KUBECONFIG": str(own.kubeconfig), "KUBERC": "off"}
        watch = [str(find("kubectl").path), "get", "nodes", "-w"]
        with subprocess.Popen(watch, env=env, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline().startswith("NAME")

            assert own.end(number) < 5

            watcher.kill()


IPU_POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  schedulerName: bayplan
  containers:
  - name: main
    image: train:1
    resources: {{limits: {{graphcore.ai/ipu: {ipus}}}}}
"""


def test_a_pretend_controller_makes_partitions(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "cpu*1", "--vipu", "8") as found:
        assert re.search(
            r"V-IPU: +127\.0\.0\.1:\d+  \(nodes with the label vipu-ctrl=pretend\)", found.said
        )
        for name, ipus in (("first", 4), ("second", 8)):
            found.kubectl("apply", "-f", "-", reads=IPU_POD.format(name=name, ipus=ipus))
        soon(lambda: found.phase("first"), "Running")

        def noted(name: str, key: str) -> str:
            path = key.replace(".", r"\.")
            return found.kubectl(
                "get", "pod", name, "-o", f"jsonpath={{.metadata.annotations.{path}}}"
            )

        assert noted("first", "ids.bayplan.dev/main") == "ag1.0,ag1.1,ag1.2,ag1.3"
        assert noted("first", "vipu.bayplan.dev/partition").startswith("bp-")
        found.kubectl("delete", "pod", "first")
        soon(lambda: found.phase("second"), "Running")
        assert found.end(signal.SIGINT) < END_S


def test_ipus_come_in_machines_of_four(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--vipu", "6"), cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("should be a positive multiple of 4, not 6")


ELASTIC_JOB = """
apiVersion: bayplan.dev/v1alpha1
kind: ElasticJob
metadata: {name: train}
spec:
  minWorkers: 1
  maxWorkers: 3
  template:
    spec:
      containers:
      - name: main
        image: train:1
        resources: {limits: {nvidia.com/gpu: 1}}
"""


def test_an_elastic_job_is_run(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "2xA100*1") as found:
        found.kubectl("apply", "-f", "-", reads=ELASTIC_JOB)

        def line() -> list[str]:
            return found.kubectl("get", "ej", "train", "--no-headers").split()[:-1]

        soon(line, ["train", "1", "3", "2", "Running"])
        found.kubectl("delete", "ej", "train")
        soon(lambda: found.kubectl("get", "pods"), "")


def test_elastic_jobs_can_be_left_to_another_controller(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "2xA100*1", "--no-elastic") as found:
        found.kubectl("apply", "-f", "-", reads=ELASTIC_JOB)
        with other_controller(found) as address:
            lines = "get", "pods", "--no-headers"
            soon(lambda: len(found.kubectl(*lines).splitlines()), 2)
            with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
                assert 'bayplan_elastic_steps_total{step="MakeWorkers"} 1.0' in (
                    answer.read().decode()
                )


@contextmanager
def other_controller(found: Up) -> Iterator[str]:
    """`bayplan elastic` beside it; where its metrics are."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--kubeconfig", str(found.kubeconfig), "--listen", address]
    given = [sys.executable, "-m", "bayplan", "elastic", *options]
    with (
        (found.folder / "elastic-log").open("w") as log,
        subprocess.Popen(given, stderr=log) as process,
    ):
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def test_the_kinds_can_be_applied_again_without_a_warning(running: Up) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "bayplan", "manifests", "crds"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    said = running.kubectl("apply", "-f", "-", reads=made).splitlines()

    assert sum(line.endswith(" unchanged") for line in said) == 3
