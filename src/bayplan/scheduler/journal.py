"""The journal: every event, when it came, and what the engine made of it, as lines of JSON.

A file begins with a header and a snapshot, so that each file can be replayed by itself, and is put
aside as `path.1`, `path.2` … when it is large. Pods are written as the engine knows them: their
environment, arguments and annotations never get that far. A journal that cannot be written is
counted, reported once and switched off; it never stops the scheduler.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model.devices import Held
from bayplan.core.model.events import Event
from bayplan.core.model.verdicts import Refusal
from bayplan.scheduler.snapshot import take

FORMAT = 2  # rises when older software could not read what is written
MAX_BYTES = 100 << 20
KEEP = 5  # files that were put aside
BUFFER_BYTES = 1 << 20  # written at once when a cycle says more than this


class Header(Struct, tag="header", rename="camel"):
    """The first line of a file."""

    format: int
    version: str  # of the software
    wall: str  # the time of day, RFC 3339
    now: float  # the same moment on the clock of the steps
    step: int  # the number of the last step before this file
    profiles: list[ProfileConfig]


class Outcome(Struct, omit_defaults=True, frozen=True):
    """An effect, without what the events have said already."""

    do: str
    pods: tuple[str, ...] = ()  # uids
    node: str = ""
    picked: int | None = None
    held: tuple[Held, ...] = ()
    victims: tuple[str, ...] = ()  # uids
    nominated: str | None = None  # the node kept for the pod; empty: none any more
    reasons: dict[str, int] = {}  # reason: how many nodes gave it
    text: str = ""


class Step(Struct, omit_defaults=True):
    """One event and its effects; `on` is the event's type."""

    n: int
    now: float
    on: str
    event: Any
    do: list[Outcome] = []


class Journal:
    """Writes one journal. `open` it with the engine, then tell it each step after the engine."""

    def __init__(
        self,
        path: str | Path,
        profiles: Sequence[ProfileConfig],
        *,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.wall = time.time
        self.errors = 0
        self.files = 0  # begun since the start
        self.steps = 0
        self._profiles, self._report = list(profiles), report
        self._max_bytes, self._keep = max_bytes, keep
        self._engine: Engine | None = None
        self._file: int | None = None
        self._size = 0  # of the file, with what is in the buffer
        self._limit = 0
        self._buffer = bytearray()
        self._encode = msgspec.json.Encoder().encode_into

    @property
    def is_on(self) -> bool:
        return self._file is not None

    def open(self, engine: Engine, now: float) -> None:
        """Begins a file with the engine as it is."""
        self._engine = engine
        try:
            self._begin(now)
        except Exception as error:
            self._fail(error)

    def step(self, event: Event, now: float, effects: Sequence[do.Effect]) -> None:
        """The engine has handled the event."""
        if self._file is None:
            return
        try:
            self.steps += 1
            told = outcomes(effects) if effects else []
            self._line(Step(self.steps, now, type(event).__name__, event, told))
            if self._size > self._limit:
                self._begin(now)
        except Exception as error:  # a journal is not worth a scheduler
            self._fail(error)

    def flush(self) -> None:
        """What was said so far is in the file."""
        try:
            self._write()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        self.flush()
        self._shut()

    def _begin(self, now: float) -> None:
        assert self._engine is not None
        self._write()
        self._shut()
        self._put_aside()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(self.path, flags, 0o600)
        self._size = 0
        self.files += 1
        wall = datetime.fromtimestamp(self.wall(), UTC).isoformat(timespec="milliseconds")
        self._line(Header(FORMAT, software(), wall, now, self.steps, self._profiles))
        for part in take(self._engine):
            self._line(part)
        self._write()
        # A snapshot may be larger than the limit: at least as much of what happened follows it.
        self._limit = max(self._max_bytes, 2 * self._size)

    def _put_aside(self) -> None:
        """The files so far get the next number; what is older than the oldest goes."""
        if self.path.exists() and not self.path.is_file():  # /dev/stdout must stay what it is
            raise OSError(errno.EINVAL, "it is there, and is no file")
        names = [self.path, *(aside(self.path, i) for i in range(1, self._keep + 1))]
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            if newer.exists():
                newer.replace(older)
        beyond = self._keep + 1
        while (old := aside(self.path, beyond)).exists():
            old.unlink()
            beyond += 1

    def _line(self, line: Struct) -> None:
        before = len(self._buffer)
        self._encode(line, self._buffer, -1)
        self._buffer += b"\n"
        self._size += len(self._buffer) - before
        if len(self._buffer) > BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        if self._file is None or not self._buffer:
            return
        rest = memoryview(bytes(self._buffer))
        self._buffer.clear()
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _fail(self, error: Exception) -> None:
        self.errors += 1
        self._shut()
        if self._report is not None:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._report(f"the journal {self.path} is switched off: {why}")

    def _shut(self) -> None:
        file, self._file = self._file, None
        self._buffer.clear()
        if file is not None:
            try:
                os.close(file)
            except OSError:  # some file systems say only now that there was no room
                self.errors += 1


def outcomes(effects: Iterable[do.Effect]) -> list[Outcome]:
    """The effects as they are written; pods that share a refusal are one outcome."""
    found: list[Outcome] = []
    shared: Refusal | None = None
    nominated: str | None = None
    uids: list[str] = []

    def end() -> None:
        if shared is not None:
            reasons = {text: tally.count for text, tally in shared.tallies.items()}
            text = "" if reasons else shared.message
            who = tuple(uids)
            found.append(Outcome("Refuse", who, nominated=nominated, reasons=reasons, text=text))

    for effect in effects:
        if isinstance(effect, do.Refuse):
            if effect.refusal is not shared or effect.nominated != nominated:
                end()
                shared, nominated, uids = effect.refusal, effect.nominated, []
            uids.append(effect.pod.uid)
            continue
        end()
        shared = None
        match effect:
            case do.Bind(placement, picked):
                who, where = (placement.pod.uid,), placement.node
                found.append(Outcome("Bind", who, where, picked, placement.held))
            case do.Preempt(pod, node, victims):
                gone = tuple(victim.uid for victim in victims)
                found.append(Outcome("Preempt", (pod.uid,), node, victims=gone))
            case do.Park(pod, error):
                found.append(Outcome("Park", (pod.uid,), text=error))
            case do.Confirm(job, said, _):
                words = f"{said.places} places of grant {said.generation}"
                found.append(Outcome("Confirm", (job,), text=words))
            case _:
                found.append(_other(effect))
    end()
    return found


def _other(effect: do.Effect) -> Outcome:
    """Any effect by its name, the pod that it is about, and what it says in plain words."""
    pod = getattr(effect, "pod", None)
    values = [getattr(effect, name) for name in effect.__struct_fields__]
    words = [str(value) for value in values if isinstance(value, str | int | float)]
    pods = () if pod is None else (pod.uid,)
    return Outcome(type(effect).__name__, pods, text=", ".join(words))


def aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def software() -> str:
    try:
        return installed_version("bayplan")
    except PackageNotFoundError:
        return "unknown"
