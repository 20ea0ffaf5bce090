"""The last two minutes of the cards, and the annotations that tell them.

Samples, their times and what pods use in; texts out, in the form of Alnair's profiler: what Python
prints of a dict. `docs/profiler.md` has the list.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from bayplan.agent.cycles import period
from bayplan.agent.samples import BYTES_PER_MIB, Card, OnCard, Sample, Samples

DOMAIN = "ai.centaurus.io"
TIMESTAMP = f"{DOMAIN}/timestamp"
WINDOW_S = 120.0  # the original's
GONE_S = 15.0  # a card of which there was no sample for so long is not there
MOST_SAMPLES = 600  # of a card: a window, also when samples come faster than they should
MOST_PIDS = 16  # in the annotation of a card, those with the most memory: 256 cards are 140 KiB
LONGEST_NAME = 63  # of an annotation's key, after the slash
BYTES_PER_GIB = 1 << 30

_ON_NODE = re.compile(rf"{re.escape(DOMAIN)}/(?:gpu-static|gpu-\d{{1,5}}|timestamp)")
_OF_POD = re.compile(
    rf"{re.escape(DOMAIN)}/(?:[-.a-z0-9]+-gpu-\d{{1,5}}_(?:util|mem_mb|mem_bw_util)"
    r"|cpu_util|cpu_mem_mb|network_mbps|disk_io|timestamp)"
)


def ours_on_node(keys: Iterable[str]) -> frozenset[str]:
    """Of the keys of a node's annotations, those that the profiler writes."""
    return frozenset(key for key in keys if _ON_NODE.fullmatch(key))


def ours_of_pod(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(key for key in keys if _OF_POD.fullmatch(key))


class Usage(Struct, frozen=True):
    """What a pod uses beside the cards; None: nobody can say."""

    cpu_percent: float | None = None  # of one core
    memory_mb: float | None = None
    network_mb_per_s: float | None = None  # sent
    disk_mb_per_s: float | None = None  # written


class Seen(Struct, frozen=True):
    """A card as it was last, and its peaks."""

    card: Card
    gpu: int | None
    bandwidth: int | None
    period_s: float | None


class Window:
    """What the cards did in the last two minutes."""

    def __init__(self) -> None:
        self._cards: dict[str, _Course] = {}

    def take(self, sample: Sample, now: float) -> None:
        for card in sample.cards:
            self._cards.setdefault(card.id, _Course(card)).take(card, now)

    def look(self, now: float, indexes: Mapping[str, int]) -> dict[int, Seen]:
        """By the index under which the cluster knows a card, else the driver's."""
        self._cards = {
            id: course
            for id, course in self._cards.items()
            if course.moments[-1].time >= now - GONE_S
        }
        found: dict[int, Seen] = {}
        for id in sorted(self._cards, key=lambda id: id not in indexes):
            course = self._cards[id]
            found.setdefault(indexes.get(id, course.card.index), course.seen())
        return dict(sorted(found.items()))


class _Moment(NamedTuple):
    time: float
    gpu: int | None
    bandwidth: int | None


class _Course:
    """Of one card: as it is now, and only numbers of the past, since processes are many."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.moments: deque[_Moment] = deque(maxlen=MOST_SAMPLES)

    def take(self, card: Card, now: float) -> None:
        self.card = card
        self.moments.append(_Moment(now, card.gpu, card.bandwidth))
        while self.moments[0].time < now - WINDOW_S:
            self.moments.popleft()

    def seen(self) -> Seen:
        gpu = [each.gpu for each in self.moments if each.gpu is not None]
        bandwidth = [each.bandwidth for each in self.moments if each.bandwidth is not None]
        beats = period(bandwidth)
        times = [each.time for each in self.moments if each.bandwidth is not None]
        return Seen(
            self.card,
            max(gpu, default=None),
            max(bandwidth, default=None),
            None if beats is None else round(beats * (times[-1] - times[0]) / (len(times) - 1), 1),
        )


async def watched_for(samples: Samples, seconds: float) -> dict[int, Seen]:
    """What the cards do from now on, for so long."""
    window = Window()

    def take(sample: Sample) -> None:
        window.take(sample, time.monotonic())

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await samples.run(take)
    return window.look(time.monotonic(), {})


def node_annotations(found: Mapping[int, Seen]) -> dict[str, str]:
    """Without the timestamp."""
    if not found:
        return {}
    first = next(iter(found.values())).card
    static = {
        "count": str(len(found)),
        "model": first.model,
        "mem_size": f"{_gib(first.total)}GB",
    }
    if first.pcie:
        static["pcie_gen_width"] = first.pcie
    cards = {f"{DOMAIN}/gpu-{index}": str(_told(seen)) for index, seen in found.items()}
    return {f"{DOMAIN}/gpu-static": str(static)} | cards


def _told(seen: Seen) -> dict[str, object]:
    card = seen.card
    told: dict[str, object] = {
        "mem_used": f"{_gib(card.used)}GB",
        "mem_free": f"{_gib(card.total) - _gib(card.used)}GB",
        "process_cnt": len(card.processes),
    }
    if card.processes:
        most = sorted(card.processes, key=lambda each: (-each.memory, each.pid))[:MOST_PIDS]
        told["pid-mem"] = [(each.pid, f"{_mib(each)}MB") for each in most]
    told["cyclic_pattern"] = seen.period_s is not None
    if seen.period_s is not None:
        told["period"] = str(seen.period_s)
    if seen.bandwidth is not None:
        told["max_mem_bw_util"] = seen.bandwidth
    if seen.gpu is not None:
        told["max_gpu_util"] = seen.gpu
    return told


def _gib(bytes: int) -> int:
    return ceil(bytes / BYTES_PER_GIB)


def _mib(process: OnCard) -> int:
    return ceil(process.memory / BYTES_PER_MIB)


def pod_annotations(
    node: str, found: Mapping[int, Seen], pids: frozenset[int], usage: Usage
) -> dict[str, str]:
    """Of a pod that has these processes, on the cards that they are on; without the timestamp."""
    told: dict[str, object] = {}
    for index, seen in found.items():
        mine = [each for each in seen.card.processes if each.pid in pids]
        if mine:
            told[f"{node}-gpu-{index}_util"] = seen.gpu
            told[f"{node}-gpu-{index}_mem_mb"] = float(sum(map(_mib, mine)))
            told[f"{node}-gpu-{index}_mem_bw_util"] = seen.bandwidth
    told["cpu_util"] = usage.cpu_percent
    told["cpu_mem_mb"] = usage.memory_mb
    told["network_mbps"] = usage.network_mb_per_s
    told["disk_io"] = usage.disk_mb_per_s
    return {
        f"{DOMAIN}/{name}": str(value)
        for name, value in told.items()
        if value is not None and len(name) <= LONGEST_NAME
    }


def stamp(wall: float) -> str:
    """In UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall))
