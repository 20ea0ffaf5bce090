"""A running `bayplan run`: started, asked, stopped in its tracks, killed."""

import http.client
import json
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bayplan.testing.controlplane import PORTS
from bayplan.testing.processes import Process

CONFIG = {"apiVersion": "bayplan.dev/v1alpha1", "kind": "BayplanConfiguration"}
SCHEDULER = "bayplan"  # the schedulerName of its first profile
USERS = ("first", "second")  # as whom two replicas speak, so that they can be told apart


def command(*args: str) -> list[str]:
    return [str(Path(sys.executable).with_name("bayplan")), "run", *args]


class Replica:
    def __init__(
        self,
        name: str,
        kubeconfig: Path,
        directory: Path,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.port = name, free_port()
        path = directory / f"{name}.json"
        path.write_text(json.dumps(CONFIG | dict(config or {})))
        self.log = directory / f"{name}.log"
        self._read = self.log.stat().st_size if self.log.exists() else 0
        self.process = Process(
            name,
            command(
                *("--kubeconfig", str(kubeconfig), "--config", str(path)),
                *("--listen", f"127.0.0.1:{self.port}", "--api", "127.0.0.1:0"),
            ),
            self.log,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_ready(self) -> bool:
        return self.ask("/readyz")[0] == 200

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        self.process.wait_until(lambda: self.is_ready, timeout_s)

    def said(self) -> list[str]:
        """The lines of its log since it was started, without their times."""
        text = self.log.read_bytes()[self._read :].decode(errors="replace")
        return [re.sub(r"^\S+ \S+ ", "", line) for line in text.splitlines()]

    def ask(self, path: str) -> tuple[int, str]:
        """Status 0: nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """By name and labels, as in `bayplan_writes_total{kind="bind"}`."""
        status, text = self.ask("/metrics")
        assert status == 200, f"{self.name} shows no metrics:\n{self.process.tail()}"
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def total(self, name: str) -> float:
        """One metric over all its labels."""
        return sum(value for key, value in self.metrics().items() if key.partition("{")[0] == name)

    def lists(self) -> dict[str, float]:
        """Whole reads, by kind."""
        return {
            key: value
            for key, value in self.metrics().items()
            if key.startswith("bayplan_watch_lists_total")
        }

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        if self.process.running:
            self.resume()
            self.process.stop(timeout_s=30.0)


Start = Callable[..., Replica]  # the fixture `start`


def kubeconfig(path: Path, server: str) -> Path:
    """For a server without TLS that asks for no token."""
    named = {"name": "test"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [named | {"context": {"cluster": "test", "user": "test"}}],
        "clusters": [named | {"cluster": {"server": server}}],
        "users": [named | {"user": {}}],
    }
    path.write_text(json.dumps(config))
    return path


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
