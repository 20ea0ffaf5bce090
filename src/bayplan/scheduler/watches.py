"""The watches that feed the inbox, and when what they bring is complete."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bayplan.core.model import events as on
from bayplan.core.model.grants import KINDS
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import Client
from bayplan.kube.read import Reader
from bayplan.kube.reflector import Reflector
from bayplan.kube.transport import ApiError
from bayplan.scheduler.feed import (
    Adopt,
    Collected,
    FailedSink,
    Failures,
    NamedSink,
    PodSink,
    Report,
)
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.kinds import NODE, STORAGE_CLASS, kinds
from bayplan.scheduler.nodefeed import NodeSink

_AGAIN_S = 600.0  # the same trouble is told again after so long
_NOT_THERE = (403, 404)  # a role without the kind, a server without the kind


class Watches:
    """One reflector per kind. An optional kind that we may not read counts as empty."""

    def __init__(
        self,
        client: Client,
        inbox: Inbox,
        report: Report,
        on_failed: Failures,
        adopt: Adopt | None = None,
        vendors: Vendors | None = None,
        only: Sequence[str] | None = None,
    ) -> None:
        """`only`: the kinds wanted beside pods; else all, and with them pods that failed."""
        self._client, self._report, self._inbox = client, report, inbox
        self.reader = reader = Reader(vendors, report)
        self.pods = PodSink(inbox, report, reader, adopt)
        self.named: dict[str, NamedSink[Any]] = {
            kind.what: NodeSink(inbox, report, kind, client.clock)
            if kind.what == NODE
            else NamedSink(inbox, report, kind)
            for kind in kinds(reader)
            if only is None or kind.what in only
        }
        self.missing: dict[str, str] = {}  # by kind: why we go without
        self._troubles: dict[str, tuple[str, float]] = {}  # by kind: the last, and when it was told
        pods, trouble = self.pods, self._trouble("pod", False)
        self.reflectors: dict[str, Reflector[Any]] = {
            "pod": Reflector(client, pods.watched(), pods, trouble, pods.begin_list)
        }
        for what, sink in self.named.items():
            trouble = self._trouble(what, sink.kind.optional, sink.kind.rare)
            self.reflectors[what] = Reflector(client, sink.watched(), sink, trouble)
        if only is not None:
            return
        failed = FailedSink(reader, on_failed)
        trouble = self._trouble("failed pod", True)
        self.reflectors["failed pod"] = Reflector(client, failed.watched(), failed, trouble)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors.values():
                group.create_task(reflector.run())

    async def read_now(self) -> None:
        """The pods, and what elastic jobs were promised, as they are now, whatever the watches have
        brought so far."""
        await self._read(self.pods)
        for kind in KINDS:
            sink = self.named.get(kind.lower())
            if sink is not None and sink.is_synced:
                await self._read(sink)

    async def _read(self, sink: PodSink | NamedSink[Any]) -> None:
        found: Collected[Any] = Collected()
        sink.begin_read()
        try:
            await Reflector(self._client, sink.watched(), found).read()
        except BaseException:
            sink.give_up_read()
            raise
        sink.end_read(found.items)

    @property
    def synced(self) -> bool:
        """Whether everything that there was at the start is in the inbox or further."""
        return self.pods.is_synced and all(
            sink.is_synced or what in self.missing for what, sink in self.named.items()
        )

    def unsynced(self) -> list[str]:
        waiting = [] if self.pods.is_synced else ["pod"]
        named = self.named.items()
        return waiting + [w for w, s in named if not s.is_synced and w not in self.missing]

    def _trouble(
        self, what: str, optional: bool, rare: bool = False
    ) -> Callable[[Exception], None]:
        def tell(error: Exception) -> None:
            why = str(error)
            if optional and isinstance(error, ApiError) and error.status in _NOT_THERE:
                if what not in self.missing:
                    self.missing[what] = why
                    if not (rare and error.status == 404):
                        self._report(f"going without {plural(what)}: {why}")
                    if what == STORAGE_CLASS:
                        self._inbox.add(on.StorageClassesHidden())
                    self._inbox.wake()
                return
            last, at = self._troubles.get(what, ("", 0.0))
            now = self._client.clock.time()
            if why != last or now - at >= _AGAIN_S:
                self._troubles[what] = why, now
                self._report(f"the watch of {plural(what)}: {why}")

        return tell


def plural(what: str) -> str:
    """The kind may have the group of the API behind it."""
    kind, dot, group = what.partition(".")
    if kind.endswith("y"):
        return f"{kind[:-1]}ies{dot}{group}"
    return f"{kind}{'es' if kind.endswith('s') else 's'}{dot}{group}"
