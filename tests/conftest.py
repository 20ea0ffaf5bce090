"""The laws, checked in every test: after a dropped trial the whole state is as it was before,
everything counted equals what is counted afresh, and every kept verdict equals a fresh one."""

import weakref
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from bayplan.core.engine.profile import Profile
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.laws import broken, picture
from bayplan.core.state.trial import Mark, Trial
from bayplan.core.state.view import View

EVERY = 8  # trials inside trials: so many are looked at; what they leave the outer one shows too
# How long the making of examples takes says something about the machine, not about the code.
settings.register_profile("bayplan", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("bayplan")


def check_kept(verdicts: Verdicts) -> None:
    """Every kept verdict, brought up to date, says what asking afresh says."""
    if not verdicts.by_terms_alone:
        return  # what others' cluster plugins say comes on top of what is kept
    for kept in list(verdicts._kept.values()):
        ask = Ask(kept.ask.pod, verdicts.cluster.demand(kept.ask.row))
        fresh = verdicts.on(ask, View(verdicts.cluster))
        known = verdicts.kept(ask).verdict[: verdicts.cluster.height]
        feasible = fresh >= 0
        assert (known >= 0).tolist() == feasible.tolist(), ask.pod
        assert known[feasible].tolist() == fresh[feasible].tolist()


def differences(before: Any, after: Any, path: str = "cluster") -> Iterator[str]:
    """Where two pictures differ, by path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), f"{path}[{key!r}]")
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) != len(after):
            yield f"{path}: {len(before)} then {len(after)} entries"
        for at, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, f"{path}[{at}]")
    elif before != after:
        yield f"{path}: {before!r} then {after!r}"


@pytest.fixture(autouse=True)
def _laws_after_every_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Verdicts] = weakref.WeakSet()
    begin, make, close = Trial.__init__, Verdicts.__init__, Trial.close
    open_, turns = [0], count()

    def made(self: Verdicts, cluster: Cluster, profile: Profile) -> None:
        make(self, cluster, profile)
        alive.add(self)

    def begun(self: Trial, cluster: Cluster, mark: Mark) -> None:
        begin(self, cluster, mark)
        nested, open_[0] = open_[0] > 0, open_[0] + 1
        looked = not nested or next(turns) % EVERY == 0
        self.before = picture(cluster) if looked else None  # type: ignore[attr-defined]

    def closed(self: Trial) -> None:
        close(self)
        open_[0] -= 1
        before = self.before  # type: ignore[attr-defined]
        if self._kept or before is None:
            return
        cluster: Any = self._cluster
        after = picture(cluster)
        assert before == after, "; ".join(differences(before, after))
        assert broken(cluster) == []
        for verdicts in alive:
            if verdicts.cluster is cluster:
                check_kept(verdicts)

    monkeypatch.setattr(Verdicts, "__init__", made)
    monkeypatch.setattr(Trial, "__init__", begun)
    monkeypatch.setattr(Trial, "close", closed)


@pytest.fixture(autouse=True)
def _numbers_do_not_overflow() -> Any:
    with np.errstate(all="raise"):
        yield
