"""UtilSched: scores nodes by what is really used of their devices, as profilers have measured it.

`corrected` does what Alnair's document says: a basic score of what the node has, a utilisation
score of what is idle there, and an allocated score of what would be idle with the pod on it.
`faithful` gives the numbers of Alnair's code, which prefers full devices. docs/utilisation.md has
both formulas. What nobody has measured, or not lately, counts as half used.

A device that uses memory although no pod that we know holds it is in use out of band. It scores
nothing, and with `closeAbove` its node takes no pod that asks for devices: where a device plugin
chooses, nobody can be kept off one device.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from bayplan.core.devices.usecolumns import Columns, columns_of, fresh, on_rows
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.model.utilisation import UNKNOWN, PodUse, most
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Reads, Score
from bayplan.core.state.arrays import Codes, Ints, Mask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.demand import CPU, MEMORY
from bayplan.core.state.view import View

NODE_WEIGHT, ACTUAL_WEIGHT = 5, 10  # Alnair's; its third, 3 · PodCPU, is the same on every node
HALF = MAX_SCORE // 2
MIB_PER_GIB = 1024
BYTES_PER_MIB = 1 << 20
CLOSED = "node(s) had devices in use by nobody known"
HELPED_BY = frozenset(
    {
        EventKind.NODE_ADDED,
        EventKind.NODE_GREW,
        EventKind.USE_CHANGED,
        EventKind.POD_PLACED,  # perhaps the pod that it is in use by
    }
)
Part = Annotated[int, Meta(ge=0, le=100)]


class Weights(Struct, frozen=True, forbid_unknown_fields=True):
    basic: Part = 1
    utilisation: Part = 2
    allocated: Part = 2


class UtilSchedArgs(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    mode: Literal["corrected", "faithful"] = "corrected"
    weights: Weights = Weights()  # of the corrected score
    out_of_band: Annotated[int, Meta(ge=0)] = 512  # MiB that drivers and idle contexts may take
    close_above: Annotated[float, Meta(gt=0)] | None = None  # MiB; up to 1: that part of the memory

    def __post_init__(self) -> None:
        if not any((self.weights.basic, self.weights.utilisation, self.weights.allocated)):
            raise ValueError("weights: one of them should be above 0")


class Rows:
    """The columns of a view: what counts now, nodes × devices."""

    def __init__(self, view: View, columns: Columns, out_of_band_mib: int) -> None:
        def those(column: Any) -> Any:
            return on_rows(view, column)

        day_s = view.cluster.uses.day_s
        young: Mask = those(fresh(columns, day_s))
        self.gpu: Ints = np.where(young, those(columns.gpu), UNKNOWN)  # percent
        self.copy: Ints = np.where(young, those(columns.copy), UNKNOWN)  # percent
        self.used: Ints = np.where(young, those(columns.used), UNKNOWN)  # MiB
        self.free: Ints = np.where(young, those(columns.free), UNKNOWN)  # MiB
        total = np.where((self.used < 0) | (self.free < 0), 0, self.used + self.free)
        self.total: Ints = total  # MiB; 0 where it is not known
        known = total > 0
        self.memory: Ints = np.where(
            known, np.maximum(self.used, 0) * 100 // np.maximum(self.total, 1), UNKNOWN
        )  # percent
        self.taken: Mask = those(columns.taken)
        self.there: Ints = those(columns.there)  # devices, per node
        self.capability: Ints = those(columns.capability)  # per node
        self.lanes: Ints = those(columns.lanes)  # per node
        self.original: Ints = those(columns.original)  # per node
        self.cpu_milli: Ints = those(columns.cpu_milli)  # per node
        self.memory_mib: Ints = those(columns.memory_mib)  # per node
        self.out_of_band: Mask = ~those(columns.held) & (self.used > out_of_band_mib)


class UtilSched:
    """Prefers nodes whose devices are idle, or, as Alnair's code does, those whose are full; with
    `closeAbove`, refuses nodes whose devices are in use out of band."""

    name = "UtilSched"
    reads = Reads.CLUSTER
    ignores_labels = True
    Args = UtilSchedArgs

    def __init__(self, args: UtilSchedArgs = UtilSchedArgs()) -> None:  # noqa: B008
        self._args = args

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        limit = self._args.close_above
        if limit is None or not ask.row.devices:
            return None
        rows = self._rows(view)
        bounds = np.full(rows.used.shape, limit) if limit > 1 else limit * rows.total
        above: Mask = rows.out_of_band & (bounds > 0) & (rows.used > bounds)
        codes: Codes = np.logical_or.reduce(above, axis=1).astype(np.int64)
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (Reason(CLOSED, False, HELPED_BY),)

    def score(self, ask: Ask, view: View) -> Ints | None:
        if not len(view):
            return None
        if self._args.mode == "faithful":
            return stretched(faithful(self._rows(view)), view)
        devices = wanted_devices(ask.row)
        return self._corrected(ask, view, devices) if devices else None

    def _rows(self, view: View) -> Rows:
        found = view.answers.get(self)
        if not isinstance(found, Rows):
            columns = columns_of(view.cluster)
            found = view.answers[self] = Rows(view, columns, self._args.out_of_band)
        return found

    def _corrected(self, ask: Ask, view: View, devices: int) -> Ints:
        rows, weights = self._rows(view), self._args.weights
        expected = expected_use(ask.pod, view.cluster)
        idle, after = idleness(rows), with_pod(rows, expected)
        idle[rows.out_of_band] = after[rows.out_of_band] = 0
        # of a node's utilisation, three parts are its devices and one is its cpus and memory
        by_device = 3 * weights.utilisation * idle + 4 * weights.allocated * after
        neutral = HALF * (3 * weights.utilisation + 4 * weights.allocated)
        best = best_devices(by_device, rows, devices, is_shared(ask.row), neutral)
        total = (
            4 * weights.basic * basic(rows, view) + best + weights.utilisation * host(rows, view)
        )
        scores: Ints = total // (4 * (weights.basic + weights.utilisation + weights.allocated))
        return scores


# ---- as Alnair's code has it


def faithful(rows: Rows) -> Ints:
    """5 · Node + 10 · Actual, where Actual counts the devices without a whole GB free."""
    used, free = whole_gib(rows.used), whole_gib(rows.free)
    known = (rows.used >= 0) & (rows.free >= 0)
    full = known & (used > 0) & (free == 0)  # used // (used + free), and 0 where both are 0
    raw: Ints = NODE_WEIGHT * rows.original + ACTUAL_WEIGHT * full.sum(axis=1)
    return raw


def stretched(raw: Ints, view: View) -> Ints:
    """From the lowest of the feasible rows as 0 to the highest as 100; all are 100 when equal."""
    feasible = raw[view.feasible_rows]
    if not len(feasible):
        return np.zeros(len(view), dtype=np.int64)
    low, high = int(feasible.min()), int(feasible.max())
    if low == high:
        low -= 1
    clipped = raw.clip(low, high)  # others are refused anyway, and must stay in range
    scores: Ints = (clipped - low) * MAX_SCORE // (high - low)
    return scores


def whole_gib(mib: Ints) -> Ints:
    """Rounded up, as the profiler does."""
    rounded: Ints = -(-mib // MIB_PER_GIB)
    return rounded


# ---- as Alnair's document has it


def basic(rows: Rows, view: View) -> Ints:
    """What the node has, each beside the most that a feasible one has: devices, PCIe lanes, compute
    capability."""
    parts = [beside(each, view) for each in (rows.there, rows.lanes, rows.capability)]
    mean: Ints = np.sum(parts, axis=0) // len(parts)
    return mean


def beside(column: Ints, view: View) -> Ints:
    """As part of the highest of the feasible rows; half where it is not known."""
    highest = int(column[view.feasible_rows].max(initial=0))
    part = np.minimum(column, highest) * MAX_SCORE // max(highest, 1)
    scores: Ints = np.where(column > 0, part, HALF)
    return scores


def idleness(rows: Rows) -> Ints:
    """Of each device 100 less what is used: half of that is compute, a quarter the memory's
    bandwidth, a quarter memory."""
    gpu, copy, memory = (np.where(c < 0, HALF, c) for c in (rows.gpu, rows.copy, rows.memory))
    idle: Ints = MAX_SCORE - (2 * gpu + copy + memory) // 4
    return idle


def with_pod(rows: Rows, pod: PodUse) -> Ints:
    """Of each device how well it would do with the pod, by the measure that would be the highest:
    slowly down to 50 at 100 %, and fast beyond."""
    memory = np.maximum(pod.gpu_memory_mib, 0) * 100 // np.maximum(rows.total, 1)
    added = (
        (rows.gpu, max(pod.gpu_percent, 0)),
        (rows.copy, max(pod.copy_percent, 0)),
        (rows.memory, np.where(rows.total > 0, memory, 0)),
    )
    sums = [np.where(now < 0, HALF, now) + more for now, more in added]
    most_used = np.maximum(np.maximum(sums[0], sums[1]), sums[2])
    slowly, fast = MAX_SCORE - most_used // 2, np.maximum(MAX_SCORE + HALF - most_used, 0)
    scores: Ints = np.where(most_used <= MAX_SCORE, slowly, fast)
    return scores


def host(rows: Rows, view: View) -> Ints:
    """100 less what the node's pods were seen to use of its cpus and memory, half and half."""
    cpus, memory = view.allocatable[CPU], view.allocatable[MEMORY] // BYTES_PER_MIB
    used = [
        np.minimum(part * MAX_SCORE // np.maximum(whole, 1), MAX_SCORE)
        for part, whole in ((rows.cpu_milli, cpus), (rows.memory_mib, memory))
    ]
    idle: Ints = MAX_SCORE - (used[0] + used[1]) // 2
    return idle


def best_devices(values: Ints, rows: Rows, count: int, shared: bool, neutral: int) -> Ints:
    """Per node the mean of the best devices, as many as the pod asks for. One that a pod holds is
    only for pods that share."""
    width = values.shape[1]
    usable = np.arange(width) < rows.there[:, np.newaxis]
    if not shared:
        usable &= ~rows.taken
    best = -np.sort(-np.where(usable, values, -1), axis=1)[:, : min(count, width)]
    counted = (best >= 0).sum(axis=1)
    mean = np.maximum(best, 0).sum(axis=1) // np.maximum(counted, 1)
    found: Ints = np.where(counted > 0, mean, neutral)
    return found


def wanted_devices(row: RowKey) -> int:
    """How many devices the pod asks for; a share is of one."""
    wholes = sum(ask.amount for ask in row.devices if ask.kind == "whole")
    return wholes or bool(row.devices)


def is_shared(row: RowKey) -> bool:
    return all(ask.kind != "whole" for ask in row.devices)


def expected_use(pod: Pod, cluster: Cluster) -> PodUse:
    """The most that the pod was seen to use, else the most of those of its kind that have a place,
    else what it asks for as a share; nothing where none of it is known."""
    known = pod.use or most(
        list(cluster.uses.by_kind.get((pod.namespace, pod.row.plain), {}).values())
    )
    asked = PodUse(
        gpu_percent=sum(ask.amount for ask in pod.row.devices if ask.kind == "compute"),
        gpu_memory_mib=sum(ask.memory_mib for ask in pod.row.devices),
    )
    if known is None:
        return asked
    names = ("gpu_percent", "gpu_memory_mib")
    return PodUse(
        copy_percent=known.copy_percent,
        **{name: getattr(known if getattr(known, name) >= 0 else asked, name) for name in names},
    )


_: type[Filter] = UtilSched
_score: type[Score] = UtilSched
