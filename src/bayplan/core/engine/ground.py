"""The ground that one question about a pod stands on: what would come of this, on a trial.

Nothing here decides anything: the verdicts do, and placing. It ends with the question.
"""

import numpy as np
from msgspec.structs import replace

from bayplan.core.engine import placing
from bayplan.core.engine.engine import Engine
from bayplan.core.engine.kept import REFUSED
from bayplan.core.engine.preempting import KEPT
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.arrays import Rows
from bayplan.core.state.view import View


class Ground:
    """Asks for pods of one profile."""

    def __init__(self, engine: Engine, scheduler: str) -> None:
        self.engine, self.cluster = engine, engine.cluster
        self.verdicts = Verdicts(engine.cluster, engine.profiles[scheduler])
        self.preemption = engine.preemption[scheduler]
        self._others = {scheduler: self.verdicts}
        self._picking = engine.picking.apart()

    def yields(self, pod: Pod) -> bool:
        """Whether the pod, which fits, is kept waiting for somebody who is promised a place."""
        _, group = self.engine.waiting.pods[pod.uid]
        return group.refusal is not None and group.refusal.message == KEPT

    def of(self, pod: Pod) -> Verdicts:
        """Those of the pod's own profile; where its scheduler is somebody else, ours."""
        profile = self.engine.profiles.get(pod.scheduler)
        if profile is None:
            return self.verdicts
        if pod.scheduler not in self._others:
            self._others[pod.scheduler] = Verdicts(self.cluster, profile)
        return self._others[pod.scheduler]

    def rows(self, pod: Pod, among: Rows | None = None) -> Rows:
        """The rows that take the pod."""
        verdicts = self.of(pod)
        with asking(verdicts, pod) as ask:
            passes = np.flatnonzero(verdicts.passes(ask, View(self.cluster, among)))
        return passes if among is None else among[passes]

    def fits(self, pod: Pod, row: int) -> bool:
        return bool(len(self.rows(pod, np.array([row], dtype=np.intp))))

    def where(self, pod: Pod) -> Placement | None:
        """Where the pod would go."""
        with self.cluster.trial():
            return self.place(pod)

    def place(self, pod: Pod, avoid: int = -1, row: int = -1) -> Placement | None:
        """The pod where it goes, or on a row that takes it, but not on `avoid`. In a trial."""
        verdicts = self.of(pod)
        with asking(verdicts, pod) as ask:
            at = row if row >= 0 else self._best(verdicts, ask, avoid)
            if at < 0:
                return None
            placed = placing.placement(self.cluster, verdicts.profile, ask, at)
            why = placing.reserve(self.cluster, verdicts.profile, ask, placed, at)
        return placed if why is None else None

    def _best(self, verdicts: Verdicts, ask: Ask, avoid: int) -> int:
        row, verdict, rows = verdicts.best(ask, keep=False)
        if row < 0 or (row != avoid and verdicts.profile.picker is None):
            return row
        numbers = np.arange(len(verdict)) if rows is None else rows
        left = np.where(numbers == avoid, REFUSED, verdict)
        at = int(left.argmax())
        if left[at] < 0:
            return -1
        if verdicts.profile.picker is not None:
            return self._picking.pick(verdicts.profile.picker, verdicts, ask, (left, rows)).row
        return int(numbers[at])

    def release(self, *pods: Pod) -> None:
        """What is kept for these pods is not in their way. In a trial."""
        for pod in pods:
            if pod.uid in self.cluster.holds.rows:
                self.cluster.holds.release(pod.uid)

    def remove(self, *pods: Pod) -> None:
        """In a trial."""
        for pod in pods:
            self.cluster.remove(pod.uid)


def daring(pod: Pod) -> Pod:
    """The pod as if others might go for it."""
    return replace(pod, lifecycle=replace(pod.lifecycle, preempts=True))
