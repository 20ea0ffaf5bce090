"""What a node is made of: kubelet, containerd and its shim, runc, and images of busybox.

kubelet and containerd are built from Go modules and kept in the user's cache, as the control plane
is. runc and busybox come from the machine, else from Debian's packages if we may install them.
Running them is the business of `node`.
"""

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bayplan.testing import binaries, gotool, images
from bayplan.testing.binaries import ControlPlaneError
from bayplan.testing.gotool import GoError, Say, tell

CONTAINERD = "2.2.9"  # what the go.mod in containerd/ pins
SOURCES = Path(__file__).resolve().parent / "containerd"
MODULE = "github.com/containerd/containerd/v2"
TAGS = "no_btrfs no_zfs no_devmapper no_aufs"  # snapshotters that nothing here uses
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
PACKAGES = {"runc": "runc", "busybox": "busybox-static"}  # program: Debian's package


class Parts(NamedTuple):
    kubelet: Path
    containerd: Path  # the folder with its programs
    runc: Path
    images: Path  # an archive

    def __str__(self) -> str:
        return f"kubelet {self.kubelet}, containerd {self.containerd}, runc {self.runc}"


def find_parts(say: Say = tell) -> Parts:
    """All of them; what is missing is built or installed, which is said."""
    with gotool.alone(_kept() / "lock", say):
        install([name for name in PACKAGES if _on_machine(name) is None], say)
        folder = _containerd(say)
        archive = _archive(folder)
    kubelet = binaries.find("kubelet", binaries.VERSION, say).path
    return Parts(kubelet, folder, _found("runc"), archive)


def install(programs: list[str], say: Say = tell) -> None:
    """Installs the Debian packages of these programs, with apt-get, as root."""
    if not programs:
        return
    packages = [PACKAGES[name] for name in programs]
    say(f"apt-get installs {', '.join(packages)} on this machine")
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = _apt(command, env)
    if done.returncode != 0:  # a fresh machine may have no lists of packages, or old ones
        _apt(["apt-get", "update", "-q"], env)
        done = _apt(command, env)
    if done.returncode != 0:
        raise ControlPlaneError(f"{' '.join(command)}: {done.stdout.strip()}")


def why_no_parts() -> str | None:
    """What is missing on this machine that cannot be installed either."""
    missing = [PACKAGES[name] for name in PACKAGES if _on_machine(name) is None]
    if missing and shutil.which("apt-get") is None:
        return f"{' and '.join(missing)} not there, and no apt-get to install it"
    if platform.machine() not in images.ARCHITECTURES:
        return f"no image is made for {platform.machine()}"
    return None


def _kept() -> Path:
    return gotool.cache_dir() / "containerd" / f"v{CONTAINERD}"


def _on_machine(name: str) -> Path | None:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None or (name == "busybox" and not images.is_static(Path(found))):
        return None
    return Path(found)


def _found(name: str) -> Path:
    found = _on_machine(name)
    if found is None:
        raise ControlPlaneError(f"no {name}, although {PACKAGES[name]} was installed")
    return found


def _containerd(say: Say) -> Path:
    """The folder with its programs. The caller holds the lock."""
    ldflags = f"-s -w -X {MODULE}/version.Version={CONTAINERD}"
    for name in PROGRAMS:
        target = _kept() / name
        if target.exists():
            continue
        say(f"{name} {CONTAINERD}: building it, the first time takes minutes")
        began = time.monotonic()
        package = gotool.Package(f"{MODULE}/cmd/{name}", SOURCES, ldflags, tags=TAGS)
        try:
            gotool.build(package, target, say)
        except GoError as error:
            raise ControlPlaneError(f"no {name} {CONTAINERD}: {error}") from error
        say(f"{name}: built in {time.monotonic() - began:.0f} s")
    return _kept()


def _archive(folder: Path) -> Path:
    busybox = _found("busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    architecture = images.ARCHITECTURES[platform.machine()]
    made = images.archive(busybox, listed.stdout.split(), architecture)
    path = folder / "images.tar"
    if not path.exists() or path.read_bytes() != made:
        partial = path.with_name(".images.tar.partial")
        partial.write_bytes(made)
        os.replace(partial, path)
    return path


def _apt(command: list[str], env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env=env, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def main() -> None:
    """`python -m bayplan.testing.nodeparts` finds, builds or installs, and says what it has."""
    tell(str(find_parts()))


if __name__ == "__main__":
    main()
