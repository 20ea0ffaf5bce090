"""The laws, checked in every test: after every dropped trial the whole state is as it was before,
everything counted equals what is counted afresh, and every kept verdict equals a fresh one."""

import weakref
from typing import Any

import numpy as np
import pytest

from bayplan.core.engine.profile import Profile
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.state.cluster import Cluster, Trial
from bayplan.core.state.laws import broken, picture
from bayplan.core.state.view import View


def check_kept(verdicts: Verdicts) -> None:
    """Every kept verdict, brought up to date, says what asking afresh says."""
    for kept in list(verdicts._kept.values()):
        ask = kept.ask
        fresh = verdicts.on(ask, View(verdicts.cluster))
        demand = verdicts.cluster.demand(ask.row)
        known = verdicts.kept(type(ask)(ask.pod, demand)).verdict[: verdicts.cluster.height]
        feasible = fresh >= 0
        assert (known >= 0).tolist() == feasible.tolist()
        assert known[feasible].tolist() == fresh[feasible].tolist()


@pytest.fixture(autouse=True)
def _laws_after_every_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Verdicts] = weakref.WeakSet()
    begin, make, close = Trial.__init__, Verdicts.__init__, Trial.close

    def made(self: Verdicts, cluster: Cluster, profile: Profile) -> None:
        make(self, cluster, profile)
        alive.add(self)

    def begun(self: Trial, cluster: Cluster, *marks: int) -> None:
        begin(self, cluster, *marks)
        self.before = picture(cluster)  # type: ignore[attr-defined]

    def closed(self: Trial) -> None:
        close(self)
        if self._kept:
            return
        cluster: Any = self._cluster
        assert picture(cluster) == self.before  # type: ignore[attr-defined]
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
