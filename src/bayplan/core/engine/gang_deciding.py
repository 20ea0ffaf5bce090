"""Deciding about a gang: all its members that wait, on one trial.

Members that are placed already count, and those that have done their work, as far as the object
that says what the gang is tells of them. Where the rest does not fit, others may go for it: then
every member keeps the place that it would have, until they are gone. A gang that nobody goes for
and that has waited for long gets places nonetheless (`reservations`).
"""

import math
from collections.abc import Hashable

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine import gang_room, gangs, placing
from bayplan.core.engine.gang_room import GangPlan
from bayplan.core.engine.preempting import KEPT, Preempting, Rooms
from bayplan.core.engine.preemption import NEVER, TERMINATING
from bayplan.core.engine.reservations import Reservations, Wish
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model import effects as do
from bayplan.core.model.groups import Patience, PodGroup
from bayplan.core.model.pods import Gang, Pod
from bayplan.core.model.verdicts import EventKind, Refusal, Tally
from bayplan.core.state.waiting import Group, Waiter, gang_key

INCOMPLETE = "members of the gang are missing"
RESERVED = "places are kept for the gang"
GAP = "less is free than the gang's minResources"
RECONSIDER_S = 60.0  # nobody has ended in the places that are kept; or `reserve_s`, if longer
INCOMPLETE_S = 1.0  # members are told so when others are still missing by then


class Turn(Struct, frozen=True):
    """A gang whose turn it is."""

    gang: Gang
    said: PodGroup | None  # the object that says what it is
    group: Group
    members: tuple[Waiter, ...]  # those that wait, in order
    running: int  # members that are placed
    verdicts: Verdicts

    @property
    def key(self) -> str:
        return self.gang.key

    @property
    def minimum(self) -> int:
        return self.gang.minimum

    @property
    def here(self) -> int:
        """Members that are placed, or need no place any more."""
        return self.running + gangs.ended(self.said)

    @property
    def missing(self) -> int:
        """So many must find a place now."""
        return max(self.minimum - self.here, 1)

    @property
    def pods(self) -> list[Pod]:
        return [member.pod for member in self.members]

    @property
    def is_elastic(self) -> bool:
        return any(pod.worker is not None for pod in self.pods)


