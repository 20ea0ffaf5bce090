"""Tells the cluster what this node's cards do, in the annotations of Alnair's profiler.

Samples come all the time; every 30 s what the last two minutes were like is written to the node,
and to the pods whose processes are on the cards, where it has changed. Once a minute it is written
anyhow, for its timestamp: readers take what is older than 90 s for stale. When nobody knows any
more what a card does, its annotation goes.

A write that fails is made with the next period. Whatever goes wrong here, the device plugin goes
on: nothing is shared with it but what the watches bring.
"""

import asyncio
import logging
from asyncio import TaskGroup
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

import msgspec
from msgspec import Struct

from bayplan.agent.counts import Counts, Told
from bayplan.agent.nvml import NAME
from bayplan.agent.pods import Pod, PodsHere
from bayplan.agent.profile import (
    TIMESTAMP,
    Seen,
    Window,
    node_annotations,
    pod_annotations,
    stamp,
)
from bayplan.agent.publish import Publisher
from bayplan.agent.samples import Sample, Samples
from bayplan.agent.usage import Counters, Kernel, usage_between
from bayplan.kube.client import NODES, PASSING, PODS, Client
from bayplan.kube.transport import MERGE_PATCH, ApiError, TransportError

log = logging.getLogger("bayplan")

PERIOD_S = 30.0  # the original's
HEARTBEAT_S = 60.0  # at most between two timestamps, give or take a second
Texts = Mapping[str, str]


class Aside(Protocol):
    async def __call__(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
        """The same as the call, without keeping anybody waiting."""


class Here(Struct, frozen=True):
    node: str
    samples: Samples
    kernel: Kernel
    period_s: float = PERIOD_S
    aside: Aside = asyncio.to_thread


class _Written(Struct, frozen=True):
    texts: Texts
    time: float


class _Use(Struct, frozen=True):
    """A pod that has processes on cards."""

    pod: Pod
    pids: frozenset[int]
    counters: Counters


class Profiler:
    def __init__(
        self, client: Client, here: Here, publisher: Publisher, pods: PodsHere, counts: Counts
    ) -> None:
        self._client, self._clock, self._here = client, client.clock, here
        self._publisher, self._pods, self._counts = publisher, pods, counts
        self._window = Window()
        self._node: _Written | None = None
        self._written: dict[str, _Written] = {}  # by pod uid
        self._counters: dict[str, Counters] = {}  # by pod uid
        self._told = Told()

    async def run(self) -> NoReturn:
        """Until cancelled. Our own mistakes end here too, and not the agent."""
        while True:
            try:
                async with TaskGroup() as group:
                    group.create_task(self._here.samples.run(self._take), name="samples")
                    group.create_task(self._keep_writing(), name="profile writer")
            except* Exception:
                self._counts.troubles += 1
                log.exception("the profiler failed, and begins anew")
            await self._clock.sleep(self._here.period_s)

    def _take(self, sample: Sample) -> None:
        self._window.take(sample, self._clock.time())

    async def _keep_writing(self) -> NoReturn:
        # Agents that start together do not write together.
        await self._clock.sleep(self._here.period_s * self._client.rng.uniform(0.5, 1.0))
        while True:
            began = self._clock.time()
            await self.write()
            taken = self._clock.time() - began
            await self._clock.sleep(max(self._here.period_s - taken, 0.0))

    async def write(self) -> None:
        """What there is to write now."""
        found = self._window.look(self._clock.time(), self._publisher.indexes(NAME))
        troubles: list[tuple[str, str]] = []
        try:
            async with self._clock.timeout(self._here.period_s):
                await self._write_node(found)
                troubles += await self._write_pods(found)
        except (ApiError, TransportError, TimeoutError) as error:
            why = str(error) or "the API server does not answer"
            troubles.append(("", f"what cards do is written later: {why}"))
        self._counts.troubles += self._told.new(troubles) + self._here.samples.troubles
        self._here.samples.troubles = 0

    async def _write_node(self, found: Mapping[int, Seen]) -> None:
        texts, there = node_annotations(found), self._publisher.profiled
        if texts.keys() <= there and not self._is_due(self._node, texts, there):
            return
        await self._patch(NODES.path(name=self._here.node), {}, texts, there)
        self._node = _Written(texts, self._clock.time())

    async def _write_pods(self, found: Mapping[int, Seen]) -> list[tuple[str, str]]:
        """Gives what was refused: a no to one pod is none to the others."""
        troubles: list[tuple[str, str]] = []
        pods = self._pods.all()
        uses = await self._here.aside(self._look, found, pods, self._clock.time())
        texts = dict(self._texts(found, uses))
        self._counters = {uid: use.counters for uid, use in uses.items()}
        for pod in pods:
            try:
                await self._write_pod(pod, texts.get(pod.uid, {}))
            except ApiError as error:
                if error.status in PASSING or error.status == 401:
                    raise
                if error.status not in (404, 409):  # it is gone, or another one
                    words = f"what {'/'.join(pod.key)} does on cards is not written: {error}"
                    troubles.append((pod.uid, words))
        here = {pod.uid for pod in pods}
        self._written = {uid: each for uid, each in self._written.items() if uid in here}
        return troubles

    def _look(self, found: Mapping[int, Seen], pods: list[Pod], now: float) -> dict[str, _Use]:
        """Reads the kernel's files; not on the loop."""
        kernel = self._here.kernel
        pids = {each.pid for seen in found.values() for each in seen.card.processes}
        by_pod = kernel.pods_of(sorted(pids)) if pids else {}
        uses: dict[str, _Use] = {}
        for pod in pods:
            if pod.uid in by_pod and not pod.has_ended:
                mine = frozenset(by_pod[pod.uid])
                counters = kernel.counters(pod.uid, mine, now, pod.own_network)
                uses[pod.uid] = _Use(pod, mine, counters)
        return uses

    def _texts(
        self, found: Mapping[int, Seen], uses: Mapping[str, _Use]
    ) -> Iterator[tuple[str, Texts]]:
        for uid, use in uses.items():
            usage = usage_between(self._counters.get(uid), use.counters)
            yield uid, pod_annotations(self._here.node, found, use.pids, usage)

    async def _write_pod(self, pod: Pod, texts: Texts) -> None:
        if not self._is_due(self._written.get(pod.uid), texts, pod.profiled):
            return
        await self._patch(PODS.path(*pod.key), {"uid": pod.uid}, texts, pod.profiled)
        self._written[pod.uid] = _Written(texts, self._clock.time())

    def _is_due(self, last: _Written | None, texts: Texts, there: frozenset[str]) -> bool:
        """Whether it says something else than last, or has not for long; or what is there should
        not be."""
        if there - texts.keys() - ({TIMESTAMP} if texts else set()):
            return True
        if not texts:
            return False
        if last is None or last.texts != texts:
            return True
        return self._clock.time() + self._here.period_s > last.time + HEARTBEAT_S + 1.0

    async def _patch(
        self, path: str, about: dict[str, str], texts: Texts, there: frozenset[str]
    ) -> None:
        annotations: dict[str, str | None] = {**dict.fromkeys(there), **texts}
        annotations[TIMESTAMP] = stamp(self._clock.wall()) if texts else None
        body = msgspec.json.encode({"metadata": {**about, "annotations": annotations}})
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        self._counts.profiled += 1
