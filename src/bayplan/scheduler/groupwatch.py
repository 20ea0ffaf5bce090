"""PodGroups and their members as the API has them, members that have ended too.

The engine's own watches leave out what it need not know: pods that have ended, statuses. Here they
are followed for those who write statuses, and only pods that carry a label of a group.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from bayplan.core.model.groups import Source
from bayplan.kube.client import POD_GROUPS, PODS
from bayplan.kube.read import Reader
from bayplan.kube.reflector import Watched
from bayplan.kube.wire import GROUP_LABEL, SchedulingGroup, Wire
from bayplan.scheduler.groupstatus import Member, SeenGroup

Key = tuple[Source, str, str]  # a group's namespace and name
Place = tuple[str, str]  # the same, of whichever group of the API


class _Owner(Wire):
    name: str | None = None


class _Metadata(Wire):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Group(Wire):
    metadata: _Metadata
    status: Any = None


class _Spec(Wire):
    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_group: SchedulingGroup | None = None


class _Status(Wire):
    phase: str | None = None


class _Pod(Wire):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


_decode_group = msgspec.json.Decoder(_Group).decode
_decode_pod = msgspec.json.Decoder(_Pod).decode


class GroupSink:
    """The groups of one group of the API; `changed` hears of each that may need another status."""

    def __init__(self, source: Source, changed: Callable[[Key], None]) -> None:
        self.source, self._changed, self._reader = source, changed, Reader()
        self.known: dict[Place, SeenGroup] = {}

    def watched(self) -> Watched[SeenGroup]:
        return Watched(POD_GROUPS[self.source].path(), self.decode)

    def decode(self, raw: Raw) -> SeenGroup:
        seen = _decode_group(raw)
        group = self._reader.pod_group(raw, self.source)
        about, status = seen.metadata, seen.status if isinstance(seen.status, dict) else {}
        version = about.resource_version
        return SeenGroup(about.namespace, about.name, about.generation, version, group, status)

    def replace(self, items: list[SeenGroup], resource_version: str) -> None:
        here = {_place(item) for item in items}
        for place in [place for place in self.known if place not in here]:
            self._gone(place)
        for item in items:
            self.put(item)

    def put(self, item: SeenGroup) -> None:
        self.known[_place(item)] = item
        self._changed((self.source, *_place(item)))

    def drop(self, item: SeenGroup) -> None:
        self._gone(_place(item))

    def synced(self) -> None:
        """Nobody waits for it."""

    def bad(self, line: bytes, error: Exception) -> None:
        """The engine's watch has told of it."""

    def _gone(self, place: Place) -> None:
        if self.known.pop(place, None) is not None:
            self._changed((self.source, *place))


class MemberSink:
    """Pods with one of the labels, by the group that it names."""

    def __init__(self, label: str, ours: Iterable[str], changed: Callable[[Place], None]) -> None:
        """`ours`: the names of our profiles."""
        self.label, self._ours, self._changed = label, frozenset(ours), changed
        self.by_group: dict[Place, dict[str, Member]] = {}  # then by uid
        self._places: dict[str, Place] = {}  # by uid
        self.is_synced = False

    def watched(self) -> Watched[tuple[Place, Member]]:
        return Watched(PODS.path(), self.decode, label_selector=self.label)

    def decode(self, raw: Raw) -> tuple[Place, Member]:
        seen = _decode_pod(raw)
        about, spec, status = seen.metadata, seen.spec or _Spec(), seen.status or _Status()
        member = Member(
            uid=about.uid,
            name=about.name,
            created=about.creation_timestamp or "",
            phase=status.phase or "Pending",
            scheduled=bool(spec.node_name),
            ours=(spec.scheduler_name or "") in self._ours,
            owners=tuple(owner.name for owner in about.owner_references or () if owner.name),
        )
        return (about.namespace, self._group(about.labels or {}, spec)), member

    def _group(self, labels: dict[str, str], spec: _Spec) -> str:
        """The group that the label names, if it is the one that counts for the pod."""
        named = labels.get(self.label, "")
        if spec.scheduling_group is not None or labels.get(GROUP_LABEL, "") not in ("", named):
            return ""
        return named

    def replace(self, items: list[tuple[Place, Member]], resource_version: str) -> None:
        here = {member.uid for _, member in items}
        for uid in [uid for uid in self._places if uid not in here]:
            self._gone(uid)
        for item in items:
            self.put(item)

    def put(self, item: tuple[Place, Member]) -> None:
        place, member = item
        if self._places.get(member.uid, place) != place:
            self._gone(member.uid)
        before = self.by_group.get(place, {}).get(member.uid)
        if before == member or not place[1]:
            return
        self._places[member.uid] = place
        self.by_group.setdefault(place, {})[member.uid] = member
        self._changed(place)

    def drop(self, item: tuple[Place, Member]) -> None:
        self._gone(item[1].uid)

    def synced(self) -> None:
        self.is_synced = True

    def bad(self, line: bytes, error: Exception) -> None:
        """The engine's watch has told of it."""

    def _gone(self, uid: str) -> None:
        place = self._places.pop(uid, None)
        if place is not None:
            members = self.by_group[place]
            del members[uid]
            if not members:
                del self.by_group[place]
            self._changed(place)


def _place(item: SeenGroup) -> Place:
    return item.namespace, item.name
