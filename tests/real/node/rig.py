"""Pods for a real node, and what a node must not leave behind."""

import contextlib
import os
from pathlib import Path
from typing import Any

from bayplan.testing import images, nodecgroups
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.nodefiles import KERNEL

Json = dict[str, Any]
STAY = "trap exit TERM; sleep infinity & wait"  # process 1 ends by no signal that it does not trap
FOLDERS = (
    "/etc/cni",
    "/opt/cni",
    "/opt/containerd",
    "/run/containerd",
    "/usr/libexec/kubernetes",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/pods",
)
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, script: str, **container: Any) -> Json:
    """Runs the script in busybox, and then stays until it is deleted."""
    main = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"{script}; {STAY}"],
        **container,
    }
    spec = {
        "schedulerName": "bayplan",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [main],
    }
    return {"metadata": {"name": name}, "spec": spec}


def bind(plane: ControlPlane, name: str, node: str, annotations: dict[str, str]) -> None:
    """As a scheduler does."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    metadata = {"name": name, "annotations": annotations}
    plane.request("POST", f"{PODS}/{name}/binding", {"metadata": metadata, "target": target})


def status(plane: ControlPlane, name: str) -> Json:
    found: Json = plane.request("GET", f"{PODS}/{name}")["status"]
    return found


def mount_namespace(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def inhabitants(namespace: str) -> list[str]:
    """The processes in a mount namespace: what they are called."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if mount_namespace(process.name) == namespace:
                found.append((process / "comm").read_text().strip())
    return sorted(found)


def traces(directory: Path) -> list[str]:
    """Mounts and cgroups of a node with that directory, and the directory."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [line for line in mounts if str(directory) in line]
    found += [str(group) for group in nodecgroups.left()]
    return found + ([str(directory)] if directory.exists() else [])


def machine() -> dict[str, str | None]:
    """What a kubelet would change on a machine, and ours must not."""
    paths = [Path("/proc/sys", name) for name in KERNEL]
    kernel = {str(path): path.read_text() if path.exists() else None for path in paths}
    return kernel | {path: str(Path(path).exists()) for path in FOLDERS}
