"""A journal read back: its snapshot as an engine, and its steps one by one.

A replay calls no picker: the index that one gave is in the journal. A last line that was cut off
is left out; anything else that cannot be read is one `JournalError`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from bayplan.core.engine.profile import Profile, ProfileConfig, ProfileError
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Candidate
from bayplan.scheduler.journal import FORMAT, Header, Outcome, aside
from bayplan.scheduler.snapshot import State, event_of, keeper, restore, restore_under

T = TypeVar("T")


class JournalError(ValueError):
    """A journal that cannot be read: which file, which line, and why."""


class _Line(Struct):
    n: int
    now: float
    on: str
    event: Raw
    do: list[Outcome] = []


class Told(Struct):
    """A step as the journal tells it."""

    n: int
    now: float
    event: on.Event
    outcomes: list[Outcome]


class Recording:
    """One file of a journal. The snapshot is read at once, the steps as they are asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.cut_off = False  # the last line was not written to its end
        with self._open() as file:
            lines = self._lines(file)
            self.header = self._header(next(lines, None))
            self.state = self._state(lines)
            self._begin, self._line = self._at, self._number

    def steps(self) -> Iterator[Told]:
        """The steps in order. A last line that was cut off is left out."""
        decode, keep = msgspec.json.Decoder(_Line).decode, keeper()
        with self._open() as file:
            file.seek(self._begin)
            for line in self._lines(file, self._line):
                found = self._decoded(decode, line)
                event = self._event(found)
                if isinstance(event, on.PodSeen):
                    keep(event.pod)
                yield Told(found.n, found.now, event, found.do)

    def _open(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from None

    def _lines(self, file: BinaryIO, number: int = 0) -> Iterator[bytes]:
        self._number, self._at = number, file.tell()
        for line in file:
            if not line.endswith(b"\n"):
                self.cut_off = True
                return
            self._number += 1
            self._at += len(line)
            yield line

    def _header(self, line: bytes | None) -> Header:
        if line is None:
            raise JournalError(f"{self.path}: it is empty")
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.MsgspecError, ValueError):
            raise JournalError(f"{self.path}: it is no journal of Bayplan's") from None
        if header.format != FORMAT:
            raise JournalError(
                f"{self.path}: it has format {header.format}, of version {header.version}; "
                f"this version reads format {FORMAT}"
            )
        return header

    def _state(self, lines: Iterator[bytes]) -> State:
        decode, state = msgspec.json.Decoder(State).decode, State()
        for line in lines:
            state.add(self._decoded(decode, line))
            if state.complete:
                return state
        before = aside(self.path, 1)
        raise JournalError(f"{self.path}: its snapshot is cut off (the file before is {before})")

    def _decoded(self, decode: Callable[[bytes], T], line: bytes) -> T:
        try:
            return decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise JournalError(f"{self.path}: line {self._number}: {error}") from None

    def _event(self, line: _Line) -> on.Event:
        where = f"{self.path}: line {self._number}"
        try:
            return event_of(line.on, line.event)
        except KeyError:
            raise JournalError(f"{where}: this version knows no event {line.on}") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise JournalError(f"{where}: {line.on}: {error}") from None


# ---- the same engine again


class Picked:
    """Stands for every picker: gives the index that is in the journal for the pod.

    Where none is, it fails, and the scores decide, as they did then.
    """

    def __init__(self) -> None:
        self.by_uid: dict[str, int] = {}

    def __call__(self, pod: Pod, candidates: Sequence[Candidate]) -> int:
        return self.by_uid[pod.uid]


class Player:
    """An engine in the state of the recording's snapshot; its steps are for the caller to give."""

    def __init__(
        self,
        recording: Recording,
        under: Sequence[ProfileConfig] | None = None,
        known: Mapping[str, type] | None = None,
    ) -> None:
        self._picked, state = Picked(), recording.state
        configs = recording.header.profiles if under is None else under
        profiles = [self._profile(config, under is None, known) for config in configs]
        try:
            if under is None:
                self.engine = restore(state, profiles)
            else:
                self.engine = restore_under(state, profiles, recording.header.now)
        except ProfileError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise JournalError(f"{recording.path}: its snapshot cannot be used: {why}") from None

    def hear(self, told: Told) -> list[do.Effect]:
        """What the engine makes of the step's event now."""
        self._picked.by_uid = {
            outcome.pods[0]: outcome.picked
            for outcome in told.outcomes
            if outcome.picked is not None
        }
        return self.engine.handle(told.event, told.now)

    def _profile(
        self, config: ProfileConfig, recorded: bool, known: Mapping[str, type] | None
    ) -> Profile:
        """The profile; where picks are recorded, without loading its picker."""
        if not recorded or config.picker is None:
            return Profile(config, known)
        profile = Profile(replace(config, picker=None), known)
        profile.picker = self._picked
        return profile
