"""Sees when pods appear, when they are bound, and when their `Scheduled` events are stored.

It is a process of its own: no contender's event loop or clock takes part in the times. It reads
two watches of one namespace from plain sockets, over HTTP/1.0, so that the server sends lines
without chunks around them, and decodes of each line only what it counts. Times are of the
monotonic clock, taken when the bytes have arrived.

    python -m bayplan.bench.observer KUBECONFIG NAMESPACE PODS OUT

prints `watching`, waits until PODS pods are bound and their events stored, and writes OUT.
"""

import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from bayplan.bench.access import Access, access

POLL_S = 0.05
QUIET_S = 5.0  # kube-scheduler may drop events; after this long without one, no more are expected
GIVE_UP_S = 120.0  # without any news
READ_BYTES = 1 << 18
SCHEDULED = "Scheduled"


class Sight(Struct, frozen=True):
    """What was seen. Times are monotonic, in seconds; waits are in milliseconds."""

    bound: int
    events: int  # pods with a Scheduled event
    events_by_last_bind: int  # of them, those seen before the last pod was bound
    first_bind: float
    last_bind: float
    last_event: float
    most_on_a_node: int  # pods that were bound to one node
    moved: int  # pods that were seen on two nodes; never anything but 0
    cpu_s: float  # what the observer itself has used meanwhile
    cuts: int  # watches that the server closed, and that were taken up again
    waits_ms: list[float]  # of pods that were seen to appear: until they were bound


class _Metadata(Struct, rename="camel", gc=False):
    name: str = ""
    resource_version: str = ""


class _Spec(Struct, rename="camel", frozen=True, gc=False):
    node_name: str = ""


