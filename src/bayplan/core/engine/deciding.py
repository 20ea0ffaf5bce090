"""Deciding about one pod whose turn it is. Gangs: `gang_deciding`."""

from collections.abc import Sequence

from msgspec.structs import replace

from bayplan.core.engine import explain, placing
from bayplan.core.engine.gang_deciding import GangDeciding
from bayplan.core.engine.preempting import KEPT, Preempting, Rooms
from bayplan.core.engine.preemption import TERMINATING, Plan
from bayplan.core.engine.questions import asking
from bayplan.core.engine.reservations import Reservations
from bayplan.core.model import effects as do
from bayplan.core.model.effects import Placement
from bayplan.core.model.groups import Patience
from bayplan.core.model.verdicts import EventKind, Refusal
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.waiting import Waiter


class Deciding:
    def __init__(self, rooms: Rooms, patience: Patience) -> None:
        self._cluster, self._waiting = rooms.cluster, rooms.waiting
        self._verdicts = rooms.verdicts
        self._nominations, self._queue = rooms.nominations, rooms.queue
        self._promises = rooms.promises
        self.preempting = Preempting(rooms)
        self.reservations = Reservations(rooms)
        self._gangs = GangDeciding(rooms, self.preempting, self.reservations, patience)

    def decide(self, waiter: Waiter, now: float) -> list[do.Effect]:
        if waiter.pod.gang is not None:
            return self._gangs.decide(waiter, now)
        if not self._nominations.owners or waiter.pod.uid not in self._nominations:
            found = None if waiter.pod.worker is None else self._take_promised(waiter, now)
            return self._alone(waiter, now, -1)[0] if found is None else found
        with self._cluster.trial() as trial:  # its own place is not in its way
            home = self._nominations.release(waiter.pod.uid)
            effects, kept = self._alone(waiter, now, home)
            if kept:
                trial.keep()
        return effects

    def _take_promised(self, waiter: Waiter, now: float) -> list[do.Effect] | None:
        """A worker of an elastic job gets one of the job's places; None if none will do."""
        pod = waiter.pod
        ask = Ask(pod, self._cluster.demand(pod.row), waiter.own, waiter.concerning)
        for uid in self._promises.open_to(pod):
            with self._cluster.trial() as trial:
                ((held, row),) = self._cluster.holds.taken([uid])
                if self._verdicts[pod.scheduler].takes(ask, row):
                    effects, taken = self._take(waiter, ask, row, None, now)
                    if taken:
                        trial.keep()
                        if held.row != pod.row:  # it may be smaller than its job has said
                            self._waiting.wake((EventKind.POD_GONE,), now)
                        return effects
        return None

    # ---- a pod

    def _alone(self, waiter: Waiter, now: float, home: int) -> tuple[list[do.Effect], bool]:
        """What is decided, and whether the state is another for it."""
        pod = waiter.pod
        verdicts = self._verdicts[pod.scheduler]
        ask = Ask(pod, self._cluster.demand(pod.row), waiter.own, waiter.concerning)
        if home >= 0 and verdicts.takes(ask, home):
            return self._take(waiter, ask, home, None, now)
        row, verdict, rows = verdicts.best(ask)
        if row < 0:
            lenders = self.reservations.lenders(pod)
            if lenders and (found := self._borrow(waiter, ask, lenders, now)) is not None:
                return found
            with asking(verdicts, pod) as held:  # others go and come back on trials meanwhile
                return self._refuse(waiter, held, home, now)
        promised = self._nominations.owners and self.preempting.promised([pod])
        if promised:
            row = self.preempting.harmless(ask, (verdict, rows), promised)
            if row < 0:
                return self._keeps_away(waiter, now), False
        picked = None
        if verdicts.profile.picker is not None and not promised:
            pick = self._queue.picking.pick(verdicts.profile.picker, verdicts, ask, (verdict, rows))
            row, picked = pick.row, pick.index
        return self._take(waiter, ask, row, picked, now)

    def _borrow(
        self, waiter: Waiter, ask: Ask, lenders: Sequence[str], now: float
    ) -> tuple[list[do.Effect], bool] | None:
        """Room that is kept for gangs which start only after the pod has ended."""
        kept = self._nominations.pods_of(lenders)
        with self._cluster.trial() as trial:
            places = self._cluster.holds.taken(kept)
            row, _, _ = self._verdicts[ask.pod.scheduler].best(ask)
            if row < 0:
                return None
            effects, ok = self._take(waiter, ask, row, None, now)
            for pod, at in places:
                self._cluster.holds.hold(pod, at)
            if ok:
                trial.keep()
                self.reservations.lent(ask.pod.uid, row, lenders)
        return effects, ok

    def _keeps_away(self, waiter: Waiter, now: float) -> list[do.Effect]:
        refusal = self.preempting.kept()
        news = self._waiting.refuse(waiter, refusal, now)
        return [do.Refuse(member.pod, refusal) for member in news]

    def _take(
        self, waiter: Waiter, ask: Ask, row: int, picked: int | None, now: float
    ) -> tuple[list[do.Effect], bool]:
        profile = self._verdicts[ask.pod.scheduler].profile
        placement = placing.placement(self._cluster, profile, ask, row)
        why = placing.reserve(self._cluster, profile, ask, placement, row)
        if why is not None:
            self._waiting.rest(waiter, now)
            refusal = Refusal(why, {}, frozenset(EventKind), self._cluster.version)
            return [do.Refuse(ask.pod, refusal)], False
        kept = bool(self._nominations.owners) and self._nominations.forget(ask.pod.uid)
        self._queue.assume(self._queue.dequeue(ask.pod.uid))
        if self._waiting.asleep:  # else nobody would hear of it: a placement makes no room
            self._waiting.wake((EventKind.POD_PLACED,), now)
        if kept:  # it may be elsewhere
            self._waiting.wake((EventKind.POD_GONE,), now)
        return [do.Bind(placement, picked)], True

    def _refuse(
        self, waiter: Waiter, ask: Ask, home: int, now: float
    ) -> tuple[list[do.Effect], bool]:
        """It fits nowhere. Perhaps others go for it; if not, it and its equals wait."""
        pod = waiter.pod
        refusal = explain.refusal(self._verdicts[pod.scheduler], ask, self._cluster.version)
        found, placed = self.preempting.find_room(ask, home)
        self.preempting.attempts += found is not None
        if isinstance(found, Plan):
            assert placed is not None
            row = self._cluster.rows[found.node]
            effects = self.preempting.displace(pod, row, now)
            if found.gone:
                return effects + self._preempt(waiter, placed, found, refusal, now), True
            taken, ok = self._take(waiter, ask, row, None, now)
            if not ok and self._nominations.forget(pod.uid):
                self._waiting.wake((EventKind.POD_GONE,), now)
            return effects + taken, True
        if found == KEPT:
            refusal = replace(refusal, helped_by=frozenset(EventKind))
        if found is not None:
            refusal = replace(refusal, more=f"preemption: {found}")
        had = pod.uid in self._nominations.owners
        lost = found != TERMINATING and (self._nominations.forget(pod.uid) or bool(pod.nominated))
        if lost:
            waiter.pod = replace(pod, nominated="")
        if had != (pod.uid in self._nominations.owners):
            self._queue.requeue(waiter, now)
            self._waiting.wake((EventKind.POD_GONE,), now)
        news = [member.pod for member in self._waiting.refuse(waiter, refusal, now)]
        if lost:
            news = [waiter.pod, *(each for each in news if each is not waiter.pod)]
        told = [
            do.Refuse(each, refusal, "" if lost and each is waiter.pod else None) for each in news
        ]
        return list(told), lost

    def _preempt(
        self, waiter: Waiter, placed: Placement, plan: Plan, refusal: Refusal, now: float
    ) -> list[do.Effect]:
        pod, row = waiter.pod, self._cluster.rows[plan.node]
        if self._nominations.keep(placing.holding(placed), row, pod.uid):
            self._waiting.wake((EventKind.POD_GONE,), now)  # its place was elsewhere before
        effects = self.preempting.doom(pod, plan.node, plan.victims, pod.uid)
        self._nominations.doom(plan.leaving, pod.uid)  # told before, perhaps for a higher priority
        waiter.pod = replace(pod, nominated=plan.node)
        self._queue.requeue(waiter, now)
        self._waiting.refuse(waiter, refusal, now)
        return [do.Refuse(waiter.pod, refusal, plan.node), *effects]
