"""Partitions that controllers make for pods: what the controllers tell, and what follows from it.

A pod holds its devices from the decision on; its partition is made while it is bound. Whenever a
pod leaves its place, its partition is to be deleted. What slips through (a scheduler that died, an
answer that came too late) is found when a controller tells all its partitions: one of ours without
a pod is deleted, and a pod without its partition is evicted, each when it has been so for longer
than anything that was sent can still be on its way.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import Held
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.partitions import Estate, Partition, part_id
from bayplan.core.model.pods import Holding, Pod
from bayplan.core.model.verdicts import EventKind
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.estates import Line, Mask, is_head
from bayplan.core.state.waiting import Waiter, Waiting

GRACE_S = 30.0  # the lease, and the longest that making a partition may take
AGAIN_S = 300.0  # a controller is asked again for a size that it refused, if nothing was freed

Told = on.EstateSeen | on.EstateLost | on.EstateGone
Made = on.PartitionMade | on.PartitionRefused | on.PartitionGone


class Keeper:
    def __init__(
        self, cluster: Cluster, waiting: Waiting, assumed: dict[str, Waiter], grace_s: float
    ) -> None:
        self._cluster, self._waiting, self._assumed = cluster, waiting, assumed
        self._estates = cluster.estates
        self.grace_s = grace_s
        self.real: set[str] = set()  # uids of assumed pods whose partition is made
        # by estate and id of a partition of ours without a pod: since when
        self.unowned: dict[tuple[str, str], float] = {}
        self.missing: dict[str, float] = {}  # by uid of a pod without its partition: since when
        self.refused: dict[str, float] = {}  # by estate: when it refused a size

    def hear(self, event: Told | Made, now: float) -> list[do.Effect]:
        match event:
            case on.EstateSeen(estate, partitions):
                return self._see(estate, partitions, now)
            case on.EstateLost(name, why):
                if name in self._estates.lines:
                    self._estates.close(name, why)
            case on.EstateGone(name):
                if name in self._estates.lines:
                    self._estates.put(name, None)
            case on.PartitionMade(uid, held):
                self._replan(uid, held)
            case on.PartitionRefused(name, size):
                self._refuse(name, size, now)
            case on.PartitionGone(name, id):
                self._gone(name, id, now)
        return []

    def leave(self, pod: Pod) -> list[do.Effect]:
        """The pod leaves its place, and its partition must go."""
        self.real.discard(pod.uid)
        self.missing.pop(pod.uid, None)
        return [
            do.Dismantle(name, line.estate.id_of(pod.uid))
            for name, line in self._estates.lines.items()
            if _mask(line, pod.held)
        ]

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
        holders = {pod.uid: pod for pod in self._estates.holders(line)}
        self._note_strays(line, partitions, holders, now)
        effects = list(self._delete_unowned(estate, partitions, holders, now))
        effects += self._evict_bereft(estate, partitions, holders.values(), now)
        return effects

    def _note_strays(
        self, line: Line, partitions: Iterable[Partition], holders: dict[str, Pod], now: float
    ) -> None:
        estate = line.estate
        strays = {
            each.id: line.mask_of(each.devices)
            for each in partitions
            if estate.uid_of(each.id) not in holders
        }
        freed = not line.strays.keys() <= strays.keys()
        if strays != line.strays:
            self._estates.stray(estate.name, strays)
        if line.refused and (freed or now - self.refused.get(estate.name, now) >= AGAIN_S):
            self._estates.refuse(estate.name, 0)
            freed = True
        if freed:
            self._waiting.wake((EventKind.POD_GONE,), now)

    def _delete_unowned(
        self, estate: Estate, partitions: Iterable[Partition], holders: dict[str, Pod], now: float
    ) -> Iterator[do.Effect]:
        ours = [each.id for each in partitions if estate.uid_of(each.id) is not None]
        unowned = [id for id in ours if estate.uid_of(id) not in holders]
        for key in [key for key in self.unowned if key[0] == estate.name]:
            if key[1] not in unowned:
                del self.unowned[key]
        for id in unowned:
            if now - self.unowned.setdefault((estate.name, id), now) >= self.grace_s:
                yield do.Dismantle(estate.name, id)

    def _evict_bereft(
        self, estate: Estate, partitions: Iterable[Partition], holders: Iterable[Pod], now: float
    ) -> Iterator[do.Effect]:
        there = {each.id for each in partitions}
        for pod in holders:
            placed = pod.uid in self._cluster.pods and pod.uid not in self._assumed
            if not placed or pod.terminating or estate.id_of(pod.uid) in there:
                self.missing.pop(pod.uid, None)
            elif now - self.missing.setdefault(pod.uid, now) >= self.grace_s:
                self.missing[pod.uid] = now
                why = f"its partition is gone from {estate.name}"
                if pod.controlled:
                    yield do.Evict(pod, why)
                else:
                    yield do.Report(f"pod {pod.key} has no controller that would replace it; {why}")

    # ---- what became of a partition

    def _replan(self, uid: str, held: tuple[Held, ...]) -> None:
        """The real devices take the place of the plan. Whoever planned with them gets what was
        planned here instead, until it hears what it really has."""
        if uid not in self._assumed or uid not in self._cluster.pods:
            return
        self.real.add(uid)
        before = self._cluster.pods[uid].pod
        now_held = holding_of(before.row.devices, held)
        self._cluster.rehold(uid, now_held)
        for line in self._estates.lines.values():
            plan, real = _mask(line, before.held), _mask(line, now_held)
            self._exchange(line, real & ~plan, plan & ~real)

    def _exchange(self, line: Line, gained: Mask, lost: Mask) -> None:
        planned = [uid for uid in self._assumed if uid not in self.real]
        for uid in planned if gained else ():
            resident = self._cluster.pods.get(uid)
            plan = 0 if resident is None else _mask(line, resident.pod.held)
            for bit in _bits(plan & gained):
                spare = lost & -lost  # the lowest; as many are lost as are gained
                plan, lost = plan & ~bit | spare, lost & ~spare
            if resident is not None and plan != _mask(line, resident.pod.held):
                self._cluster.rehold(uid, _with(line, resident.pod.held, plan))

    def _refuse(self, name: str, size: int, now: float) -> None:
        line = self._estates.lines.get(name)
        if line is not None:
            self._estates.refuse(name, min(size, line.refused or size))
            self.refused[name] = now

    def _gone(self, name: str, id: str, now: float) -> None:
        self.unowned.pop((name, id), None)
        line = self._estates.lines.get(name)
        if line is None:
            return
        if id in line.strays:
            self._estates.stray(name, {k: mask for k, mask in line.strays.items() if k != id})
        if line.refused:
            self._estates.refuse(name, 0)
        self._waiting.wake((EventKind.POD_GONE,), now)


def _mask(line: Line, held: Holding | None) -> Mask:
    found = (line.positions.get(part.id) for part in (held.parts if held is not None else ()))
    return sum(1 << at for at in found if at is not None)


def _bits(mask: Mask) -> Iterator[Mask]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _with(line: Line, held: Holding | None, mask: Mask) -> Holding:
    """What is held, with these devices of the estate."""
    assert held is not None
    ids = [part_id(line.estate.name, each.id) for each in line.estate.devices]
    free = iter([ids[bit.bit_length() - 1] for bit in _bits(mask)])
    parts = tuple(
        replace(part, id=next(free)) if part.id in line.positions else part for part in held.parts
    )
    return Holding(parts, held.unknown)
