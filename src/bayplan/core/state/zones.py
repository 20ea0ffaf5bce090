"""NUMA zones of nodes: what was published of them, and whom the publisher has counted.

What is published lags behind. A pod takes its room in every zone until the publication is known to
have counted it, since nobody can say which zone the kubelet gave it; then it takes none, for it is
in what is published (docs/decisions/0015-numa-zones.md). What is free follows from that and from
the node's pods, and is worked out when somebody asks.

Whether a pod is counted is looked at between decisions, never on a trial: `unsure` says on which
nodes.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.model.fingerprint import fingerprint
from bayplan.core.model.numa import LASTING_S, SETTLING_S, SKEW_S, Topology, together
from bayplan.core.model.pods import Pod
from bayplan.core.state.arrays import Codes

Free = tuple[dict[str, int], ...]  # per zone, by resource; below 0 where more may be in use


class Column(Struct):
    codes: Codes  # rows
    position: int = -1  # how far the load log was read; -1: not at all


class Zones:
    """By node name. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = (
        "_done",
        "_touch",
        "_pods",
        "_free",
        "at_most",
        "unsure",
        "_due",
        "next_s",
        "columns",
    )

    def __init__(
        self,
        done: Callable[..., None],
        touch: Callable[[str], None],
        pods: Callable[[str], Iterable[Pod]],
    ) -> None:
        self.topologies: dict[str, Topology] = {}
        self.counted: dict[str, frozenset[str]] = {}  # uids; nodes without any are not there
        self.at_most: dict[str, Free] = {}  # what the zones have when nobody is there
        self.unsure: dict[str, None] = {}  # nodes where more pods may be counted than was known
        # Nodes where somebody has started who is not counted and may be, and when the first of them
        # is if the publication stays as it is, in the time of day; the first of these times.
        self._due: dict[str, float] = {}
        self.next_s = math.inf
        # What rows say to pods, by what these ask for, the least recently asked first.
        self.columns: OrderedDict[Hashable, Column] = OrderedDict()
        self._done, self._touch, self._pods = done, touch, pods
        self._free: dict[str, Free] = {}

    def free(self, node: str) -> Free:
        """What may be given in each zone, whatever zones the pods that are not counted have."""
        free = self._free.get(node)
        if free is None:
            free = self._free[node] = self.worked_out(node)
        return free

    def worked_out(self, node: str) -> Free:
        free = tuple(dict(zone.available) for zone in self.topologies[node].zones)
        for pod in self.uncounted(node):
            for name, amount in together(pod.row.aligned):
                for zone in free:
                    if name in zone:
                        zone[name] -= amount
        return free

    def uncounted(self, node: str) -> Iterator[Pod]:
        """The pods that are in zones nobody knows."""
        counted = self.counted.get(node, frozenset())
        return (p for p in self._pods(node) if p.row.aligned and p.uid not in counted)

    def kept(self) -> dict[str, Free]:
        """What was worked out so far."""
        return self._free

    def publish(self, node: str, topology: Topology | None) -> bool:
        """What is published of the node now; None: nothing. Whether pods may fit that did not."""
        old, before = self.topologies.get(node), self.counted.get(node)
        if old == topology:
            return False
        self._put(node, topology)
        self.unsure[node] = None
        if topology is None:
            self.count(node, frozenset())
        else:
            pods = [pod for pod in self._pods(node) if pod.row.aligned]
            self.count(node, self._counted(topology, pods, arrives=True))
        return self.counted.get(node) != before or not _are_alike(old, topology)

    def count(self, node: str, uids: frozenset[str]) -> None:
        """These pods are in what is published."""
        before = self.counted.get(node, frozenset())
        if uids == before:
            return
        if uids:
            self.counted[node] = uids
        else:
            del self.counted[node]
        self._free.pop(node, None)
        self._touch(node)
        self._done(self.count, node, before)

    def changed(self, node: str, pod: Pod) -> None:
        """The pod came to the node, left it, or has started."""
        topology = self.topologies.get(node)
        if topology is None:
            return
        if pod.row.aligned:
            self._free.pop(node, None)
            self.unsure[node] = None
        elif topology.fingerprint and node in self._due:  # it is in the fingerprint too
            self.unsure[node] = None

    def settle(self, day_s: float) -> bool:
        """Looks where more pods may be counted. Whether there were any. `day_s`: the time of day;
        0: nobody knows."""
        if self.next_s <= day_s:
            self.unsure.update((node, None) for node, due in self._due.items() if due <= day_s)
        found = False
        for node in self.unsure:
            before = self.counted.get(node, frozenset())
            self._settle(node, day_s)
            found = found or not self.counted.get(node, frozenset()) <= before
        if self.unsure:
            self.next_s = min(self._due.values(), default=math.inf)
        self.unsure.clear()
        return found

    def _settle(self, node: str, day_s: float) -> None:
        self._due.pop(node, None)
        topology = self.topologies.get(node)
        if topology is None:
            return
        pods = [pod for pod in self._pods(node) if pod.row.aligned]
        counted = self._counted(topology, pods, arrives=False)
        left = {p.uid: _due(topology, p) for p in pods if p.started_s and p.uid not in counted}
        due = [at for at in left.values() if at > day_s]
        if due and (min(due) < math.inf or not topology.written_s):  # else it is too old
            self._due[node] = min(due)
        self.count(node, counted | {uid for uid, at in left.items() if at <= day_s})

    def _put(self, node: str, topology: Topology | None) -> None:
        before = self.topologies.get(node)
        if topology is not None:
            self.topologies[node] = topology
            self.at_most[node] = tuple(
                {**dict(zone.allocatable), **dict(zone.capacity)} for zone in topology.zones
            )
        else:
            del self.topologies[node], self.at_most[node]
        self._free.pop(node, None)
        self._touch(node)
        self._done(self._put, node, before)

    def _counted(self, topology: Topology, pods: list[Pod], arrives: bool) -> frozenset[str]:
        """Whom the publication has counted: whoever it was known of, whoever had started long
        enough before it was written, and whoever is in its fingerprint."""
        before = self.counted.get(topology.node, frozenset())
        sure = {pod.uid for pod in pods if pod.uid in before}
        started = [pod for pod in pods if pod.started_s]
        if topology.written_s:
            long_ago = topology.written_s - SETTLING_S
            sure |= {pod.uid for pod in started if pod.started_s <= long_ago}
        elif arrives and not topology.fingerprint:  # nobody can say more than that it came later
            sure |= {pod.uid for pod in started}
        left = {p.uid for p in started if p.uid not in sure and _may_be_signed(topology, p)}
        if left and self._is_signed(topology):
            sure |= left
        return frozenset(sure)

    def _is_signed(self, topology: Topology) -> bool:
        """Whether the fingerprint is that of the node's pods."""
        everybody = list(self._pods(topology.node))
        if topology.of_exclusive:
            names = {name for zone in topology.zones for name, _ in zone.available}
            everybody = [pod for pod in everybody if _is_exclusive(pod, names)]
        started = [pod for pod in everybody if pod.started_s]
        return any(
            fingerprint((pod.namespace, pod.name) for pod in pods) == topology.fingerprint
            for pods in (started, everybody)
        )


def _may_be_signed(topology: Topology, pod: Pod) -> bool:
    """Whether a fingerprint could count it. It has names only, so it must not be older than the
    pod."""
    written = topology.written_s
    return bool(topology.fingerprint) and (not written or written >= pod.started_s)


def _due(topology: Topology, pod: Pod) -> float:
    """When the pod is counted if the publication stays as it is, in the time of day. An exporter
    that sees nothing new writes nothing that one could see. Never, where it is older."""
    written, started = topology.written_s, pod.started_s
    is_older = not written or written < started - SKEW_S
    return math.inf if is_older else max(written, started) + LASTING_S


def _are_alike(old: Topology | None, new: Topology | None) -> bool:
    """Whether nothing has changed but the date and the fingerprint."""
    if old is None or new is None:
        return False
    return replace(old, written_s=new.written_s, fingerprint=new.fingerprint) == new


def _is_exclusive(pod: Pod, names: set[str]) -> bool:
    """Whether it has resources of a zone to itself while it runs."""
    standing = (ask for ask in pod.row.aligned if ask.phase != "init")
    return any(name in names for ask in standing for name, _ in ask.amounts)
