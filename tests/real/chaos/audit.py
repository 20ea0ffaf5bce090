"""Who bound what and when, by the API server's own audit log.

The checker needs no such thing: it only tells replicas apart, which the pods do not.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["pods/binding"]}]},
        {"level": "None"},
    ],
}


class Bind(NamedTuple):
    at: float  # wall clock, when the server had read the request
    user: str
    pod: str
    status: int


class AuditLog:
    """The log of an API server that was started with `arguments`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "audit.log"
        self._policy = directory / "audit-policy.json"
        self._read = 0  # bytes
        self._binds: list[Bind] = []

    def arguments(self) -> list[str]:
        """For kube-apiserver."""
        self._policy.write_text(json.dumps(POLICY))
        return [f"--audit-policy-file={self._policy}", f"--audit-log-path={self._path}"]

    def binds(self) -> list[Bind]:
        """All so far, in the order in which they came."""
        if self._path.exists():
            with open(self._path, "rb") as file:
                file.seek(self._read)
                *lines, _ = file.read().split(b"\n")
            self._read += sum(len(line) + 1 for line in lines)
            self._binds = sorted([*self._binds, *map(read_bind, lines)])
        return self._binds

    def bound_by(self, user: str, after: float) -> list[Bind]:
        return [b for b in self.binds() if b.user == user and b.at > after and b.status == 201]


def read_bind(line: bytes) -> Bind:
    entry = json.loads(line)
    of = entry["objectRef"]
    return Bind(
        at=datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp(),
        user=entry["user"]["username"],
        pod=f"{of['namespace']}/{of['name']}",
        status=entry.get("responseStatus", {}).get("code", 0),
    )
