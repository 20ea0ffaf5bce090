"""The placed pods as columns, so that removing them can be thought through on all rows at once.

Per row the pods stand by importance: higher priority first, then the one that started earlier. It
is derived from the cluster when somebody asks, and follows the change logs from then on.
"""

import math
from collections.abc import Collection

import numpy as np

from bayplan.core.model.holdings import unsaid
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.state.arrays import Bits, Ints, Mask, Rows, Times, distinct
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.ordered import NO_POOL
from bayplan.core.state.pools import Table

NOBODY = np.iinfo(np.int64).max  # in `priority`: no pod is there, or none that can be removed
EVERYTHING = np.uint64((1 << 64) - 1)
WIDEST = 64  # devices of a pool that fit into a mask
MOST_KEYS = 1 << 16


class Removable:
    """Of all rows; the second axis is the rank by importance."""

    def __init__(self, cluster: Cluster, spared: Collection[str] = ()) -> None:
        """`spared`: uids of pods that cannot be removed."""
        self.cluster, self.spared = cluster, spared
        self._load = self._victims = -1  # how far the logs were read
        self._clear()

    def _clear(self) -> None:
        rows, depth = len(self.cluster.nodes), 8
        self.pods: list[tuple[Pod, ...]] = [()] * rows
        self.priority: Ints = np.full((rows, depth), NOBODY)
        self.start: Times = np.zeros((rows, depth))
        self.saved: Times = np.zeros((rows, depth))
        self.key: Rows = np.zeros((rows, depth), dtype=np.intp)  # in `keys`
        self.held: dict[str, Bits] = {}  # by class: the devices that the pod holds, all or a part
        self.kept: dict[str, Bits] = {}  # by class, per row: the devices that are held for others
        self.usable: dict[str, Bits] = {}  # by class, per row: the devices that work
        self.ganged: Mask = np.zeros(rows, dtype=np.bool_)  # a pod of a gang is there
        self.keys: list[RowKey] = []
        self._codes: dict[RowKey, int] = {}

    def refresh(self) -> None:
        """What has changed since the last time."""
        cluster = self.cluster
        moved, changed = cluster.load_log.since(self._load), cluster.victim_log.since(self._victims)
        stale = self._load < 0 or len(self.pods) != len(cluster.nodes)
        if stale or moved is None or changed is None or len(self.keys) > MOST_KEYS:
            self._clear()
            rows: Rows = np.arange(cluster.height)
        else:
            rows = distinct(np.concatenate((moved, changed)))
        for row in rows.tolist():
            self._write(row)
        self._load, self._victims = cluster.load_log.head, cluster.victim_log.head

    def counted(self, name: str) -> Mask:
        """Rows without a pool of the class: its devices are only counted there."""
        counted: Mask = self.cluster.pools.tables[name].unknown == NO_POOL
        return counted

    def takes(self, columns: Rows) -> Ints:
        """Per entry of `keys` what it takes of some resources."""
        lines = [self.cluster.demand(key).take[columns] for key in self.keys]
        return np.array(lines, dtype=np.int64).reshape(len(lines), len(columns))

    def _write(self, row: int) -> None:
        residents = self.cluster.residents[row]
        pods = tuple(sorted((each.pod for each in residents.values()), key=importance))
        if len(pods) > self.priority.shape[1]:
            self._deepen(len(pods))
        count = len(pods)
        self.pods[row] = pods
        self.priority[row, count:] = NOBODY
        self.start[row, count:] = self.saved[row, count:] = 0.0
        self.priority[row, :count] = [
            NOBODY if pod.uid in self.spared else pod.priority for pod in pods
        ]
        self.start[row, :count] = [start_of(pod) for pod in pods]
        self.saved[row, :count] = [pod.saved_s for pod in pods]
        self.key[row, :count] = [self._code(pod.row.plain) for pod in pods]
        self.ganged[row] = any(pod.gang is not None for pod in pods)
        for name, table in self.cluster.pools.tables.items():
            self._write_devices(row, name, table)

    def _write_devices(self, row: int, name: str, table: Table) -> None:
        if name not in self.held:
            self.held[name] = np.zeros(self.priority.shape, dtype=np.uint64)
            self.kept[name] = np.zeros(len(self.pods), dtype=np.uint64)
            self.usable[name] = np.zeros(len(self.pods), dtype=np.uint64)
        positions = table.positions[row]
        pods = self.pods[row]
        self.held[name][row, : len(pods)] = [bits_of(pod, name, positions) for pod in pods]
        self.held[name][row, len(pods) :] = 0
        kept = np.uint64(0)
        for pod in self.cluster.holds.on(row):
            kept |= bits_of(pod, name, positions)
        self.kept[name][row] = kept
        works = enumerate(table.usable[row][:WIDEST])
        self.usable[name][row] = sum(1 << at for at, usable in works if usable)

    def _code(self, key: RowKey) -> int:
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.keys)
            self.keys.append(key)
        return code

    def _deepen(self, depth: int) -> None:
        more = ((0, 0), (0, max(depth, 2 * self.priority.shape[1]) - self.priority.shape[1]))
        self.priority = np.pad(self.priority, more, constant_values=NOBODY)
        self.start, self.saved = np.pad(self.start, more), np.pad(self.saved, more)
        self.key = np.pad(self.key, more)
        self.held = {name: np.pad(bits, more) for name, bits in self.held.items()}


def importance(pod: Pod) -> tuple[int, float, str]:
    """kube-scheduler's order; equals by uid, so that it is one."""
    return (-pod.priority, start_of(pod), pod.uid)


def start_of(pod: Pod) -> float:
    """A pod that has not started counts as the youngest."""
    return pod.started_s or math.inf


def bits_of(pod: Pod, name: str, positions: dict[str, int]) -> np.uint64:
    """The devices that the pod holds; all of them where nobody knows which."""
    if pod.held is None and not pod.row.devices:
        return np.uint64(0)
    holding = pod.held or unsaid(pod.row.devices)
    if name in holding.unknown:
        return EVERYTHING
    bits = 0
    for part in holding.parts:
        if part.device_class == name and (at := positions.get(part.id, WIDEST)) < WIDEST:
            bits |= 1 << at
    return np.uint64(bits)
