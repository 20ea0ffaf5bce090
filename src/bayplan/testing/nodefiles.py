"""The files that a node is started with: settings of kubelet and containerd, a network plugin that
does nothing, and the script that is process 1 of the node.

Each setting that is not a default says what it is for. Nothing here runs anything.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from bayplan.testing import images, nodezones
from bayplan.testing.nodeparts import Parts

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"  # the node has a /run of its own

# The kubelet writes these settings of the kernel unless they have these values. They are the
# machine's, not the node's: the node sees files of its own in their place.
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

# The kubelet's folder of device plugins is a constant in it, whatever its --root-dir is.
# /var/lib/kubelet is made in an overlay, so that the machine gets no such folder from us.
INIT = """#!/bin/sh
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/lock
if [ ! -d /var/lib/kubelet ]; then
    mount -t overlay overlay -o lowerdir=/var/lib,upperdir={dir}/lib,workdir={dir}/lib.work /var/lib
    mkdir /var/lib/kubelet
fi
mount --bind {dir}/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind {dir}/log /var/log
if [ -d {dir}/zones ]; then
    mount --bind {dir}/zones /sys/devices/system/node
    mount --bind {dir}/zones/{online} /sys/devices/system/cpu/online
fi
cd {dir}/kernel
find . -type f | while read -r name; do
    if [ -e /proc/sys/$name ]; then mount --bind $name /proc/sys/$name; fi
done
cd /
PATH={containerd}:{runc}:$PATH
export PATH
{containerd}/containerd --config {dir}/containerd.toml &
wait
"""

CONTAINERD = """version = 3
root = "{dir}/containerd"
state = "/run/containerd"
# the first makes a folder in /opt, the second opens a socket for plugins that nobody has here
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
  address = "{socket}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
  # root may lack CAP_SYS_RESOURCE, and then runc cannot lower oom_score_adj
  restrict_oom_score_adj = true
  disable_apparmor = true  # its profile would stay in the kernel
  cdi_spec_dirs = ["{dir}/cdi"]

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{dir}/cni-bin"]
  conf_dir = "{dir}/cni"
  use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{runc}/runc"
  SystemdCgroup = false
"""

FOLDERS = ("cdi", "cni", "cni-bin", "containerd", "kubelet", "lib", "lib.work", "log")
EVICTIONS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
)
NETWORK = {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "none"}]}
# Pods have loopback only. Kubernetes wants an address to be named all the same.
PLUGIN = """#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.0.0", "ips": [{"address": "198.51.100.1/32"}]}' ;;
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
esac
"""


class Pretended(NamedTuple):
    """NUMA zones, and what the kubelet makes of them."""

    cpus: tuple[int, ...]  # per zone
    policy: str = "single-numa-node"
    scope: str = "container"


class KubeletSettings(NamedTuple):
    cgroup: str
    port: int
    healthz_port: int
    zones: Pretended | None = None


def write(directory: Path, parts: Parts, kubelet: KubeletSettings) -> None:
    for folder in FOLDERS:
        (directory / folder).mkdir()
    runc = parts.runc.parent
    (directory / "init.sh").write_text(
        INIT.format(dir=directory, containerd=parts.containerd, runc=runc, online=nodezones.ONLINE)
    )
    (directory / "containerd.toml").write_text(
        CONTAINERD.format(dir=directory, socket=CONTAINERD_SOCKET, pause=images.PAUSE, runc=runc)
    )
    for name, value in KERNEL.items():
        path = directory / "kernel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    (directory / "cni" / "none.conflist").write_text(json.dumps(NETWORK))
    (directory / "cni-bin" / "none").write_text(PLUGIN)
    os.chmod(directory / "cni-bin" / "none", 0o755)
    (directory / "resolv.conf").touch()  # the machine's may point into /run
    config = _kubelet(directory, kubelet)
    if kubelet.zones is not None:
        nodezones.write(directory / "zones", kubelet.zones.cpus)
        config |= nodezones.settings(kubelet.zones.policy, kubelet.zones.scope)
    (directory / "kubelet.json").write_text(json.dumps(config, indent=2))


def _kubelet(directory: Path, settings: KubeletSettings) -> dict[str, object]:
    """A KubeletConfiguration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Who may run programs in containers through the kubelet is root here: it listens on
        # loopback only, and asks the API server about everyone.
        "address": "127.0.0.1",
        "port": settings.port,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": settings.healthz_port,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,  # it would leave them in the machine's tables
        "volumePluginDir": str(directory / "volume-plugins"),  # it makes this folder
        "resolvConf": str(directory / "resolv.conf"),
        # A pod whose plugin is not there yet is tried again at each sync; the default is a minute.
        "syncFrequency": "2s",
        "nodeStatusUpdateFrequency": "1s",
        # A test machine with a full disk is still a machine for tests.
        "evictionHard": dict.fromkeys(EVICTIONS, "0%"),
        "imageGCHighThresholdPercent": 100,
    }
