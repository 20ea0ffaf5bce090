"""Mistakes that are planted, and that the seeds must find."""

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.core.engine.engine import Engine
from bayplan.core.model import events as on
from bayplan.core.plugins.resources import NodeResourcesFit
from bayplan.kube.reflector import Reflector
from bayplan.scheduler import binding
from bayplan.scheduler.binding import Binder, Outcome
from bayplan.scheduler.feed import PodSink
from bayplan.scheduler.writer import Writer
from tests.fake.simulation import play

SEEDS = range(60)
Plant = Callable[[pytest.MonkeyPatch], None]


def unheard_failures(patch: pytest.MonkeyPatch) -> None:
    """A bind that failed is never told to the engine."""
    handle = Engine.handle

    def deaf(self: Engine, event: on.Event, now: float) -> Any:
        return [] if isinstance(event, on.BindFailed) else handle(self, event, now)

    patch.setattr(Engine, "handle", deaf)
    patch.setattr(binding, "TRIES", 1)  # else failures are rare


def unseen_deletions(patch: pytest.MonkeyPatch) -> None:
    """A pod that is gone stays in memory."""
    patch.setattr(PodSink, "drop", lambda self, item: None)


def no_room_needed(patch: pytest.MonkeyPatch) -> None:
    """Every node has room for everything."""
    patch.setattr(NodeResourcesFit, "refuse", lambda self, ask, view: None)
    patch.setattr(NodeResourcesFit, "refuser", lambda self, ask: lambda view: None)


def lost_answers_count_as_bound(patch: pytest.MonkeyPatch) -> None:
    """Whoever hears no answer believes that the pod was bound."""
    bind = Binder.bind

    async def hopeful(self: Binder, *args: Any) -> Outcome:
        outcome = await bind(self, *args)
        return outcome if outcome.bound else Outcome(True, "")

    patch.setattr(Binder, "bind", hopeful)


def expired_watches_go_on(patch: pytest.MonkeyPatch) -> None:
    """What happened while a watch was away is not read again."""

    def careless(self: Reflector[Any], items: list[Any], version: str) -> None:
        self._version, self._last = version, None
        if self.lists == 1:
            self._sink.replace(items, version)
        self._sink.synced()

    patch.setattr(Reflector, "_replace", careless)


def silence(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told why a pod waits."""
    patch.setattr(Writer, "refuse", lambda self, effect: None)


@pytest.mark.parametrize(
    "plant",
    [
        unheard_failures,
        unseen_deletions,
        no_room_needed,
        lost_answers_count_as_bound,
        expired_watches_go_on,
        silence,
    ],
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
