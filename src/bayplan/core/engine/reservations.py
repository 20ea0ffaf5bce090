"""Places that are kept for a gang which has waited too long, until those who have them end.

Nobody is told to go. The places are found on a trial without the pods that came later than the gang
and are no more important; from then on they are held for its members, so that whatever becomes free
there goes to nobody else. The pods that still run there are *awaited*. Of the gangs that want the
same class of devices, one has places at a time.

Until the gang can start, at the latest when the last that it awaits has ended by its owner's word,
a pod that will have ended by then may use the places.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.engine import explain, gang_room, gangs, placing
from bayplan.core.engine.gang_room import GangPlan, Victim
from bayplan.core.engine.nominations import Nominations
from bayplan.core.engine.preempting import Rooms
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.state.arrays import Ints, Mask, Rows
from bayplan.core.state.cluster import Resident
from bayplan.core.state.demand import NOT_ASKED
from bayplan.core.state.view import View
from bayplan.core.state.waiting import Group

MOST_WEIGHED = 300  # pods; of more, all are awaited, and not only those in the way


class Wish(Struct, frozen=True):
    """A gang that wants places."""

    gang: Gang
    group: Group
    pods: list[Pod]  # the members that wait, in order
    missing: int  # so many must find a place
    verdicts: Verdicts

    @property
    def priority(self) -> int:
        return max(pod.priority for pod in self.pods)


class Reservations:
    def __init__(self, rooms: Rooms) -> None:
        self._cluster, self._waiting = rooms.cluster, rooms.waiting
        self._nominations: Nominations = rooms.nominations
        self.day_s = 0.0  # the time of day; 0: nobody knows

    def __contains__(self, owner: str) -> bool:
        return owner in self._nominations.awaited

    # ---- a gang

    def stands(self, wish: Wish) -> bool:
        """Whether its members would fit in the places that are kept for them, once those who are
        awaited have ended: the places are there, their nodes would take the members but for what
        others have, and nobody has come who is not awaited."""
        kept = [pod for pod in wish.pods if pod.uid in self._nominations]
        if len(kept) < wish.missing:
            return False
        cluster = self._cluster
        rows = [cluster.holds.rows[pod.uid] for pod in kept]
        for key in dict.fromkeys(pod.row for pod in kept):
            first = next(pod for pod in kept if pod.row == key)
            with asking(wish.verdicts, first) as ask:
                verdict = wish.verdicts.refusals(ask, View(cluster))
                may = (verdict >= 0) | explain.preemption_helps(wish.verdicts, ask, verdict)
            if not all(may[row] for pod, row in zip(kept, rows, strict=True) if pod.row == key):
                return False
        free = {row: cluster.free[row].copy() for row in rows}
        for resident in self._awaited(wish.gang.key):
            if resident.row in free:
                self._add(free[resident.row], resident.pod)
        asked = self._asked(wish.pods)
        return all((left[asked] >= 0).all() for left in free.values())

    def may_reserve(self, wish: Wish) -> bool:
        """Whether it is the first in line, and nobody as important has places of the kind. Those
        before it for whom there were none to be kept do not count."""
        classes, mine = classes_of(wish.pods), (_first(wish.group), wish.priority)
        if any(self._priority(owner) >= wish.priority for owner in self._rivals(wish)):
            return False
        for group in self._waiting.groups.values():
            if group.refused < 0 or group.hopeless or group is wish.group:
                continue
            pods = [each.pod for each in group.members.values()]
            theirs = (_first(group), max(pod.priority for pod in pods))
            if theirs[1] == mine[1] and theirs[0] < mine[0] and classes & classes_of(pods):
                return False
        return True

    def reserve(self, wish: Wish) -> list[str]:
        """Keeps places for the members, if there are any to wait for. Gives the uids of the pods
        whose places were given up for that."""
        theirs = self._nominations.pods_of(self._rivals(wish))
        plan = self._plan(wish, theirs)
        if plan is None:
            return []
        for uid in theirs:
            self._nominations.forget(uid)
        for placed in plan.placements:
            row = self._cluster.rows[placed.node]
            self._nominations.keep(placing.holding(placed), row, wish.gang.key)
        self._nominations.expect(wish.gang.key, (victim.pod.uid for victim in plan.victims))
        return theirs

    def _rivals(self, wish: Wish) -> list[str]:
        """Who has places of the kind that it wants."""
        classes, others = classes_of(wish.pods), [*self._nominations.awaited]
        others = [owner for owner in others if owner != wish.gang.key]
        return [owner for owner in others if classes & classes_of(self._members(owner))]

    def _plan(self, wish: Wish, theirs: Sequence[str]) -> GangPlan | None:
        """Where the members would be without those who came later, and who of them is in the way.
        Nodes whose pods end soonest first, as many as it takes."""
        rows = self._later(wish)
        order = sorted(rows, key=lambda row: (*self._last(rows[row]), row))
        with self._cluster.trial():
            self._cluster.holds.taken([*theirs, *(pod.uid for pod in wish.pods)])
            many = self._least(wish, rows, order)
            within = self._cluster.alive[: self._cluster.height].copy()
            within[list(self._cluster.holds.pods)] = False  # others are promised room there
            gone: list[Victim] = []
            at = 0
            while many and at < len(order):
                for row in order[at : at + many]:
                    node = self._cluster.name(row)
                    gone += [Victim(each.pod, node) for each in rows[row]]
                    for each in rows[row]:
                        self._cluster.remove(each.pod.uid)
                at, many = at + many, 2 * many
                placed = self._placed(wish, within)
                if placed:
                    if len(gone) > MOST_WEIGHED:
                        return GangPlan(placed, tuple(gone))
                    return gang_room.spared(wish.verdicts, placed, gone)
        return None

    def _least(self, wish: Wish, later: dict[int, list[Resident]], order: Sequence[int]) -> int:
        """How many rows it takes without their later pods, in this order and by amounts, so that
        what is free already is used first; 0: not even all are enough."""
        if len({pod.row for pod in wish.pods}) > 1:
            return 1
        left = self._cluster.free[: self._cluster.height].copy()
        asked = self._asked(wish.pods)
        take = self._cluster.demand(wish.pods[0].row).take[asked]
        missing = wish.missing - int(_times(left[:, asked], take).sum())
        for count, row in enumerate(order, 1):
            before = _times(left[row : row + 1, asked], take)
            for each in later[row]:
                self._add(left[row], each.pod)
            missing -= int((_times(left[row : row + 1, asked], take) - before).sum())
            if missing <= 0:
                return count
        return 0

    def _add(self, left: Ints, pod: Pod) -> None:
        take = self._cluster.demand(pod.row).take
        left[: len(take)] += take

    def _asked(self, pods: Sequence[Pod]) -> Rows:
        """The columns of what any of them asks for."""
        demands = [self._cluster.demand(row) for row in dict.fromkeys(pod.row for pod in pods)]
        width = self._cluster.free.shape[1]
        asked = np.zeros(width, dtype=np.bool_)
        for demand in demands:
            asked[: len(demand.take)] |= (demand.need != NOT_ASKED) & (demand.take > 0)
        return np.flatnonzero(asked)

    def _placed(self, wish: Wish, within: Mask) -> tuple[Placement, ...]:
        """As many as are missing, or none."""
        placed = gangs.place(
            wish.verdicts, wish.pods, wish.missing, keep=True, gang=wish.gang, within=within
        )
        if not placed.ok:
            return ()
        for more in placed.placements[wish.missing :]:
            self._cluster.remove(more.pod.uid)
        return placed.placements[: wish.missing]

    def _later(self, wish: Wish) -> dict[int, list[Resident]]:
        """By row the pods that came later than the gang and are not more important."""
        since, priority = min(pod.created_s for pod in wish.pods), wish.priority
        found: dict[int, list[Resident]] = {}
        for resident in self._cluster.pods.values():
            pod = resident.pod
            if pod.priority > priority or pod.created_s <= since:
                continue
            if pod.gang is None or pod.gang.key != wish.gang.key:
                found.setdefault(resident.row, []).append(resident)
        return found

    def _last(self, residents: Sequence[Resident]) -> tuple[float, float, int]:
        """When the last of them ends; where nobody says so, how new the oldest is, since who has
        run for long may run for ever; and how many they are."""
        pods = [each.pod for each in residents]
        oldest = min(pod.created_s for pod in pods)
        return max(self._end(pod) for pod in pods), -oldest, len(pods)

    # ---- pods that end before

    def lenders(self, pod: Pod) -> list[str]:
        """The gangs that can start only after the pod has ended, were it placed now."""
        run_s = pod.lifecycle.run_s
        if not self.day_s or not run_s:
            return []
        end = self.day_s + run_s
        return [owner for owner in self._nominations.awaited if end <= self._start(owner)]

    def _start(self, owner: str) -> float:
        """When the gang can start at the latest, as far as owners have said. Those whom it has lent
        places do not put it off: else it would never start, with one after the other."""
        lent = self._nominations.awaited[owner]
        pods = [each.pod for each in self._awaited(owner) if not lent[each.pod.uid]]
        ends = [self._end(pod) for pod in pods]
        last = max(ends, default=-math.inf)
        return last if last < math.inf else -math.inf

    def _end(self, pod: Pod) -> float:
        """By its owner's word, in the time of day; infinity where there is none."""
        run_s = pod.lifecycle.run_s
        return pod.started_s + run_s if run_s and pod.started_s else math.inf

    def lent(self, uid: str, row: int, owners: Iterable[str]) -> None:
        """The pod was placed on the row: who has places there awaits its end."""
        for owner in owners:
            places = self._nominations.pods_of([owner])
            if any(self._cluster.holds.rows.get(each) == row for each in places):
                self._nominations.expect(owner, (uid,), lent=True)

    # ---- who

    def _awaited(self, owner: str) -> list[Resident]:
        pods = self._cluster.pods
        return [pods[uid] for uid in self._nominations.awaited.get(owner, ()) if uid in pods]

    def _members(self, owner: str) -> list[Pod]:
        waiting = self._waiting.pods
        uids = self._nominations.pods_of([owner])
        return [waiting[uid][0].pod for uid in uids if uid in waiting]

    def _priority(self, owner: str) -> int:
        return max((pod.priority for pod in self._members(owner)), default=0)


def classes_of(pods: Iterable[Pod]) -> frozenset[str]:
    """The kinds of devices that the pods ask for; of those who ask for none, cpu."""
    rows = dict.fromkeys(pod.row for pod in pods)
    found = {ask.device_class for row in rows for ask in row.devices}
    known = {ask.resource for row in rows for ask in row.devices}
    found |= {name for row in rows for name, _ in row.requests if "/" in name} - known
    return frozenset(found or {"cpu"})


def _times(free: Ints, take: Ints) -> Ints:
    """Per row how often the amounts are there."""
    times: Ints = np.maximum((free // take).min(axis=1), 0)
    return times


def _first(group: Group) -> tuple[tuple[float, ...], int]:
    return min((waiter.sort, waiter.arrival) for waiter in group.members.values())
