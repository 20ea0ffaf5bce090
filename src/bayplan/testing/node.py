"""A real Kubernetes node for tests: a kubelet, containerd and runc, and real containers.

    with ControlPlane(users=[node_user("n1")]) as plane, Node(plane, "n1") as node:
        ...                                   # bind pods with `image: localhost/busybox:1`
        node.restart_kubelet()
        print(node.device_plugins, node.container_log("default", "train"))

It runs in mount and process namespaces of its own, with a cgroup of its own, so that several fit
on one machine and killing one process ends all of it. It shares the machine's network: containers
have loopback only, and `kubectl logs` and `exec` do not reach it. It needs Linux and root;
`why_not` says what is missing. Pods need `imagePullPolicy: Never` and
`automountServiceAccountToken: false`.
"""

import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from bayplan.testing import nodefiles
from bayplan.testing.binaries import ControlPlaneError
from bayplan.testing.controlplane import ControlPlane, User, free_ports
from bayplan.testing.nodecgroups import Cgroup, why_no_cgroups
from bayplan.testing.nodeparts import Parts, find_parts, why_no_parts
from bayplan.testing.processes import Process

TOOLS = ("unshare", "nsenter", "mount")
UNSHARE = ["--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
UNSHARE += ["--propagation", "private"]
START_S = 60.0  # 3 to 6 s on two idle cores
PROBE_S = 30.0
# One overlay like those of containers, on the disk where they will lie.
PROBE = """set -e
mount -t tmpfs tmpfs /run
cd "$1"
mkdir lower upper work merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
"""


def node_user(name: str) -> User:
    """The kubelet of that node, as the API server must know it from its start."""
    return User(f"system:node:{name}", ("system:nodes",))


def why_not() -> str | None:
    """One sentence about why no kubelet can run on this machine; None when it can."""
    if sys.platform != "linux":
        return f"a kubelet needs Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "a kubelet needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    try:
        own_address()
    except OSError as error:
        return f"a kubelet needs an address other than loopback: {error}"
    return _why_no_namespaces() or why_no_cgroups() or why_no_parts()


def own_address() -> str:
    """This machine's IPv4 address that leads outside. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("203.0.113.1", 9))
        address: str = probe.getsockname()[0]
        return address


class Node:
    """A node of a control plane that knows `node_user(name)`."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        parts: Parts | None = None,
        zones: nodefiles.Pretended | None = None,
    ) -> None:
        self.plane, self.name, self._zones = plane, name, zones
        self.directory = Path(tempfile.gettempdir(), f"bayplan-{secrets.token_hex(4)}")
        self.cgroup = Cgroup(self.directory.name.removeprefix("bayplan-"))
        self._parts = parts
        self._node: Process | None = None
        self._kubelet: Process | None = None
        self._port, self._healthz_port = free_ports(2)

    def __enter__(self) -> "Node":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the node's process 1, as this process sees it; all else ends with that one."""
        found = _children(self._node.pid) if self._node else []
        if not found:
            raise ControlPlaneError(f"node {self.name} does not run")
        return found[0]

    @property
    def device_plugins(self) -> Path:
        """The folder for the sockets of device plugins, as this process sees it."""
        return self.directory / "kubelet" / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The socket of the PodResources API, as this process sees it."""
        return self.directory / "kubelet" / "pod-resources" / "kubelet.sock"

    @property
    def logs(self) -> dict[str, Path]:
        """What kubelet and containerd wrote."""
        return {name: self.directory / f"{name}.log" for name in ("kubelet", "containerd")}

    def start(self) -> None:
        """Returns when the API server says that the node is ready."""
        if self._node:
            raise ControlPlaneError(f"node {self.name} runs already")
        reason = why_not()
        if reason:
            raise ControlPlaneError(f"no node here: {reason}")
        parts = self._parts = self._parts or find_parts()
        self.directory.mkdir(mode=0o700)
        ports = (self._port, self._healthz_port)
        settings = nodefiles.KubeletSettings(self.cgroup.name, *ports, self._zones)
        try:
            nodefiles.write(self.directory, parts, settings)
            self.cgroup.make()
            self._start_containerd(parts)
            self.start_kubelet()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends everything at once; nothing of it stays on the machine, in the API only."""
        if self._node:
            if _children(self._node.pid):
                os.kill(self.pid, signal.SIGKILL)  # it ends only after everything else in there
            else:
                self._node.kill()
            self._node.wait(START_S)
            self._node = None
        if self._kubelet:
            self._kubelet.wait(START_S)
            self._kubelet = None
        self.cgroup.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def is_ready(self) -> bool:
        return self._condition().get("status") == "True"

    def start_kubelet(self) -> None:
        """Returns when it takes device plugins and answers about pods."""
        if self._kubelet:
            raise ControlPlaneError("the kubelet runs already")
        assert self._parts is not None
        command = [
            str(self._parts.kubelet),
            f"--config={self.directory / 'kubelet.json'}",
            f"--kubeconfig={self.plane.kubeconfig_for(node_user(self.name).name)}",
            f"--cert-dir={self.directory / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={own_address()}",
        ]
        sockets = (self.device_plugins / "kubelet.sock", self.pod_resources)
        old = [_identity(socket) for socket in sockets]

        def new() -> bool:
            now = [_identity(socket) for socket in sockets]
            replaced = all(ours and ours != before for ours, before in zip(now, old, strict=True))
            return replaced and self._is_healthy()

        self._kubelet = Process("kubelet", self._inside(command), self.logs["kubelet"])
        self._kubelet.wait_until(new, START_S)

    def stop_kubelet(self, kill: bool = False) -> None:
        """With SIGTERM, or as a crash would. Containers and containerd go on."""
        if self._kubelet:
            for pid in _children(self._running.pid):  # nsenter only waits for it
                os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
            self._kubelet.wait(START_S)
            self._kubelet = None

    def restart_kubelet(self, kill: bool = False) -> None:
        self.stop_kubelet(kill)
        self.start_kubelet()

    def container_log(self, namespace: str, pod: str, container: str = "main") -> str:
        """What the container wrote so far, of all its runs; empty when it has not started."""
        folders = (self.directory / "log" / "pods").glob(f"{namespace}_{pod}_*/{container}")
        files = sorted(file for folder in folders for file in folder.glob("*.log"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        # time, stream, "F" for a whole line, text
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)

    def _wait_until_ready(self) -> None:
        try:
            self._running.wait_until(self.is_ready, START_S)
        except ControlPlaneError as error:
            why = self._condition().get("message", "the kubelet has not told the API server")
            raise ControlPlaneError(f"node {self.name} is not ready, {why}\n{error}") from error

    def _condition(self) -> dict[str, str]:
        """Its condition Ready, as this kubelet told it, not one that had the name before."""
        nodes = self.plane.request("GET", f"/api/v1/nodes?fieldSelector=metadata.name={self.name}")
        for status in (node["status"] for node in nodes["items"]):
            told = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
            for condition in status.get("conditions", ()):
                if told == self._port and condition["type"] == "Ready":
                    return dict(condition)
        return {}

    @property
    def _running(self) -> Process:
        if self._kubelet is None:
            raise ControlPlaneError("the kubelet does not run")
        return self._kubelet

    def _start_containerd(self, parts: Parts) -> None:
        init = ["/bin/sh", str(self.directory / "init.sh")]
        command = [_tool("unshare"), *UNSHARE, *init]
        self._node = node = Process("containerd", command, self.logs["containerd"])
        ctr = [str(parts.containerd / "ctr"), "--address", nodefiles.CONTAINERD_SOCKET]

        def answers() -> bool:
            return bool(_children(node.pid)) and self._run([*ctr, "version"]).returncode == 0

        node.wait_until(answers, START_S)
        done = self._run([*ctr, "--namespace", "k8s.io", "images", "import", str(parts.images)])
        if done.returncode != 0:
            raise ControlPlaneError(f"the images cannot be imported: {done.stdout}")

    def _run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return _output(self._inside(command))

    def _inside(self, command: list[str]) -> list[str]:
        return [_tool("nsenter"), f"--target={self.pid}", "--mount", "--pid", "--", *command]

    def _is_healthy(self) -> bool:
        return _attempt(self._healthz)

    def _healthz(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._healthz_port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        finally:
            connection.close()


def _attempt(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except (OSError, http.client.HTTPException):
        return False


def _why_no_namespaces() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        done = _output([_tool("unshare"), *UNSHARE, "/bin/sh", "-c", PROBE, "sh", folder])
    if done.returncode == 0:
        return None
    said = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
    return f"no mounts in a namespace of one's own: {said}"


def _output(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        text=True,
        check=False,
        timeout=PROBE_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ControlPlaneError(f"there is no {name}")
    return found


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name in parentheses may hold anything; after it: state, parent
            facts = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(facts[1]) == parent:
            found.append(int(status.parent.name))
    return found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
