"""DCGM's measures of devices from a Prometheus server, every half minute.

Each metric is asked for with its samples of the last 90 s, since an instant value would come with
the time of the question, not of the measure. What is missing, stale or no number is left out and
the rest counts. An answer may have 15 MB, so it is read in a thread, series by series: one call
that decodes it whole would keep the loop waiting all the same. A server that does not answer is
asked again, later and later; what it said before grows old by itself, like every measure. Standbys
ask too, so that a new leader knows as much.
"""

import asyncio
import logging
import math
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Raw, Struct, field

from bayplan.core.model.utilisation import AGE_S, MOST_DEVICES, UNKNOWN, DeviceUse
from bayplan.kube.clock import Clock
from bayplan.kube.credentials import Access
from bayplan.kube.http import HttpTransport
from bayplan.kube.profiles import MOST_MIB
from bayplan.kube.transport import ApiError, Transport, TransportError, Unauthorized
from bayplan.scheduler.config import Prometheus as Settings

log = logging.getLogger("bayplan")

PATH = "/api/v1/query"
METRICS: dict[str, tuple[str, int]] = {  # the field of a DeviceUse, and its highest value
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_percent", 100),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("copy_percent", 100),
    "DCGM_FI_DEV_FB_USED": ("used_mib", MOST_MIB),
    "DCGM_FI_DEV_FB_FREE": ("free_mib", MOST_MIB),
}
MOST_BYTES = 64 << 20  # 40,000 devices with a sample every 15 s are some 14 MB
LONGEST_S = 300.0  # between two questions to a server that does not answer
MOST_REMARKS = 256  # that are told once

Found = dict[str, tuple[DeviceUse, ...]]  # by node


class PrometheusError(Exception):
    """The server gave no answer that can be used."""


class Labels(Struct, gc=False):
    """Those by which a node may be named, in the order in which they are tried."""

    hostname: str = field(default="", name="Hostname")
    node: str = ""
    kubernetes_node: str = ""
    instance: str = ""  # host:port
    gpu: str = ""

    def names(self) -> Iterator[str]:
        yield from filter(None, (self.hostname, self.node, self.kubernetes_node))
        yield self.instance.rpartition(":")[0] or self.instance


class Series(Struct, gc=False):
    metric: Labels
    value: tuple[float, str] | None = None  # of a vector
    values: list[tuple[float, str]] = []  # of a matrix, the oldest first

    @property
    def last(self) -> tuple[float, str] | None:
        return self.values[-1] if self.values else self.value


_series = msgspec.json.Decoder(Series)


class Data(Struct):
    result_type: Literal["matrix", "vector"] = field(name="resultType")
    result: list[Raw] = []  # of Series


class Answer(Struct):
    status: str
    data: Data | None = None
    error: str = ""


class Measure(Struct, frozen=True, gc=False):
    node: str
    index: int
    value: int
    at_s: float


