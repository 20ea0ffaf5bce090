"""Resources: does it fit, and how full does the node become."""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.amounts import (
    NATIVE,
    Resource,
    by_balance,
    by_ratio,
    by_share,
    everywhere,
    nothing,
    scored_columns,
    where_short,
)
from bayplan.core.plugins.hooks import (
    Ask,
    Filter,
    Hopeless,
    PreparesFilter,
    PreparesScore,
    Reads,
    Refuser,
    Score,
    Scorer,
)
from bayplan.core.state.arrays import Codes, Ints, Mask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.demand import NOT_ASKED, PODS
from bayplan.core.state.view import View

MOST_SPELLED = 256
SPELLED_FIRST = {name: at for at, name in enumerate(("pods", *NATIVE))}
FREED = frozenset(
    {EventKind.NODE_ADDED, EventKind.NODE_GREW, EventKind.POD_GONE, EventKind.POD_SHRANK}
)


class Point(Struct, frozen=True, forbid_unknown_fields=True):
    utilization: int  # percent
    score: int  # 0 to 10


class RequestedToCapacityRatio(Struct, frozen=True, forbid_unknown_fields=True):
    shape: tuple[Point, ...] = ()


CPU_AND_MEMORY = (Resource("cpu"), Resource("memory"))


class Strategy(Struct, frozen=True, cache_hash=True, rename="camel", forbid_unknown_fields=True):
    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: tuple[Resource, ...] = CPU_AND_MEMORY
    requested_to_capacity_ratio: RequestedToCapacityRatio = RequestedToCapacityRatio()


