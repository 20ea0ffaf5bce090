"""Writes down every version of every pod, as the API server tells them: a history to judge.

It is a list and a watch of its own, in a thread. A watch that ends is taken up where it ended. Only
when the server has forgotten that version (a new server has a new cache) is the list read again;
what happened in between is then one step of the history, and counted in `gaps`.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

from bayplan.testing.controlplane import ControlPlane, ControlPlaneError
from tests.real.apicheck import Change, Json, Pod, read_pod

PODS = "/api/v1/pods"
AGAIN_S = 0.05
TIMEOUT_S = 90.0  # longer than the minute between two bookmarks


class Recorder:
    """Use it as a context: it holds all there is when the block begins."""

    def __init__(self, plane: ControlPlane, read: Callable[[Json], Pod] = read_pod) -> None:
        self._plane, self._read = plane, read
        self._tls = ssl.create_default_context(cafile=str(plane.ca_file))
        self._headers = {"Authorization": f"Bearer {plane.token}"}
        self.history: list[Change] = []
        self.gaps = 0
        self._now: dict[str, Pod] = {}  # by uid
        self._bound: set[str] = set()  # uids
        self._version = ""
        self._news = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        self._connection: http.client.HTTPSConnection | None = None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> "Recorder":
        self._list()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            connection.sock.shutdown(2)
        self._thread.join()

    def pods(self) -> list[Pod]:
        """As they are now."""
        with self._news:
            return list(self._now.values())

    def bound(self) -> int:
        """How many pods got a node so far."""
        return len(self._bound)

    def wait(self, said: Callable[[], bool], timeout_s: float) -> bool:
        """Until it is true, looked at after each change; whether it became true in time."""
        deadline = time.monotonic() + timeout_s
        while not said():
            with self._news:
                seen = len(self.history)
            if not self.wait_for_news(seen, deadline - time.monotonic()):
                return said()
        return True

    def wait_for_binds(self, more: int, timeout_s: float) -> bool:
        """Until so many more pods have a node than now."""
        enough = self.bound() + more
        return self.wait(lambda: self.bound() >= enough, timeout_s)

    def wait_for_news(self, seen: int, timeout_s: float) -> bool:
        """Until there is more than the first `seen` changes."""
        with self._news:
            return self._news.wait_for(
                lambda: self._failure is not None or len(self.history) > seen, timeout_s
            )

    def check(self) -> None:
        """Raises what went wrong in the thread."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._watch()
            except (OSError, http.client.HTTPException, ControlPlaneError):
                time.sleep(AGAIN_S)  # the server is away; there is nothing else to wait for
            except BaseException as error:
                self._failure = error
                with self._news:
                    self._news.notify_all()
                return

    def _list(self) -> None:
        listed = self._plane.request("GET", PODS)
        pods = [self._read(raw) for raw in listed["items"]]
        here = {pod.uid for pod in pods}
        known = self._now
        gone = [Change(pod, gone=True) for uid, pod in known.items() if uid not in here]
        fresh = [
            Change(pod)
            for pod in pods
            if pod.uid not in known or known[pod.uid].version != pod.version
        ]
        self._version = listed["metadata"]["resourceVersion"]
        self._add([*gone, *fresh])

    def _watch(self) -> None:
        path = f"{PODS}?watch=true&allowWatchBookmarks=true&resourceVersion={self._version}"
        address = urlsplit(self._plane.url).netloc
        connection = http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=self._tls)
        self._connection = connection
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                self._refused(json.loads(answer.read()))
                return
            while (line := answer.readline()) and not self._stopping:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._refused(event["object"])
                    return
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._add([Change(self._read(event["object"]), event["type"] == "DELETED")])
        finally:
            self._connection = None
            connection.close()

    def _refused(self, status: Json) -> None:
        if status.get("code") == 410:
            self.gaps += 1
            self._list()
        else:
            time.sleep(AGAIN_S)

    def _add(self, changes: list[Change]) -> None:
        with self._news:
            self.history += changes
            for pod, gone in changes:
                self._now[pod.uid] = pod
                if pod.node:
                    self._bound.add(pod.uid)
                if gone:
                    del self._now[pod.uid]
            self._news.notify_all()
