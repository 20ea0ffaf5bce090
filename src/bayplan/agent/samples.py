"""What the cards of this node do, moment by moment: from NVML, or from a file.

A source hands over one sample after the other, for as long as it runs. It never blocks the loop
and never raises: why there is no sample is told, and then there simply is none.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn, Protocol

import msgspec
import yaml
from msgspec import Meta, Struct

from bayplan.agent.counts import Told
from bayplan.core.model.devices import MOST_DEVICES

EVERY_S = 1.0  # a sample costs some milliseconds of a card's driver (docs/profiler.md)
SILENT_S = 10.0  # for a sampler that prints nothing; it has begun in less than a second
AGAIN_S = 30.0  # after a sampler has ended
ENDING_S = 1.0  # for a sampler to be gone
COMMAND = (sys.executable, "-m", "bayplan.agent.sampler")
BYTES_PER_MIB = 1 << 20
_LONGEST = 1 << 20  # bytes of a line; 256 cards with 50 processes each have less

Percent = Annotated[int, Meta(ge=0, le=100)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Index = Annotated[int, Meta(ge=0, lt=1 << 16)]
Name = Annotated[str, Meta(max_length=128)]
Pcie = Annotated[str, Meta(pattern=r"^[0-9]{1,2}x[0-9]{1,2}$|^$")]
Pid = Annotated[int, Meta(ge=0, lt=1 << 32)]


class OnCard(Struct, frozen=True):
    """A process, and what it has of the card's memory."""

    pid: Pid
    memory: Bytes = 0


class Card(Struct, frozen=True):
    id: Name
    index: Index
    model: Name
    total: Bytes
    used: Bytes
    pcie: Pcie = ""  # such as 4x16: the generation and the width that the link can have
    gpu: Percent | None = None  # of the time in which something was computed
    bandwidth: Percent | None = None  # of the time in which memory was read or written
    processes: tuple[OnCard, ...] = ()


class Sample(Struct, frozen=True):
    cards: Annotated[tuple[Card, ...], Meta(max_length=MOST_DEVICES)]
    errors: tuple[str, ...] = ()


Take = Callable[[Sample], None]


class BadSample(ValueError):
    """Nobody can say what the cards do: which source, and what is wrong with it."""


class Samples(Protocol):
    troubles: int  # that were told

    async def run(self, take: Take) -> NoReturn:
        """Until cancelled."""


class NvmlSamples:
    """A process that asks NVML. While one hangs in the driver no other is begun."""

    def __init__(
        self,
        command: Sequence[str] = (*COMMAND, f"{EVERY_S:g}"),
        silent_s: float = SILENT_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self._command, self._silent_s, self._again_s = command, silent_s, again_s
        self.troubles = 0
        self._told = Told()

    async def run(self, take: Take) -> NoReturn:
        while True:
            try:
                await self._follow(take)
            except OSError as error:
                self._tell([f"NVML: {error}"])
            await asyncio.sleep(self._again_s)

    def _tell(self, errors: Iterable[str]) -> None:
        cases = [(error, f"what cards do is not known: {error}") for error in errors]
        self.troubles += self._told.new(cases)

    async def _follow(self, take: Take) -> None:
        """Until the process is gone."""
        sampler = await asyncio.create_subprocess_exec(*self._command, stdout=PIPE, limit=_LONGEST)
        try:
            while True:
                sample = await self._next(sampler)
                self._tell(sample.errors)
                take(sample)
        except BadSample as error:
            self._tell([str(error)])
            _kill(sampler)
            # Inside the driver it cannot even be killed: as long as it takes.
            await sampler.communicate()
        finally:
            if sampler.returncode is None:
                _kill(sampler)
                with suppress(TimeoutError):  # whoever ends this does not wait for a driver
                    async with asyncio.timeout(ENDING_S):
                        await sampler.communicate()

    async def _next(self, sampler: Process) -> Sample:
        assert sampler.stdout is not None
        try:
            async with asyncio.timeout(self._silent_s):
                line = await sampler.stdout.readline()
        except TimeoutError:
            raise BadSample(f"NVML: no answer within {self._silent_s:g} s") from None
        except ValueError:
            raise BadSample(f"NVML: a line of more than {_LONGEST} bytes") from None
        if not line.startswith(b"{"):
            said = line.decode(errors="replace").strip()
            raise BadSample(said or f"NVML: the sampler ended with {await sampler.wait()}")
        try:
            return msgspec.json.decode(line, type=Sample)
        except msgspec.MsgspecError as error:
            raise BadSample(f"NVML: {error}") from None


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        process.kill()


class FileSamples:
    """A file that says what each card does, as YAML or JSON. A list of numbers is played in turn,
    over and over, one for each sample. It is read each time anew."""

    def __init__(self, path: str | Path, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = Path(path), every_s
        self.troubles = 0
        self._told = Told()

    async def run(self, take: Take) -> NoReturn:
        beat = 0
        while True:
            try:
                take(await asyncio.to_thread(self.read, beat))
                self._told.new([])
            except BadSample as error:
                case = (str(error), f"what cards do is not known: {error}")
                self.troubles += self._told.new([case])
            beat += 1
            await asyncio.sleep(self._every_s)

    def read(self, beat: int = 0) -> Sample:
        try:
            content = yaml.safe_load(self._path.read_bytes())
        except OSError as error:
            raise BadSample(f"{self._path}: {error.strerror or error}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            words = " ".join(str(error).split())
            raise BadSample(f"{self._path}: not valid YAML: {words}") from None
        try:
            found = msgspec.convert(content, _File)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadSample(f"{self._path}: {error}") from None
        cards = tuple(_played(card, beat) for card in found.cards)
        for what in ([card.id for card in cards], [card.index for card in cards]):
            if len(set(what)) < len(what):
                raise BadSample(f"{self._path}: two cards have the same id or index")
        return Sample(cards)


_Mib = Annotated[int, Meta(ge=0, le=1 << 30)]
_Series = Annotated[tuple[Percent, ...], Meta(min_length=1, max_length=10_000)]


class _FileProcess(Struct, rename="camel", forbid_unknown_fields=True):
    pid: Pid
    memory_mib: _Mib = 0


class _FileCard(Struct, rename="camel", forbid_unknown_fields=True):
    index: Index
    memory_mib: _Mib
    id: Name = ""
    model: Name = ""
    used_mib: _Mib = 0
    pcie: Pcie = ""
    gpu: Percent | _Series | None = None
    bandwidth: Percent | _Series | None = None
    processes: tuple[_FileProcess, ...] = ()


class _File(Struct, forbid_unknown_fields=True):
    cards: Annotated[tuple[_FileCard, ...], Meta(max_length=MOST_DEVICES)]


def _played(card: _FileCard, beat: int) -> Card:
    return Card(
        card.id or f"nvidia-{card.index}",  # as `--devices` calls them
        card.index,
        card.model,
        card.memory_mib * BYTES_PER_MIB,
        card.used_mib * BYTES_PER_MIB,
        card.pcie,
        _at(card.gpu, beat),
        _at(card.bandwidth, beat),
        tuple(OnCard(each.pid, each.memory_mib * BYTES_PER_MIB) for each in card.processes),
    )


def _at(values: int | tuple[int, ...] | None, beat: int) -> int | None:
    return values[beat % len(values)] if isinstance(values, tuple) else values


def source_of(file: str) -> Samples:
    """Without a file, NVML."""
    return FileSamples(file) if file else NvmlSamples()


_: tuple[type[Samples], ...] = (NvmlSamples, FileSamples)
