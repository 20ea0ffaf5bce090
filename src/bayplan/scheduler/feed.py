"""From watches to events: objects become values, and only what changed joins the inbox.

Each kind has a sink that knows what it last said. An update that changes nothing that we read
(a heartbeat, a condition, an annotation) ends here. What cannot be read is reported, never fatal:
a bound pod that cannot be read closes its node, anything else is left out.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod, RowKey
from bayplan.kube import wire
from bayplan.kube.client import PODS
from bayplan.kube.read import Reader, Unreadable
from bayplan.kube.reflector import Watched
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.kinds import Kind

NOT_TERMINAL = "status.phase!=Succeeded,status.phase!=Failed"
T = TypeVar("T")
Report = Callable[[str], None]
Adopt = Callable[[Pod], Pod]  # changes a pod on its way in


class Condition(Struct, frozen=True, gc=False):
    """What stands in a waiting pod's PodScheduled condition, and what a patch of it needs."""

    generation: int
    resource_version: str
    reason: str
    message: str
    since: str  # lastTransitionTime, if the status is False
    nominated: str = ""


class Unread(Struct, frozen=True, gc=False):
    """An object that cannot be understood."""

    uid: str
    name: str  # with its namespace
    node: str
    why: str
    scheduler: str = ""

    @property
    def stand_in(self) -> Pod:
        """As much of a pod as one needs to speak of it."""
        namespace, _, name = self.name.rpartition("/")
        return Pod(self.uid, namespace or "default", name, {}, RowKey(), scheduler=self.scheduler)


class SeenPod(Struct, frozen=True, gc=False):
    pod: Pod
    condition: Condition | None  # of a pod that is not bound


