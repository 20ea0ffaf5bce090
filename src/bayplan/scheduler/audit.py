"""Memory against a fresh list: where the engine believes something that the API does not say.

Pure: the list comes as values. Events that are under way make differences that pass by themselves,
so what counts is what two comparisons in a row find (`lasting`).
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine.alike import same_to_us
from bayplan.core.engine.engine import Engine
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.state.cluster import Cluster

MOST = 1000
OF_A_POD = ("terms", "priority", "gates", "terminating", "scheduler", "held", "gang", "preempts")
WAITS, NOT_KNOWN = "waits", "not known"


class Difference(Struct, frozen=True):
    """One thing, in memory and in the list. `kind` has few values and can label a metric."""

    kind: str
    name: str
    memory: str
    listed: str


class Audit(Struct):
    """What was compared, how many differences there are by kind, and the first of them."""

    pods: int
    nodes: int
    namespaces: int
    counts: dict[str, int]
    differences: list[Difference]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def differences(
    engine: Engine,
    pods: Iterable[Pod],
    nodes: Iterable[Node],
    namespaces: Mapping[str, Mapping[str, str]],
    most: int = MOST,
) -> Audit:
    """The engine beside what was listed; pods that have ended, or cannot be read, left out."""
    fresh_pods = {pod.uid: pod for pod in pods}
    fresh_nodes = {node.name: node for node in nodes}
    counts: Counter[str] = Counter()

    def found() -> Iterator[Difference]:
        for difference in chain(
            _nodes(engine.cluster, fresh_nodes),
            _pods(engine, fresh_pods),
            _namespaces(engine.cluster.terms.namespaces, namespaces),
        ):
            counts[difference.kind] += 1
            yield difference

    every = found()
    shown = list(islice(every, most))
    deque(every, maxlen=0)  # the rest is only counted
    sizes = (len(fresh_pods), len(fresh_nodes), len(namespaces))
    return Audit(*sizes, counts=dict(counts), differences=shown)


def lasting(before: Audit, after: Audit) -> Audit:
    """Only the differences that both comparisons found, of those that they name."""
    known = set(before.differences)
    still = [difference for difference in after.differences if difference in known]
    counts = Counter(difference.kind for difference in still)
    return Audit(after.pods, after.nodes, after.namespaces, dict(counts), still)


# ---- pods


def _pods(engine: Engine, fresh: Mapping[str, Pod]) -> Iterator[Difference]:
    known = dict(remembered(engine))
    for uid, pod in fresh.items():
        entry = known.get(uid)
        if entry is None:
            if pod.node or _is_ours(engine, pod):
                yield Difference("pod_missing", pod.key, NOT_KNOWN, pod.node or WAITS)
            continue
        ours, node = entry
        in_flight = uid in engine.assumed
        if pod.node == node or (in_flight and not pod.node):
            yield from _pod(ours, pod, in_flight)
        elif not pod.node and not _is_ours(engine, pod):
            yield Difference("pod_extra", pod.key, node or WAITS, "not ours")
        else:
            yield Difference("pod_elsewhere", pod.key, node or WAITS, pod.node or WAITS)
    for uid, (ours, node) in known.items():
        if uid not in fresh and uid not in engine.assumed:
            yield Difference("pod_extra", ours.key, node or WAITS, NOT_KNOWN)


def remembered(engine: Engine) -> Iterator[tuple[str, tuple[Pod, str]]]:
    """Every pod in memory by uid, with the node that it uses; empty while it waits."""
    cluster = engine.cluster
    for uid, resident in cluster.pods.items():
        yield uid, (resident.pod, cluster.name(resident.row))
    for node, orphans in cluster.orphans.items():
        for uid, pod in orphans.items():
            yield uid, (pod, node)
    for uid, (waiter, _) in engine.waiting.pods.items():
        yield uid, (waiter.pod, "")
    for uid, (pod, _) in engine.held.items():
        yield uid, (pod, "")


def _pod(ours: Pod, fresh: Pod, in_flight: bool) -> Iterator[Difference]:
    """What is different about a pod that is where it should be."""
    if in_flight or same_to_us(replace(ours, node=fresh.node), fresh):
        return  # while the bind is in flight, what it was decided on stands
    if ours.row.requests != fresh.row.requests:
        said = amounts(dict(ours.row.requests)), amounts(dict(fresh.row.requests))
        yield Difference("pod_requests", fresh.key, *said)
    elif ours.labels != fresh.labels:
        yield Difference("pod_labels", fresh.key, pairs(ours.labels), pairs(fresh.labels))
    else:
        yield Difference("pod_other", fresh.key, _odd(ours, fresh), _odd(fresh, ours))


def _odd(one: Pod, other: Pod) -> str:
    """The fields that differ, as they are in `one`."""
    own = [name for name in OF_A_POD if _differ(one, other, name)]
    names = [name for name in one.row.__struct_fields__ if _differ(one.row, other.row, name)]
    return ", ".join(filter(None, (_fields(one, own), _fields(one.row, names))))


def _fields(one: object, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {getattr(one, name)}" for name in names)


def _differ(one: object, other: object, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def _is_ours(engine: Engine, pod: Pod) -> bool:
    return pod.scheduler in engine.profiles and not pod.terminating


# ---- nodes and namespaces


def _nodes(cluster: Cluster, fresh: Mapping[str, Node]) -> Iterator[Difference]:
    for name, node in fresh.items():
        row = cluster.rows.get(name)
        ours = None if row is None else cluster.nodes[row]
        if ours is None:
            yield Difference("node_missing", name, NOT_KNOWN, "listed")
        elif ours.allocatable != node.allocatable:
            said = amounts(ours.allocatable), amounts(node.allocatable)
            yield Difference("node_allocatable", name, *said)
        elif ours.labels != node.labels:
            yield Difference("node_labels", name, pairs(ours.labels), pairs(node.labels))
        elif ours != (node := replace(node, use=ours.use)):  # how it is told depends on when
            names = [n for n in node.__struct_fields__ if _differ(ours, node, n)]
            yield Difference("node_other", name, _fields(ours, names), _fields(node, names))
    for name, row in cluster.rows.items():
        if name not in fresh:
            yield Difference("node_extra", name, "known", "not listed")
        yield from _free(cluster, name, row)


def _free(cluster: Cluster, name: str, row: int) -> Iterator[Difference]:
    """What is free in memory beside what the node's pods, and places that are kept for others,
    leave, counted afresh."""
    free = cluster.allocatable[row].copy()
    residents = (resident.pod for resident in cluster.residents[row].values())
    for pod in chain(residents, cluster.holds.on(row)):
        free -= cluster.demand(pod.row).take
    if (free != cluster.free[row]).any():
        kept, counted = (
            amounts({n: int(one[at]) for n, at in cluster.resource_columns.items()})
            for one in (cluster.free[row], free)
        )
        yield Difference("node_free", name, kept, counted)


def _namespaces(
    ours: Mapping[str, Mapping[str, str]], fresh: Mapping[str, Mapping[str, str]]
) -> Iterator[Difference]:
    for name, labels in fresh.items():
        known = ours.get(name)
        if known is None:
            yield Difference("namespace_missing", name, NOT_KNOWN, "listed")
        elif dict(known) != dict(labels):
            yield Difference("namespace_labels", name, pairs(known), pairs(labels))
    for name in ours:
        if name not in fresh:
            yield Difference("namespace_extra", name, "known", "not listed")


def amounts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(found.items()) if amount)


def pairs(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(found.items()))
