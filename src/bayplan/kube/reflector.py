"""List and watch: everything of one kind, once, and then each change, to a sink.

What is missed is asked for again from the version last seen; the whole is read again only when the
server says that it no longer has that version (410). Nothing is remembered here but the version;
what an object means is the caller's to decode.

    no version ──whole read──▶ watching ──closed, dropped, silent, 429, 5xx──▶ watching again
         ◀──────────────────────── 410, as a status or as an event ◀┘
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from bayplan.kube.client import PASSING, Client, status_error
from bayplan.kube.clock import Backoff
from bayplan.kube.transport import ApiError, TransportError

T = TypeVar("T")

_PAGE = 500  # objects a page; client-go's pager has the same
_LIST_S = 60.0
_WATCH_S = (300, 600)  # the server closes a watch after a time between these; client-go's
# An idle watch brings a bookmark about every minute. Twice that and a half without a byte: the
# connection is dead, even where TCP has not noticed.
_SILENCE_S = 150.0
_OFTEN_S = 60.0  # a server that says 410 again so soon is given time, if it has not just had some
_SHORT_S = 5.0  # a watch that ends sooner is not followed by another at once
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class Sink(Protocol[T]):
    def replace(self, items: list[T], resource_version: str) -> None:
        """All there is; what is not in it is gone."""

    def put(self, item: T) -> None: ...
    def drop(self, item: T) -> None:
        """It is gone, or has left the selector; this is its last content."""

    def synced(self) -> None:
        """After each `replace`: from here on come changes."""

    def bad(self, line: bytes, error: Exception) -> None:
        """A line or an object that cannot be understood; the stream goes on."""


class Watched(Struct, Generic[T], frozen=True):
    """What to follow, and how to read it."""

    path: str
    decode: Callable[[Raw], T]  # usually msgspec.json.Decoder(...).decode
    lenient: Callable[[Raw, Exception], T] | None = None  # for what `decode` refuses
    label_selector: str = ""
    field_selector: str = ""
    older: str = ""  # where the same objects are on a server that does not have the path


class Reflector(Generic[T]):
    """`on_trouble` hears of every failure, once, before the pause that follows it. `on_whole` hears
    that the whole is about to be asked for: what was there by then is in the next `replace`."""

    def __init__(
        self,
        client: Client,
        what: Watched[T],
        sink: Sink[T],
        on_trouble: Callable[[Exception], None] | None = None,
        on_whole: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._clock, self._what, self._sink = client, client.clock, what, sink
        self._on_trouble, self._on_whole = on_trouble, on_whole
        self._backoff = Backoff(client.clock, client.rng)
        self._selectors = {
            name: value
            for name, value in (
                ("labelSelector", what.label_selector),
                ("fieldSelector", what.field_selector),
            )
            if value
        }
        self._newest = what.path
        self._version: str | None = None
        self._last: Raw | None = None  # the last object after it
        self._streams_lists = True  # until the server says that it does not (WatchList)
        self._pages = _Pages()
        self._initial: dict[tuple[str, str], T] | None = None  # while the whole is streamed
        self._resumes = False  # whether the next watch takes up an earlier one

        self._expired_at = float("-inf")  # when a version was last too old
        self._rested_s = 0.0  # right before the present try
        self.lists = 0  # whole reads, paged or streamed
        self.watches = 0  # watches that the server accepted
        self.restarts = 0  # of them, those that took up an earlier one where it ended
        self.events = 0
        self.bookmarks = 0

    @property
    def version(self) -> str | None:
        """The watch goes on after it. Looked for only when asked, not in every object."""
        if self._last is not None:
            self._reach(self._last)
        return self._version

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            began = self._clock.time()
            rested_s, self._rested_s, knew = self._rested_s, 0.0, self.version is not None
            try:
                if self.version is None and not self._streams_lists:
                    await self._list()
                    began = self._clock.time()
                await self._watch()
                if self._clock.time() - began < _SHORT_S:
                    await self._backoff.pause()
            except (ApiError, TransportError) as error:
                status = error.status if isinstance(error, ApiError) else 0
                if status in (400, 422) and self.version is None and self._streams_lists:
                    self._streams_lists = False
                    continue
                if status == 410:
                    # Whoever rests for long may miss what the server remembers: no reason for more.
                    has_rested = rested_s > _SHORT_S and knew
                    self._version = self._last = None
                    if has_rested or began - self._expired_at > _OFTEN_S:  # it is there: read now
                        self._expired_at = began
                        self._tell(error)
                        continue
                if status == 404 and self._what.older:
                    newer = self._what.path == self._newest
                    paths = {"path": self._what.older, "older": self._what.path}
                    self._what = replace(self._what, **paths)
                    self._version = self._last = None
                    if newer:  # the older ones may be there: look at once
                        continue
                await self._rest(error)

    async def read(self) -> None:
        """The whole, once, as it is now; tries until it has it, or `ApiError` for a lasting no.

        A watch into the same sink may still bring what is older than this.
        """
        while True:
            try:
                return await self._list()
            except (ApiError, TransportError) as error:
                if isinstance(error, ApiError) and error.status not in PASSING:
                    raise
                await self._rest(error)

    def _tell(self, error: Exception) -> None:
        if self._on_trouble is not None:
            self._on_trouble(error)

    def _begin_whole(self) -> None:
        if self._on_whole is not None:
            self._on_whole()

    async def _rest(self, error: ApiError | TransportError) -> None:
        self._tell(error)
        began = self._clock.time()
        await self._backoff.pause(error.retry_after if isinstance(error, ApiError) else None)
        self._rested_s = self._clock.time() - began

    # The whole, in pages

    async def _list(self) -> None:
        """Goes on where a failed one stopped, so that trouble costs one page."""
        while True:
            page = await self._page()
            for raw in page.items or ():
                self._pages.items += self._decode(raw, raw)
            self._pages.next = page.metadata.next or ""
            if not self._pages.next:
                items, self._pages = self._pages.items, _Pages()
                self._replace(items, page.metadata.resource_version)
                self._resumes = False
                return

    async def _page(self) -> "_Page":
        params = {**self._selectors}
        if self._pages.limit:
            params["limit"] = str(self._pages.limit)
        if self._pages.next:
            params["continue"] = self._pages.next
        else:
            self.lists += 1
            self._begin_whole()
        try:
            body = await self._client.request(
                "GET", self._what.path, params=params, timeout_s=_LIST_S
            )
            return _decode_page(body)
        except ApiError as error:
            if error.status != 410 or not self._pages.next:
                raise
            # compacted between two pages; all in one answer cannot expire
            self._pages = _Pages(limit=0)
            return await self._page()
        except _UNREADABLE as error:
            why = f"GET {self._what.path}: the list cannot be read: {error}"
            raise TransportError(why, sent=True) from None

    def _replace(self, items: list[T], version: str) -> None:
        self._version, self._last = version, None
        self._sink.replace(items, version)
        self._sink.synced()

    # Changes, and the whole as a stream of them

    async def _watch(self) -> None:
        """Until the server closes it."""
        params = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._client.rng.randint(*_WATCH_S)),
            "resourceVersion": self.version or "",
        }
        self._initial = None
        if self.version is None:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            self._initial = {}
            self._begin_whole()
        async with self._client.stream(self._what.path, params) as stream:
            self.watches += 1
            self.lists += self.version is None
            self.restarts += self.version is not None and self._resumes
            self._resumes = True
            lines = Lines()
            while (chunk := await self._next(stream.chunks)) is not None:
                self._take(lines.feed(chunk))
        if self._initial is not None:
            self._streams_lists = False  # it ended without the mark: not known to this server

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with self._clock.timeout(_SILENCE_S):
                return await anext(chunks, None)
        except TimeoutError:
            if self._initial is not None:
                self._streams_lists = False
            why = f"GET {self._what.path}: the watch was silent for {_SILENCE_S:.0f} s"
            raise TransportError(why, sent=True) from None

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                event = _decode_event(line)
            except _UNREADABLE as error:
                if line.strip():
                    self._sink.bad(line, error)
                continue
            if event.type in _CHANGES:
                self.events += 1
                self._change(event, line)
            elif event.type == "BOOKMARK":
                self.bookmarks += 1
                self._bookmark(event.object)
            elif event.type == "ERROR":
                raise status_error(event.object)
            else:
                self._sink.bad(line, ValueError(f"an event of unknown type {event.type!r}"))

    def _change(self, event: "_Event", line: bytes) -> None:
        gone, raw = event.type == "DELETED", event.object
        items = self._decode(raw, line)
        if self._initial is None:
            if items:
                self._last = raw
            else:
                self._reach(raw)
            for item in items:
                (self._sink.drop if gone else self._sink.put)(item)
            return
        # what changes while the whole is being sent may come before its end
        about = _metadata(raw)
        key = about.namespace or "", about.name or ""
        self._initial.pop(key, None)
        if items and not gone:
            self._initial[key] = items[0]

    def _bookmark(self, raw: Raw) -> None:
        if self._initial is None:
            self._reach(raw)
            return
        about = _metadata(raw)
        if (about.annotations or {}).get(_INITIAL_EVENTS_END) == "true":
            items, self._initial = list(self._initial.values()), None
            self._replace(items, about.resource_version)

    def _reach(self, reached: Raw) -> None:
        version = _metadata(reached).resource_version
        if version:
            self._version, self._last = version, None

    def _decode(self, raw: Raw, line: bytes | Raw) -> tuple[T, ...]:
        """The object, or nothing when it cannot be understood."""
        try:
            try:
                return (self._what.decode(raw),)
            except msgspec.ValidationError as error:
                if self._what.lenient is None:
                    raise
                return (self._what.lenient(raw, error),)
        except _UNREADABLE as error:
            self._sink.bad(bytes(line), error)
            return ()


class Lines:
    """Chunks in, whole lines out; each byte is copied once, however long a line is."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._begun.append(chunk)
            return []
        lines[0] = b"".join((*self._begun, lines[0]))
        self._begun = [lines.pop()]
        return lines


class _Metadata(Struct, rename="camel", gc=False):
    resource_version: str = ""
    namespace: str | None = None
    name: str | None = None
    annotations: dict[str, str] | None = None


class _Object(Struct, gc=False):
    metadata: _Metadata


class _Event(Struct, gc=False):
    type: str
    object: Raw


class _ListMetadata(Struct, rename="camel"):
    resource_version: str = ""
    next: str | None = field(default=None, name="continue")


class _Page(Struct):
    metadata: _ListMetadata
    items: list[Raw] | None = None


class _Pages(Struct):
    """What has been read of a list."""

    limit: int = _PAGE
    next: str = ""
    items: list[Any] = []


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_page = msgspec.json.Decoder(_Page).decode
_decode_object = msgspec.json.Decoder(_Object).decode


def _metadata(source: Raw) -> _Metadata:
    try:
        return _decode_object(source).metadata
    except _UNREADABLE:
        return _Metadata()
