"""The control plane that the other tests here stand on, and how its programs are found."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.testing import binaries, gotool
from bayplan.testing.binaries import ControlPlaneError, find
from bayplan.testing.controlplane import ControlPlane, Refused, RequestKind
from bayplan.testing.processes import Process

Manifest = dict[str, Any]


def node(name: str) -> Manifest:
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name}, "status": {"allocatable": room, "conditions": ready}}


def pod(name: str, scheduler: str = "default-scheduler") -> Manifest:
    containers = [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}]
    spec = {"schedulerName": scheduler, "containers": containers}
    return {"metadata": {"name": name}, "spec": spec}


def eventually(said: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + timeout_s
    while not (answer := said()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return answer


def test_kube_scheduler_binds_a_pod(wiped: ControlPlane, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wiped.request("POST", "/api/v1/nodes", node("a"))
    wiped.request("POST", pods, pod("web"))
    scheduler = wiped.start_kube_scheduler()
    try:
        where = eventually(lambda: wiped.request("GET", f"{pods}/web")["spec"].get("nodeName"))
    finally:
        scheduler.stop()

    assert where == "a"
    assert not scheduler.running
    assert wiped.request_counts()[RequestKind("POST", "pods", "binding", 201)] >= 1


def test_annotations_of_a_binding_arrive_on_the_pod(wiped: ControlPlane, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wiped.request("POST", "/api/v1/nodes", node("a"))
    wiped.request("POST", pods, pod("web", scheduler="bayplan"))
    binding = {
        "metadata": {"name": "web", "annotations": {"example.org/devices": "0,1"}},
        "target": {"kind": "Node", "name": "a"},
    }
    wiped.request("POST", f"{pods}/web/binding", binding)

    bound = wiped.request("GET", f"{pods}/web")
    assert bound["spec"]["nodeName"] == "a"
    assert bound["metadata"]["annotations"] == {"example.org/devices": "0,1"}
    with pytest.raises(Refused) as refused:
        wiped.request("POST", f"{pods}/web/binding", binding)
    assert refused.value.status == 409


def test_kubectl_speaks_as_the_admin(wiped: ControlPlane, namespace: str) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod"} | pod("web")
    assert wiped.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(manifest)) == (
        "pod/web created\n"
    )
    with pytest.raises(ControlPlaneError, match='pods "other" not found'):
        wiped.kubectl("-n", namespace, "get", "pod", "other")


def test_a_user_without_rights_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(Refused) as refused:
        control_plane.request("GET", "/api/v1/pods", token=control_plane.users["nobody"].token)
    assert refused.value.status == 403
    config = control_plane.kubeconfig_for("nobody")
    with pytest.raises(ControlPlaneError, match='User "nobody" cannot list resource "nodes"'):
        control_plane.kubectl("get", "nodes", f"--kubeconfig={config}")


def test_a_service_account_has_the_rights_of_its_role(
    control_plane: ControlPlane, namespace: str
) -> None:
    account = f"{namespace}:reader"
    for made in (
        "serviceaccount reader",
        "role reader --verb=list --resource=pods",
        f"rolebinding reader --role=reader --serviceaccount={account}",
    ):
        control_plane.kubectl("-n", namespace, "create", *made.split())
    token = control_plane.service_account_token(namespace, "reader")
    pods = f"/api/v1/namespaces/{namespace}/pods"

    # The authorizer hears of a new role binding through a watch.
    def listed() -> bool:
        try:
            return bool(control_plane.request("GET", pods, token=token))
        except Refused:
            return False

    eventually(listed)
    with pytest.raises(Refused, match=f"system:serviceaccount:{account}"):
        control_plane.request("POST", pods, pod("web"), token=token)


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_a_restart_keeps_the_objects(wiped: ControlPlane, kill: bool) -> None:
    made = wiped.request("POST", "/api/v1/nodes", node("a"))
    url = wiped.url
    wiped.restart_apiserver(kill)

    assert wiped.url == url
    again = wiped.request("GET", "/api/v1/nodes/a")
    assert again["metadata"]["uid"] == made["metadata"]["uid"]


def test_a_server_that_is_watched_stops_soon(wiped: ControlPlane, tmp_path: Path) -> None:
    wiped.request("POST", "/api/v1/nodes", node("watched"))
    kubectl = [str(find("kubectl").path), f"--kubeconfig={wiped.kubeconfig}"]
    command = [*kubectl, "get", "nodes", "--watch", "--output=name"]
    watch = Process("watch", command, tmp_path / "watch.log")
    watch.wait_until(lambda: "watched" in watch.tail())
    began = time.monotonic()
    wiped.stop_apiserver()
    took_s = time.monotonic() - began
    watch.stop()
    wiped.start_apiserver()

    assert took_s < 9  # it was not killed after 10


def test_a_server_that_dies_at_start_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ControlPlaneError, match=r"ended with 1:\n.*--no-such-flag"),
        ControlPlane(apiserver_args=["--no-such-flag"], directory=tmp_path),
    ):
        pass


ORPHAN = """
import sys, time
from pathlib import Path
from bayplan.testing.processes import Process
print(Process("sleep", ["/bin/sleep", "300"], Path(sys.argv[1])).pid, flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_children_die_with_python(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path / "log")], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()

    def gone() -> bool:
        status = Path(f"/proc/{child}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    eventually(gone)


def test_children_outlive_the_thread_that_started_them(tmp_path: Path) -> None:
    started: list[Process] = []
    command = ["/bin/sleep", "300"]
    thread = threading.Thread(
        target=lambda: started.append(Process("sleep", command, tmp_path / "log"))
    )
    thread.start()
    thread.join()
    with pytest.raises(ControlPlaneError, match="not ready after 0 s"):
        started[0].wait_until(lambda: False, timeout_s=0.3)
    started[0].stop()
    assert started[0]._popen.returncode == -signal.SIGTERM


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an empty cache, no ready programs, and a Go that fails."""

    def fail(package: gotool.Package, target: Path, say: gotool.Say) -> None:
        raise gotool.GoError("no Go here")

    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gotool, "build", fail)
    return tmp_path


def program(path: Path, says: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_where_nothing_is_found_one_sentence_says_so(bare: Path) -> None:
    with pytest.raises(ControlPlaneError) as error, ControlPlane():
        pass
    cached = bare / "cache/bayplan/kubernetes/v1.36.3/etcd"
    assert str(error.value) == (
        f"no etcd 1.36.3: KUBEBUILDER_ASSETS is not set, {cached} does not exist, "
        "and it cannot be built: no Go here"
    )


def test_ready_programs_may_be_of_another_version_but_not_kube_scheduler(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare))
    program(bare / "etcd", "etcd Version: 3.5.9")
    program(bare / "kubectl", "Client Version: v1.35.0")
    program(bare / "kube-scheduler", "Kubernetes v1.35.0")
    said: list[str] = []

    assert find("etcd", say=said.append).version == "3.5.9"
    assert said == []
    assert find("kubectl", say=said.append).version == "1.35.0"
    assert said == [f"kubectl 1.35.0 (KUBEBUILDER_ASSETS: {bare}/kubectl) instead of 1.36.3"]
    assert find("kube-scheduler", "1.35.0").origin == "KUBEBUILDER_ASSETS"
    with pytest.raises(ControlPlaneError, match=r"no kube-scheduler 1\.36\.3: .* has 1\.35\.0"):
        find("kube-scheduler", say=said.append)
    with pytest.raises(ControlPlaneError, match=r"no kubectl 1\.36\.3: .* has 1\.35\.0"):
        find("kubectl", "1.36.3", say=said.append)


def test_two_at_once_build_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def slow(package: gotool.Package, target: Path, say: gotool.Say) -> None:
        time.sleep(0.2)
        program(target, "Kubernetes v1.36.3")
        built.append(target)

    monkeypatch.setattr(gotool, "build", slow)
    found: list[binaries.Binary] = []
    threads = [
        threading.Thread(target=lambda: found.append(find("kube-apiserver"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(binary.origin for binary in found) == ["built", "cache"]
    assert len(built) == 1


def test_a_failed_command_leaves_its_output(tmp_path: Path) -> None:
    program(tmp_path / "go", "something is wrong")
    with open(tmp_path / "go", "a") as script:
        script.write("exit 1\n")
    with pytest.raises(gotool.GoError, match="go build -trimpath failed, something is wrong"):
        gotool.run([str(tmp_path / "go"), "build", "-trimpath"], tmp_path, tmp_path / "target")
    assert (tmp_path / "target.log").read_text() == "something is wrong\n"
