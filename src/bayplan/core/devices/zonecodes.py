"""What nodes say to pods for their zones, kept by what the pods ask for.

It takes Python some microseconds a node, and a pod that is refused is asked about over and over:
for a place, for the reasons, for whom it could take the place of. So the answers are kept, and
worked out again only for rows that changed, as the load log tells, on a trial too. Nothing here
decides.
"""

from collections.abc import Callable

import numpy as np

from bayplan.core.model.pods import RowKey
from bayplan.core.state.arrays import Codes, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View
from bayplan.core.state.zones import Column

MOST = 64  # kinds of pods
Say = Callable[[Cluster, int, RowKey], int]  # of a row


def codes_of(view: View, row: RowKey, say: Say) -> Codes:
    """By position in the view."""
    cluster = view.cluster
    column = _column(cluster, row)
    changed = _changed(cluster, column)
    if view.rows is not None and len(changed) > len(view.rows):  # then the others may wait
        return np.array([say(cluster, at, row) for at in view.rows.tolist()], dtype=np.int8)
    for at in dict.fromkeys(changed.tolist()):
        column.codes[at] = say(cluster, at, row)
    column.position = cluster.load_log.head
    return column.codes[: cluster.height].copy() if view.rows is None else column.codes[view.rows]


def _column(cluster: Cluster, row: RowKey) -> Column:
    columns, key = cluster.zones.columns, (row.aligned, row.devices)
    column = columns.get(key)
    if column is None:
        column = columns[key] = Column(np.zeros(0, dtype=np.int8))
        if len(columns) > MOST:
            columns.popitem(last=False)
    columns.move_to_end(key)
    return column


def _changed(cluster: Cluster, column: Column) -> Rows:
    """The rows to work out again, with repeats."""
    if len(column.codes) != len(cluster.nodes):
        column.codes = np.zeros(len(cluster.nodes), dtype=np.int8)
        column.position = -1
    rows = cluster.load_log.since(column.position) if column.position >= 0 else None
    return np.arange(cluster.height) if rows is None else rows
