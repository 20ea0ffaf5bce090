"""A real Kubernetes control plane for tests and benchmarks: etcd and kube-apiserver on loopback.

    with ControlPlane() as plane:
        plane.kubectl("apply", "-f", "-", input=manifest)
        plane.start_kube_scheduler()

There is no kubelet: nodes are objects that a test creates, and pods never start. There is no
controller either, unless `start_controller_manager` is called: a ServiceAccount exists only if
somebody creates it, the roles `view`, `edit` and `admin` are empty (a controller would fill them),
and a deleted namespace never goes away.
It needs only the standard library.
"""

import base64
import functools
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bayplan.testing.api import Api, Refused, RequestKind
from bayplan.testing.binaries import Binary, ControlPlaneError, find
from bayplan.testing.processes import Process

__all__ = ["ControlPlane", "ControlPlaneError", "Process", "Refused", "RequestKind", "User"]

# Below the ports that systems lend to outgoing connections (from 32768 on Linux): a client that
# dials a stopped server's port again and again could be lent that very port and reach itself.
PORTS = range(10_000, 30_000)
SCHEDULER_CLIENT = {"qps": 5000, "burst": 10000}  # the default of 50 and 100 would be the limit
ADMIN = "admin"
CONTROLLERS = (  # of kube-controller-manager's: those whose work the embedded API does too
    "statefulset-controller",
    "job-controller",
    "ttl-after-finished-controller",
    "garbage-collector-controller",
)


