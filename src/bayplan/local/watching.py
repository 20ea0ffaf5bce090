"""A watch: a place in a kind's log, and the lines that those who ask for it are sent."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from bayplan.kube.clock import Clock
from bayplan.local import forms
from bayplan.local.kinds import Kind
from bayplan.local.problems import Problem, expired
from bayplan.local.selecting import Chosen
from bayplan.local.store import Change, Json, Store, Stored, encode

BOOKMARK_EVERY_S = 60.0
LONGEST_S = 3600.0  # the API server picks between 30 and 60 minutes
_INITIAL_END = {"k8s.io/initial-events-end": "true"}

Render = Callable[[Stored], bytes]  # an object as this watch wants it


class Watch:
    def __init__(self, store: Store, kind: Kind, what: Chosen, render: Render) -> None:
        self._store, self._kind, self._what, self._render = store, kind, what, render
        self._log = store.log(kind.store)
        self._at = self._log.end
        self._after = 0  # a revision that may lie ahead: what comes until then is not told
        self._arrived = asyncio.Event()
        self.bookmarks = False
        self.deadline_s = LONGEST_S

    def begin(self, since: str, initial: bool | None) -> list[bytes]:
        """The first lines: what there is, for a watch that does not go on from a revision.

        `initial` is what the watcher says about that; None: nothing.
        """
        if initial or (initial is None and since in ("", "0")):
            items = self._store.items(self._kind.store, self._what.namespace)
            lines = [self._line("ADDED", stored) for _, stored in items if self._what.has(stored)]
            if initial and self.bookmarks:
                lines.append(self.bookmark(_INITIAL_END))
            return lines
        if since in ("", "0"):
            return []
        revision = int(since)
        at = self._log.after(revision)
        if at is None:
            return [_error(too_old(revision, self._log.since))]
        self._at, self._after = at, revision
        return []

    def take(self) -> list[bytes]:
        """What has happened since."""
        if self._at < self._log.first:
            return [_error(too_old(0, self._log.since))]
        changes = self._log.changes[self._at - self._log.first :]
        self._at = self._log.end
        lines = []
        for change in changes:
            line = self._of(change) if change.revision > self._after else None
            if line is not None:
                lines.append(line)
        return lines

    def bookmark(self, annotations: Json | None = None) -> bytes:
        metadata: Json = {"resourceVersion": str(self._store.revision)}
        if annotations:
            metadata["annotations"] = annotations
        value = {
            "kind": self._kind.kind,
            "apiVersion": self._kind.api_version,
            "metadata": metadata,
            **forms.blank(self._kind),
        }
        return b'{"type":"BOOKMARK","object":' + encode(value) + b"}\n"

    async def lines(self, first: list[bytes], clock: Clock) -> AsyncIterator[list[bytes]]:
        """Until the watch's time is over, or something went wrong."""
        stop = self._store.listen(self._kind.store, self._arrived.set)
        end = clock.time() + self.deadline_s
        marked_at = clock.time()
        try:
            if first:
                yield first
            while not (first and first[-1].startswith(b'{"type":"ERROR"')):
                if clock.time() >= end:
                    return
                self._arrived.clear()
                first = self.take()
                if first:
                    yield first
                    continue
                mark_s = marked_at + BOOKMARK_EVERY_S - clock.time()
                if self.bookmarks and mark_s <= 0:
                    marked_at = clock.time()
                    yield [self.bookmark()]
                    continue
                left_s = min(end - clock.time(), max(mark_s, 0.0) if self.bookmarks else LONGEST_S)
                with suppress(TimeoutError):
                    async with clock.timeout(left_s):
                        await self._arrived.wait()
        finally:
            stop()

    def _of(self, change: Change) -> bytes | None:
        had = change.before is not None and self._what.has(change.before)
        has = change.after is not None and self._what.has(change.after)
        if has:
            return self._line("MODIFIED" if had else "ADDED", change.last)
        if not had:
            return None
        if change.after is None:
            return self._line("DELETED", change.last)
        assert change.before is not None
        value = change.before.copy()  # it left the selection: its old content, the new revision
        value["metadata"]["resourceVersion"] = str(change.revision)
        return self._line("DELETED", Stored(value, encode(value), change.revision))

    def _line(self, sort: str, stored: Stored) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (sort.encode(), self._render(stored))


def too_old(revision: int, oldest: int) -> Problem:
    return expired(f"too old resource version: {revision} ({oldest})")


def too_large(revision: int, current: int) -> Problem:
    return Problem(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {revision}, current: {current}",
        {
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ],
            "retryAfterSeconds": 1,
        },
    )


def _error(problem: Problem) -> bytes:
    return b'{"type":"ERROR","object":' + encode(problem.status) + b"}\n"
