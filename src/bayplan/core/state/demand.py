"""What a row key asks of a node, as vectors in the order of the resource columns.

The first two columns are what scores count, where containers that request nothing get defaults;
then pods, the native resources, and every other resource in the order of first sight.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from bayplan.core.model.pods import RowKey
from bayplan.core.state.arrays import Ints

SCORED_CPU, SCORED_MEMORY, PODS, CPU, MEMORY, STORAGE = range(6)
NOT_ASKED = int(np.iinfo(np.int64).min)  # no node has less free than this


class Demand(Struct, frozen=True):
    """A row key's amounts in the order of the resource columns."""

    need: Ints  # what must be free; NOT_ASKED where nothing is asked
    take: Ints  # what a placement takes; 0 where nothing
    columns: dict[str, int]  # the asked resources that have a column, pods first
    unknown: tuple[str, ...]  # asked resources that no node has ever had
    memo: dict[object, Any]  # what plugins derive from it once
    served: tuple[str, ...] = ()  # asked resources that a DeviceClass serves


def demand_of(
    key: RowKey, resources: Mapping[str, int], width: int, served: frozenset[str]
) -> Demand:
    """The amounts of a row key; `resources` gives the column of each known resource."""
    need, take = [NOT_ASKED] * width, [0] * width
    need[PODS] = take[PODS] = 1
    take[SCORED_CPU], take[SCORED_MEMORY] = key.scored_placed
    columns, unknown = {"pods": PODS}, []
    for name, amount in key.requests:
        column = resources.get(name)
        if column is None:
            unknown.append(name)
        else:
            need[column] = take[column] = amount
            columns[name] = column
    through_classes = tuple(name for name, _ in key.requests if name in served) if served else ()
    asked, taken = np.array(need, dtype=np.int64), np.array(take, dtype=np.int64)
    return Demand(asked, taken, columns, tuple(unknown), {}, through_classes)
