"""The pods that wait, kept by key: pods that would get the same verdict wait as one group.

An event wakes a group, not its pods. When one pod of a group is refused, its equals are refused
with it and the group sleeps until an event that could help. A refused pod rests for 1 s, doubling
to 10 s, and its equals may be tried meanwhile. Time is an argument.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Hashable
from heapq import heapify, heappop, heappush

from msgspec import Struct

from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import EventKind, Help, Refusal
from bayplan.core.state.terms import OwnTerms, Term

LONGEST_SLEEP_S = 300.0  # kube-scheduler also retries after 5 minutes, whatever happened
REST, ALARM = 0, 1  # timers: for pods that rest, and for a group that sleeps
SortKey = tuple[float, ...]


class Rests(Struct, frozen=True):
    """How long a refused pod rests: kube-scheduler's back-off."""

    first_s: float = 1.0
    longest_s: float = 10.0


class Waiter(Struct, gc=False):
    """A pod that waits."""

    pod: Pod
    sort: SortKey
    arrival: int
    own: OwnTerms | None = None
    concerning: tuple[Term, ...] = ()
    generation: int = -1  # of the terms when `concerning` was found
    attempts: int = 0
    rested_at: float = 0.0  # not tried again before
    told: frozenset[str] = frozenset()  # the reasons that were last reported


class Group:
    """Pods of one key and priority. Most groups are one pod for a moment, so what few of them need
    stands in the class until it changes."""

    refusal: Refusal | None = None  # set while the group sleeps
    told: frozenset[str] = frozenset()  # the reasons that all but newcomers were told
    announced: SortKey | None = None  # its entry in the queue of groups
    sleeps_until = 0.0
    alarm_at = -1.0  # when a timer will end the sleep; other alarms mean nothing
    # Of a gang, from when on, or -1:
    since = -1.0  # members, or the object that says what it is, were missing
    partial = -1.0  # some of it ran without the others
    refused = -1.0  # all were there, and did not fit
    kept = -1.0  # places are kept for it, and nobody has ended there
    awaits = 0  # so many have to end there
    hopeless = False  # of a gang: there were no places to be kept for it, the last time

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.members: dict[str, Waiter] = {}  # by uid
        self.awake: list[tuple[SortKey, int, str]] = []  # heap; entries may be stale
        self.resting: list[tuple[float, int, str]] = []  # heap; entries may be stale
        self.newcomers: dict[str, None] = {}  # uids

    def tidy(self) -> None:
        """Forgets entries of pods that are gone, when they are most of it."""
        if len(self.awake) + len(self.resting) > 2 * len(self.members) + 64:
            here = self.members
            self.awake = [e for e in self.awake if e[2] in here and here[e[2]].arrival == e[1]]
            self.resting = [e for e in self.resting if e[2] in here and here[e[2]].arrival == e[1]]
            heapify(self.awake)
            heapify(self.resting)

    def next_awake(self) -> Waiter | None:
        awake = self.awake
        while awake:
            _, arrival, uid = awake[0]
            waiter = self.members.get(uid)
            if waiter is not None and waiter.arrival == arrival:
                return waiter
            heappop(awake)
        return None


