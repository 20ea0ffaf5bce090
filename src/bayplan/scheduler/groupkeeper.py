"""Keeps the statuses of PodGroups true. A chore of the leader, slow and on the side.

A status is written when it differs from what it should be: not more often than every second, and
where only the words differ not more often than every half minute. Each write names the version that
it was made for, so whoever wrote meanwhile is not undone: the watch brings what they wrote, and the
next look goes from there. Groups all of whose members are another scheduler's are left to it.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.model.groups import SOURCES, Source
from bayplan.core.state.waiting import gang_key
from bayplan.kube import wire
from bayplan.kube.client import POD_GROUPS, Client
from bayplan.kube.reflector import Reflector
from bayplan.kube.transport import MERGE_PATCH, ApiError, Fenced, TransportError
from bayplan.scheduler import groupstatus
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.groupstatus import Json, Member, SeenGroup
from bayplan.scheduler.groupwatch import GroupSink, Key, MemberSink, Place
from bayplan.scheduler.requests import second

log = logging.getLogger("bayplan")

LOOK_S = 1.0
WORDS_S = 30.0  # between two writes that change words only
LONGEST_REST_S = 60.0  # after a write that failed again and again
FORBIDDEN_S = 600.0  # until it is tried again without the right
AT_ONCE = 8  # writes
LOOKS = 64  # groups that are looked at between two turns of others


class Pace(Struct):
    """When a group may be written next."""

    at: float = 0.0  # the last write
    again: float = 0.0  # not before, after a write that failed
    rest_s: float = LOOK_S


class GroupKeeper:
    def __init__(
        self, engine: Engine, client: Client, fence: Fence, is_bound: Callable[[str], bool]
    ) -> None:
        """`is_bound`: whether the pod with this uid has a node, as far as the API has told."""
        self._engine, self._client, self._clock = engine, client, client.clock
        self._fence, self._is_bound = fence, is_bound
        self._groups = {source: GroupSink(source, self._changed) for source in SOURCES}
        self._members = [
            MemberSink(label, engine.profiles, self._member_changed)
            for label in (wire.GROUP_LABEL, wire.OLD_GROUP_LABEL)
        ]
        self._due: dict[Key, None] = {}  # to be looked at
        self._waits: dict[Key, str] = {}  # not scheduled yet, and why when it was looked at last
        self._paces: dict[Key, Pace] = {}
        self._unkept: dict[Source, frozenset[str]] = dict.fromkeys(SOURCES, frozenset())
        self._told: set[tuple[Source, int]] = set()  # troubles
        self.writes = 0

    async def run(self, leads: Callable[[], bool], has: Callable[[Source], bool]) -> None:
        """Until cancelled. `has`: whether the server has the kind; nothing is followed before."""
        customs = SOURCES[:2]
        async with asyncio.TaskGroup() as tasks:
            for source, groups in self._groups.items():
                first = _once(leads, has, (source,))
                reflector = Reflector(self._client, groups.watched(), groups)
                tasks.create_task(self._follow(reflector, first), name=f"podgroups.{source}")
            for members in self._members:
                first = _once(leads, has, customs)
                pods = Reflector(self._client, members.watched(), members)
                tasks.create_task(self._follow(pods, first), name=members.label)
            while True:
                await self._clock.sleep(LOOK_S)
                if leads() and self._fence.is_open:
                    await self._round()

    async def _follow(
        self,
        reflector: Reflector[SeenGroup] | Reflector[tuple[Place, Member]],
        first: Callable[[], bool],
    ) -> None:
        while not first():
            await self._clock.sleep(LOOK_S)
        await reflector.run()

    # ---- what may have changed

    def _changed(self, key: Key) -> None:
        self._due[key] = None

    def _member_changed(self, place: Place) -> None:
        for source in SOURCES[:2]:
            if place in self._groups[source].known:
                self._due[source, *place] = None

    # ---- one round

    async def _round(self) -> None:
        wanted: list[tuple[Key, SeenGroup, Json]] = []
        looks = 0
        for key in [*self._due, *(key for key in self._waits if key not in self._due)]:
            looks += 1
            if looks % LOOKS == 0:
                await self._clock.sleep(0.0)  # the others' turn
            seen = self._groups[key[0]].known.get(key[1:])
            if seen is None:
                self._forget(key)
                continue
            why = self._why(seen)
            if key not in self._due and seen.is_custom and why in ("", self._waits[key]):
                continue
            status = self._look(key, seen, why)
            if status is not None:
                wanted.append((key, seen, status))
        await asyncio.gather(*(self._write_all(wanted) for _ in range(AT_ONCE)))

    def _look(self, key: Key, seen: SeenGroup, why: str) -> Json | None:
        """What is to be written now, if anything. What has to wait stays due."""
        self._due[key] = None
        pace, now = self._paces.get(key), self._clock.time()
        if pace is not None and now < pace.again:
            return None
        if seen.is_custom and not all(members.is_synced for members in self._members):
            return None  # who they are is not known yet
        status = self._status(seen, why)
        before = {field: seen.status.get(field) for field in status}
        if groupstatus.without_words(status) == groupstatus.without_words(before):
            if status != before and pace is not None and now - pace.at < WORDS_S:
                return None
            if status == before:
                status = {}
        del self._due[key]
        self._waits.pop(key, None)
        if not groupstatus.is_scheduled(status or seen.status):
            self._waits[key] = why
        return status or None

    def _status(self, seen: SeenGroup, why: str) -> Json:
        """As far as it is ours to say, and the server keeps it."""
        key = seen.group.gang.key
        if seen.is_custom:
            members = self._members_of((seen.namespace, seen.name))
            if members and not any(member.ours for member in members):
                return {}
            status = groupstatus.status_of(seen, members, why, second(self._clock.wall()))
        else:
            placed = self._engine.cluster.census.gangs.get(key, ())
            bound = sum(self._is_bound(uid) for uid in placed)
            pods = (self._engine.cluster.pods[uid].pod for uid in placed)
            if not why and not any(pod.scheduler in self._engine.profiles for pod in pods):
                return {}
            now = second(self._clock.wall())
            status = groupstatus.conditions_of(seen, bound, why, now)
        unkept = self._unkept[seen.group.source]
        return {field: value for field, value in status.items() if field not in unkept}

    def _members_of(self, place: Place) -> list[Member]:
        found: dict[str, Member] = {}
        for sink in self._members:
            found.update(sink.by_group.get(place, {}))
        return list(found.values())

    def _why(self, seen: SeenGroup) -> str:
        """What the group's members wait for, in the engine's words; empty while they do not."""
        for scheduler in self._engine.profiles:
            group = self._engine.waiting.groups.get(gang_key(scheduler, seen.group.gang.key))
            if group is not None and group.refusal is not None:
                return group.refusal.sentence
        return ""

    def _forget(self, key: Key) -> None:
        self._due.pop(key, None)
        self._waits.pop(key, None)
        self._paces.pop(key, None)

    # ---- writing

    async def _write_all(self, wanted: list[tuple[Key, SeenGroup, Json]]) -> None:
        while wanted:
            key, seen, status = wanted.pop()
            pace = self._paces.setdefault(key, Pace())
            pace.at = self._clock.time()
            try:
                await self._write(seen, status)
                pace.again, pace.rest_s = pace.at + LOOK_S, LOOK_S
            except Fenced:
                self._due[key] = None
            except TransportError:
                self._rest(key, pace)
            except ApiError as error:
                self._trouble(key[0], error)
                self._rest(key, pace, FORBIDDEN_S if error.status == 403 else 0.0)

    async def _write(self, seen: SeenGroup, status: Json) -> None:
        source = seen.group.source
        patch = {"metadata": {"resourceVersion": seen.resource_version}, "status": status}
        body = await self._client.request(
            "PATCH",
            POD_GROUPS[source].path(seen.namespace, seen.name, "status"),
            body=msgspec.json.encode(patch),
            content_type=MERGE_PATCH,
            before_send=self._fence.of_now(),
        )
        self.writes += 1
        try:
            stands = self._groups[source].decode(msgspec.Raw(body))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return  # the watch will bring it
        if self._groups[source].known.get((seen.namespace, seen.name)) == seen:
            self._groups[source].put(stands)
        self._unkept[source] |= {field for field in status if field not in stands.status}

    def _rest(self, key: Key, pace: Pace, least_s: float = 0.0) -> None:
        """Tried again, later each time."""
        self._due[key] = None
        pace.again = pace.at + max(pace.rest_s, least_s)
        pace.rest_s = min(2 * pace.rest_s, LONGEST_REST_S)

    def _trouble(self, source: Source, error: ApiError) -> None:
        """Told once. That somebody else was faster, or the group is gone, is no trouble."""
        if error.status not in (404, 409) and (source, error.status) not in self._told:
            self._told.add((source, error.status))
            log.warning("the status of a PodGroup of %s cannot be written: %s", source, error)


def _once(
    leads: Callable[[], bool], has: Callable[[Source], bool], sources: tuple[Source, ...]
) -> Callable[[], bool]:
    return lambda: leads() and any(map(has, sources))