class FitArgs(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    scoring_strategy: Strategy = Strategy()
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_resources("scoringStrategy.resources", self.scoring_strategy.resources)
        shape = self.scoring_strategy.requested_to_capacity_ratio.shape
        if self.scoring_strategy.type == "RequestedToCapacityRatio":
            check_shape("scoringStrategy.requestedToCapacityRatio.shape", shape)


class BalancedArgs(Struct, frozen=True, forbid_unknown_fields=True):
    resources: tuple[Resource, ...] = CPU_AND_MEMORY

    def __post_init__(self) -> None:
        check_resources("resources", self.resources)


def check_resources(path: str, resources: tuple[Resource, ...]) -> None:
    if not resources:
        raise ValueError(f"{path}: name at least one resource")
    for resource in resources:
        if not 1 <= resource.weight <= 100:
            raise ValueError(f"{path}: {resource.name} has weight {resource.weight}, not 1 to 100")
    if len({resource.name for resource in resources}) < len(resources):
        raise ValueError(f"{path}: a resource is named twice")


def check_shape(path: str, shape: tuple[Point, ...]) -> None:
    if not shape:
        raise ValueError(f"{path}: give at least one point")
    for before, point in zip((None, *shape), shape, strict=False):
        if not 0 <= point.utilization <= 100 or not 0 <= point.score <= 10:
            raise ValueError(f"{path}: utilization is 0 to 100 and score 0 to 10")
        if before is not None and before.utilization >= point.utilization:
            raise ValueError(f"{path}: utilization must rise from point to point")


class NodeResourcesFit:
    """Refuses nodes with less free than the pod requests; scores by how full they become."""

    name = "NodeResourcesFit"
    reads = Reads.LOAD
    Args = FitArgs

    def __init__(self, args: FitArgs = FitArgs()) -> None:  # noqa: B008
        self._args = args
        self._strategy = args.scoring_strategy
        self._ignoring = bool(args.ignored_resources or args.ignored_resource_groups)
        self._by_utilization = shape_table(self._strategy.requested_to_capacity_ratio.shape)
        self._spelled: dict[Hashable, Reasons] = {}  # by names: amounts differ more

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        if not view.exact:
            return self.refuser(ask)(view)
        spelled = self._reasons(ask)
        short = view.free < self._needs(ask).need
        codes: Codes = spelled.bits.dot(short) | spelled.unknown
        return self._through_classes(ask, view, codes) if spelled.through_classes else codes

    def refuser(self, ask: Ask) -> Refuser:
        return self._needs(ask).refuser

    def needed(self, ask: Ask) -> Ints:
        """What must be free, per resource; NOT_ASKED where anything will do."""
        needed: Ints = self._needs(ask).need[:, 0]
        return needed

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return self._reasons(ask).reasons

    def hopeless(self, ask: Ask, view: View) -> Mask:
        """Where the request alone is more than the node could ever give."""
        needs = self._needs(ask)
        if needs.unknown:
            return np.ones(len(view), dtype=np.bool_)
        need = needs.need.copy()
        need[PODS] = NOT_ASKED
        short: Mask = np.logical_or.reduce(view.allocatable < need)
        return short

    def score(self, ask: Ask, view: View) -> Ints | None:
        return self.scorer(ask, view.cluster)(view)

    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer:
        found: Scorer | None = ask.demand.memo.get(self._strategy)
        if found is None:
            asked = scored_columns(self._strategy.resources, ask, cluster, real=False)
            if self._strategy.type == "RequestedToCapacityRatio":
                found = by_ratio(asked, self._by_utilization)
            else:
                found = by_share(asked, least=self._strategy.type == "LeastAllocated")
            ask.demand.memo[self._strategy] = found
        return found

    def _through_classes(self, ask: Ask, view: View, codes: Codes) -> Codes:
        """Nodes that have none of a resource which a DeviceClass serves are not short of it."""
        spelled = self._reasons(ask)
        for name in ask.demand.served:
            column = ask.demand.columns.get(name)
            if column is not None:
                bit = spelled.bits[column]
                instead = (codes & ~bit) | spelled.through_classes
                codes = np.where(
                    (view.allocatable[column] == 0) & (codes & bit != 0), instead, codes
                )
        return codes

    def _needs(self, ask: Ask) -> "Needs":
        needs: Needs | None = ask.demand.memo.get(self)
        if needs is None:
            demand = ask.demand
            need, unknown = demand.need, demand.unknown
            if self._ignoring:
                ignored = [at for name, at in demand.columns.items() if self._ignores(name)]
                need = need.copy()
                need[ignored] = NOT_ASKED
                unknown = tuple(name for name in unknown if not self._ignores(name))
            refuser = everywhere if unknown else where_short(need)
            needs = demand.memo[self] = Needs(need[:, np.newaxis], bool(unknown), refuser)
        return needs

    def _reasons(self, ask: Ask) -> "Reasons":
        found: Reasons | None = ask.demand.memo.get((self, "reasons"))
        if found is None:
            demand = ask.demand
            columns = tuple(demand.columns.items())
            named = columns, demand.unknown, demand.served, len(demand.need)
            found = self._spelled.get(named)
            if found is None:
                if len(self._spelled) >= MOST_SPELLED:
                    self._spelled.clear()
                found = self._spelled[named] = self._spell(*named)
            demand.memo[self, "reasons"] = found
        return found

    def _spell(
        self,
        columns: tuple[tuple[str, int], ...],
        unknowns: tuple[str, ...],
        by_classes: tuple[str, ...],
        width: int,
    ) -> "Reasons":
        """A bit and a text per asked resource: pods, cpu, memory, storage, then by name."""
        bits, column_of = np.zeros(width, dtype=np.int64), dict(columns)
        reasons: list[Reason] = []
        unknown = 0
        served = [name for name in by_classes if not self._ignores(name)]
        for name in sorted((*column_of, *unknowns), key=place_of):
            if self._ignores(name):
                continue
            column = column_of.get(name)
            if column is None:
                unknown |= 0 if name in served else 1 << len(reasons)
            else:
                bits[column] = 1 << len(reasons)
            text = "Too many pods" if name == "pods" else f"Insufficient {name}"
            reasons.append(Reason(text, True, FREED))
        through_classes = 1 << len(reasons) if served else 0
        if served:
            reasons.append(through(served))
            unknown |= through_classes if set(served) & set(unknowns) else 0
        return Reasons(bits, unknown, through_classes, tuple(reasons))

    def _ignores(self, name: str) -> bool:
        if not self._ignoring or name in NATIVE or "/" not in name:
            return False
        group = name.split("/")[0]
        return name in self._args.ignored_resources or group in self._args.ignored_resource_groups


class NodeResourcesBalancedAllocation:
    """Scores nodes whose cpu and memory would be used more evenly with the pod than without."""

    name = "NodeResourcesBalancedAllocation"
    reads = Reads.LOAD
    Args = BalancedArgs

    def __init__(self, args: BalancedArgs = BalancedArgs()) -> None:  # noqa: B008
        self._resources = args.resources

    def score(self, ask: Ask, view: View) -> Ints | None:
        return self.scorer(ask, view.cluster)(view)

    def scorer(self, ask: Ask, cluster: Cluster) -> Scorer:
        found: Scorer | None = ask.demand.memo.get(self)
        if found is None:
            asked = scored_columns(self._resources, ask, cluster, real=True)
            found = ask.demand.memo[self] = nothing if asked.best_effort else by_balance(asked)
        return found


def place_of(name: str) -> tuple[int, str]:
    """Where the resource stands in a refusal."""
    return SPELLED_FIRST.get(name, len(SPELLED_FIRST)), name


def through(served: Sequence[str]) -> Reason:
    names = ", ".join(served)
    return Reason(
        f"node(s) could have {names} only through a DeviceClass, "
        "which this scheduler does not allocate",
        False,
        frozenset({EventKind.NODE_ADDED, EventKind.NODE_GREW, EventKind.DEVICE_CLASS_CHANGED}),
    )


class Needs(Struct, frozen=True):
    """What NodeResourcesFit compares for one demand."""

    need: Ints  # resources × 1
    unknown: bool  # a resource is asked that no node has
    refuser: Refuser


class Reasons(Struct, frozen=True):
    """How NodeResourcesFit says what is short."""

    bits: Ints  # per column the bit of its reason
    unknown: int  # the bits of resources that no node has
    through_classes: int  # the bit of resources that a DeviceClass serves; 0 where there are none
    reasons: tuple[Reason, ...]


def shape_table(shape: tuple[Point, ...]) -> Ints:
    """Per whole percent of utilization the score, linear between the points."""
    table = np.zeros(101, dtype=np.int64)
    points = [(p.utilization, p.score * 10) for p in shape]
    for percent in range(101 if points else 0):
        after = next((i for i, (at, _) in enumerate(points) if percent <= at), None)
        if after is None:
            table[percent] = points[-1][1]
        elif after == 0:
            table[percent] = points[0][1]
        else:
            (x0, y0), (x1, y1) = points[after - 1], points[after]
            rise = (y1 - y0) * (percent - x0)
            table[percent] = y0 + (rise // (x1 - x0) if rise >= 0 else -(-rise // (x1 - x0)))
    return table


_: type[Filter] = NodeResourcesFit
__: type[Hopeless] = NodeResourcesFit
_prepares: tuple[type[PreparesFilter], type[PreparesScore]] = (NodeResourcesFit, NodeResourcesFit)
___: tuple[type[Score], ...] = (NodeResourcesFit, NodeResourcesBalancedAllocation)