@dataclass(frozen=True)
class User:
    """Someone whom the API server knows by a token. The rights come from RBAC."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(16))


class ControlPlane:
    """etcd and kube-apiserver in a directory of their own, which goes when they stop.

    A `version` is taken exactly; without one see `binaries.find`. A given `directory` stays.
    """

    def __init__(
        self,
        version: str | None = None,
        users: Sequence[User] = (),
        apiserver_args: Sequence[str] = (),
        feature_gates: Mapping[str, bool] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.version = version
        self.users = {ADMIN: User(ADMIN, ("system:masters",))} | {user.name: user for user in users}
        self.binaries: dict[str, Binary] = {}  # those that were needed so far
        self._args = list(apiserver_args)
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in (feature_gates or {}).items())
        self._gates = [f"--feature-gates={gates}"] if gates else []
        self._keep = directory is not None
        self.directory = directory or Path(tempfile.gettempdir(), f"bayplan-{secrets.token_hex(6)}")
        self._port, self._etcd_port = free_ports(2)
        self._api = Api(self._port, self.ca_file, self.token)
        self._etcd: Process | None = None
        self._apiserver: Process | None = None
        self._clients: list[Process] = []  # schedulers and controllers

    def __enter__(self) -> "ControlPlane":
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
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_file(self) -> Path:
        return self.directory / "certs" / "apiserver.crt"  # kube-apiserver adds its CA to it

    @property
    def token(self) -> str:
        return self.users[ADMIN].token

    @property
    def kubeconfig(self) -> Path:
        return self.kubeconfig_for(ADMIN)

    def kubeconfig_for(self, user: str, token: str | None = None) -> Path:
        """Written on demand. With a token it is for anybody, such as a service account."""
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        token = token or self.users[user].token
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)},
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
        }
        _write_secret(path, json.dumps(config, indent=2))  # JSON is YAML
        return path

    def start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            etcd, _ = self._binary("etcd"), self._binary("kube-apiserver")
            known = [
                f'{user.token},{user.name},{user.name},"{",".join(user.groups)}"\n'
                for user in self.users.values()
            ]
            _write_secret(self.directory / "tokens.csv", "".join(known))
            _write_secret(self.directory / "service-accounts.key", _new_ec_key())
            self._start_etcd(etcd)
            self.start_apiserver()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops everything, in the order in which it is not missed."""
        for client in self._clients:
            client.stop()
        self.stop_apiserver()
        if self._etcd:
            self._etcd.stop()
            self._etcd = None
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start_apiserver(self) -> None:
        """Starts it, on the same port each time, and waits until it is ready."""
        if self._apiserver and self._apiserver.running:
            raise ControlPlaneError("kube-apiserver runs already")
        key = self.directory / "service-accounts.key"
        command = [
            str(self._binary("kube-apiserver").path),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self.ca_file.parent}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/16",
            # Without controllers there are no ServiceAccounts to add, and nobody would take away
            # the not-ready taint that the second gives to every new node.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            # By default a server that is asked to stop waits a minute for its watches to end.
            "--shutdown-watch-termination-grace-period=1s",
            *self._gates,
            *self._args,
        ]
        log = self.directory / "kube-apiserver.log"
        self._apiserver = Process("kube-apiserver", command, log)
        # The first namespaces are created just after it says that it is ready.
        paths = ("/readyz", "/api/v1/namespaces/default")
        self._apiserver.wait_until(lambda: self._api.answers(*paths))

    def stop_apiserver(self, kill: bool = False) -> None:
        """With SIGTERM, which lets requests end, or as a crash would."""
        if self._apiserver:
            self._apiserver.kill() if kill else self._apiserver.stop()
            self._apiserver = None

    def restart_apiserver(self, kill: bool = False) -> None:
        self.stop_apiserver(kill)
        self.start_apiserver()

    def start_kube_scheduler(self, config: Mapping[str, Any] | None = None) -> Process:
        """A kube-scheduler for this cluster; `config` adds to its KubeSchedulerConfiguration."""
        binary = self._binary("kube-scheduler")
        name = f"kube-scheduler-{len(self._clients)}"
        whole = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig), **SCHEDULER_CLIENT},
            "leaderElection": {"leaderElect": False},
            **(config or {}),
        }
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(whole, indent=2))
        command = [str(binary.path), f"--config={path}", "--secure-port=0", *self._gates]
        scheduler = Process(name, command, self.directory / f"{name}.log")
        self._clients.append(scheduler)
        # It has no port to ask. This line comes after everything that can be wrong with a config.
        started = b"Starting Kubernetes Scheduler"
        scheduler.wait_until(lambda: started in scheduler.log.read_bytes())
        return scheduler

    def start_controller_manager(self, controllers: Sequence[str] = CONTROLLERS) -> Process:
        """A kube-controller-manager for this cluster, with these controllers and no others.

        It may have to be built, which takes minutes: only those who ask for it wait. Kinds that are
        defined later are known to its garbage collector half a minute later.
        """
        name = f"kube-controller-manager-{len(self._clients)}"
        command = [
            str(self._binary("kube-controller-manager").path),
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(controllers)}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--kube-api-qps={SCHEDULER_CLIENT['qps']}",
            f"--kube-api-burst={SCHEDULER_CLIENT['burst']}",
            *self._gates,
        ]
        manager = Process(name, command, self.directory / f"{name}.log")
        self._clients.append(manager)
        # It has no port to ask either. Each controller begins when it has listed what it needs.
        manager.wait_until(lambda: _have_listed(manager.log.read_text(), len(controllers)))
        return manager

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """What kubectl prints, run as the admin; a failure is an error with its words."""
        env = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            "KUBERC": "off",  # the user's own preferences do not count
        }
        command = [str(self._binary("kubectl").path), *args]
        done = subprocess.run(
            command, env=env, input=input, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def request(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        """One request, as the admin unless a token is given: JSON in, JSON out, or `Refused`."""
        return self._api.request(method, path, body, token)

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token of a ServiceAccount that exists, from the TokenRequest API, for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token: str = self.request("POST", path, body)["status"]["token"]
        return token

    def request_counts(self) -> dict[RequestKind, int]:
        """How many requests this API server answered since it started; a watch, when it ends."""
        return self._api.request_counts()

    def wipe(self) -> None:
        """Deletes every pod and every node, at once."""
        pods = self.request("GET", "/api/v1/pods")["items"]
        for namespace in sorted({pod["metadata"]["namespace"] for pod in pods}):
            path = f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0"
            self.request("DELETE", path)
        self.request("DELETE", "/api/v1/nodes")

    def _binary(self, name: str) -> Binary:
        if name not in self.binaries:
            self.binaries[name] = find(name, self.version)
        return self.binaries[name]

    def _start_etcd(self, binary: Binary) -> None:
        url = f"http://127.0.0.1:{self._etcd_port}"
        command = [
            str(binary.path),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",  # the data is thrown away
            "--log-level=warn",
        ]
        self._etcd = Process("etcd", command, self.directory / "etcd.log")
        self._etcd.wait_until(functools.partial(_answers, self._etcd_port))


def _have_listed(log: str, controllers: int) -> bool:
    begun, ended = log.count("Waiting for caches to sync"), log.count("Caches are synced")
    return begun == ended >= controllers


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_ports(count: int) -> list[int]:
    free: list[int] = []
    for port in secrets.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        free.append(port)
        if len(free) == count:
            return free
    raise ControlPlaneError(f"no free port between {PORTS.start} and {PORTS.stop}")


def _new_ec_key() -> str:
    """A P-256 private key as PEM. Its public half may be left out, so random bytes are enough."""
    der = bytes.fromhex("30310201010420") + secrets.token_bytes(32)
    der += bytes.fromhex("a00a06082a8648ce3d030107")  # the curve's name
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}-----END EC PRIVATE KEY-----\n"


def _write_secret(path: Path, text: str) -> None:
    """Replaced in one step: somebody may be reading it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.touch(mode=0o600)
    partial.write_text(text)
    os.replace(partial, path)
