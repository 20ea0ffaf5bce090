"""UtilSched: scores nodes by what is really used of their devices, as profilers have measured it.

`corrected` does what Alnair's document says: a basic score of what the node has, a utilisation
score of what is idle there, and an allocated score of what would be idle with the pod on it.
`faithful` gives the numbers of Alnair's code, which prefers full devices. docs/utilisation.md has
both formulas. What nobody has measured, or not lately, counts as half used.

A device that uses memory although no pod that we know holds it is in use out of band. It scores
nothing, and with `closeAbove` its node takes no pod that asks for devices: where a device plugin
chooses, nobody can be kept off one device.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from bayplan.core.devices.usecolumns import Columns, answers_of, columns_of, fresh, on_rows
from bayplan.core.model.pods import Pod
from bayplan.core.model.utilisation import UNKNOWN, PodUse
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Reads, Score
from bayplan.core.state.arrays import Codes, Ints, Mask, Rows
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


class Lines:
    """Some rows of the columns, as far as they count now: nodes × devices."""

    def __init__(self, columns: Columns, rows: Rows, day_s: float, out_of_band_mib: int) -> None:
        young = fresh(columns.since[rows], day_s)
        self.gpu: Ints = np.where(young, columns.gpu[rows], UNKNOWN)  # percent
        self.copy: Ints = np.where(young, columns.copy[rows], UNKNOWN)  # percent
        self.used: Ints = np.where(young, columns.used[rows], UNKNOWN)  # MiB
        self.free: Ints = np.where(young, columns.free[rows], UNKNOWN)  # MiB
        known = (self.used >= 0) & (self.free >= 0)
        self.total: Ints = np.where(known, self.used + self.free, 0)  # MiB; 0: not known
        percent = self.used * MAX_SCORE // np.maximum(self.total, 1)
        self.memory: Ints = np.where(self.total > 0, percent, UNKNOWN)  # percent
        self.taken: Mask = columns.taken[rows]
        self.there: Ints = columns.there[rows]  # devices, per node
        # Profilers round up to whole GiB: the least that can be meant. A MiB of the driver's own,
        # written as 1GB, is nobody's use.
        is_whole = (self.used > 0) & (self.used % MIB_PER_GIB == 0)
        self.surely: Ints = np.where(is_whole, self.used - (MIB_PER_GIB - 1), self.used)  # MiB
        self.out_of_band: Mask = ~columns.held[rows] & (self.surely > out_of_band_mib)


class UtilSched:
    """Prefers nodes whose devices are idle, or, as Alnair's code does, those whose are full; with
    `closeAbove`, refuses nodes whose devices are in use out of band."""

    name = "UtilSched"
    reads = Reads.CLUSTER
    ignores_labels = True
    Args = UtilSchedArgs

    def __init__(self, args: UtilSchedArgs = UtilSchedArgs()) -> None:  # noqa: B008
        self._args = args
        self.use_closes = args.close_above is not None  # or opens nodes

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        if self._args.close_above is None or not ask.row.devices:
            return None
        codes: Codes = on_rows(view, self._ask_rows(view.cluster, "closed", self._closed))
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (Reason(CLOSED, False, HELPED_BY),)

    def score(self, ask: Ask, view: View) -> Ints | None:
        if not len(view):
            return None
        if self._args.mode == "faithful":
            full = self._ask_rows(view.cluster, "full", full_devices)
            original = columns_of(view.cluster).original
            raw = NODE_WEIGHT * on_rows(view, original) + ACTUAL_WEIGHT * on_rows(view, full)
            return stretched(raw)
        return self._corrected(ask, view) if ask.row.devices else None

    def _ask_rows(self, cluster: Cluster, key: Hashable, ask: Callable[[Lines], Ints]) -> Ints:
        """What `ask` says of every row; kept, since most pods ask the same."""
        day_s, out_of_band = cluster.uses.day_s, self._args.out_of_band

        def some(columns: Columns, rows: Rows) -> Ints:
            return ask(Lines(columns, rows, day_s, out_of_band))

        return answers_of(cluster, (self._args, key), some)

    def _closed(self, lines: Lines) -> Ints:
        limit = self._args.close_above or math.inf
        bounds = np.full(lines.used.shape, limit) if limit > 1 else limit * lines.total
        above: Mask = lines.out_of_band & (bounds > 0) & (lines.surely > bounds)
        closed: Ints = np.logical_or.reduce(above, axis=1).astype(np.int64)
        return closed

    def _corrected(self, ask: Ask, view: View) -> Ints:
        weights, wants = self._args.weights, Wants.of(ask, view.cluster)
        best = self._ask_rows(view.cluster, wants, partial(self._best, wants))
        columns = columns_of(view.cluster)
        total = (
            4 * weights.basic * basic(columns, view)
            + on_rows(view, best)
            + weights.utilisation * host(columns, view)
        )
        scores: Ints = total // (4 * (weights.basic + weights.utilisation + weights.allocated))
        return scores

    def _best(self, wants: "Wants", lines: Lines) -> Ints:
        """Of a node's utilisation, three parts are its devices and one is its cpus and memory."""
        weights = self._args.weights
        by_device = 3 * weights.utilisation * idleness(lines)
        by_device += 4 * weights.allocated * with_pod(lines, wants.use)
        by_device[lines.out_of_band] = 0
        neutral = HALF * (3 * weights.utilisation + 4 * weights.allocated)
        return best_devices(by_device, lines, wants, neutral)


