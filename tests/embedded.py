"""The embedded API as tests use a real control plane: a port, kubectl, plain requests."""

import asyncio
import http.client
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Protocol

from bayplan.cli.up import kubeconfig_text
from bayplan.kube.clock import RealClock
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.server import HOST, Server
from bayplan.testing.api import Refused
from bayplan.testing.binaries import find
from bayplan.testing.controlplane import ControlPlaneError

TIMEOUT_S = 120.0


class Plane(Protocol):
    """What the tests use of either."""

    @property
    def directory(self) -> Path: ...
    @property
    def kubeconfig(self) -> Path: ...
    @property
    def token(self) -> str: ...

    def request(self, method: str, path: str, body: Any = None) -> Any: ...
    def kubectl(self, *args: str, input: str | None = None) -> str: ...
    def wipe(self) -> None: ...


class EmbeddedPlane:
    """In a thread of its own. Use it as a context.

    Without controllers nobody writes the status of budgets and nobody empties namespaces, as where
    only etcd and kube-apiserver run.
    """

    def __init__(self, directory: Path, controllers: bool = True) -> None:
        self.directory, self._controlled = directory, controllers
        self.kubeconfig = directory / "kubeconfig"
        self.token = "there is no token"  # nobody asks for one
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedded API", daemon=True)

    def __enter__(self) -> "EmbeddedPlane":
        self._thread.start()
        assert self._started.wait(10)
        self.kubeconfig.write_text(kubeconfig_text(f"http://{HOST}:{self.port}"))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stopped is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        clock = RealClock()
        self._api = Api(clock)
        controllers = asyncio.create_task(Controllers(self._api).run())
        if not self._controlled:
            controllers.cancel()
        async with Server(self._api, clock).serving() as self.port:
            self._started.set()
            await self._stopped.wait()
        controllers.cancel()

    def compact(self) -> None:
        """Forgets what happened before now, as etcd does from time to time."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._compact(), self._loop).result(10)

    async def _compact(self) -> None:
        self._api.compact()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """JSON in, JSON out, or `Refused`."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_S)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": kind})
            answer = connection.getresponse()
            said = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, said)
        return json.loads(said)

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """What kubectl prints; a failure is an error with its words."""
        env = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            "KUBERC": "off",
        }
        command = [str(find("kubectl").path), *args]
        done = subprocess.run(
            command, env=env, input=input, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def wipe(self) -> None:
        """Deletes every pod and every node, at once."""
        pods = self.request("GET", "/api/v1/pods")["items"]
        for namespace in sorted({pod["metadata"]["namespace"] for pod in pods}):
            path = f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0"
            self.request("DELETE", path)
        self.request("DELETE", "/api/v1/nodes")
