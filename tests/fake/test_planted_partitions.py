"""Mistakes with partitions that are planted, and that the seeds must find."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.engine.keeper import Keeper
from bayplan.core.model import events as on
from bayplan.core.model.effects import Placement
from bayplan.scheduler.steward import Prepared, Steward
from bayplan.scheduler.volumes import NotReady
from tests.fake.partitioned import play

SEEDS = range(40)
Plant = Callable[[pytest.MonkeyPatch], None]


def leaks(patch: pytest.MonkeyPatch) -> None:
    """What is left without its pod is never deleted."""
    patch.setattr(Keeper, "_delete_unowned", lambda self, *rest: iter(()))


def deletes_in_haste(patch: pytest.MonkeyPatch) -> None:
    """Partitions of pods that are being bound count as nobody's."""
    is_unowned = Keeper._is_unowned

    def hasty(self: Keeper, estate: str, uid: str | None) -> bool:
        self.grace_s = 0.0
        return uid in self._assumed or is_unowned(self, estate, uid)

    patch.setattr(Keeper, "_is_unowned", hasty)


def binds_without(patch: pytest.MonkeyPatch) -> None:
    """A pod is bound although its partition could not be made."""
    prepare = Steward.prepare

    async def careless(self: Steward, placement: Placement, check: Any) -> Prepared:
        try:
            return await prepare(self, placement, check)
        except NotReady:
            return Prepared(placement)

    patch.setattr(Steward, "prepare", careless)


def believes_the_plan(patch: pytest.MonkeyPatch) -> None:
    """The devices that were planned are told, not those of the partition."""
    prepare = Steward.prepare

    async def hopeful(self: Steward, placement: Placement, check: Any) -> Prepared:
        return replace(await prepare(self, placement, check), placement=placement)

    patch.setattr(Steward, "prepare", hopeful)


def sulks(patch: pytest.MonkeyPatch) -> None:
    """A size that was refused stays refused, whatever is freed."""
    patch.setattr(Keeper, "_relent", lambda self, name: None)


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
    [leaks, deletes_in_haste, binds_without, believes_the_plan, sulks, stays_closed],
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
