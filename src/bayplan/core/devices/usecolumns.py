"""What is used of devices, as columns: nodes × devices, in the order of the node's pool.

They follow from the nodes, the pods on them and the pools, and are kept by the cluster: rows that
have changed since they were last asked for are written again. A device of a node without a pool
stands at its index.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayplan.core.model.nodes import Node, Pool
from bayplan.core.model.utilisation import (
    AGE_S,
    UNKNOWN,
    DeviceUse,
    NodeUse,
    capability,
    original_weight,
)
from bayplan.core.state.arrays import Ints, Mask, Rows, Times
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.pools import HOLDERS
from bayplan.core.state.view import View

NARROWEST = 8
MOST_ANSWERS = 256  # kinds of pods; 40 kB each with 5,000 nodes
CPU_MILLI_PER_PERCENT = 10  # of a core


class Columns:
    def __init__(self, rows: int, width: int = NARROWEST) -> None:
        shape = (rows, width)
        self.gpu: Ints = np.full(shape, UNKNOWN, dtype=np.int64)  # percent
        self.copy: Ints = np.full(shape, UNKNOWN, dtype=np.int64)  # percent
        self.used: Ints = np.full(shape, UNKNOWN, dtype=np.int64)  # MiB
        self.free: Ints = np.full(shape, UNKNOWN, dtype=np.int64)  # MiB
        self.since: Times = np.zeros(shape)  # the time of day; 0: nobody says
        self.held: Mask = np.zeros(shape, dtype=np.bool_)  # by pods that we know, or perhaps so
        self.taken: Mask = np.zeros(shape, dtype=np.bool_)  # by pods that we know, for sure
        self.there: Ints = np.zeros(rows, dtype=np.int64)  # devices; 0: nobody says
        self.capability: Ints = np.zeros(rows, dtype=np.int64)  # of the model, 0: not known
        self.lanes: Ints = np.zeros(rows, dtype=np.int64)  # of PCIe, as if of the first generation
        self.original: Ints = np.zeros(rows, dtype=np.int64)  # UtilSched's score of what is there
        self.cpu_milli: Ints = np.zeros(rows, dtype=np.int64)  # the most that its pods used
        self.memory_mib: Ints = np.zeros(rows, dtype=np.int64)  # likewise
        self.rows, self.width = rows, width
        self.position = -1  # how far the log was read


def columns_of(cluster: Cluster) -> Columns:
    """As everything is now."""
    uses = cluster.uses
    columns, head = uses.columns, uses.log.head
    changed: Iterable[int] | None = None
    if isinstance(columns, Columns) and columns.rows == len(cluster.nodes):
        changed = _since(cluster, columns)
    if changed is None:
        columns = uses.columns = Columns(len(cluster.nodes), _widest(cluster))
        changed = range(cluster.height)
    for row in changed:
        if not _write(columns, cluster, row):  # a node with more devices than any before
            uses.columns = None
            return columns_of(cluster)
    columns.position = head
    assert isinstance(columns, Columns)
    return columns


class Answer:
    """What all rows say to one question, and for when."""

    def __init__(self, columns: Columns, values: Ints) -> None:
        self.columns, self.values = columns, values
        self.position, self.day_s = columns.position, 0.0
        self.until_s = 0.0  # no measure becomes too old before


def answers_of(cluster: Cluster, key: Hashable, ask: Callable[[Columns, Rows], Ints]) -> Ints:
    """What `ask` says of every row, kept by `key`: it is asked again about rows that have changed
    since, and about those where a measure became too old."""
    uses, columns = cluster.uses, columns_of(cluster)
    known = uses.answers.get(key)
    if not isinstance(known, Answer) or known.columns is not columns:
        known = uses.answers[key] = Answer(columns, np.zeros(columns.rows, dtype=np.int64))
        rows: Rows | None = None
        while len(uses.answers) > MOST_ANSWERS:
            uses.answers.popitem(last=False)
    else:
        uses.answers.move_to_end(key)
        rows = uses.log.since(known.position)
        if rows is not None and not known.day_s <= uses.day_s < known.until_s:
            rows = np.concatenate((rows, _aged(columns, known.day_s, uses.day_s)))
            known.until_s = _next_end(columns.since, uses.day_s)
    if rows is None:
        rows = np.arange(cluster.height)
        known.until_s = _next_end(columns.since, uses.day_s)
    if len(rows):
        known.values[rows] = ask(columns, rows)
        known.until_s = min(known.until_s, _next_end(columns.since[rows], uses.day_s))
    known.position, known.day_s = uses.log.head, uses.day_s
    return known.values


def fresh(since: Times, day_s: float) -> Mask:
    """Which measures are young enough to count."""
    if not day_s:
        return np.ones(since.shape, dtype=np.bool_)
    young: Mask = (since == 0) | (since + AGE_S >= day_s)
    return young


def _aged(columns: Columns, before_s: float, day_s: float) -> Rows:
    """The rows where other measures count than before."""
    changed = fresh(columns.since, before_s) != fresh(columns.since, day_s)
    rows: Rows = np.flatnonzero(np.logical_or.reduce(changed, axis=1))
    return rows


def next_end(cluster: Cluster, day_s: float) -> float:
    """When the next measure will be too old, after this time of day."""
    return _next_end(columns_of(cluster).since[: cluster.height], day_s)


def _next_end(since: Times, day_s: float) -> float:
    left = since[(since > 0) & (since + AGE_S >= day_s)]
    # the least bit later, since what is just as old as it may be still counts
    return float(np.nextafter(left.min() + AGE_S, np.inf)) if left.size else float("inf")


def on_rows(view: View, column: NDArray[Any]) -> NDArray[Any]:
    """The rows of the view."""
    return column[: view.size] if view.rows is None else column.take(view.rows, axis=0)


def _since(cluster: Cluster, columns: Columns) -> Iterable[int] | None:
    if columns.position == cluster.uses.log.head:
        return ()
    rows = cluster.uses.log.since(columns.position)
    return None if rows is None else dict.fromkeys(rows.tolist())


def _widest(cluster: Cluster) -> int:
    nodes = (node for node in cluster.nodes if node is not None)
    return max((_places(node) for node in nodes), default=0) or NARROWEST


def _pool(node: Node) -> Pool | None:
    """Of devices that profilers measure: those that are given in order are no GPUs."""
    return next((pool for pool in node.pools if pool.layout is None), None)


def _places(node: Node) -> int:
    """How many devices the node has, as far as anybody says."""
    pool, use = _pool(node), node.use or NodeUse()
    if pool is not None and pool.devices:
        return len(pool.devices)
    return max(use.count, *(device.index + 1 for device in use.devices), 0, 0)


def _write(columns: Columns, cluster: Cluster, row: int) -> bool:
    """The line of a row; False where it does not fit."""
    node = cluster.nodes[row] if row < cluster.height else None
    places = 0 if node is None else _places(node)
    if places > columns.width:
        return False
    for column in (columns.gpu, columns.copy, columns.used, columns.free):
        column[row] = UNKNOWN
    columns.since[row] = 0.0
    columns.held[row] = columns.taken[row] = False
    columns.there[row] = places
    columns.cpu_milli[row] = columns.memory_mib[row] = 0
    columns.capability[row] = columns.lanes[row] = columns.original[row] = 0
    if node is None:
        return True
    pool = _pool(node)
    if node.use is not None:
        _described(columns, row, node.use)
        at = {device.index: i for i, device in enumerate(pool.devices)} if pool else None
        for device in node.use.devices:
            position = device.index if not at else at.get(device.index)
            if position is not None:
                _measured(columns, row, position, device)
    _write_pods(columns, cluster, row, pool)
    return True


def _described(columns: Columns, row: int, use: NodeUse) -> None:
    columns.capability[row] = capability(use.model)
    columns.lanes[row] = use.pcie_width << max(use.pcie_gen - 1, 0)
    columns.original[row] = use.memory_gib * original_weight(use.model) * use.count // 12


def _measured(columns: Columns, row: int, at: int, device: DeviceUse) -> None:
    columns.gpu[row, at], columns.copy[row, at] = device.gpu_percent, device.copy_percent
    columns.used[row, at], columns.free[row, at] = device.used_mib, device.free_mib
    columns.since[row, at] = device.at_s


def _write_pods(columns: Columns, cluster: Cluster, row: int, pool: Pool | None) -> None:
    pods = [resident.pod for resident in cluster.residents[row].values()]
    uses = [pod.use for pod in pods if pod.use is not None]
    cpu = sum(use.cpu_percent for use in uses if use.cpu_percent > 0)
    columns.cpu_milli[row] = cpu * CPU_MILLI_PER_PERCENT
    columns.memory_mib[row] = sum(use.memory_mib for use in uses if use.memory_mib > 0)
    table = cluster.pools.tables.get(pool.device_class) if pool is not None else None
    if pool is None or table is None or not pool.devices or table.unknown[row] > 0:
        everybody = (*pods, *cluster.holds.on(row))
        columns.held[row] = any(pod.row.devices or pod.held is not None for pod in everybody)
        return
    count = len(pool.devices)
    columns.taken[row, :count] = table.cells[row, HOLDERS, :count] > 0
    columns.held[row] = columns.taken[row]
