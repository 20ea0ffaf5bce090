"""The programs of a Kubernetes control plane: found on the machine, or built from Go modules.

Each is looked up by itself: in KUBEBUILDER_ASSETS, then in the user's cache, then it is built into
that cache. Running them is the business of `controlplane`.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from bayplan.testing import gotool
from bayplan.testing.gotool import GoError, Say, tell

VERSION = "1.36.3"  # what the go.mod in kubernetes/ pins
SOURCES = Path(__file__).resolve().parent / "kubernetes"
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
# Built only when somebody asks for one by name. The kubelet is for Linux only.
ON_REQUEST = {
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
}


class ControlPlaneError(RuntimeError):
    """A control plane cannot be had, does not start, or refuses."""


class Binary(NamedTuple):
    name: str
    path: Path
    version: str
    origin: Literal["KUBEBUILDER_ASSETS", "cache", "built"]

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.origin}: {self.path})"


def find(name: str, version: str | None = None, say: Say = tell) -> Binary:
    """The program at that version of Kubernetes.

    With no version asked for, it is VERSION, but KUBEBUILDER_ASSETS may bring any server. Not any
    kube-scheduler: we compare ourselves with it. An etcd may always be another.
    """
    wanted = version or VERSION
    if not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise ControlPlaneError(f"{wanted!r} is not a version such as {VERSION}")
    ready = _ready(name)
    if ready and (name == "etcd" or ready.version == wanted):
        return ready
    if ready and version is None and name != "kube-scheduler":
        say(f"{ready} instead of {wanted}")
        return ready
    cached = gotool.cache_dir() / "kubernetes" / f"v{wanted}" / name
    if cached.exists():
        return Binary(name, cached, _version(cached), "cache")
    try:
        return _build(name, wanted, cached, say)
    except (GoError, OSError) as error:
        found = f"has {ready.version}" if ready else "has none"
        assets = found if "KUBEBUILDER_ASSETS" in os.environ else "is not set"
        raise ControlPlaneError(
            f"no {name} {wanted}: KUBEBUILDER_ASSETS {assets}, {cached} does not exist, "
            f"and it cannot be built: {' '.join(str(error).split())}"
        ) from error


def _ready(name: str) -> Binary | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder or "") / name
    if not folder or not os.access(path, os.X_OK):
        return None
    return Binary(name, path, _version(path), "KUBEBUILDER_ASSETS")


def _version(path: Path) -> str:
    command = [str(path), *(["version", "--client"] if path.name == "kubectl" else ["--version"])]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ControlPlaneError(f"{path} does not say its version: {error}") from error
    match = re.search(r"(?:Kubernetes|Version:) v?(\d+\.\d+\.\d+\S*)", said.stdout)
    return match[1] if match else "unknown"


def _build(name: str, version: str, target: Path, say: Say) -> Binary:
    major, minor, _ = version.split(".", 2)
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    # Without the stamps the server says v0.0.0, and some clients refuse it.
    ldflags = "-s -w " + " ".join(
        f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamps.items()
    )
    with gotool.alone(target.parent / "lock", say):
        if target.exists():
            return Binary(name, target, _version(target), "cache")
        say(f"{name}: building it for Kubernetes {version}, the first time takes minutes")
        began = time.monotonic()
        path = (PACKAGES | ON_REQUEST)[name]
        if version == VERSION:
            package = gotool.Package(path, SOURCES, ldflags)
        else:
            sources = target.parent / "module"
            _write_module(version, sources, say)
            package = gotool.Package(path, sources, ldflags, mode="mod")
        gotool.build(package, target, say)
        say(f"{name}: built in {time.monotonic() - began:.0f} s")
    return Binary(name, target, _version(target), "built")


def _write_module(version: str, sources: Path, say: Say) -> None:
    """A go.mod for another version: Kubernetes' own, with its staging modules as published.

    Go fills in the rest while it builds, so unlike the default version it is not pinned by us.
    """
    if (sources / "go.mod").exists():
        return
    sources.mkdir(parents=True, exist_ok=True)
    download = ["mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
    done = subprocess.run(
        [gotool.find_go(say), *download], cwd=sources, capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout or "{}")
    if "GoMod" not in answer:
        raise GoError(f"go {' '.join(download)}: {answer.get('Error') or done.stderr}".strip())
    theirs = Path(answer["GoMod"]).read_text()
    staged = re.findall(r"^\s*(\S+) => \./staging/", theirs, re.MULTILINE)
    etcd = re.search(r"go\.etcd\.io/etcd/client/v3 (\S+)", theirs)
    settings = re.findall(r"^(?:go|godebug) .+", theirs, re.MULTILINE)
    if not staged or not etcd:
        raise GoError(f"k8s.io/kubernetes {version} has another go.mod than expected")
    staging = version.replace("1.", "v0.", 1)
    lines = [
        "module bayplan.dev/testing/kubernetes",
        *settings,
        f"require k8s.io/kubernetes v{version}",
        f"require go.etcd.io/etcd/server/v3 {etcd[1]}",
        *(f"replace {module} => {module} {staging}" for module in staged),
    ]
    (sources / "go.mod").write_text("\n".join(lines) + "\n")


def main() -> None:
    """`python -m bayplan.testing.binaries [name ...]` finds or builds, and says what it has."""
    for name in sys.argv[1:] or PACKAGES:
        tell(str(find(name)))


if __name__ == "__main__":
    main()
