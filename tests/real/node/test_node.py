"""The node that other tests here stand on: real containers, a kubelet that restarts, no traces."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bayplan.testing import nodecgroups
from bayplan.testing.binaries import ControlPlaneError
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.node import Node
from bayplan.testing.nodeparts import Parts
from tests.real.node.rig import (
    PODS,
    bind,
    inhabitants,
    machine,
    mount_namespace,
    pod,
    status,
    traces,
)
from tests.real.rig import until

OWNER = """
import sys
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.node import Node, node_user

with ControlPlane(users=[node_user("n")]) as plane, Node(plane, "n") as node:
    sys.stdout.write(f"{node.pid}\\n{node.directory}\\n{plane.directory}\\n{node.cgroup.name}\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def refuses(plane: ControlPlane, reason: str) -> None:
    """All that can be held of a node on a machine where none can be."""
    assert len(reason.splitlines()) == 1
    before = machine()
    with pytest.raises(ControlPlaneError, match="no node here") as refused:
        Node(plane, "smoke").start()
    assert str(refused.value) == f"no node here: {reason}"
    assert machine() == before


def test_a_container_gets_what_its_binding_says_and_outlives_the_kubelet(
    node_plane: ControlPlane, parts: Parts | None, no_kubelet: str | None
) -> None:
    if no_kubelet:
        return refuses(node_plane, no_kubelet)
    before = machine()
    field = {"fieldPath": "metadata.annotations['ids.bayplan.dev/main']"}
    env = [{"name": "IDS", "valueFrom": {"fieldRef": field}}]

    with Node(node_plane, "smoke", parts) as node:
        node_plane.request("POST", PODS, pod("web", "echo got $IDS", env=env))
        bind(node_plane, "web", "smoke", {"ids.bayplan.dev/main": "GPU-1,GPU-3"})
        until(lambda: node.container_log("default", "web") == "got GPU-1,GPU-3\n")
        until(lambda: status(node_plane, "web")["phase"] == "Running")
        container = status(node_plane, "web")["containerStatuses"][0]

        for name, kill in (("stopped", False), ("killed", True)):
            node.restart_kubelet(kill)
            node_plane.request("POST", PODS, pod(name, "echo hello"))
            bind(node_plane, name, "smoke", {})
            until(lambda: node.container_log("default", name) == "hello\n")  # noqa: B023

        assert status(node_plane, "web")["containerStatuses"][0] == container
        assert node.is_ready()
        directory, namespace = node.directory, mount_namespace(node.pid)
        names = {"containerd", "containerd-shim", "kubelet"}
        assert names <= set(inhabitants(namespace))

    assert inhabitants(namespace) == []
    assert traces(directory) == []
    assert machine() == before


def test_a_killed_owner_leaves_no_process_behind(
    node_plane: ControlPlane, no_kubelet: str | None
) -> None:
    if no_kubelet:
        return refuses(node_plane, no_kubelet)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        pid, *directories, group = (owner.stdout.readline().strip() for _ in range(4))
        namespace = mount_namespace(pid)

        owner.kill()

    until(lambda: inhabitants(namespace) == [])
    nodecgroups.sweep()
    assert not any((root / group).exists() for root in nodecgroups.hierarchies())
    for directory in map(Path, directories):
        shutil.rmtree(directory)
