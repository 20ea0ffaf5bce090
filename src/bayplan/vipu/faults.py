"""A pretend controller as its users meet it: slow, down, unwilling, late, forgetful.

The calls are direct, without a network. Chances are per call and drawn from a seeded generator, so
that a run can be repeated. What happens later is carried out before the next call that finds its
time come, or by `settle`.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol

from msgspec import Struct

from bayplan.vipu.controller import (
    BeforeSend,
    Controller,
    Inventory,
    Partition,
    Refused,
    Unavailable,
)
from bayplan.vipu.fake import FakeVipu


class Clock(Protocol):
    def time(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Chances(Struct, frozen=True):
    """How likely each fault is, from 0 to 1."""

    down: float = 0.0  # nothing is carried out, and the caller hears that at once
    refuse: float = 0.0  # a partition is refused whether there is room or not
    late: float = 0.0  # the caller is told after its time-out, and the partition is made after that
    twice: float = 0.0  # a partition is asked for a second time later, by nobody
    lose: float = 0.0  # a partition vanishes
    unheard: float = 0.0  # it is carried out, and the caller hears that there was no answer
    # from and to; half on the way, half on the way back
    latency_s: tuple[float, float] = (0.0, 0.0)
    timeout_s: float = 10.0  # of the caller
    lateness_s: float = 5.0  # at most, for what is late or comes twice


class Faulty:
    """Its `fake` and its `chances` may be changed at any time."""

    def __init__(
        self,
        fake: FakeVipu,
        clock: Clock,
        chances: Chances | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.fake, self.chances = fake, chances or Chances()
        self.met: dict[str, int] = {}  # how often each fault was met
        self._clock, self._rng = clock, rng or random.Random(0)
        self._later: list[tuple[float, Callable[[], Partition]]] = []

    async def inventory(self) -> Inventory:
        async with self._call():
            return self.fake.inventory()

    async def partitions(self) -> tuple[Partition, ...]:
        async with self._call():
            return self.fake.partitions()

    async def create(
        self,
        id: str,
        size: int,
        *,
        cluster: str = "",
        allocation: str = "",
        reconfigurable: bool = False,
        before_send: BeforeSend | None = None,
    ) -> Partition:
        place = {"cluster": cluster, "allocation": allocation}
        make = partial(self.fake.create, id, size, **place, reconfigurable=reconfigurable)
        async with self._call(before_send):
            chances = self.chances
            if self._meets("refuse", chances.refuse):
                raise Refused(f"{size} IPUs: refused (a fault was asked for)")
            if self._meets("late", chances.late):
                self._put_off(make, chances.timeout_s)
                await self._clock.sleep(chances.timeout_s)
                raise Unavailable("no answer in time (a fault was asked for)")
            made = make()
            if self._meets("twice", chances.twice):
                self._put_off(make)
            return made

    async def get(self, id: str) -> Partition | None:
        async with self._call():
            return self.fake.get(id)

    async def delete(self, id: str, *, before_send: BeforeSend | None = None) -> bool:
        async with self._call(before_send):
            return self.fake.delete(id)

    async def close(self) -> None:
        pass

    def settle(self) -> None:
        """Carries out what was put off and is due."""
        now = self._clock.time()
        due = sorted((each for each in self._later if each[0] <= now), key=lambda each: each[0])
        self._later = [each for each in self._later if each[0] > now]
        for _, make in due:
            with suppress(Refused):  # nobody is there to hear it
                make()

    @asynccontextmanager
    async def _call(self, before_send: BeforeSend | None = None) -> AsyncIterator[None]:
        if before_send is not None:
            before_send()
        latency_s = self._rng.uniform(*self.chances.latency_s)
        await self._pause(latency_s / 2)
        self.settle()
        there = self.fake.partitions()
        if there and self._meets("lose", self.chances.lose):
            self.fake.lose(self._rng.choice(there).id)
        if self._meets("down", self.chances.down):
            raise Unavailable("the controller is down (a fault was asked for)")
        yield
        await self._pause(latency_s / 2)
        if self._meets("unheard", self.chances.unheard):
            raise Unavailable("the answer was lost (a fault was asked for)")

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await self._clock.sleep(seconds)

    def _put_off(self, make: Callable[[], Partition], seconds: float = 0.0) -> None:
        late_s = self.chances.lateness_s * (1 - self._rng.random())  # never none at all
        self._later.append((self._clock.time() + seconds + late_s, make))

    def _meets(self, name: str, chance: float) -> bool:
        if not chance or self._rng.random() >= chance:
            return False
        self.met[name] = self.met.get(name, 0) + 1
        return True


_: type[Controller] = Faulty