class _Object(Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = _Spec()
    reason: str = ""
    regarding: _Metadata | None = None


class Change(Struct, gc=False):
    type: str
    object: _Object


class _List(Struct, gc=False):
    metadata: _Metadata


_decode = msgspec.json.Decoder(Change).decode
_decode_list = msgspec.json.Decoder(_List).decode


class Observer:
    """Each watch has a thread, and each field is written by one of them."""

    def __init__(self) -> None:
        self.appeared: dict[str, float] = {}
        self.bound: dict[str, tuple[str, float]] = {}  # by pod: its node, and when
        self.events: set[str] = set()
        self.moved = self.events_by_then = 0
        self.last_appeared = self.first_bind = self.last_bind = self.last_event = 0.0

    def pod(self, seen: Change, now: float) -> None:
        name, node = seen.object.metadata.name, seen.object.spec.node_name
        if seen.type == "ADDED":
            self.appeared.setdefault(name, now)
            self.last_appeared = now
        if not node or seen.type == "DELETED":
            return
        if name in self.bound:
            self.moved += self.bound[name][0] != node
            return
        self.bound[name] = node, now
        self.first_bind = self.first_bind or now
        self.last_bind, self.events_by_then = now, len(self.events)

    def event(self, seen: Change, now: float) -> None:
        about = seen.object.regarding
        if seen.type == "ADDED" and seen.object.reason == SCHEDULED and about is not None:
            self.events.add(about.name)
            self.last_event = now

    def is_done(self, pods: int, now: float) -> bool:
        """All are bound, and their events are stored or no longer to be expected."""
        if len(self.bound) < pods:
            return False
        quiet_s = now - max(self.last_bind, self.last_event)
        return len(self.events) >= pods or quiet_s > QUIET_S

    def sight(self, cpu_s: float, cuts: int) -> Sight:
        on_nodes = Counter(node for node, _ in self.bound.values())
        return Sight(
            bound=len(self.bound),
            events=len(self.events),
            events_by_last_bind=self.events_by_then,
            first_bind=self.first_bind,
            last_bind=self.last_bind,
            last_event=self.last_event,
            most_on_a_node=max(on_nodes.values(), default=0),
            moved=self.moved,
            cpu_s=cpu_s,
            cuts=cuts,
            waits_ms=[
                1e3 * (at - self.appeared[name])
                for name, (_, at) in self.bound.items()
                if name in self.appeared
            ],
        )


class Watch:
    """What happens under a path, from now on. A watch that the server closes, as it does now and
    then in the seconds after its start, is taken up where it ended."""

    def __init__(self, where: Access, path: str) -> None:
        self._where, self._path = where, path
        head, body = _Get(where, f"{path}?limit=1").read_all()
        _check(head)
        self._version = _decode_list(body).metadata.resource_version
        self.cuts = 0
        self._closed = False
        self._open()

    def _open(self) -> None:
        since = f"watch=true&timeoutSeconds=7200&resourceVersion={self._version}"
        self._get = _Get(self._where, f"{self._path}?{since}")
        head, self._begun = self._get.read_head()
        _check(head)

    def close(self) -> None:
        """Whoever follows it, on another thread, has seen all."""
        self._closed = True
        self._get.shut()

    def __iter__(self) -> Iterator[tuple[Change, float]]:
        """Each change, with when it came."""
        try:
            yield from self._changes()
        except OSError:  # what a read meets when the connection is shut differs
            if not self._closed:
                raise
        finally:
            self._get.close()

    def _changes(self) -> Iterator[tuple[Change, float]]:
        while True:
            *lines, self._begun = self._begun.split(b"\n")
            now = time.monotonic()
            for line in lines:
                seen = _decode(line)
                if seen.type == "ERROR":
                    raise ConnectionError(f"the watch of {self._path} said {line[:200]!r}")
                self._version = seen.object.metadata.resource_version
                yield seen, now
            chunk = self._get.read()
            if chunk:
                self._begun += chunk
                continue
            if self._closed:
                return
            self._get.close()
            self.cuts += 1
            self._open()


def _check(head: bytes) -> None:
    status = head.split(b"\r\n", 1)[0]
    if b" 200 " not in status + b" ":
        raise ConnectionError(f"the API server said {status.decode(errors='replace')}")


class _Get:
    """A GET over HTTP/1.0 whose answer ends with the connection."""

    def __init__(self, where: Access, target: str) -> None:
        plain = socket.create_connection((where.host, where.port))
        self._socket = where.tls().wrap_socket(plain, server_hostname=where.host)
        self._socket.sendall(
            f"GET {target} HTTP/1.0\r\nHost: {where.host}\r\nAccept: application/json\r\n"
            f"Authorization: {where.authorization}\r\n\r\n".encode()
        )

    def read(self) -> bytes:
        return self._socket.recv(READ_BYTES)

    def shut(self) -> None:
        """From another thread than the one that reads, which then reads the end."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def read_head(self) -> tuple[bytes, bytes]:
        """The head, and what came with it of the body."""
        got = b""
        while b"\r\n\r\n" not in got:
            chunk = self.read()
            if not chunk:
                raise ConnectionError("the API server closed the connection")
            got += chunk
        head, _, rest = got.partition(b"\r\n\r\n")
        return head, rest

    def read_all(self) -> tuple[bytes, bytes]:
        head, body = self.read_head()
        while chunk := self.read():
            body += chunk
        self.close()
        return head, body


def _follow(watch: Watch, hear: Callable[[Change, float], None]) -> None:
    try:
        for seen, now in watch:
            hear(seen, now)
    except BaseException as error:
        _say(f"{type(error).__name__}: {error}")
        os._exit(1)  # times without one of the watches would be wrong


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(kubeconfig: str, namespace: str, pods: int, out: Path) -> None:
    observer, where = Observer(), access(kubeconfig)
    pod_watch = Watch(where, f"/api/v1/namespaces/{namespace}/pods")
    event_watch = Watch(where, f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    for watch, hear in ((pod_watch, observer.pod), (event_watch, observer.event)):
        threading.Thread(target=_follow, args=(watch, hear), daemon=True).start()
    _say("watching")
    began, began_cpu_s = time.monotonic(), time.process_time()
    while not observer.is_done(pods, now := time.monotonic()):
        news = max(began, observer.last_appeared, observer.last_bind)
        if now - news > GIVE_UP_S:
            break
        time.sleep(POLL_S)
    cpu_s, cuts = time.process_time() - began_cpu_s, pod_watch.cuts + event_watch.cuts
    sight = observer.sight(cpu_s, cuts)
    partial = out.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(sight))
    os.replace(partial, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
