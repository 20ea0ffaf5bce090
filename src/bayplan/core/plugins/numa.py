"""NUMA zones: would the kubelet admit the pod, and how full do its zones become."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, combinations, islice
from typing import Literal

import numpy as np
from msgspec import Struct

from bayplan.core.devices import numa
from bayplan.core.devices.zonecodes import codes_of
from bayplan.core.model.numa import FAR, Topology, together
from bayplan.core.model.pods import RowKey
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.amounts import Resource
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Reads, Score
from bayplan.core.plugins.resources import CPU_AND_MEMORY, FREED
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

Amounts = Sequence[tuple[str, int]]
Costs = tuple[tuple[int, ...], ...]  # zones × zones; empty where a zone's are not known
# As scheduler-plugins says it. Who would go for the pod leaves a zone that nobody knows.
TEXTS = ("cannot align container", "cannot align init container", "cannot align pod")
INVALID = "invalid node topology data"
CODES = {"container": 1, "init container": 2, "pod": 4}
UNKNOWN = 8
HELPED_BY = frozenset({*FREED, EventKind.TOPOLOGY_CHANGED})
MOST_ZONES = 8  # that scheduler-plugins' score counts
ZONE_SCORE = MAX_SCORE // MOST_ZONES


class Strategy(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"] = (
        "LeastAllocated"
    )
    resources: tuple[Resource, ...] = CPU_AND_MEMORY  # what is not named has weight 1


class TopologyArgs(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    scoring_strategy: Strategy = Strategy()

    def __post_init__(self) -> None:
        for resource in self.scoring_strategy.resources:
            if not 1 <= resource.weight <= 100:
                where = f"scoringStrategy.resources: {resource.name}"
                raise ValueError(f"{where} has weight {resource.weight}, not 1 to 100")


class NodeResourceTopologyMatch:
    """Refuses nodes whose kubelet could not align the pod to NUMA zones as its policy demands;
    scores by how full the zones become, or by how many of them it takes."""

    name = "NodeResourceTopologyMatch"
    reads = Reads.LOAD
    Args = TopologyArgs

    def __init__(self, args: TopologyArgs = TopologyArgs()) -> None:  # noqa: B008
        self._type = args.scoring_strategy.type
        self._weights = {each.name: each.weight for each in args.scoring_strategy.resources}
        self._fill: Callable[[Amounts, dict[str, int]], int] = {
            "MostAllocated": self._most,
            "BalancedAllocation": balanced,
        }.get(self._type, self._least)

    def concerns(self, row: RowKey) -> bool:
        return bool(row.aligned)

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        if not ask.row.aligned or not view.cluster.zones.topologies:
            return None
        return codes_of(view, ask.row, refusal)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return [Reason(text, False, HELPED_BY) for text in (*TEXTS, INVALID)]

    def score(self, ask: Ask, view: View) -> Ints | None:
        row = ask.row
        if not (row.guaranteed and row.aligned and view.cluster.zones.topologies):
            return None
        scores = np.zeros(len(view), dtype=np.int64)
        for at, topology in published(view):
            if topology.unknown:
                continue
            if self._type == "LeastNUMANodes":
                scores[at] = fewest(view.cluster, topology, row)
            elif topology.policy == "single-numa-node":
                scores[at] = self._filled(view.cluster, topology, row)
        return scores

    def _filled(self, cluster: Cluster, topology: Topology, row: RowKey) -> int:
        """The worst of the zones that could do; of several containers the mean."""
        free = zones_of(cluster, topology, row)
        asks = [together(row.aligned)]
        if topology.scope == "container":
            asks = [ask.amounts for ask in row.aligned]
        found = []
        for amounts in asks:
            scores = [self._fill(amounts, zone) for zone in free] if amounts else [MAX_SCORE]
            found.append(min((score for score in scores if score), default=0))
        return sum(found) // len(found)

    def _least(self, amounts: Amounts, zone: dict[str, int]) -> int:
        return self._mean(amounts, zone, lambda asked, there: there - asked)

    def _most(self, amounts: Amounts, zone: dict[str, int]) -> int:
        return self._mean(amounts, zone, lambda asked, there: asked)

    def _mean(self, amounts: Amounts, zone: dict[str, int], part: Callable[[int, int], int]) -> int:
        """Weighted over all that is asked; what the zone has too little of counts 0."""
        total = weights = 0
        for name, amount in amounts:
            asked, there = whole(name, amount), whole(name, max(zone.get(name, 0), 0))
            weight = self._weights.get(name, 1)
            weights += weight
            if there and amount <= zone[name]:
                total += weight * (part(asked, there) * MAX_SCORE // there)
        return total // weights


def published(view: View) -> Iterator[tuple[int, Topology]]:
    """The rows of the view, by position, whose node has its zones published."""
    cluster = view.cluster
    topologies = cluster.zones.topologies
    if view.rows is None:
        for name, topology in topologies.items():
            row = cluster.rows.get(name)
            if row is not None:
                yield row, topology
        return
    for at, row in enumerate(view.rows.tolist()):
        node = cluster.nodes[row]
        found = None if node is None else topologies.get(node.name)
        if found is not None:
            yield at, found


def refusal(cluster: Cluster, at: int, row: RowKey) -> int:
    """What the node on a row says."""
    node = cluster.nodes[at]
    topology = None if node is None else cluster.zones.topologies.get(node.name)
    if node is None or topology is None or not topology.refuses:
        return 0
    if topology.unknown:
        return UNKNOWN
    asked = [name for ask in row.aligned for name, _ in ask.amounts]
    if all(name in node.allocatable for name in asked):
        found = numa.trouble(cluster, topology.node, row)
        return CODES[found] if found is not None else 0
    return CODES["pod" if topology.scope == "pod" else first_without(row, node.allocatable)]


def first_without(row: RowKey, there: dict[str, int]) -> Literal["container", "init container"]:
    """Of the containers that ask for what the node does not have, the first."""
    for ask in row.aligned:
        if any(name not in there for name, _ in ask.amounts):
            break
    return "container" if ask.phase == "main" else "init container"


def zones_of(cluster: Cluster, topology: Topology, row: RowKey) -> list[dict[str, int]]:
    return numa.room_of(cluster, topology.node, row).free


def fewest(cluster: Cluster, topology: Topology, row: RowKey) -> int:
    """The fewer zones, the better, and those near each other above others."""
    free = zones_of(cluster, topology, row)
    asks = [together(row.aligned)]
    if topology.scope == "container":
        asks = [ask.amounts for ask in row.aligned]
    most, near = 0, True
    for amounts in asks:
        if not any(name in zone for name, _ in amounts for zone in free):
            continue
        found = nearest(topology, free, amounts)
        if found is None:
            return 0
        zones, is_near = found
        most, near = max(most, len(zones)), near and is_near
        give(free, zones, amounts)
    if not most:
        return MAX_SCORE
    return max(MAX_SCORE - most * ZONE_SCORE + (ZONE_SCORE // 2 if near else 0), 0)


def nearest(
    topology: Topology, free: list[dict[str, int]], amounts: Amounts
) -> tuple[tuple[int, ...], bool] | None:
    """The fewest zones in which it is free, of those the nearest to each other; and whether no
    others of their number are nearer. More zones than the score can tell apart are not looked for,
    and no more sets than the filter looks at."""
    able = [at for at, zone in enumerate(free) if all(name in zone for name, _ in amounts)]
    if not fits(free, tuple(able), amounts):
        return None
    left = numa.MOST_SETS
    for count in range(fewest_by_amount(free, able, amounts), min(len(able), MOST_ZONES) + 1):
        every = list(islice(combinations(able, count), left))
        left -= len(every)
        fitting = [zones for zones in every if fits(free, zones, amounts)]
        if fitting:
            costs = tuple(zone.costs for zone in topology.zones)
            lengths = {zones: length(costs, zones) for zones in fitting}
            best = min(fitting, key=lambda zones: lengths[zones])
            return best, lengths[best] <= shortest(costs, count)
    return None


def fewest_by_amount(free: list[dict[str, int]], able: list[int], amounts: Amounts) -> int:
    """No fewer zones than these have enough of each resource, taken by itself."""
    least = 1
    for name, amount in amounts:
        most = sorted((max(free[at][name], 0) for at in able), reverse=True)
        least = max(least, sum(total < amount for total in accumulate(most)) + 1)
    return least


@lru_cache(maxsize=4096)
def shortest(costs: Costs, count: int) -> int:
    """How near so many zones of a node can be."""
    every = islice(combinations(range(len(costs)), count), numa.MOST_SETS)
    return min(min(length(costs, zones) for zones in every), FAR * count * count)


def length(costs: Costs, zones: tuple[int, ...]) -> int:
    """The sum of the distances between the zones, and of each to itself."""
    lines = [costs[zone] for zone in zones]
    return sum(line[other] if line else FAR for line in lines for other in zones)


def fits(free: list[dict[str, int]], zones: tuple[int, ...], amounts: Amounts) -> bool:
    """Every one of the zones must have the resource, if only none of it is left."""
    return all(
        all(name in free[zone] for zone in zones)
        and sum(max(free[zone][name], 0) for zone in zones) >= amount
        for name, amount in amounts
    )


def give(free: list[dict[str, int]], zones: tuple[int, ...], amounts: Amounts) -> None:
    for name, amount in amounts:
        for zone in zones:
            taken = min(amount, max(free[zone][name], 0))
            free[zone][name] -= taken
            amount -= taken


def balanced(amounts: Amounts, zone: dict[str, int]) -> int:
    """The less the used fractions vary, the better; 0 where something is short."""
    fractions = []
    for name, amount in amounts:
        there = whole(name, max(zone.get(name, 0), 0))
        fraction = whole(name, amount) / there if there else 1.0
        if fraction > 1:
            return 0
        fractions.append(fraction)
    if len(fractions) < 2:
        return MAX_SCORE
    mean = sum(fractions) / len(fractions)
    variance = sum((fraction - mean) ** 2 for fraction in fractions) / (len(fractions) - 1)
    return int((1 - variance) * MAX_SCORE)


def whole(name: str, amount: int) -> int:
    """In whole units: scheduler-plugins' scores see no thousandths of a cpu."""
    return -(-amount // 1000) if name == "cpu" else amount


_: type[Filter] = NodeResourceTopologyMatch
_score: type[Score] = NodeResourceTopologyMatch