class GangDeciding:
    def __init__(
        self, rooms: Rooms, preempting: Preempting, reservations: Reservations, patience: Patience
    ) -> None:
        self._cluster, self._waiting = rooms.cluster, rooms.waiting
        self._verdicts, self._preemption = rooms.verdicts, rooms.preemption
        self._nominations, self._queue = rooms.nominations, rooms.queue
        self._promises = rooms.promises
        self._preempting, self._reservations = preempting, reservations
        self._patience = patience
        # What became of gangs, by shape, as long as the cluster stays as it is.
        self._refused: dict[Hashable, tuple[gangs.Placed, str | None]] = {}
        self._version = -1

    def decide(self, waiter: Waiter, now: float) -> list[do.Effect]:
        turn = self._turn(waiter)
        why = self._unclear(turn)
        if why is not None:
            return self._put_off(turn, *why, now)
        shape = self._shape(turn)
        known = self._refused.get(shape) if self._version == self._cluster.version else None
        if known is not None:  # an equal one was refused a moment ago, and nothing has happened
            return self._refuse(turn, *known, now)
        promised = self._preempting.promised(turn.pods)
        with self._cluster.trial() as trial:  # places that are kept for members are theirs
            homes = self._homes(turn)
            short = gangs.gap(self._cluster, turn.said)
            placed = gangs.place(
                turn.verdicts,
                turn.pods,
                turn.missing,
                homes,
                keep=True,
                gang=turn.gang,
                doomed=self._nominations.doomed,
            )
            harmless = self._preempting.stand(promised)
            if placed.ok and harmless and not short:
                trial.keep()
                self._promised_changed(turn, now)
        if not placed.ok:
            plan = self._plan(turn)
            if shape is not None and not isinstance(plan, GangPlan):
                self._remember(shape, placed, plan)
            return self._refuse(turn, placed, plan, now)
        if not harmless:
            return self._give_up(turn, now) + self._told(turn, self._preempting.kept(), now)
        if short:
            every, version = frozenset(EventKind), self._cluster.version
            refusal = Refusal(short, {GAP: Tally(0, ())}, every, version)
            return self._give_up(turn, now) + self._told(turn, refusal, now)
        effects: list[do.Effect] = []
        turn.group.since = turn.group.partial = -1.0
        self._no_longer_refused(turn.group)
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
        gang, said = gangs.meant(self._cluster, (member.pod for member in members))
        running = len(gangs.staying(self._cluster, gang.key, self._nominations.doomed))
        return Turn(gang, said, group, tuple(members), running, self._verdicts[pod.scheduler])

    def _homes(self, turn: Turn) -> dict[str, int]:
        homes = {
            pod.uid: self._nominations.release(pod.uid)
            for pod in turn.pods
            if pod.uid in self._nominations
        }
        others = [pod for pod in turn.pods if pod.uid not in homes]
        return homes | self._promises.homes(others)

    def _promised_changed(self, turn: Turn, now: float) -> None:
        """What the job was promised is given up for what its workers got, which may be elsewhere,
        or nowhere."""
        if turn.is_elastic:
            self._promises.is_due = True
            self._waiting.wake((EventKind.POD_GONE,), now)

    # ---- refusals

    def _unclear(self, turn: Turn) -> tuple[str, str] | None:
        """Why it cannot be tried, in full and in short: what it is cannot be said, or not all are
        here."""
        why = gangs.unclear(turn.gang, turn.said)
        if why:
            return why, why
        if len(turn.members) >= turn.missing:
            return None
        there = turn.here + len(turn.members)
        text = f"{turn.gang.title} is not complete: {there} of {turn.minimum} members are here"
        return text + self._elsewhere(turn), INCOMPLETE

    def _put_off(self, turn: Turn, why: str, reason: str, now: float) -> list[do.Effect]:
        """What is missing is perhaps on its way: nobody is told for a moment."""
        tallies = {reason: Tally(0, ())}
        # Another scheduler may place one, or one that was to go stays, or its node appears.
        helped = {EventKind.POD_PLACED, EventKind.POD_GONE, EventKind.NODE_ADDED}
        helped.add(EventKind.POD_RELABELLED)  # or somebody becomes one
        refusal = Refusal(why, tallies, frozenset(helped), self._cluster.version)
        self._unkeep(turn, now)
        self._no_longer_refused(turn.group)
        if turn.group.since < 0:
            turn.group.since = now
        if now < turn.group.since + INCOMPLETE_S:
            self._waiting.sleep(turn.group, refusal, turn.group.since + INCOMPLETE_S)
            return []
        return self._give_up(turn, now) + self._told(turn, refusal, now)

    def _elsewhere(self, turn: Turn) -> str:
        """Members that another of our profiles has, which will never meet these."""
        counts = []
        for name in self._verdicts:
            group = self._waiting.groups.get(gang_key(name, turn.key))
            if group is not None and group is not turn.group:
                counts.append(f"{len(group.members)} more have schedulerName {name}")
        return f"; {', '.join(counts)}, and a gang needs one" if counts else ""

    def _by(self, turn: Turn, now: float) -> float:
        """When it is tried again at the latest: as soon as it may be given up, or get places."""
        times = []
        if turn.group.partial >= 0:
            times.append(turn.group.partial + self._timeout_s(turn))
        if turn.group.refused >= 0:
            times.append(turn.group.refused + self._patience.reserve_s)
        return min((at for at in times if at > now), default=math.inf)

    def _unkeep(self, turn: Turn, now: float) -> None:
        kept = [pod.uid for pod in turn.pods if self._nominations.forget(pod.uid)]
        if kept:
            self._waiting.wake((EventKind.POD_GONE,), now)

    def _told(self, turn: Turn, refusal: Refusal, now: float) -> list[do.Effect]:
        """To those who do not know it yet; and who has lost the place that it was told of hears
        that."""
        found = self._waiting.refuse_gang(turn.group, refusal, now, self._by(turn, now))
        news = {member.pod.uid for member in found}
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
            if pod.uid in self._nominations.owners or pod.worker is not None:
                return None
        members = tuple((pod.row, pod.priority, pod.preempts) for pod in turn.pods)
        topology = (turn.gang.within, turn.gang.across)
        return (turn.verdicts.profile.name, turn.missing, members, topology)

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
        more = f"{turn.gang.title}: {count} of {turn.minimum} members fit{together(turn.gang)}."
        if isinstance(plan, GangPlan):
            return self._preempt(turn, plan, replace(why, more=more), now)
        if plan is not None:
            more = f"{more} preemption: {plan}"
        effects = self._give_up(turn, now)
        if plan != TERMINATING and self._reserve(turn, now):
            more = f"{more} {kept_words(turn.missing)}"
            why = replace(why, tallies=why.tallies | {RESERVED: Tally(0, ())})
        return effects + self._told(turn, replace(why, more=more), now)

    def _timeout_s(self, turn: Turn) -> float:
        return turn.gang.timeout_s or self._patience.timeout_s

    def _give_up(self, turn: Turn, now: float) -> list[do.Effect]:
        """Members that have run without the others for too long make room, if somebody would make
        them anew."""
        group, timeout_s = turn.group, self._timeout_s(turn)
        if not turn.running or turn.here >= turn.minimum:
            group.partial = -1.0
            if not self._nominations.waits(turn.key) and turn.key not in self._reservations:
                self._unkeep(turn, now)
            return []
        if group.partial < 0:
            group.partial = now
        if now < group.partial + timeout_s:
            return []
        group.partial = now
        self._unkeep(turn, now)
        members = [self._cluster.pods[uid].pod for uid in self._cluster.census.gangs[turn.key]]
        words = f"{turn.gang.title}: {turn.here} of {turn.minimum} members have a place"
        going = [pod for pod in members if pod.controlled and not pod.terminating]
        why = f"{words} for {timeout_s:.0f} s, which is too few"
        report = do.Report(f"{words}; {len(going)} of them are evicted")
        return [report, *(do.Evict(pod, why) for pod in going)]

    def _reserve(self, turn: Turn, now: float) -> bool:
        """Whether places are kept for the gang, which may have waited for long enough."""
        group, patience_s = turn.group, self._patience.reserve_s
        if turn.here >= turn.minimum:
            self._no_longer_refused(group)
            return False
        if group.refused < 0:
            group.refused = now
        if now < group.refused + patience_s:
            return False
        wish = Wish(turn.gang, group, turn.pods, turn.missing, turn.verdicts)
        if turn.key in self._reservations:
            awaits = len(self._nominations.awaited[turn.key])
            if awaits < group.awaits:
                group.kept = now
            group.awaits = awaits
            until = group.kept + max(patience_s, RECONSIDER_S)
            if now < until and self._reservations.stands(wish):
                return True
            self._unkeep(turn, now)  # they are no good any more, or nobody ever ends there
        if not self._reservations.may_reserve(wish):
            return False
        for uid in self._reservations.reserve(wish):
            self._waiting.rouse(uid, now)
        group.hopeless, group.kept = turn.key not in self._reservations, now
        if not group.hopeless:  # others, or its own members, may have had places before
            self._waiting.wake((EventKind.POD_GONE,), now)
        group.awaits = len(self._nominations.awaited.get(turn.key, ()))
        return not group.hopeless

    def _no_longer_refused(self, group: Group) -> None:
        group.refused, group.hopeless = -1.0, False

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
            doomed = self._nominations.doomed
            plan = gang_room.plan(
                turn.verdicts, preemption, turn.pods, turn.missing, turn.gang, doomed
            )
            if isinstance(plan, GangPlan) and (short := gangs.gap(self._cluster, turn.said)):
                return short
            if isinstance(plan, GangPlan) and not self._preempting.stand(promised):
                return KEPT
        return plan

    def _preempt(self, turn: Turn, plan: GangPlan, refusal: Refusal, now: float) -> list[do.Effect]:
        rows = self._cluster.rows
        self._unkeep(turn, now)
        self._promises.homes(turn.pods)  # they get places of their own
        self._promised_changed(turn, now)
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


def together(gang: Gang) -> str:
    """Where they must be, in words."""
    within = f" in one {gang.within}" if gang.within else ""
    return within + (f" evenly across {gang.across}" if gang.across else "")


def kept_words(places: int) -> str:
    return f"{places} places are kept for it until the pods there end."