# ---- as Alnair's code has it


def full_devices(lines: Lines) -> Ints:
    """Actual, which counts the devices without a whole GB free: used // (used + free), and 0 where
    both are 0."""
    used, free = whole_gib(lines.used), whole_gib(lines.free)
    full = (lines.used >= 0) & (lines.free >= 0) & (used > 0) & (free == 0)
    count: Ints = full.sum(axis=1, dtype=np.int64)
    return count


def stretched(raw: Ints) -> Ints:
    """From the lowest as 0 to the highest as 100; all are 100 when equal."""
    low, high = int(raw.min()), int(raw.max())
    if low == high:
        low -= 1
    scores: Ints = (raw - low) * MAX_SCORE // (high - low)
    return scores


def whole_gib(mib: Ints) -> Ints:
    """Rounded up, as the profiler does."""
    rounded: Ints = -(-mib // MIB_PER_GIB)
    return rounded


# ---- as Alnair's document has it


def basic(columns: Columns, view: View) -> Ints:
    """What the node has, each beside the most that one of them has: devices, PCIe lanes, compute
    capability."""
    whole = (columns.there, columns.lanes, columns.capability)
    parts = [beside_most(on_rows(view, each)) for each in whole]
    mean: Ints = np.sum(parts, axis=0) // len(parts)
    return mean


def beside_most(column: Ints) -> Ints:
    """As part of the highest; half where it is not known."""
    part = column * MAX_SCORE // max(int(column.max()), 1)
    scores: Ints = np.where(column > 0, part, HALF)
    return scores


def idleness(lines: Lines) -> Ints:
    """Of each device 100 less what is used: half of that is compute, a quarter the memory's
    bandwidth, a quarter memory."""
    gpu, copy, memory = (np.where(c < 0, HALF, c) for c in (lines.gpu, lines.copy, lines.memory))
    idle: Ints = MAX_SCORE - (2 * gpu + copy + memory) // 4
    return idle


def with_pod(lines: Lines, pod: PodUse) -> Ints:
    """Of each device how well it would do with the pod, by the measure that would be the highest:
    slowly down to 50 at 100 %, and fast beyond."""
    memory = np.maximum(pod.gpu_memory_mib, 0) * 100 // np.maximum(lines.total, 1)
    added = (
        (lines.gpu, max(pod.gpu_percent, 0)),
        (lines.copy, max(pod.copy_percent, 0)),
        (lines.memory, np.where(lines.total > 0, memory, 0)),
    )
    sums = [np.where(now < 0, HALF, now) + more for now, more in added]
    most_used = np.maximum(np.maximum(sums[0], sums[1]), sums[2])
    slowly, fast = MAX_SCORE - most_used // 2, np.maximum(MAX_SCORE + HALF - most_used, 0)
    scores: Ints = np.where(most_used <= MAX_SCORE, slowly, fast)
    return scores


def host(columns: Columns, view: View) -> Ints:
    """100 less what the node's pods were seen to use of its cpus and memory, half and half."""
    cpus, memory = view.allocatable[CPU], view.allocatable[MEMORY] // BYTES_PER_MIB
    used = [
        np.minimum(on_rows(view, part) * MAX_SCORE // np.maximum(whole, 1), MAX_SCORE)
        for part, whole in ((columns.cpu_milli, cpus), (columns.memory_mib, memory))
    ]
    idle: Ints = MAX_SCORE - (used[0] + used[1]) // 2
    return idle


def best_devices(values: Ints, lines: Lines, wants: "Wants", neutral: int) -> Ints:
    """Per node the mean of the best devices, as many as the pod asks for. One that a pod holds is
    only for pods that share."""
    width = values.shape[1]
    usable = np.arange(width) < lines.there[:, np.newaxis]
    if not wants.shares:
        usable &= ~lines.taken
    best = -np.sort(-np.where(usable, values, -1), axis=1)[:, : min(wants.devices, width)]
    counted = (best >= 0).sum(axis=1)
    mean = np.maximum(best, 0).sum(axis=1) // np.maximum(counted, 1)
    found: Ints = np.where(counted > 0, mean, neutral)
    return found


class Wants(Struct, frozen=True, cache_hash=True):
    """What of a pod the score of a node's devices depends on."""

    devices: int
    shares: bool  # a part of one device
    use: PodUse

    @classmethod
    def of(cls, ask: Ask, cluster: Cluster) -> "Wants":
        wholes = sum(each.amount for each in ask.row.devices if each.kind == "whole")
        return cls(wholes or 1, not wholes, expected_use(ask.pod, cluster))


def expected_use(pod: Pod, cluster: Cluster) -> PodUse:
    """The most that the pod was seen to use, else the most of those of its kind that have a place,
    else what it asks for as a share; nothing where none of it is known."""
    known = pod.use or cluster.uses.most(pod)
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
