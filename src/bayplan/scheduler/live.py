"""What a running scheduler tells about itself: its memory against a fresh list, and a bundle."""

import logging
from typing import TypeVar

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.client import Client
from bayplan.kube.read import Reader
from bayplan.kube.reflector import Reflector, Watched
from bayplan.scheduler.audit import Audit, differences, lasting
from bayplan.scheduler.bundle import Decisions, bundle
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.feed import Collected, NamedSink, PodSink, Unread
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.journal import software
from bayplan.scheduler.kinds import namespace_kind, node_kind
from bayplan.scheduler.metrics import Metrics
from bayplan.web.server import Answer, Routes, json

log = logging.getLogger("bayplan")

SETTLE_S = 2.0  # what is under way has arrived by then
T = TypeVar("T")


class Live:
    """Also a recorder, of the last decisions."""

    def __init__(
        self,
        engine: Engine,
        client: Client,
        config: Configuration,
        metrics: Metrics,
        namespaces: bool = True,  # they are followed
    ) -> None:
        self._namespaces = namespaces
        self._engine, self._client, self._config = engine, client, config
        self._metrics = metrics
        self.decisions = Decisions()

    def routes(self) -> Routes:
        return {"/v1/check": self._check, "/v1/dump": self._dump}

    async def run(self) -> None:
        """A comparison every hour, or as configured, until cancelled."""
        while True:
            await self._client.clock.sleep(self._config.check_live_every)
            try:
                audit = await self.check()
            except Exception as error:  # the API may be away; the next one will do
                log.warning("memory could not be compared with a fresh list: %s", error)
                continue
            for difference in audit.differences[:20]:
                log.warning(
                    "memory differs: %s %s is %r here and %r in a fresh list",
                    difference.kind,
                    difference.name,
                    difference.memory,
                    difference.listed,
                )

    async def check(self) -> Audit:
        """Differences that two comparisons, a moment apart, both find."""
        audit = await self._compare()
        if audit.total:
            await self._client.clock.sleep(SETTLE_S)
            audit = lasting(audit, await self._compare())
        self._metrics.comparisons += 1
        self._metrics.differences.clear()
        self._metrics.differences.update(audit.counts)
        return audit

    async def _compare(self) -> Audit:
        reader, nowhere = Reader(self._config.vendors), Inbox(self._client.clock)

        pods = await self._read(PodSink(nowhere, _silent, reader).watched())
        nodes = await self._read(NamedSink(nowhere, _silent, node_kind(reader)).watched())
        spaces: dict[str, dict[str, str]] = {}
        if self._namespaces:
            found = await self._read(NamedSink(nowhere, _silent, namespace_kind(reader)).watched())
            spaces = dict(space for space in found if not isinstance(space, Unread))
        return differences(
            self._engine,
            [item.pod for item in pods if not isinstance(item, Unread)],
            [node for node in nodes if not isinstance(node, Unread)],
            spaces,
        )

    async def _read(self, what: Watched[T]) -> list[T]:
        found: Collected[T] = Collected()
        await Reflector(self._client, what, found).read()
        return found.items

    async def _check(self) -> Answer:
        return json(await self.check())

    async def _dump(self) -> Answer:
        return json(bundle(self._engine, self._config, self.decisions, software()))

    # ---- the recorder

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        for effect in effects:
            self.decisions.add(effect, now)

    def flush(self) -> None:
        """Nothing is held back."""


def _silent(words: str) -> None:
    """The watches tell of what cannot be read."""
