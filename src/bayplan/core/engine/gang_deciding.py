"""Deciding about a gang: all its members that wait, on one trial.

Members that are placed already count. Where the rest does not fit, others may go for it: then every
member keeps the place that it would have, until they are gone.
"""

from collections.abc import Hashable

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine import gang_room, gangs, placing
from bayplan.core.engine.gang_room import GangPlan
from bayplan.core.engine.preempting import KEPT, Preempting, Rooms
from bayplan.core.engine.preemption import NEVER, TERMINATING
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model import effects as do
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import EventKind, Refusal, Tally
from bayplan.core.state.waiting import Group, Waiter, gang_key

INCOMPLETE = "members of the gang are missing"
INCOMPLETE_S = 1.0  # members are told so when others are still missing by then
TIMEOUT_S = 300.0  # a gang that is placed in part is given up then; kube-scheduler waits as long


class Turn(Struct, frozen=True):
    """A gang whose turn it is."""

    key: str
    group: Group
    members: tuple[Waiter, ...]  # those that wait, in order
    here: int  # members that are placed
    minimum: int
    verdicts: Verdicts

    @property
    def missing(self) -> int:
        """So many must find a place now."""
        return max(self.minimum - self.here, 1)

    @property
    def pods(self) -> list[Pod]:
        return [member.pod for member in self.members]


