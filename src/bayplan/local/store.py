"""Objects by kind and name under one revision counter, and what happened to each kind of late.

A change is one entry in its kind's log. Whoever watches reads the log from a place of their own, so
a slow reader costs nothing and a fast one sees everything. A log that has grown too long loses its
older half, and who has not read it by then must list again. Values are never changed in place.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

Json = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for a kind without), name

OWNERS = ""  # see `Store.listen`
KEPT_CHANGES = 20_000  # of each kind, at least, …
KEPT_BYTES = 64 << 20  # … unless they are larger than this together

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class Stored(Struct, frozen=True, gc=False):
    """An object as it was at one revision."""

    value: Json
    raw: bytes  # the same as JSON
    revision: int

    def copy(self) -> Json:
        """One that may be changed."""
        value: Json = decode(self.raw)
        return value


class Change(Struct, frozen=True, gc=False):
    revision: int
    before: Stored | None  # None: it was created
    after: Stored | None  # None: it was deleted
    last: Stored  # `after`, or what was deleted, with the revision of its deletion


class Log:
    """The changes of one kind, oldest first; entry `first` of all time is `changes[0]`."""

    def __init__(self, since: int) -> None:
        self.changes: list[Change] = []
        self.size = 0  # bytes
        self.first = 0
        self.since = since  # everything after this revision is here

    @property
    def end(self) -> int:
        return self.first + len(self.changes)

    def after(self, revision: int) -> int | None:
        """The place of the first change after a revision; None when that may be lost."""
        if revision < self.since:
            return None
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].revision > revision:
                high = middle
            else:
                low = middle + 1
        return self.first + low

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self.size += len(change.last.raw)
        if len(self.changes) > 2 * KEPT_CHANGES or self.size > KEPT_BYTES:
            self.drop(len(self.changes) // 2)

    def drop(self, count: int) -> None:
        if count > 0:
            self.size -= sum(len(change.last.raw) for change in self.changes[:count])
            self.since = self.changes[count - 1].revision
            self.first += count
            del self.changes[:count]


class Store:
    def __init__(self) -> None:
        self.revision = 1
        self._objects: dict[str, dict[Key, Stored]] = {}
        self._logs: dict[str, Log] = {}
        self._listeners: dict[str, dict[int, Callable[[], None]]] = {}
        self._next_listener = 0

    def get(self, kind: str, key: Key) -> Stored | None:
        return self._objects.get(kind, {}).get(key)

    def items(self, kind: str, namespace: str = "") -> list[tuple[Key, Stored]]:
        """By namespace and name, as etcd has them."""
        found = self._objects.get(kind, {})
        return sorted(
            (entry for entry in found.items() if namespace in ("", entry[0][0])), key=_key
        )

    def values(self, kind: str) -> Iterator[Json]:
        return (stored.value for stored in self._objects.get(kind, {}).values())

    def oldest(self, kind: str, count: int) -> list[tuple[Key, Stored]]:
        """In the order in which they were made."""
        return list(islice(self._objects.get(kind, {}).items(), count))

    def count(self, kind: str) -> int:
        return len(self._objects.get(kind, {}))

    def log(self, kind: str) -> Log:
        if kind not in self._logs:
            self._logs[kind] = Log(since=1)
        return self._logs[kind]

    def put(self, kind: str, key: Key, value: Json) -> Stored:
        """Creates or replaces; `value` is the store's from now on."""
        objects = self._objects.setdefault(kind, {})
        stored = self._next(value)
        before, objects[key] = objects.get(key), stored
        self._record(kind, Change(stored.revision, before, stored, stored))
        return stored

    def remove(self, kind: str, key: Key, last: Json) -> Stored:
        """Deletes; `last` is what it was."""
        before = self._objects[kind].pop(key)
        stored = self._next(last)
        self._record(kind, Change(stored.revision, before, None, stored))
        return stored

    def compact(self) -> None:
        """Forgets what happened: watches from before now must list again."""
        for log in self._logs.values():
            log.drop(len(log.changes))
            log.since = self.revision

    def logs(self) -> dict[str, Log]:
        """Of every kind of which there was anything."""
        return self._logs

    def listen(self, kind: str, call: Callable[[], None]) -> Callable[[], None]:
        """Calls after each change of the kind, until what is returned is called. `OWNERS` is a kind
        of its own: whatever comes or goes that somebody owns, or that might own something.
        """
        number, self._next_listener = self._next_listener, self._next_listener + 1
        listeners = self._listeners.setdefault(kind, {})
        listeners[number] = call

        def stop() -> None:
            listeners.pop(number, None)

        return stop

    def _next(self, value: Json) -> Stored:
        self.revision += 1
        if next(iter(value)) != "kind":  # what it is comes first: lists leave it out (`pages`)
            value = {"kind": value["kind"], "apiVersion": value["apiVersion"], **value}
        value["metadata"]["resourceVersion"] = str(self.revision)
        return Stored(value, encode(value), self.revision)

    def _record(self, kind: str, change: Change) -> None:
        self.log(kind).add(change)
        listening = list(self._listeners.get(kind, {}).values())
        if _concerns_owners(change):
            listening += self._listeners.get(OWNERS, {}).values()
        for call in listening:
            call()


def _concerns_owners(change: Change) -> bool:
    about = change.last.value["metadata"]
    return change.after is None or "deletionTimestamp" in about or "ownerReferences" in about


def _key(entry: tuple[Key, Stored]) -> Key:
    return entry[0]
