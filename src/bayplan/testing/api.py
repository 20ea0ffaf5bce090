"""A bare client of an API server, for tests: one connection per request, JSON in, JSON out.

It needs only the standard library, and takes no part in what it is used to test.
"""

import functools
import http.client
import json
import re
import ssl
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from bayplan.testing.binaries import ControlPlaneError

TIMEOUT_S = 120.0  # above the server's own 60 s


class RequestKind(NamedTuple):
    verb: str
    resource: str
    subresource: str
    code: int


class Refused(ControlPlaneError):
    """The API server answered, and not with a success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """The server on a port of this machine, whose certificate may not be written yet."""

    def __init__(self, port: int, ca_file: Path, token: str) -> None:
        self.port = port
        self.ca_file = ca_file
        self.token = token

    def request(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        return json.loads(self.text(method, path, body, token))

    def text(self, method: str, path: str, body: Any = None, token: str | None = None) -> str:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": kind}
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=TIMEOUT_S, context=self._tls
        )
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            said = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, said)
        return said

    def answers(self, *paths: str) -> bool:
        """Whether it runs and has something at each path."""
        try:
            return self.ca_file.exists() and all(self.text("GET", path) for path in paths)
        except (OSError, http.client.HTTPException, Refused):
            return False

    def request_counts(self) -> dict[RequestKind, int]:
        counts: Counter[RequestKind] = Counter()
        for line in self.text("GET", "/metrics").splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, _, count = line.rpartition(" ")
                of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                kind = RequestKind(of["verb"], of["resource"], of["subresource"], int(of["code"]))
                counts[kind] += int(float(count))
        return dict(counts)

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file))