def unread(raw: Raw, error: Exception) -> Unread:
    """Who it is and where it runs, as far as that can be found out."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = None
    uid, namespace = word(found, "metadata", "uid"), word(found, "metadata", "namespace")
    name = word(found, "metadata", "name")
    full = f"{namespace}/{name}" if namespace else name
    node, scheduler = word(found, "spec", "nodeName"), word(found, "spec", "schedulerName")
    return Unread(uid, full, node, str(error), scheduler)


def word(found: Any, part: str, field: str) -> str:
    """A text inside something of any shape; empty where there is none."""
    inner = found.get(part) if isinstance(found, dict) else None
    value = inner.get(field) if isinstance(inner, dict) else None
    return value if isinstance(value, str) else ""


def scheduled_condition(seen: wire.Pod) -> Condition:
    metadata = seen.metadata or wire.Metadata()
    status = seen.status or wire.PodStatus()
    found = next((c for c in status.conditions or () if c.type == "PodScheduled"), wire.Condition())
    waits = found.status == "False"
    return Condition(
        generation=metadata.generation or 0,
        resource_version=metadata.resource_version or "",
        reason=(found.reason or "") if waits else "",
        message=(found.message or "") if waits else "",
        since=(found.last_transition_time or "") if waits else "",
        nominated=status.nominated_node_name or "",
    )


class _Sink(Generic[T]):
    """The parts that all sinks share. `known` is by the key under which a thing can go."""

    def __init__(self, inbox: Inbox, report: Report) -> None:
        self.inbox, self.report = inbox, report
        self.is_synced = False
        self.unread = 0
        self.unchanged = 0

    def synced(self) -> None:
        self.is_synced = True
        self.inbox.wake()

    def bad(self, line: bytes, error: Exception) -> None:
        self.unread += 1
        self.report(f"a watch brought something that cannot be read: {error}: {line[:120]!r}")


class PodSink(_Sink[SeenPod | Unread]):
    """Pods that have not ended."""

    def __init__(
        self, inbox: Inbox, report: Report, reader: Reader, adopt: Adopt | None = None
    ) -> None:
        super().__init__(inbox, report)
        self.reader, self._adopt = reader, adopt
        self.known: dict[str, Pod | Unread] = {}  # by uid
        self.conditions: dict[str, Condition] = {}  # by uid: of pods that are not bound
        self.on_waiting_unread: Callable[[Unread], None] = lambda item: None
        self._touched: set[str] | None = None  # uids that the watch told of during a read
        self._unseen: dict[str, None] = {}  # uids of pods that we bound and no watch has told of
        self._listed: tuple[str, ...] = ()  # of them, those that the list must have
        self._read: tuple[str, ...] = ()  # … and that the read beside the watch must

    def watched(self) -> Watched[SeenPod | Unread]:
        return Watched(PODS.path(), self.decode, field_selector=NOT_TERMINAL)

    def decode(self, raw: Raw) -> SeenPod | Unread:
        try:
            seen = self.reader.decode_pod(raw)
            pod = self.reader.seen_pod(seen)
        except Unreadable as error:
            return unread(raw, error)
        if self._adopt is not None:
            pod = self._adopt(pod)
        return SeenPod(pod, None if pod.node else scheduled_condition(seen))

    def bound(self, uid: str) -> None:
        """We have bound the pod, whether a watch has told of it or not."""
        if uid not in self.known:
            self._unseen[uid] = None

    def begin_list(self) -> None:
        """The list that is asked for now has every pod that is bound already, if it is not gone.
        One that is bound from here on may be younger than the list."""
        self._listed = tuple(self._unseen)

    def replace(self, items: list[SeenPod | Unread], resource_version: str) -> None:
        here = {uid_of(item) for item in items}
        for uid in [uid for uid in (*self.known, *self._listed) if uid not in here]:
            self._gone(uid)
        self._listed = ()
        for item in items:
            self.put(item)

    def put(self, item: SeenPod | Unread) -> None:
        uid = uid_of(item)
        self._unseen.pop(uid, None)
        if self._touched is not None:
            self._touched.add(uid)
        if isinstance(item, Unread):
            self._unread(item)
            return
        pod = item.pod
        if item.condition is not None:
            self.conditions[uid] = item.condition
        else:
            self.conditions.pop(uid, None)
        if self.known.get(uid) == pod:
            self.unchanged += 1
            return
        self.known[uid] = pod
        self.inbox.add(on.PodSeen(pod))

    def drop(self, item: SeenPod | Unread) -> None:
        self._gone(uid_of(item))

    def begin_read(self) -> None:
        """A read beside the watch begins: what the watch tells from here on may be newer."""
        self._touched, self._read = set(), tuple(self._unseen)

    def give_up_read(self) -> None:
        self._touched = None

    def end_read(self, items: list[SeenPod | Unread]) -> None:
        """Takes a read in. Of pods that the watch told of meanwhile it counts only that they are
        bound, since that is for ever."""
        touched, self._touched = self._touched or set(), None
        here = {uid_of(item) for item in items}
        ours = (*self.known, *self._read)
        for uid in [uid for uid in ours if uid not in here and uid not in touched]:
            self._gone(uid)
        for item in items:
            known = self.known.get(uid_of(item))
            waits = isinstance(known, Pod) and not known.node
            if uid_of(item) not in touched or (
                waits and isinstance(item, SeenPod) and item.pod.node
            ):
                self.put(item)

    def _gone(self, uid: str) -> None:
        if self._touched is not None:
            self._touched.add(uid)
        self.conditions.pop(uid, None)
        if uid in self.known or uid in self._unseen:
            self.known.pop(uid, None)
            self._unseen.pop(uid, None)
            self.inbox.add(on.PodGone(uid))

    def _unread(self, item: Unread) -> None:
        if self.known.get(item.uid) == item:
            return
        self.unread += 1
        where = f", so nothing more is placed on node {item.node}" if item.node else ""
        self.report(f"a pod cannot be read{where}: {item.why}")
        self.conditions.pop(item.uid, None)
        self.known[item.uid] = item
        self.inbox.add(on.PodUnreadable(item.uid, item.node))
        if not item.node:
            self.on_waiting_unread(item)


def uid_of(item: SeenPod | Unread) -> str:
    return item.uid if isinstance(item, Unread) else item.pod.uid


class NamedSink(_Sink[T | Unread]):
    """Things that are known by name: `seen` and `gone` make their events."""

    def __init__(
        self,
        inbox: Inbox,
        report: Report,
        kind: Kind[T],
    ) -> None:
        super().__init__(inbox, report)
        self.kind = kind
        self.known: dict[str, T] = {}
        self._unreadable: dict[str, str] = {}  # by name: why, so that it is told once
        self._touched: set[str] | None = None  # names that the watch told of during a read
        self.on_unread: Callable[[Unread], None] = lambda item: None

    def watched(self) -> Watched[T | Unread]:
        return Watched(self.kind.path, self.decode, older=self.kind.older_path)

    def decode(self, raw: Raw) -> T | Unread:
        try:
            return self.kind.read(raw)
        except Unreadable as error:
            return unread(raw, error)

    def replace(self, items: list[T | Unread], resource_version: str) -> None:
        here = {self._name(item) for item in items}
        for name in [name for name in self.known if name not in here]:
            self._gone(name)
        for item in items:
            self.put(item)

    def begin_read(self) -> None:
        """A read beside the watch begins: what the watch tells from here on may be newer."""
        self._touched = set()

    def give_up_read(self) -> None:
        self._touched = None

    def end_read(self, items: list[T | Unread]) -> None:
        """Takes a read in, but for what the watch told of meanwhile."""
        touched, self._touched = self._touched or set(), None
        here = {self._name(item) for item in items}
        for name in [name for name in self.known if name not in here | touched]:
            self._gone(name)
        for item in items:
            if self._name(item) not in touched:
                self.put(item)

    def put(self, item: T | Unread) -> None:
        if self._touched is not None:
            self._touched.add(self._name(item))
        if isinstance(item, Unread):
            name = self._name(item)
            if self._unreadable.get(name) != item.why:
                self._unreadable[name] = item.why
                self.unread += 1
                self.report(f"a {self.kind.what} cannot be read and is left out: {item.why}")
                self.on_unread(item)
            if self.kind.doubt is None or not item.name:
                self._forget(name)
            else:
                self._put(self.kind.doubt(item.name, item.why))
            return
        self._unreadable.pop(self.kind.name(item), None)
        self._put(item)

    def _put(self, item: T) -> None:
        name = self.kind.name(item)
        if self.known.get(name) == item:
            self.unchanged += 1
            return
        self.known[name] = item
        self.inbox.add(self.kind.seen(item))

    def drop(self, item: T | Unread) -> None:
        self._gone(self._name(item))

    def _gone(self, name: str) -> None:
        if self._touched is not None:
            self._touched.add(name)
        self._unreadable.pop(name, None)
        self._forget(name)

    def _forget(self, name: str) -> None:
        item = self.known.pop(name, None)
        if item is not None:
            self.inbox.add(self.kind.gone(item))

    def _name(self, item: T | Unread) -> str:
        if not isinstance(item, Unread):
            return self.kind.name(item)
        doubt = self.kind.doubt
        return self.kind.name(doubt(item.name, item.why)) if doubt and item.name else item.name


class FailedPod(Struct, frozen=True, gc=False):
    """A pod that ended in failure, and what its status says of it."""

    pod: Pod
    reason: str
    message: str


Failures = Callable[[FailedPod], None]


class FailedSink:
    """Pods in phase Failed: a kubelet that refuses a pod says so there and nowhere else.

    They leave the first watch as DELETED with their old content, so they need a second. What had
    failed before we started is no news, and nothing of them is kept.
    """

    def __init__(self, reader: Reader, on_failed: Failures) -> None:
        self._reader, self._on_failed = reader, on_failed

    def watched(self) -> Watched[FailedPod | None]:
        return Watched(PODS.path(), self.decode, field_selector="status.phase=Failed")

    def decode(self, raw: Raw) -> FailedPod | None:
        try:
            seen = self._reader.decode_pod(raw)
            pod = self._reader.seen_pod(seen)
        except Unreadable:
            return None  # the first watch has told of it
        status = seen.status or wire.PodStatus()
        return FailedPod(pod, status.reason or "", status.message or "")

    def replace(self, items: list[FailedPod | None], resource_version: str) -> None:
        """What had failed before is no news."""

    def put(self, item: FailedPod | None) -> None:
        if item is not None:
            self._on_failed(item)

    def drop(self, item: FailedPod | None) -> None:
        """It was deleted."""

    def synced(self) -> None:
        """Nobody waits for it."""

    def bad(self, line: bytes, error: Exception) -> None:
        """The first watch has told of it."""


class Collected(Generic[T]):
    """A sink that keeps a whole read."""

    def __init__(self) -> None:
        self.items: list[T] = []

    def replace(self, items: list[T], resource_version: str) -> None:
        self.items = items

    def put(self, item: T) -> None:
        """There is no watch."""

    def drop(self, item: T) -> None:
        """There is no watch."""

    def synced(self) -> None:
        """`items` are there."""

    def bad(self, line: bytes, error: Exception) -> None:
        """The watches have told of it."""
