"""Mistakes with partitions that are planted, and that the seeds must find."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.engine.keeper import Keeper
from bayplan.core.model import events as on
from bayplan.core.model.effects import Placement
from bayplan.scheduler.steward import Steward
from bayplan.scheduler.volumes import NotReady
from tests.fake.partitioned import play

SEEDS = range(40)
Plant = Callable[[pytest.MonkeyPatch], None]


def leaks(patch: pytest.MonkeyPatch) -> None:
    """What is left without its pod is never deleted."""
    patch.setattr(Keeper, "_delete_unowned", lambda self, *rest: iter(()))


def deletes_in_haste(patch: pytest.MonkeyPatch) -> None:
    """Partitions of pods that are being bound count as nobody's."""
    see = Keeper._delete_unowned

    def hasty(self: Keeper, estate: Any, partitions: Any, holders: Any, now: float) -> Any:
        sure = {uid: pod for uid, pod in holders.items() if uid not in self._assumed}
        self.grace_s = 0.0
        return see(self, estate, partitions, sure, now)

    patch.setattr(Keeper, "_delete_unowned", hasty)


def binds_without(patch: pytest.MonkeyPatch) -> None:
    """A pod is bound although its partition could not be made."""
    prepare = Steward.prepare

    async def careless(self: Steward, placement: Placement, check: Any) -> Placement:
        try:
            return await prepare(self, placement, check)
        except NotReady:
            return placement

    patch.setattr(Steward, "prepare", careless)


def believes_the_plan(patch: pytest.MonkeyPatch) -> None:
    """The devices that were planned are told, not those of the partition."""
    prepare = Steward.prepare

    async def hopeful(self: Steward, placement: Placement, check: Any) -> Placement:
        made = await prepare(self, placement, check)
        return replace(made, held=placement.held)

    patch.setattr(Steward, "prepare", hopeful)


def wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """A size that was refused stays refused."""

    def sulk(self: Keeper, name: str, size: int, now: float) -> None:
        if name in self._estates.lines:
            self._estates.refuse(name, 1)
            self._estates.refuse = lambda *_: None  # type: ignore[method-assign]

    patch.setattr(Keeper, "_refuse", sulk)


def stays_closed(patch: pytest.MonkeyPatch) -> None:
    """A controller that was down is never believed again."""
    hear = Keeper.hear

    def grudging(self: Keeper, event: Any, now: float) -> Any:
        line = self._estates.lines.get(event.estate.name) if is_seen(event) else None
        return [] if line is not None and line.closed else hear(self, event, now)

    patch.setattr(Keeper, "hear", grudging)


def is_seen(event: Any) -> bool:
    return isinstance(event, on.EstateSeen)


@pytest.mark.parametrize(
    "plant",
    [leaks, deletes_in_haste, binds_without, believes_the_plan, wakes_nobody, stays_closed],
    ids=lambda plant: plant.__name__,
)
def test_the_seeds_find_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    def finds(seed: int) -> bool:
        try:
            play(seed)
        except AssertionError:
            return True
        return False

    assert any(map(finds, SEEDS))
