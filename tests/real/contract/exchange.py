"""Requests to a back end and its answers, without what differs from run to run.

An answer keeps its status and its whole body; uids, times, revisions, managed fields and the test's
own namespace are replaced by words. So what two servers answered can be compared as values.
"""

import http.client
import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from tests.embedded import Plane

Json = dict[str, Any]
TIMEOUT_S = 30.0

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AGE = re.compile(r"^\d+s$")  # of a table
_REVISION = re.compile(r"(?<=in record \()\d+(?=\))")  # of a message
_DROPPED = ("managedFields", "resourceVersion", "selfLink")
_REMEMBERED = ("resourceVersion", "uid", "continue")


class Answer(NamedTuple):
    status: int
    body: Any


class Server:
    """One of the two, seen from one namespace of its own."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        config = yaml.safe_load(plane.kubeconfig.read_text())
        (cluster,), (user,) = config["clusters"], config["users"]
        address = urlsplit(cluster["cluster"]["server"])
        self._host, self._port = address.hostname or "", address.port or 0
        self._tls: ssl.SSLContext | None = None
        if address.scheme == "https":
            about = cluster["cluster"]
            self._tls = ssl.create_default_context(cafile=about["certificate-authority"])
        token = user["user"].get("token")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.plane, self.namespace = plane, namespace
        self._known: dict[str, str] = {}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """`{ns}` in the path and in the body is the namespace of the test; `{resourceVersion}`,
        `{uid}` and `{continue}` are those of the last object or list that was answered.
        """
        with self._sent(method, path, body, content_type, accept) as answer:
            said = answer.read()
        try:
            value = json.loads(said)
        except ValueError:
            return Answer(answer.status, said.decode())
        if isinstance(value.get("metadata"), dict):
            known = {name: value["metadata"].get(name) for name in _REMEMBERED}
            self._known |= {name: text for name, text in known.items() if text}
        return Answer(answer.status, self.plain(value))

    def raw(self, method: str, path: str, body: Any = None) -> Any:
        """The body as it is, for what a test needs to go on."""
        with self._sent(method, path, body, "application/json", "application/json") as answer:
            return json.loads(answer.read())

    def revision(self, path: str) -> str:
        return str(self.raw("GET", path)["metadata"]["resourceVersion"])

    def watch(self, path: str, last: str | None) -> list[Any]:
        """The events of a watch, until one about an object of this name, or with a bookmark."""
        with self._sent("GET", path, None, "", "application/json") as answer:
            events: list[Any] = []
            while line := answer.readline():
                event = json.loads(line)
                if last and event["object"].get("metadata", {}).get("name") == self._filled(last):
                    return events
                events.append(self.plain(event))
                if last is None and event["type"] == "BOOKMARK":
                    return events
            raise AssertionError(f"the watch ended after {events}")

    def told(self, path: str) -> list[Any]:
        """Every event of a watch until its time is over."""
        with self._sent("GET", path, None, "", "application/json") as answer:
            return [self.plain(json.loads(line)) for line in answer.read().splitlines()]

    def plain(self, value: Any) -> Any:
        """Without what differs from run to run."""
        if isinstance(value, dict):
            kept = {k: self.plain(v) for k, v in value.items() if k not in _DROPPED}
            if "cells" in kept:
                kept["cells"] = [
                    _AGE.sub("AGE", c) if isinstance(c, str) else c for c in kept["cells"]
                ]
            for column in kept.get("columnDefinitions", ()):
                column.pop("description")  # a page of documentation each; kubectl does not show it
            if kept.get("continue"):
                kept["continue"] = "TOKEN"
            return kept
        if isinstance(value, list):
            return [self.plain(entry) for entry in value]
        if isinstance(value, str):
            value = value.replace(self.namespace, "NAMESPACE")
            return _REVISION.sub("REVISION", _TIME.sub("TIME", _UUID.sub("UID", value)))
        return value

    def _filled(self, text: str) -> str:
        for name, value in {"ns": self.namespace, **self._known}.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Any, content_type: str, accept: str
    ) -> Iterator[http.client.HTTPResponse]:
        path = self._filled(path)
        sent: bytes | None = None
        if isinstance(body, bytes):
            sent = body
        elif body is not None:
            sent = self._filled(json.dumps(body)).encode()
        connection: http.client.HTTPConnection
        if self._tls is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        headers = {**self._headers, "Accept": accept}
        if sent is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, sent, headers)
            yield connection.getresponse()
        finally:
            connection.close()