class Waiting:
    """All waiting pods, the order in which to try them, and what wakes them."""

    def __init__(self, rests: Rests = Rests()) -> None:  # noqa: B008
        self.rests = rests
        self.pods: dict[str, tuple[Waiter, Group]] = {}
        self.groups: dict[Hashable, Group] = {}
        self.asleep = 0  # groups that wait for an event
        self.helped = 0  # how often something happened that may have made room
        self._ready: list[tuple[SortKey, int, Group]] = []  # heap; entries may be stale
        self._timers: list[tuple[float, int, Hashable, int]] = []  # heap: when, ticket, group, kind
        self._by_kind: defaultdict[Help, dict[Hashable, None]] = defaultdict(dict)
        self._ticket = 0

    def __len__(self) -> int:
        return len(self.pods)

    def ticket(self) -> int:
        """A number larger than all before; the arrival of a pod."""
        self._ticket += 1
        return self._ticket

    def add(self, waiter: Waiter, key: Hashable, now: float) -> Refusal | None:
        """The pod waits in the group of `key`. Gives the refusal, if it is news to the pod."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key)
        uid = waiter.pod.uid
        group.members[uid] = waiter
        group.newcomers[uid] = None
        self.pods[uid] = (waiter, group)
        if waiter.rested_at > now:
            heappush(group.resting, (waiter.rested_at, waiter.arrival, uid))
            self._timer(waiter.rested_at, group, REST)
        else:
            heappush(group.awake, (waiter.sort, waiter.arrival, uid))
            if group.refusal is None:
                self._announce(group)
        if group.refusal is None or waiter.told == reasons_of(group.refusal):
            return None
        waiter.told = reasons_of(group.refusal)
        return group.refusal

    def remove(self, uid: str) -> Waiter:
        waiter, group = self.pods.pop(uid)
        del group.members[uid]
        group.newcomers.pop(uid, None)
        if group.members:
            group.tidy()
            return waiter
        del self.groups[group.key]
        if group.refusal is not None:
            self._unlist(group)
        return waiter

    def next(self, now: float) -> tuple[Waiter, Group] | None:
        """The pod to try first. It stays until it is removed, refused or moved."""
        if self._timers and self._timers[0][0] <= now:
            self._expire(now)
        while self._ready:
            sort, _, group = self._ready[0]
            if group.members and group.announced == sort:
                waiter = group.next_awake() if group.refusal is None else None
                if waiter is not None and waiter.sort == sort:
                    return waiter, group
                heappop(self._ready)
                group.announced = None
                if waiter is not None:
                    self._announce(group)
            else:
                heappop(self._ready)  # of a group that is gone, or announced anew
        return None

    def refuse(self, waiter: Waiter, refusal: Refusal, now: float) -> list[Waiter]:
        """The pod was refused, and its equals with it. Gives those whose reasons are new."""
        _, group = self.pods[waiter.pod.uid]
        self._rest(waiter, group, now)
        self.sleep(group, refusal, now + LONGEST_SLEEP_S)
        return self._news(group, refusal)

    def refuse_gang(
        self, group: Group, refusal: Refusal, now: float, by: float = math.inf
    ) -> list[Waiter]:
        """All pods of the group were refused as one, and rest as one. They are tried again by then
        at the latest."""
        group.awake.clear()
        for waiter in group.members.values():
            self.back_off(waiter, now)
            waiter.rested_at = min(waiter.rested_at, by)
        group.resting = [(w.rested_at, w.arrival, uid) for uid, w in group.members.items()]
        heapify(group.resting)
        for at in sorted({waiter.rested_at for waiter in group.members.values()}):
            self._timer(at, group, REST)
        self.sleep(group, refusal, min(now + LONGEST_SLEEP_S, by))
        return self._news(group, refusal)

    def sleep(self, group: Group, refusal: Refusal, until: float) -> None:
        """Nobody of the group is tried until an event that could help, or until then."""
        if group.refusal is not None:
            self._unlist(group)
        self.asleep += 1
        group.refusal = refusal
        group.sleeps_until = until
        if not 0 <= group.alarm_at <= until:
            self._timer(until, group, ALARM)
        for kind in refusal.helped_by:
            self._by_kind[kind][group.key] = None

    def _news(self, group: Group, refusal: Refusal) -> list[Waiter]:
        reasons = reasons_of(refusal)
        untold = list(group.newcomers if group.told == reasons else group.members)
        group.told, group.newcomers = reasons, {}
        members = (group.members.get(uid) for uid in untold)
        news = [member for member in members if member is not None and member.told != reasons]
        for member in news:
            member.told = reasons
        return news

    def rest(self, waiter: Waiter, now: float) -> None:
        """The pod alone waits for its back-off; its equals may be tried."""
        _, group = self.pods[waiter.pod.uid]
        self._rest(waiter, group, now)
        self._announce(group)

    def rouse(self, uid: str, now: float) -> None:
        """What the pod waited for has come: its group is tried at once, whoever of it rests."""
        _, group = self.pods[uid]
        for waiter in group.members.values() if group.resting else ():
            if waiter.rested_at > now:
                waiter.rested_at = now
                heappush(group.resting, (now, waiter.arrival, waiter.pod.uid))
        if group.refusal is not None:
            self._wake(group, now)
        else:
            self._rested(group, now)
            self._announce(group)

    def rouse_gang(self, scheduler: str, key: str, now: float) -> None:
        """What the gang waited for has come."""
        group = self.groups.get(gang_key(scheduler, key))
        if group is not None:
            self.rouse(next(iter(group.members)), now)

    def wake(self, kinds: Collection[Help], now: float) -> None:
        """Something happened that could help: groups that waited for it are tried again."""
        for kind in kinds:
            if kind is not EventKind.POD_PLACED:
                self.helped += 1
                break
        if not self.asleep:
            return
        for kind in kinds:
            keys = self._by_kind.get(kind)
            if keys:
                for key in list(keys):
                    self._wake(self.groups[key], now)

    def awaits(self, kind: Help) -> bool:
        """Whether somebody would be tried again if that happened."""
        return bool(self._by_kind.get(kind))

    def next_time(self, now: float) -> float | None:
        """When there may be something to try: now, at a later time, or never (None).

        A timer that is over is left for the next try, so that asking changes nothing.
        """
        if self._timers and self._timers[0][0] <= now:
            return now
        if self.next(now) is not None:
            return now
        return self._timers[0][0] if self._timers else None

    def back_off(self, waiter: Waiter, now: float) -> None:
        """One more try was in vain: the pod rests."""
        waiter.attempts += 1
        doublings = min(waiter.attempts - 1, 16)  # 2 to the thousandth is no number of seconds
        waiter.rested_at = now + min(self.rests.first_s * 2**doublings, self.rests.longest_s)

    def _rest(self, waiter: Waiter, group: Group, now: float) -> None:
        self.back_off(waiter, now)
        while group.awake and group.awake[0][2] == waiter.pod.uid:  # twice, if it was put back
            heappop(group.awake)
        heappush(group.resting, (waiter.rested_at, waiter.arrival, waiter.pod.uid))
        self._timer(waiter.rested_at, group, REST)

    def _timer(self, at: float, group: Group, kind: int) -> None:
        if kind == ALARM:
            group.alarm_at = at
        heappush(self._timers, (at, self.ticket(), group.key, kind))

    def _expire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, _, key, kind = heappop(self._timers)
            group = self.groups.get(key)
            if group is None:
                continue
            if kind == REST:
                if self._rested(group, now) and group.refusal is None:
                    self._announce(group)
                continue
            if at != group.alarm_at:
                continue
            group.alarm_at = -1.0
            if group.refusal is None:
                continue
            if group.sleeps_until <= now:
                self._wake(group, now)
            else:
                self._timer(group.sleeps_until, group, ALARM)

    def _rested(self, group: Group, now: float) -> bool:
        """Pods whose rest is over may be tried again."""
        found = False
        while group.resting and group.resting[0][0] <= now:
            at, arrival, uid = heappop(group.resting)
            waiter = group.members.get(uid)
            if waiter is not None and waiter.arrival == arrival and waiter.rested_at == at:
                heappush(group.awake, (waiter.sort, arrival, uid))
                found = True
        return found

    def _wake(self, group: Group, now: float) -> None:
        self._unlist(group)
        group.refusal = None
        self._rested(group, now)
        self._announce(group)

    def _unlist(self, group: Group) -> None:
        assert group.refusal is not None
        self.asleep -= 1
        for kind in group.refusal.helped_by:
            keys = self._by_kind.get(kind, {})
            keys.pop(group.key, None)
            if not keys:  # of claims there are many, and each is a kind of its own
                self._by_kind.pop(kind, None)

    def _announce(self, group: Group) -> None:
        """The group stands in the queue where its first pod does."""
        waiter = group.next_awake()
        if waiter is not None and (group.announced is None or waiter.sort < group.announced):
            group.announced = waiter.sort
            heappush(self._ready, (waiter.sort, self.ticket(), group))


def gang_key(scheduler: str, key: str) -> Hashable:
    """Members of one gang wait as one group, each scheduler's apart."""
    return ("gang", scheduler, key)


def reasons_of(refusal: Refusal) -> frozenset[str]:
    return frozenset(refusal.tallies) or frozenset({refusal.message})
