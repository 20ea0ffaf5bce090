"""The engine: the single writer of the cluster. Events in, effects out.

Drivers, live or simulated, hold one engine and call `handle`. An exception while deciding about
one pod parks that pod and the next goes on; an exception while applying an event is the driver's.
"""

import math
import traceback
from collections.abc import Hashable, Iterable, Sequence

from bayplan.core.engine import doubts
from bayplan.core.engine.alike import group_key, same_on_its_node, same_room, same_to_us
from bayplan.core.engine.deciding import Deciding
from bayplan.core.engine.facts import Facts
from bayplan.core.engine.keeper import GRACE_S, Keeper
from bayplan.core.engine.nodes import Nodes
from bayplan.core.engine.nominations import Nominations
from bayplan.core.engine.offers import Offers
from bayplan.core.engine.picking import Picking
from bayplan.core.engine.preempting import Preempting, Rooms
from bayplan.core.engine.preemption import Preemption
from bayplan.core.engine.profile import Profile, ProfileConfig, check_together
from bayplan.core.engine.promises import Promises
from bayplan.core.engine.questions import aside
from bayplan.core.engine.reservations import Reservations
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.groups import Patience
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import EventKind
from bayplan.core.state.cluster import Cluster, Resident
from bayplan.core.state.waiting import Rests, Waiter, Waiting, gang_key

MAX_IN_FLIGHT = 512  # binds without an answer; beyond, a later pod of higher priority goes first


