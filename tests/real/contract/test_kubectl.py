"""An unchanged kubectl prints the same of both back ends."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from typing import IO

import pytest
from click.testing import CliRunner

from bayplan.cli.main import main
from bayplan.testing.binaries import find
from bayplan.testing.controlplane import ControlPlaneError
from tests.embedded import Plane
from tests.real.contract.conftest import Both
from tests.real.contract.exchange import Server
from tests.real.contract.kubectl_scripts import (
    BEST_EFFORT,
    FAILED,
    NODE,
    POD,
    RUNNING,
    SCRIPTS,
    Run,
    bound,
)
from tests.real.contract.kubectl_workloads import SCRIPTS as WORKLOADS

# What differs from run to run.
_CHANGING = [
    (re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UID"),
    (re.compile(r'"?(resourceVersion)"?: "\d+"'), r"\1: N"),
    (re.compile(r"(Resource Version:)\s+\d+"), r"\1 N"),
    (re.compile(r"\b(\d+[smhdy]){1,2}\b"), "AGE"),
]
# What is known to differ, each named; docs/embedded.md says it to users.
_KNOWN = {
    "what is wrong with a selector is said in other words": (
        re.compile(r"(that match label selector .*, field selector \"\": ).*"),
        r"\1WHY",
    ),
    "a forbidden change of a pod is not followed by the difference in Go's words": (
        re.compile(r"(\(allow it to be set to 1 if it was previously negative\)).*", re.DOTALL),
        r"\1",
    ),
}


def said(server: Server, run: Run) -> str:
    """What kubectl prints, or says on its way out, without what differs from run to run."""
    arguments = run.line.replace("{ns}", server.namespace).split(" ")
    reads = None if run.reads is None else run.reads.replace("{ns}", server.namespace)
    try:
        words = server.plane.kubectl("-n", server.namespace, *arguments, input=reads)
    except ControlPlaneError as error:
        words = str(error)
    return plain(words.replace(server.namespace, "NAMESPACE"))


def plain(words: str) -> str:
    for pattern, instead in (*_CHANGING, *_KNOWN.values()):
        words = pattern.sub(instead, words)
    return "\n".join(" ".join(line.split()) for line in words.splitlines())


@pytest.mark.parametrize("name", SCRIPTS | WORKLOADS)
def test_kubectl_prints_the_same(name: str, both: Both) -> None:
    differences: list[str] = []
    for run in (SCRIPTS | WORKLOADS)[name]:
        real, embedded = said(both.real, run), said(both.embedded, run)
        if real != embedded:
            lines = unified_diff(real.splitlines(), embedded.splitlines(), "real", "embedded", n=1)
            differences.append("\n".join([f"\n$ kubectl {run.line}", *lines]))
    assert not differences, "".join(differences)


def test_kubectl_watches_the_same(both: Both) -> None:
    lines = [watched(server) for server in both]

    assert lines[0] == lines[1]
    assert [line.split()[:4:3] for line in lines[0][1:]] == [
        ["ADDED", "Pending"],
        ["MODIFIED", "Pending"],
        ["MODIFIED", "OutOfcpu"],
        ["MODIFIED", "OutOfcpu"],
    ]


def watched(server: Server) -> list[str]:
    """What `kubectl get pods -w` prints while a pod is made, bound, fails and goes."""
    steps = [Run("create -f -", POD), bound("train"), FAILED, Run("delete pod train")]
    said(server, Run("create -f -", BEST_EFFORT))  # kubectl prints nothing before the first
    command = ["get", "pods", "-w", "--output-watch-events", "-l", "app", "--request-timeout=60s"]
    words: list[str] = []
    with watching(server.plane, "-n", server.namespace, *command) as output:
        heading, first = output.readline(), output.readline()
        assert "idle" in first
        words.append(plain(heading))
        for step in steps:
            said(server, step)
            words.append(plain(output.readline()))
    return words


@contextmanager
def watching(plane: Plane, *args: str) -> Iterator[IO[str]]:
    """The output of a kubectl that goes on until the block ends."""
    env = os.environ | {
        "KUBECONFIG": str(plane.kubeconfig),
        "KUBECACHEDIR": str(plane.directory / "kubectl-cache"),
        "KUBERC": "off",
    }
    command = [str(find("kubectl").path), *args]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


# What the embedded API alone says, and what must be in it.
NO_DEPLOYMENTS = "the embedded API has no deployments: no controller would act on them; create pods"
SENTENCES = {
    "version": "Server Version: v1.36.3+bayplan",
    "api-resources": "poddisruptionbudgets pdb policy/v1 true PodDisruptionBudget",
    "cluster-info": "Kubernetes control plane is running at http://127.0.0.1:",
    "auth can-i create pods": "yes",
    "auth whoami": "Username everybody",
    "create deployment web --image=a": NO_DEPLOYMENTS,
    "get deployments": NO_DEPLOYMENTS,
    "rollout status deployment/web": NO_DEPLOYMENTS,
    "scale deployment/web --replicas=2": NO_DEPLOYMENTS,
    "create cronjob often --image=a --schedule=@hourly": "the embedded API has no cronjobs",
    "create token robot": "the embedded API has no tokens: nobody needs one",
    "logs train": "the embedded API has no pods/log: nothing really runs",
    "exec train -- ls": "the embedded API has no pods/exec: nothing really runs",
    "attach train": "the embedded API has no pods/attach: nothing really runs",
    "port-forward train :80": "the embedded API has no pods/portforward: nothing really runs",
    "top pods": "Metrics API not available",
    "explain pods": "not found in OpenAPI schema",
    "get --raw /readyz": "ok",
}


def test_what_the_embedded_api_has_not_it_says_so(both: Both) -> None:
    server = both.embedded
    for run in (Run("create -f -", NODE), Run("create -f -", POD), bound("train"), RUNNING):
        said(server, run)
    answers = {line: said(server, Run(line)) for line in SENTENCES}

    assert {line: words for line, words in answers.items() if SENTENCES[line] not in words} == {}
    applied = said(server, Run("apply --server-side -f -", POD))
    assert "the embedded API has no server-side apply" in applied


def test_the_schedulers_own_manifests(both: Both) -> None:
    def applied(*words: str) -> list[str]:
        done = CliRunner().invoke(main, ["manifests", *words])
        assert done.exit_code == 0
        try:
            printed = both.embedded.plane.kubectl("apply", "-f", "-", input=done.stdout)
        except ControlPlaneError as error:
            printed = str(error)
        return printed.splitlines()

    assert applied("rbac") == [
        "serviceaccount/bayplan created",
        "clusterrole.rbac.authorization.k8s.io/bayplan created",
        "clusterrolebinding.rbac.authorization.k8s.io/bayplan created",
        "role.rbac.authorization.k8s.io/bayplan created",
        "rolebinding.rbac.authorization.k8s.io/bayplan created",
    ]
    assert applied("deployment")[-1].endswith(NO_DEPLOYMENTS)
