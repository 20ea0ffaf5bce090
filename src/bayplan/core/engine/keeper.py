"""Partitions that controllers make for pods: what the controllers tell, and what follows from it.

A pod holds its devices from the decision on; its partition is made while it is bound. Whenever a
pod leaves its place, its partition is to be deleted. What slips through (a scheduler that died, an
answer that came too late) is found when a controller tells all its partitions: one of ours without
a pod is deleted, and a pod without its partition is evicted, each when it has been so for longer
than anything that was sent can still be on its way.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Held
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.partitions import Estate, Partition, part_id
from bayplan.core.model.pods import Holding, Pod
from bayplan.core.model.verdicts import EventKind
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.estates import Line, Mask, bits, is_head, union
from bayplan.core.state.waiting import Waiter, Waiting

GRACE_S = 30.0  # the lease, and the longest that one call to a controller may take
REPORTED_S = 3600.0  # between two reports of a pod that nobody would replace
AGAIN_S = 300.0  # a controller is asked again for a size that it refused, if nothing was freed

Told = on.EstateSeen | on.EstateLost
Became = on.PartitionMade | on.PartitionRefused | on.PartitionGone


class Keeper:
    def __init__(
        self,
        cluster: Cluster,
        waiting: Waiting,
        assumed: Mapping[str, Waiter],
        unreadable: Collection[str],
        grace_s: float,
    ) -> None:
        """`assumed`, `unreadable`: by uid, pods that are being bound, and that cannot be read."""
        self._cluster, self._waiting = cluster, waiting
        self._assumed, self._unreadable = assumed, unreadable
        self._estates = cluster.estates
        self.grace_s = grace_s
        self.made: set[str] = set()  # uids of assumed pods whose partition is made
        # by estate and id of a partition of ours without a pod: since when
        self.unowned: dict[tuple[str, str], float] = {}
        self.bereft: dict[str, float] = {}  # by uid of a pod without its partition: since when
        self.refused_at: dict[str, float] = {}  # by estate: when it last refused a size

    def hear(self, event: Told | Became, now: float) -> list[do.Effect]:
        match event:
            case on.EstateSeen(estate, partitions):
                return self._see(estate, partitions, now)
            case on.EstateLost(name, why):
                line = self._estates.lines.get(name)
                if line is not None and line.closed != why:
                    self._estates.close(name, why)
            case on.PartitionMade(uid, held):
                self._replan(uid, held, now)
            case on.PartitionRefused(name, size):
                self._refuse(name, size, now)
            case on.PartitionGone(name, id, freed):
                self._gone(name, id, freed, now)
        return []

    def leave(self, pod: Pod, *, ended: bool) -> list[do.Effect]:
        """The pod leaves its place, and its partition must go. Whether it `ended`, or could not be
        bound: what was only planned is not freed by that."""
        self.bereft.pop(pod.uid, None)
        lines = self._estates.lines
        if not lines:
            return []
        homes = [name for name in sorted(lines) if pod.uid in lines[name].pods]
        for name in homes if ended else ():
            self._relent(name)
        return [do.Dismantle(name, lines[name].estate.id_of(pod.uid)) for name in homes]

    def _relent(self, name: str) -> None:
        """Something was freed there: it may be asked again for any size."""
        if self._estates.lines[name].refused:
            self._estates.refuse(name, 0)
        self.refused_at.pop(name, None)

    # ---- what a controller tells

    def _see(
        self, estate: Estate, partitions: tuple[Partition, ...], now: float
    ) -> list[do.Effect]:
        line = self._estates.lines.get(estate.name)
        if line is None or line.estate != estate:
            nodes = enumerate(self._cluster.nodes)
            heads = [row for row, node in nodes if node is not None and is_head(node, estate)]
            self._estates.write(estate, heads)
            self._waiting.wake((EventKind.NODE_GREW,), now)
            line = self._estates.lines[estate.name]
        if line.closed:
            self._estates.close(estate.name, "")
            self._waiting.wake((EventKind.NODE_GREW,), now)
        self._note_strays(line, partitions, now)
        there = {each.id for each in partitions}
        return [*self._delete_unowned(estate, there, now), *self._evict_bereft(line, there, now)]

    def _note_strays(self, line: Line, partitions: tuple[Partition, ...], now: float) -> None:
        """What stands there and no pod counts for, whoever it is."""
        name = line.estate.name
        strays = {
            each.id: line.mask_of(each.devices)
            for each in partitions
            if line.estate.uid_of(each.id) not in line.pods
        }
        freed = union(line.strays.values()) & ~union(strays.values())
        if strays != line.strays:
            self._estates.stray(name, strays)
        if freed or now - self.refused_at.get(name, now) >= AGAIN_S:
            self._relent(name)
            self._waiting.wake((EventKind.POD_GONE,), now)

    def _delete_unowned(
        self, estate: Estate, there: Collection[str], now: float
    ) -> Iterator[do.Effect]:
        unowned = {id for id in there if self._is_unowned(estate.name, estate.uid_of(id))}
        for key in [key for key in self.unowned if key[0] == estate.name]:
            if key[1] not in unowned:
                del self.unowned[key]
        for id in sorted(unowned):
            key = (estate.name, id)
            if now - self.unowned.setdefault(key, now) >= self.grace_s:
                self.unowned[key] = now  # it is tried again when it is still there
                yield do.Dismantle(estate.name, id)

    def _is_unowned(self, estate: str, uid: str | None) -> bool:
        """Whether it is ours, and there is no pod that it could belong to: none of its uid, or one
        that has its devices at another controller."""
        cluster, lines = self._cluster, self._estates.lines
        if uid is None:
            return False
        homes = [line for line in lines.values() if uid in line.pods]
        site = lines[estate].estate.site
        if homes and all(line.estate.site != site and not line.closed for line in homes):
            return True
        if uid in cluster.pods or uid in cluster.holds.rows:
            return False
        return cluster.orphan(uid) is None and uid not in self._unreadable

    def _evict_bereft(self, line: Line, there: Collection[str], now: float) -> Iterator[do.Effect]:
        estate = line.estate
        for pod in self._estates.holders(line):
            uid = pod.uid
            bound = uid in self._cluster.pods and uid not in self._assumed
            if not bound or pod.terminating or estate.id_of(uid) in there:
                self.bereft.pop(uid, None)
            elif now - self.bereft.setdefault(uid, now) >= self.grace_s:
                why = f"its partition is gone from {estate.name}"
                if pod.controlled:
                    self.bereft[uid] = now
                    yield do.Evict(pod, why)
                else:
                    self.bereft[uid] = now + REPORTED_S
                    yield do.Report(f"pod {pod.key} has no controller that would replace it; {why}")

    # ---- what became of a partition

    def _replan(self, uid: str, held: tuple[Held, ...], now: float) -> None:
        """The real devices take the place of the plan. Whoever planned with them gets what was
        planned here instead, until it hears what it really has."""
        resident = self._cluster.pods.get(uid)
        before = self._cluster.orphan(uid) if resident is None else resident.pod
        if before is None or uid not in self._assumed:
            return
        self.made.add(uid)
        real = holding_of(before.row.devices, held)
        self._hold(before, real)
        for line in self._estates.lines.values():
            plan, instead = line.mask(before.held), line.mask(real)
            self._exchange(line, instead & ~plan, plan & ~instead)
            if instead != plan:  # a block may have become whole
                self._waiting.wake((EventKind.POD_GONE,), now)

    def _exchange(self, line: Line, gained: Mask, lost: Mask) -> None:
        """Where the plan was of devices that are no more, there may be nothing to give."""
        for pod in self._estates.holders(line):
            plan = before = line.mask(pod.held) if self._is_plan(pod.uid) else 0
            for bit in bits(plan & gained):
                spare = lost & ~plan
                spare &= -spare
                if spare:
                    plan, lost = plan & ~bit | spare, lost & ~spare
            if plan != before:
                self._hold(pod, _with(line, pod.held, plan))

    def _is_plan(self, uid: str) -> bool:
        """Whether the pod's partition is not made yet."""
        return uid in self._cluster.holds.rows or (uid in self._assumed and uid not in self.made)

    def _hold(self, pod: Pod, held: Holding | None) -> None:
        """The pod holds others than before, where it is."""
        cluster, now = self._cluster, replace(pod, held=held)
        row = cluster.holds.rows.get(pod.uid)
        if row is not None:
            cluster.holds.release(pod.uid)
            cluster.holds.hold(now, row)
            return
        resident = cluster.pods.get(pod.uid)
        node = pod.node if resident is None else cluster.name(resident.row)
        cluster.remove(pod.uid)
        cluster.place(now, node)

    def _refuse(self, name: str, size: int, now: float) -> None:
        line = self._estates.lines.get(name)
        if line is not None:
            self._estates.refuse(name, min(size, line.refused or size))
            self.refused_at[name] = now

    def _gone(self, name: str, id: str, freed: bool, now: float) -> None:
        self.unowned.pop((name, id), None)
        line = self._estates.lines.get(name)
        if line is None:
            return
        if id in line.strays:
            freed = True
            self._estates.stray(name, {k: mask for k, mask in line.strays.items() if k != id})
        if freed:
            self._relent(name)
            self._waiting.wake((EventKind.POD_GONE,), now)


def _with(line: Line, held: Holding | None, mask: Mask) -> Holding:
    """What is held, with as many other devices of the estate."""
    assert held is not None
    ids = [line.estate.devices[bit.bit_length() - 1].id for bit in bits(mask)]
    ours = [part for part in held.parts if part.id in line.positions]
    fresh = [
        replace(part, id=part_id(line.estate.name, id)) for part, id in zip(ours, ids, strict=True)
    ]
    rest = tuple(part for part in held.parts if part.id not in line.positions)
    return Holding((*rest, *fresh), held.unknown)
