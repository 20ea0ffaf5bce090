"""The toy GPU scheduler's idea: keep whole nodes of GPUs free by filling those that are used."""

from typing import Literal

import numpy as np
from msgspec import Struct

from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Reads, Score
from bayplan.core.state.arrays import Ints
from bayplan.core.state.view import View

# With so many left over, or more, nodes are alike. As arrays, which NumPy need not convert.
MOST_LEFT, ZERO, BEST = np.array(MAX_SCORE - 1), np.array(0), np.array(MAX_SCORE)


class GpuBestFitArgs(Struct, frozen=True, forbid_unknown_fields=True):
    rule: Literal["leastLeftOver", "mostUsed"] = "leastLeftOver"
    resource: str = "nvidia.com/gpu"


class GpuBestFit:
    """Scores nodes by how few GPUs the pod would leave over; those without any come first.

    Only a pod that asks for no GPU can go to a node without: the nodes with GPUs stay free. The
    rule `mostUsed` is that of the original toy scheduler: the more GPUs in use, the better,
    whatever is left over and whatever the pod asks for.
    """

    name = "GpuBestFit"
    reads = Reads.LOAD
    Args = GpuBestFitArgs

    def __init__(self, args: GpuBestFitArgs = GpuBestFitArgs()) -> None:  # noqa: B008
        self._args = args

    def score(self, ask: Ask, view: View) -> Ints | None:
        column = view.cluster.resource_columns.get(self._args.resource)
        if column is None:
            return None
        capacity, free = view.allocatable[column], view.free[column]
        if self._args.rule == "mostUsed":
            used: Ints = np.minimum(capacity - free, BEST)
            return used
        left = free - ask.demand.take[column]
        np.maximum(left, ZERO, out=left)
        np.minimum(left, MOST_LEFT, out=left)
        scores: Ints = MOST_LEFT - left
        np.putmask(scores, capacity == ZERO, BEST)
        return scores


_: type[Score] = GpuBestFit
