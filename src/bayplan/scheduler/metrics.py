"""Metrics: kube-scheduler's names where they mean the same, `bayplan_` for the rest.

Nearly all are numbers that the parts keep anyway, read when somebody asks; a scrape comes on
another thread, so it reads lengths and copies, never walks what the loop is changing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.scheduler.loop import Output
from bayplan.scheduler.watches import Watches

VICTIMS = (1, 2, 4, 8, 16, 32, 64)  # kube-scheduler's buckets
CYCLES = tuple(ms / 1e3 for ms in (*range(1, 21), 25, 30, 40, 60, 80, 100, 200, 500, 1000, 5000))
# from a millisecond, since a bind takes some, to an hour
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)


class Metrics:
    """A recorder of the loop, and a collector for Prometheus."""

    def __init__(self, engine: Engine, watches: Watches, writer: Output) -> None:
        self._engine, self._watches, self._writer = engine, watches, writer
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._waited = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From the first sight of a pod to its bind.",
            registry=self.registry,
            buckets=SECONDS,
        )
        self._victims = Histogram(
            "scheduler_preemption_victims",
            "Pods that make room for one, or for one gang.",
            registry=self.registry,
            buckets=VICTIMS,
        )
        self.cycles = Histogram(
            "bayplan_cycle_seconds",
            "A round of the loop that decided something, until the next one can begin.",
            registry=self.registry,
            buckets=CYCLES,
        )
        self.first_seen: dict[str, float] = {}  # by uid: of pods that wait
        self._attempts: Counter[tuple[str, str]] = Counter()  # by profile and result
        self.leads: Callable[[], bool] = lambda: False
        self.kubelet_refusals: Counter[tuple[str, str]] = Counter()  # by node and resource
        self.partitions: Counter[tuple[str, str]] = Counter()  # by what was done, and its result
        self.differences: Counter[str] = Counter()  # of the last comparison with a fresh list
        self.comparisons = 0
        self.journal_errors: Callable[[], int] = lambda: 0

    # ---- the recorder

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        match event:  # looking for an attribute takes its time
            case on.PodSeen():
                pod = event.pod
                if not pod.node and pod.scheduler in self._engine.profiles:
                    self.first_seen.setdefault(pod.uid, now)
            case on.BindDone():
                seen = self.first_seen.pop(event.uid, None)
                if seen is not None:
                    self._waited.observe(now - seen)
            case on.PodGone():
                self.first_seen.pop(event.uid, None)
        for effect in effects:
            match effect:
                case do.Bind():
                    self._attempts[effect.placement.pod.scheduler, "scheduled"] += 1
                case do.Preempt(_, _, victims):
                    self._victims.observe(len(victims))
                case do.Refuse(pod):
                    self._attempts[pod.scheduler, "unschedulable"] += 1
                case do.Park(pod):
                    self._attempts[pod.scheduler, "error"] += 1

    def flush(self) -> None:
        """Nothing is held back."""

    # ---- the collector

    def expose(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        engine, writer = self._engine, self._writer
        yield counter(
            "scheduler_schedule_attempts",
            "Tries to schedule a pod, by result; pods that are refused as one count as they wait.",
            ("profile", "result"),
            self._attempts,
        )
        yield counter(
            "scheduler_preemption_attempts",
            "Searches for pods that might go for another, whatever came of them.",
            (),
            {(): engine.preempting.attempts + engine.offers.attempts},
        )
        yield gauge(
            "scheduler_pending_pods", "Pods that wait, by queue.", ("queue",), pending(engine)
        )
        yield counter("bayplan_writes", "Requests that were carried out.", ("kind",), writer.done)
        yield counter("bayplan_failed_writes", "Requests that failed.", ("kind",), writer.failed)
        yield counter(
            "bayplan_dropped_writes", "What was not written at shutdown.", ("kind",), writer.dropped
        )
        yield gauge("bayplan_queued_writes", "What is to be written.", ("kind",), writer.queued)
        yield from self._of_watches()
        cluster = engine.cluster
        yield number("bayplan_nodes", "Nodes in memory.", cluster.node_count)
        yield number("bayplan_pods", "Pods on nodes in memory.", len(cluster.pods))
        yield number("bayplan_assumed_pods", "Binds without an answer.", len(engine.assumed))
        kept = len(engine.nominations.awaited)
        yield number("bayplan_gangs_with_places_kept", "Gangs that await the end of others.", kept)
        yield number("bayplan_leads", "1 while this replica decides.", int(self.leads()))
        yield number("bayplan_state_version", "Rises with each change.", cluster.version)
        yield counter(
            "bayplan_plugin_errors", "Pods parked by an exception.", (), {(): engine.plugin_errors}
        )
        yield counter(
            "bayplan_picker_fallbacks",
            "Decisions that the scores took because a picker failed.",
            ("reason",),
            dict(engine.picking.fallbacks),
        )
        yield counter(
            "bayplan_kubelet_refusals",
            "Pods that we bound and a kubelet refused.",
            ("node", "resource"),
            self.kubelet_refusals,
        )
        yield counter(
            "bayplan_partitions",
            "Partitions that controllers were asked to make or delete.",
            ("operation", "result"),
            self.partitions,
        )
        lines = list(engine.cluster.estates.lines.items())
        every = {(name, "all"): len(line.estate.devices) for name, line in lines}
        free = {(name, "free"): line.free.bit_count() for name, line in lines}
        words = "Devices behind controllers."
        yield gauge("bayplan_estate_devices", words, ("estate", "state"), every | free)
        yield gauge(
            "bayplan_live_differences",
            "Memory against a fresh list, at the last comparison.",
            ("kind",),
            self.differences,
        )
        yield counter("bayplan_live_comparisons", "Fresh lists.", (), {(): self.comparisons})
        yield counter("bayplan_journal_errors", "Failed writes.", (), {(): self.journal_errors()})

    def _of_watches(self) -> Iterator[Metric]:
        reflectors = self._watches.reflectors
        for name, words in (
            ("lists", "Whole reads."),
            ("watches", "Watches that began."),
            ("restarts", "Watches that took up an earlier one."),
            ("events", "Changes that arrived."),
        ):
            values = {what: getattr(r, name) for what, r in reflectors.items()}
            yield counter(f"bayplan_watch_{name}", words, ("kind",), values)
        sinks: dict[str, Any] = {"pod": self._watches.pods, **self._watches.named}
        unread = {what: sink.unread for what, sink in sinks.items()}
        yield counter("bayplan_unread_objects", "Objects not understood.", ("kind",), unread)
        same = {what: sink.unchanged for what, sink in sinks.items()}
        yield counter("bayplan_unchanged_updates", "Updates without news.", ("kind",), same)


def pending(engine: Engine) -> dict[str, int]:
    """As kube-scheduler sorts them."""
    counts = {"active": 0, "backoff": 0, "unschedulable": 0, "gated": len(engine.held)}
    for group in list(engine.waiting.groups.values()):  # copied at once
        size, resting = len(group.members), len(group.resting)
        if group.refusal is not None:
            counts["unschedulable"] += size
        else:
            counts["backoff"] += min(resting, size)
            counts["active"] += max(size - resting, 0)
    return counts


def counter(name: str, words: str, labels: tuple[str, ...], values: Any) -> Metric:
    return filled(CounterMetricFamily(name, words, labels=labels), values)


def gauge(name: str, words: str, labels: tuple[str, ...], values: Any) -> Metric:
    return filled(GaugeMetricFamily(name, words, labels=labels), values)


def number(name: str, words: str, value: float) -> Metric:
    return gauge(name, words, (), {(): value})


def filled(family: Any, values: Any) -> Metric:
    for key, value in list(values.items()):
        family.add_metric(key if isinstance(key, tuple) else (key,), value)
    metric: Metric = family
    return metric