class Engine:
    """Decides where each pod goes."""

    def __init__(
        self,
        profiles: Sequence[Profile] | None = None,
        *,
        picking: Picking | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        rests: Rests = Rests(),  # noqa: B008
        grace_s: float = GRACE_S,
        patience: Patience = Patience(),  # noqa: B008
    ) -> None:
        """`grace_s`: how long a partition may be without its pod, or a pod without it."""
        self.cluster = Cluster()
        self.waiting = Waiting(rests)
        self.held: dict[str, tuple[Pod, str]] = {}  # by uid: kept out of the queue, and why
        self.assumed: dict[str, Waiter] = {}  # by uid: bind asked for, not answered
        # of them, those that wait for volumes or partitions, which can take minutes
        self.claiming: set[str] = set()
        self.unreadable: dict[str, str] = {}  # by uid: the node that it closes
        chosen = [Profile(ProfileConfig())] if profiles is None else list(profiles)
        check_together(chosen)
        self.profiles = {profile.name: profile for profile in chosen}
        self.order = chosen[0].order
        self.verdicts = {name: Verdicts(self.cluster, p) for name, p in self.profiles.items()}
        self.picking = picking or Picking()
        self.nominations = Nominations(self.cluster)
        self.preemption = {
            name: Preemption(each, self.nominations.doomed, self.nominations.spared)
            for name, each in self.verdicts.items()
        }
        self.promises = Promises(
            self.cluster, self.verdicts, self.nominations, self.waiting, self.assumed
        )
        first = chosen[0].name
        self.offers = Offers(self.verdicts[first], self.preemption[first], self.nominations)
        kept = self.nominations, self.promises
        rooms = Rooms(self.cluster, self.waiting, self.verdicts, self.preemption, *kept, self)
        self._deciding = Deciding(rooms, patience)
        self.max_in_flight, self.patience = max_in_flight, patience
        self.plugin_errors = 0
        self._facts = Facts(self.cluster, self.waiting, self.profiles)
        self._nodes = Nodes(self.cluster, self.waiting)
        self.keeper = Keeper(self.cluster, self.waiting, self.assumed, self.unreadable, grace_s)
        self._reports: list[do.Effect] = []  # told at the end of a Tick

    def handle(self, event: on.Event, now: float) -> list[do.Effect]:
        promises = self.promises
        if promises.grants or promises.places:  # as `is_kept`, which is a call more
            promises.note(event)
        match event:  # what comes most often first; looking for an attribute takes its time
            case on.PodSeen():
                return self._see(event.pod, now)
            case on.PodGone():
                return self._gone(event.uid, now)
            case on.BindDone():
                self._confirm(event.uid)
            case on.Tick(limit, day_s):
                self.reservations.day_s = day_s
                return self._cycle(now, limit)
            case on.BindFailed(uid, _):
                return self._forget(uid, now)
            case on.VictimSpared(uid, _, preemptor, for_s):
                if for_s and uid in self.cluster.pods:
                    self.nominations.leave_alone(uid, now + for_s)
                return self._spared(uid, "" if for_s else preemptor, now)
            case on.PodUnreadable(uid, node):
                effects = self._gone(uid, now)
                self._close(uid, node)
                # It may still use its partition.
                return [each for each in effects if not isinstance(each, do.Dismantle)]
            case on.PodExpected() | on.PodNotExpected() | on.PlaceWanted() | on.BindAsked():
                self.nominations.expire(now)
                effects = self.offers.hear(event, now)
                if isinstance(event, on.PodNotExpected):
                    self.waiting.wake((EventKind.POD_GONE,), now)
                for each in effects:
                    if isinstance(each, do.Bind):
                        self.assume(Waiter(each.placement.pod, (), 0))
                return effects
            case on.GrantSeen() | on.GrantGone() | on.ConfirmFailed():
                self.promises.hear(event)
            case on.NodeSeen(node):
                return self._nodes.see(node, now)
            case on.EstateSeen() | on.EstateLost():
                return self.keeper.hear(event, now)
            case on.PartitionMade() | on.PartitionRefused() | on.PartitionGone():
                return self.keeper.hear(event, now)
            case on.NodeGone(name):
                if name in self.cluster.rows:
                    self.cluster.remove_node(name)
                    self._lost_with_node(now)
                    # Its pods and its domain no longer count for spread and affinity.
                    self.waiting.wake((EventKind.POD_GONE, EventKind.NODE_CHANGED), now)
            case _:
                self._facts.learn(event, now)
        return []

    def asked(self) -> aside:
        """For a question."""
        return aside(self.cluster, self.preemption.values())

    def is_idle(self, now: float) -> bool:
        """Whether a Tick would do nothing."""
        ends = min(
            self.cluster.distrusted.next_end, self.offers.next_end, self.nominations.next_end
        )
        return not (self.waiting.pods or self._reports or ends <= now or self.promises.is_due)

    def next_time(self, now: float) -> float | None:
        """When a Tick may do something: now, at a later time, or not before an event (None)."""
        if self.promises.is_due:
            return now
        if not self.waiting.pods or self.is_full:
            return None
        ends = min(self.cluster.distrusted.next_end, self.nominations.next_end)
        times = [self.waiting.next_time(now), ends, self._facts.next_end]
        return min((at for at in times if at is not None and at != math.inf), default=None)

    @property
    def preempting(self) -> Preempting:
        return self._deciding.preempting

    @property
    def reservations(self) -> Reservations:
        return self._deciding.reservations

    @property
    def is_full(self) -> bool:
        """Whether as many binds are on their way as may be. Those that wait for volumes do not
        count: whoever waits for a broken provisioner would keep everybody else waiting."""
        return len(self.assumed) - len(self.claiming) >= self.max_in_flight

    # ---- pods

    def _see(self, pod: Pod, now: float) -> list[do.Effect]:
        if self.unreadable:
            self._open(pod.uid, now)
        resident = self.cluster.pods.get(pod.uid)
        if resident is not None:
            return self._see_resident(resident, pod, now)
        if self.cluster.orphans and (orphan := self.cluster.orphan(pod.uid)) is not None:
            return self._see_orphan(orphan, pod, now)
        known = self.waiting.pods.get(pod.uid)
        if pod.node:
            self.offers.forget(pod.uid)
            self._forget_unplaced(pod.uid, now)
            self.cluster.place(pod, pod.node)
            self.waiting.wake((EventKind.POD_PLACED,), now)
            if pod.gang is not None:  # bound by somebody else: it may be in part from now on
                self.waiting.rouse_gang(pod.scheduler, pod.gang.key, now)
            return list(doubts.of_pod(self.cluster, pod))
        if not self._is_ours(pod):
            if known is not None or pod.uid in self.held or pod.terminating:
                self._forget_unplaced(pod.uid, now)
            return []
        if known is None:
            return self._queue(Waiter(pod, (), self.waiting.ticket()), now)
        if same_to_us(known[0].pod, pod):
            known[0].pod = pod
            return []
        if not same_room(known[0].pod, pod):
            self._unkeep(pod.uid, now)
        waiter = self.dequeue(pod.uid)  # it keeps its place in the queue and its back-off
        waiter.pod = pod
        effects = self._queue(waiter, now)
        if pod.uid not in self.waiting.pods:
            self._unkeep(pod.uid, now)
        if pod.gang is not None and pod.uid in self.waiting.pods:  # its gang may be another now
            self.waiting.rouse(pod.uid, now)
        return effects

    def _is_ours(self, pod: Pod) -> bool:
        """Whether the pod, not bound, is ours to place."""
        return pod.scheduler in self.profiles and not pod.terminating

    def _see_orphan(self, orphan: Pod, pod: Pod, now: float) -> list[do.Effect]:
        """News of a pod whose node is not known."""
        if not pod.node:  # an update from before the bind: the assumed place stands
            self._remember(pod)
        elif not same_to_us(orphan, pod):
            self.cluster.remove(pod.uid)
            self.cluster.place(pod, pod.node)
            self.waiting.wake((EventKind.POD_PLACED,), now)
        if pod.node:
            self._confirm(pod.uid)
        return []

    def _remember(self, pod: Pod) -> None:
        """What the pod is now, should its bind fail."""
        assumed = self.assumed.get(pod.uid)
        if assumed is not None:
            assumed.pod = pod

    def _see_resident(self, resident: Resident, pod: Pod, now: float) -> list[do.Effect]:
        old, uid = resident.pod, pod.uid
        node = self.cluster.nodes[resident.row]
        assert node is not None
        if not pod.node:  # an update from before the bind: the assumed place stands
            self._remember(pod)
            return []
        self._confirm(uid)
        moved = pod.node != node.name
        if old.started_s != pod.started_s and self.nominations.awaited:
            self.waiting.wake((EventKind.POD_GONE,), now)  # it is known now when it ends
        if not moved and same_on_its_node(old, pod):
            if old.labels == pod.labels:
                self.cluster.note_pod(resident, pod)
            else:
                self.cluster.relabel(uid, pod)
                self.waiting.wake((EventKind.POD_RELABELLED,), now)
            return []
        self.cluster.remove(uid)
        self.cluster.place(pod, pod.node)
        kinds = {EventKind.POD_GONE, EventKind.POD_PLACED} if moved else set()
        if (old.labels, old.terminating, old.gang) != (pod.labels, pod.terminating, pod.gang):
            kinds |= {EventKind.POD_RELABELLED}
        if old.row != pod.row or old.held != pod.held:
            kinds |= {EventKind.POD_SHRANK}
        self.waiting.wake(kinds, now)
        said = [f"pod {pod.key} was bound to {pod.node}, not to {node.name}"] if moved else []
        return [*map(do.Report, said), *doubts.of_pod(self.cluster, pod)]

    def _gone(self, uid: str, now: float) -> list[do.Effect]:
        if self.unreadable:
            self._open(uid, now)
        self._confirm(uid)
        self.offers.forget(uid)
        effects: list[do.Effect] = []
        resident = self.cluster.pods.get(uid)
        if resident is not None:
            effects = self.keeper.leave(resident.pod, ended=True)
            self.cluster.remove(uid)
            self.waiting.wake((EventKind.POD_GONE,), now)
        else:
            self._forget_unplaced(uid, now)
            orphan = self.cluster.orphan(uid)
            if orphan is not None:
                effects = self.keeper.leave(orphan, ended=True)
                self.cluster.remove(uid)
                if effects:
                    self.waiting.wake((EventKind.POD_GONE,), now)
        if roused := self.nominations.gone(uid):
            self._rouse(roused, now)
        return effects

    def _queue(self, waiter: Waiter, now: float) -> list[do.Effect]:
        """The pod waits for its turn, unless a plugin keeps it out of the queue."""
        pod = waiter.pod
        try:
            held = None
            for plugin in self.profiles[pod.scheduler].admit:
                if held := plugin.hold(pod):
                    break
            if not held:
                waiter.sort = self.order.key(pod, waiter.arrival)
        except Exception as error:
            self.held[pod.uid] = (pod, f"a plugin failed: {error}")  # until it changes
            return [self._park(pod, error)]
        if held:
            self.held[pod.uid] = (pod, held)
            return []
        if self.held:
            self.held.pop(pod.uid, None)
        if pod.terms is not None:
            waiter.own = self.cluster.acquire_terms(pod.terms)
        refusal = self.waiting.add(waiter, self._key(waiter), now)
        if pod.gang is not None and not waiter.attempts:  # perhaps the last that was missing
            waiter.told = frozenset()  # it hears what comes of that
            self.waiting.rouse(pod.uid, now)
            return []
        return [] if refusal is None else [do.Refuse(pod, refusal)]

    def dequeue(self, uid: str) -> Waiter:
        waiter = self.waiting.remove(uid)
        try:
            self.order.left(waiter.pod)
        except Exception as error:  # it may order badly from here on; the pod is out all the same
            self.plugin_errors += 1
            words = f"plugin {self.order.name} failed as pod {waiter.pod.key} left the queue"
            self._reports.append(do.Report(f"{words}: {type(error).__name__}: {error}"))
        if waiter.own is not None:
            self.cluster.release_terms(waiter.own)
            waiter.own = None
        return waiter

    def requeue(self, waiter: Waiter, now: float) -> None:
        """The pod waits elsewhere in the queue, since something about it has changed."""
        self.waiting.remove(waiter.pod.uid)
        self.waiting.add(waiter, self._key(waiter), now)

    def _forget_unplaced(self, uid: str, now: float) -> None:
        self._unkeep(uid, now)
        self.held.pop(uid, None)
        if uid in self.waiting.pods:
            self.dequeue(uid)

    # ---- outcomes of binds

    def assume(self, waiter: Waiter) -> None:
        self.assumed[waiter.pod.uid] = waiter
        row = waiter.pod.row
        if row.claims or row.partitions:
            self.claiming.add(waiter.pod.uid)

    def _confirm(self, uid: str) -> Waiter | None:
        self.claiming.discard(uid)
        self.keeper.made.discard(uid)
        return self.assumed.pop(uid, None)

    def _forget(self, uid: str, now: float) -> list[do.Effect]:
        """The bind failed: the pod waits again, after its back-off."""
        waiter = self._confirm(uid)
        if waiter is None:
            return []
        placed = self.cluster.pods.get(uid)
        effects = self.keeper.leave(self.cluster.anybody(uid), ended=False)
        self.cluster.remove(uid)
        self._rouse(self.nominations.unexpected(uid), now)
        self._rouse(self.nominations.gone(uid), now)
        self.waiting.wake((EventKind.POD_GONE,), now)  # also of its ports and labels
        if not self._is_ours(waiter.pod):  # it changed meanwhile
            return effects
        waiter.arrival = self.waiting.ticket()
        self.waiting.back_off(waiter, now)
        granted = self.promises.granted(waiter.pod)  # then a place is held anyway
        if placed is not None and placed.pod.gang is not None and not granted:  # others are there
            self.nominations.keep(placed.pod, placed.row, placed.pod.gang.key)
        return effects + self._queue(waiter, now)

    # ---- places that are kept

    def _unkeep(self, uid: str, now: float) -> None:
        """Nothing is kept for the pod any more."""
        if self.nominations.forget(uid):
            self.waiting.wake((EventKind.POD_GONE,), now)

    def _lost_with_node(self, now: float) -> None:
        """Victims whose node went are in nobody's way any more."""
        for uid in [uid for uid in self.nominations.doomed if uid not in self.cluster.pods]:
            self._rouse(self.nominations.gone(uid), now)

    def _rouse(self, uids: Iterable[str], now: float) -> None:
        for uid in uids:
            if uid in self.waiting.pods:
                self.waiting.rouse(uid, now)

    def _spared(self, uid: str, preemptor: str, now: float) -> list[do.Effect]:
        """A victim stays: whoever it was to go for looks elsewhere. If that one is no more, but a
        more important pod needs the victim's room too, it has to be deleted for that."""
        owners = self.nominations.doomed.get(uid, {})
        owner = self.nominations.owners.get(preemptor, preemptor)
        if preemptor and owner not in owners and uid in self.cluster.pods:
            heir = self.preempting.heir(uid)
            if heir is not None:
                return [do.Preempt(heir, heir.nominated, (self.cluster.pods[uid].pod,))]
        pods = [each for each in self.nominations.given_up(uid) if each in self.waiting.pods]
        self.waiting.wake((EventKind.POD_GONE,), now)
        for each in pods:
            self.requeue(self.waiting.pods[each][0], now)
        return []

    # ---- nodes

    def _close(self, uid: str, node: str) -> None:
        if node:
            self.unreadable[uid] = node
            self.cluster.close_node(node, uid)

    def _open(self, uid: str, now: float) -> None:
        node = self.unreadable.pop(uid, None)
        if node is not None:
            self.cluster.open_node(node, uid)
            self.waiting.wake((EventKind.NODE_CHANGED,), now)

    def _forgive(self, now: float) -> None:
        """Some nodes were left alone for long enough."""
        self.cluster.distrusted.expire(now)
        self.waiting.wake((EventKind.NODE_FORGIVEN,), now)
        self.promises.is_due |= self.promises.is_kept

    # ---- deciding

    def _cycle(self, now: float, limit: int) -> list[do.Effect]:
        if self.offers.next_end <= now:
            self.offers.expire(now)
            self.waiting.wake((EventKind.POD_GONE,), now)
        if self.nominations.spared and self.nominations.expire(now):
            self.waiting.wake((EventKind.POD_GONE,), now)
        if self.cluster.distrusted.next_end <= now:
            self._forgive(now)
        self._facts.settle(now, self.reservations.day_s)
        self.cluster.tidy()
        effects: list[do.Effect] = []
        for _ in range(limit):
            if self.promises.is_due:
                effects += self._settle_promises(now)
            if self.is_full:
                break
            found = self.waiting.next(now)
            if found is None:
                break
            waiter, group = found
            if waiter.generation != self.cluster.terms.generation:
                key = self._key(waiter)
                if key != group.key:  # terms of other pods came or went: it belongs elsewhere now
                    self.waiting.remove(waiter.pod.uid)
                    refusal = self.waiting.add(waiter, key, now)
                    if refusal is not None:
                        effects.append(do.Refuse(waiter.pod, refusal))
                    continue
            others = bool(self.nominations.owners)
            try:
                self.order.started(waiter.pod, waiter.sort)
                effects += self._deciding.decide(waiter, now)
            except Exception as error:
                effects += self._failed(waiter, error, now)
            if others or self.nominations.owners:  # some of them may be workers
                self.promises.is_due |= self.promises.is_kept
        if self._reports:
            effects += self._reports
            self._reports.clear()
        return effects

    def _settle_promises(self, now: float) -> list[do.Effect]:
        effects, better = self.promises.settle()
        if better:
            self.waiting.wake((EventKind.POD_GONE,), now)
        return effects

    def _failed(self, waiter: Waiter, error: Exception, now: float) -> list[do.Effect]:
        """A decision went wrong: whoever it was about rests, and nothing is kept for nobody."""
        _, group = self.waiting.pods[waiter.pod.uid]
        members = list(group.members.values()) if waiter.pod.gang is not None else [waiter]
        for member in members:
            self.waiting.rest(member, now)
        kept = self.nominations.owners.keys() | self.offers.until.keys() | self.promises.all()
        if self.cluster.holds.taken([uid for uid in self.cluster.holds.rows if uid not in kept]):
            self.waiting.wake((EventKind.POD_GONE,), now)
        return [self._park(waiter.pod, error)]

    def _park(self, pod: Pod, error: Exception) -> do.Park:
        self.plugin_errors += 1
        return do.Park(pod, type(error).__name__, traceback.format_exc())

    def _key(self, waiter: Waiter) -> Hashable:
        """The group that the pod belongs to now."""
        terms = self.cluster.terms
        waiter.concerning, waiter.generation = terms.concerning(waiter.pod), terms.generation
        pod = waiter.pod
        if pod.gang is not None:
            return gang_key(pod.scheduler, pod.gang.key)
        if pod.nominated or pod.uid in self.nominations.owners:
            return ("nominated", pod.uid)  # what it waits for is no answer to others
        key = group_key(waiter, terms.namespaces)
        if self.verdicts[pod.scheduler].ignores_labels:
            return key
        return (key, pod.namespace, tuple(sorted(pod.labels.items())))