class GangDeciding:
    def __init__(self, rooms: Rooms, preempting: Preempting) -> None:
        self._cluster, self._waiting = rooms.cluster, rooms.waiting
        self._verdicts, self._preemption = rooms.verdicts, rooms.preemption
        self._nominations, self._queue = rooms.nominations, rooms.queue
        self._preempting = preempting
        # What became of gangs, by shape, as long as the cluster stays as it is.
        self._refused: dict[Hashable, tuple[gangs.Placed, str | None]] = {}
        self._version = -1

    def decide(self, waiter: Waiter, now: float) -> list[do.Effect]:
        turn = self._turn(waiter)
        if len(turn.members) < turn.missing:
            return self._incomplete(turn, now)
        shape = self._shape(turn)
        known = self._refused.get(shape) if self._version == self._cluster.version else None
        if known is not None:  # an equal one was refused a moment ago, and nothing has happened
            return self._refuse(turn, *known, now)
        promised = self._preempting.promised(turn.pods)
        with self._cluster.trial() as trial:  # places that are kept for members are theirs
            homes = self._homes(turn)
            placed = gangs.place(turn.verdicts, turn.pods, turn.missing, homes, keep=True)
            harmless = self._preempting.stand(promised)
            if placed.ok and harmless:
                trial.keep()
        if not placed.ok:
            plan = self._plan(turn)
            if shape is not None and not isinstance(plan, GangPlan):
                self._remember(shape, placed, plan)
            return self._refuse(turn, placed, plan, now)
        if not harmless:
            return self._told(turn, self._preempting.kept(), now)
        effects: list[do.Effect] = []
        turn.group.since = -1.0
        self._unkeep(turn, now)  # some may be elsewhere
        for placement in placed.placements:
            self._queue.assume(self._queue.dequeue(placement.pod.uid))
            effects.append(do.Bind(placement))
        self._waiting.wake((EventKind.POD_PLACED,), now)
        if turn.group.members and placed.refusal is not None:
            effects += self._told(turn, placed.refusal, now)
        return effects

    def _turn(self, waiter: Waiter) -> Turn:
        pod = waiter.pod
        assert pod.gang is not None
        _, group = self._waiting.pods[pod.uid]
        members = sorted(group.members.values(), key=lambda each: (each.sort, each.arrival))
        minimum = max(each.pod.gang.minimum for each in members if each.pod.gang is not None)
        here = gangs.here(self._cluster, pod.gang.key, self._nominations.doomed)
        verdicts = self._verdicts[pod.scheduler]
        return Turn(pod.gang.key, group, tuple(members), here, minimum, verdicts)

    def _homes(self, turn: Turn) -> dict[str, int]:
        return {
            pod.uid: self._nominations.release(pod.uid)
            for pod in turn.pods
            if pod.uid in self._nominations
        }

    # ---- refusals

    def _incomplete(self, turn: Turn, now: float) -> list[do.Effect]:
        """The others are perhaps on their way: nobody is told for a moment."""
        there = turn.here + len(turn.members)
        text = f"gang {turn.key} is not complete: {there} of {turn.minimum} members are here"
        text += self._elsewhere(turn)
        tallies = {INCOMPLETE: Tally(0, ())}
        # Another scheduler may place one, or one that was to go stays, or its node appears.
        helped = frozenset({EventKind.POD_PLACED, EventKind.POD_GONE, EventKind.NODE_ADDED})
        refusal = Refusal(text, tallies, helped, self._cluster.version)
        self._unkeep(turn, now)
        if turn.group.since < 0:
            turn.group.since = now
        if now < turn.group.since + INCOMPLETE_S:
            self._waiting.sleep(turn.group, refusal, turn.group.since + INCOMPLETE_S)
            return []
        return self._told(turn, refusal, now)

    def _elsewhere(self, turn: Turn) -> str:
        """Members that another of our profiles has, which will never meet these."""
        counts = []
        for name in self._verdicts:
            group = self._waiting.groups.get(gang_key(name, turn.key))
            if group is not None and group is not turn.group:
                counts.append(f"{len(group.members)} more have schedulerName {name}")
        return f"; {', '.join(counts)}, and a gang needs one" if counts else ""

    def _unkeep(self, turn: Turn, now: float) -> None:
        kept = [pod.uid for pod in turn.pods if self._nominations.forget(pod.uid)]
        if kept:
            self._waiting.wake((EventKind.POD_GONE,), now)

    def _told(self, turn: Turn, refusal: Refusal, now: float) -> list[do.Effect]:
        """To those who do not know it yet; and who has lost the place that it was told of hears
        that."""
        news = {member.pod.uid for member in self._waiting.refuse_gang(turn.group, refusal, now)}
        effects: list[do.Effect] = []
        for member in turn.group.members.values():
            lost = self._has_lost(member.pod)
            if lost:
                member.pod = replace(member.pod, nominated="")
            if lost or member.pod.uid in news:
                effects.append(do.Refuse(member.pod, refusal, "" if lost else None))
        return effects

    def _has_lost(self, pod: Pod) -> bool:
        told_of = bool(pod.nominated) and pod.uid not in self._nominations
        return told_of and not self._preempting.is_awaited(pod)

    def _shape(self, turn: Turn) -> Hashable:
        """What gangs must share to be refused alike; None where that cannot be said."""
        if turn.key in self._cluster.census.gangs or not turn.verdicts.by_terms_alone:
            return None  # its own members are nobody's victims; other plugins may look at anything
        concerning = self._cluster.terms.concerning
        for pod in turn.pods:
            if pod.terms is not None or pod.row.claims or pod.nominated or concerning(pod):
                return None
            if pod.uid in self._nominations.owners:
                return None
        members = tuple((pod.row, pod.priority, pod.preempts) for pod in turn.pods)
        return (turn.verdicts.profile.name, turn.missing, members)

    def _remember(self, shape: Hashable, placed: gangs.Placed, plan: str | None) -> None:
        if self._version != self._cluster.version:
            self._refused.clear()
            self._version = self._cluster.version
        self._refused[shape] = (placed, plan)

    def _refuse(
        self, turn: Turn, placed: gangs.Placed, plan: GangPlan | str | None, now: float
    ) -> list[do.Effect]:
        why = placed.refusal
        assert why is not None
        count = turn.here + len(placed.placements)
        more = f"gang {turn.key}: {count} of {turn.minimum} members fit."
        if isinstance(plan, GangPlan):
            return self._preempt(turn, plan, replace(why, more=more), now)
        if plan is not None:
            more = f"{more} preemption: {plan}"
        effects = self._given_up(turn, now)
        return effects + self._told(turn, replace(why, more=more), now)

    def _given_up(self, turn: Turn, now: float) -> list[do.Effect]:
        """Members that have run without the others for too long make room, if somebody would make
        them anew."""
        group = turn.group
        if not turn.here or turn.here >= turn.minimum:
            group.since = -1.0
            if not self._nominations.waits(turn.key):
                self._unkeep(turn, now)
            return []
        if group.since < 0:
            group.since = now
        if now < group.since + TIMEOUT_S:
            return []
        group.since = now
        self._unkeep(turn, now)
        members = [self._cluster.pods[uid].pod for uid in self._cluster.census.gangs[turn.key]]
        words = f"gang {turn.key}: {turn.here} of {turn.minimum} members have a place"
        going = [pod for pod in members if pod.controlled and not pod.terminating]
        why = f"{words} for {TIMEOUT_S:.0f} s, which is too few"
        report = do.Report(f"{words}; {len(going)} of them are evicted")
        return [report, *(do.Evict(pod, why) for pod in going)]

    # ---- others go for it

    def _plan(self, turn: Turn) -> GangPlan | str | None:
        if turn.verdicts.profile.preempt is None:
            return None
        self._preempting.attempts += 1
        if not all(pod.preempts for pod in turn.pods):
            return NEVER
        if self._nominations.waits(turn.key) or any(map(self._preempting.is_awaited, turn.pods)):
            return TERMINATING
        promised = self._preempting.promised(turn.pods)
        with self._cluster.trial():
            self._homes(turn)
            preemption = self._preemption[turn.pods[0].scheduler]
            plan = gang_room.plan(turn.verdicts, preemption, turn.pods, turn.missing)
            if isinstance(plan, GangPlan) and not self._preempting.stand(promised):
                return KEPT
        return plan

    def _preempt(self, turn: Turn, plan: GangPlan, refusal: Refusal, now: float) -> list[do.Effect]:
        rows = self._cluster.rows
        for pod in turn.pods:
            self._nominations.forget(pod.uid)
        effects: list[do.Effect] = []
        for placed in plan.placements:
            effects += self._preempting.displace(placed.pod, rows[placed.node], now)
        going: dict[str, list[Pod]] = {}  # by node
        for victim in plan.victims:
            going.setdefault(victim.node, []).append(victim.pod)
        told: dict[str, str] = {}  # by uid: the node that is kept for it
        for placed in plan.placements:
            self._nominations.keep(placing.holding(placed), rows[placed.node], turn.key)
            told[placed.pod.uid] = placed.node
            here = going.pop(placed.node, [])
            effects += self._preempting.doom(placed.pod, placed.node, here, turn.key)
        first = plan.placements[0]
        for victims in going.values():  # of gangs that are on other nodes too
            effects += self._preempting.doom(first.pod, first.node, victims, turn.key)
        news = {member.pod.uid for member in self._waiting.refuse_gang(turn.group, refusal, now)}
        for member in turn.members:
            node = told.get(member.pod.uid)
            if node is not None:
                member.pod = replace(member.pod, nominated=node)
            if node is not None or member.pod.uid in news:
                effects.append(do.Refuse(member.pod, refusal, node))
        return effects