class ServerAccess:
    """Where the server is, and what to show it; the token is read afresh for each question."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ssl: ssl.SSLContext | None = None

    async def access(self) -> Access:
        return await asyncio.to_thread(self._read)

    def _read(self) -> Access:
        settings, authorization = self._settings, ""
        if settings.token_file:
            authorization = f"Bearer {Path(settings.token_file).read_text().strip()}"
        if self._ssl is None and settings.server.startswith("https:"):
            self._ssl = ssl.create_default_context(cafile=settings.ca_file or None)
        return Access(settings.server.rstrip("/"), authorization, self._ssl)

    async def refresh(self, refused: Access) -> Access:
        raise Unauthorized(f"{refused.server} refuses our token")


def transport_to(settings: Settings, clock: Clock) -> HttpTransport:
    return HttpTransport(ServerAccess(settings), clock, connections=1)


class Prometheus:
    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        settings: Settings,
        is_node: Callable[[str], bool],
        tell: Callable[[Found], None],
    ) -> None:
        self._transport, self._clock, self._settings = transport, clock, settings
        self._is_node, self._tell = is_node, tell
        self._remarks: set[str] = set()
        self.failures = 0  # in a row

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self.round()
                await self._clock.sleep(self.pause_s)
        finally:
            await self._transport.close()

    @property
    def pause_s(self) -> float:
        period_s = self._settings.period
        return max(min(period_s * (1 << min(self.failures, 8)), LONGEST_S), period_s)

    async def round(self) -> None:
        """Asks once, and tells what is known then."""
        try:
            found = await self.ask()
        except (PrometheusError, TransportError, ApiError, OSError, ValueError) as error:
            if not self.failures:
                log.warning("Prometheus: %s", error)
            self.failures += 1
            return
        if self.failures:
            log.info("Prometheus answers again")
        self.failures = 0
        self._tell(found)

    async def ask(self) -> Found:
        """The use of every device that the server knows of, by node."""
        known = _Known()
        for metric, (name, most) in METRICS.items():
            status, body = await self._query(metric)
            measures = await asyncio.to_thread(self._measures, metric, status, body, most)
            await asyncio.to_thread(known.take, name, measures)
        return await asyncio.to_thread(known.found)

    async def _query(self, metric: str) -> tuple[int, bytes]:
        params = {"query": f"{metric}[{AGE_S:.0f}s]", "timeout": f"{self._settings.timeout:g}s"}
        try:
            async with self._clock.timeout(self._settings.timeout):
                return await self._read(params)
        except TimeoutError:
            raise PrometheusError(f"no answer within {self._settings.timeout:g} s") from None

    async def _read(self, params: Mapping[str, str]) -> tuple[int, bytes]:
        chunks, size = [], 0
        async with self._transport.stream(
            PATH, params=params, timeout_s=self._settings.timeout
        ) as answer:
            async for chunk in answer.chunks:
                chunks.append(chunk)
                size += len(chunk)
                if size > MOST_BYTES:
                    raise PrometheusError(f"its answer is longer than {MOST_BYTES} bytes")
            return answer.status, b"".join(chunks)

    def _measures(self, metric: str, status: int, body: bytes, most: int) -> list[Measure]:
        """Those of an answer that count; not on the loop."""
        now, found = self._clock.wall(), list[Measure]()
        for raw in series_of(status, body):
            try:
                series = _series.decode(raw)
            except (msgspec.MsgspecError, RecursionError) as error:
                self._say(f"{metric}: a series cannot be read: {str(error)[:200]}")
                continue
            measure = self._measure(metric, series, most, now)
            if measure is not None:
                found.append(measure)
        return found

    def _measure(self, metric: str, series: Series, most: int, now: float) -> Measure | None:
        node = next((name for name in series.metric.names() if self._is_node(name)), None)
        sample, gpu = series.last, series.metric.gpu
        if node is None or sample is None or not abs(now - sample[0]) <= AGE_S:
            return None  # of another cluster, or stale
        if not (gpu.isascii() and gpu.isdigit() and len(gpu) <= 4 and int(gpu) < MOST_DEVICES):
            self._say(f"{metric} of node {node}: {gpu[:40]!r} is no number of a device")
            return None
        value = number(sample[1])
        if not 0 <= value <= most:
            self._say(f"{metric} of node {node}, gpu {gpu}: {sample[1][:40]!r} is no measure")
            return None
        return Measure(node, int(gpu), round(value), sample[0])

    def _say(self, words: str) -> None:
        """Once, unless there was too much else."""
        if words not in self._remarks:
            if len(self._remarks) >= MOST_REMARKS:
                self._remarks.clear()
            self._remarks.add(words)
            log.warning("Prometheus: %s; it is left out", words)


class _Known:
    """What was measured of each device, metric by metric; as old as the oldest of it."""

    def __init__(self) -> None:
        self._fields: dict[tuple[str, int], dict[str, int]] = {}
        self._oldest: dict[tuple[str, int], float] = {}

    def take(self, name: str, measures: Iterable[Measure]) -> None:
        for measure in measures:
            device = (measure.node, measure.index)
            known = self._fields.setdefault(device, {})
            known[name] = max(measure.value, known.get(name, UNKNOWN))
            self._oldest[device] = min(measure.at_s, self._oldest.get(device, math.inf))

    def found(self) -> Found:
        found: dict[str, list[DeviceUse]] = {}
        for device in sorted(self._fields):
            node, index = device
            use = DeviceUse(index, at_s=self._oldest[device], **self._fields[device])
            found.setdefault(node, []).append(use)
        return {node: tuple(uses) for node, uses in found.items()}


def series_of(status: int, body: bytes) -> list[Raw]:
    """The series of an answer, still to be read."""
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = f"its answer cannot be read: {error}" if status == 200 else f"it answers {status}"
        raise PrometheusError(why) from None
    if status != 200 or answer.status != "success" or answer.data is None:
        raise PrometheusError(f"it says: {answer.error[:200] or answer.status} ({status})")
    return answer.data.result


def number(text: str) -> float:
    """NaN where it is none, which is within no bounds."""
    try:
        return float(text)
    except ValueError:
        return math.nan
