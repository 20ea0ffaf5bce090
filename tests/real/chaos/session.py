"""One open connection to the API server, for a thread that asks much of it."""

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from bayplan.testing.controlplane import ControlPlane

TIMEOUT_S = 30.0


class Unreachable(Exception):
    """No answer; whether the request was carried out is not known."""


class Session:
    def __init__(self, plane: ControlPlane) -> None:
        self._tls = ssl.create_default_context(cafile=str(plane.ca_file))
        self._headers = {"Authorization": f"Bearer {plane.token}"}
        self._connection = http.client.HTTPSConnection(
            urlsplit(plane.url).netloc, timeout=TIMEOUT_S, context=self._tls
        )

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the body, whatever the status; `Unreachable` when there is no answer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        sent = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, sent, {**self._headers, "Content-Type": kind})
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise Unreachable(f"{method} {path}: {error}") from error

    def close(self) -> None:
        self._connection.close()
