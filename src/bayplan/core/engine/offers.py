"""Pods that another scheduler places: what it was offered for them, and what it asks to be bound.

That scheduler asks where a pod fits, thinks, and asks later for a bind, often somewhere else, or
never. So a pod that was offered places is expected on the best of them for LASTS_S, and its devices
are held there. A hold is only a guess: it never keeps a bind from its node.
"""

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
from msgspec import Struct

from bayplan.core.engine import explain, placing
from bayplan.core.engine.questions import asking
from bayplan.core.engine.verdicts import SCORE_SHIFT, Verdicts
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.view import View

LASTS_S = 2.0
UNKNOWN_NODE = "the node is not known yet"


class Filtered(Struct, frozen=True):
    """Which of some nodes take a pod, and why the others do not."""

    passed: list[str]
    best: str  # of those, or empty
    refused: dict[str, str]  # by node: where other pods may be in the way
    hopeless: dict[str, str]  # by node: where they are not
    soon: bool = False  # nothing passed, but only for pods that are expected and may not come


class Offers:
    def __init__(self, verdicts: Verdicts) -> None:
        self._verdicts, self._cluster = verdicts, verdicts.cluster
        self.until: dict[str, float] = {}  # by uid: when it is expected no more; soonest first

    def expect(self, pod: Pod, node: str, now: float) -> None:
        """The pod was offered places, the best of them on the node."""
        self.forget(pod.uid)
        row = self._cluster.rows.get(node)
        if row is None or pod.uid in self._cluster.pods:
            return
        with asking(self._verdicts, pod) as ask:
            if self._refused(ask, row):
                return
            placed = placing.placement(self._cluster, self._verdicts.profile, ask, row)
        self._cluster.holds.hold(placing.holding(placed), row)
        self.until[pod.uid] = now + LASTS_S

    def forget(self, uid: str) -> None:
        if self.until.pop(uid, None) is not None and uid in self._cluster.holds.rows:
            self._cluster.holds.release(uid)

    def expire(self, now: float) -> None:
        for uid in [uid for uid, end in self.until.items() if end <= now]:
            self.forget(uid)

    def filter(self, pod: Pod, names: Sequence[str]) -> Filtered:
        """What another scheduler is offered. Nothing is held for the pod itself."""
        rows = np.array([self._cluster.rows.get(name, -1) for name in names], dtype=np.intp)
        with asking(self._verdicts, pod) as ask:
            verdict = self._verdicts.all_rows(ask)
            if not len(verdict):
                return Filtered([], "", dict.fromkeys(names, UNKNOWN_NODE), {})
            scores = np.where(rows >= 0, verdict[rows], -1)
            fits = scores >= 0
            passed = list(compress(names, fits.tolist()))
            best = names[int(scores.argmax())] if passed else ""
            refused, hopeless = self._reasons(ask, list(compress(names, (~fits).tolist())))
            soon = not passed and self._fits_without_holds(ask, rows[rows >= 0])
        return Filtered(passed, best, refused, hopeless, soon)

    def _reasons(self, ask: Ask, names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        """By node, where preemption may help and where it cannot."""
        known = [(name, row) for name in names if (row := self._cluster.rows.get(name)) is not None]
        refused = dict.fromkeys(names, UNKNOWN_NODE) if len(known) < len(names) else {}
        hopeless: dict[str, str] = {}
        if not known:
            return refused, hopeless
        view = View(self._cluster, np.array([row for _, row in known], dtype=np.intp))
        codes = self._verdicts.refusals(ask, view).tolist()
        texts = {code: list(explain.reasons(self._verdicts, ask, code)) for code in set(codes)}
        words = {code: ", ".join(each.text for each in found) for code, found in texts.items()}
        helps = {c for c, found in texts.items() if all(each.preemption_helps for each in found)}
        for (name, _), code in zip(known, codes, strict=True):
            if code in helps:
                refused[name] = words[code]
            else:
                hopeless[name] = words[code]
                refused.pop(name, None)
        return refused, hopeless

    def _fits_without_holds(self, ask: Ask, rows: Iterable[int]) -> bool:
        held = sorted(set(self._cluster.holds.pods) & {int(row) for row in rows})
        if not held:
            return False
        with self._cluster.trial():
            for row in held:
                for pod in self._cluster.holds.on(row):
                    self._cluster.holds.release(pod.uid)
            view = View(self._cluster, np.array(held, dtype=np.intp))
            return bool(self._verdicts.passes(ask, view).any())

    def scores(self, pod: Pod, names: Sequence[str]) -> list[int]:
        """0 to 100 for each node; 0 where the pod does not fit. What is held for the pod itself is
        not in its way."""
        cluster = self._cluster
        rows = np.array([cluster.rows.get(name, -1) for name in names], dtype=np.intp)
        with asking(self._verdicts, pod) as ask, cluster.trial():
            if pod.uid in cluster.holds.rows:
                cluster.holds.release(pod.uid)
            verdict = self._verdicts.all_rows(ask)
            if not len(verdict):
                return [0] * len(names)
            found = np.where(rows >= 0, verdict[rows], -1)
        return [int(score) for score in np.maximum(found, 0) >> SCORE_SHIFT]

    def victims(self, pod: Pod, node: str, given: Sequence[str]) -> list[str] | None:
        """The pods that must go for this one: those given, and more of lower priority where they
        are not enough, each needed. None where even all of them do not help."""
        cluster = self._cluster
        row = cluster.rows.get(node)
        if row is None:
            return None
        with asking(self._verdicts, pod) as ask, cluster.trial():
            if pod.uid in cluster.holds.rows:
                cluster.holds.release(pod.uid)
            for uid in given:
                if uid in cluster.residents[row]:
                    cluster.remove(uid)
            if not self._refused(ask, row):
                return list(given)
            classes = {each.device_class for each in pod.row.devices}
            more = sorted(
                (
                    resident.pod
                    for resident in cluster.residents[row].values()
                    if resident.pod.priority < pod.priority
                    and not classes.isdisjoint(e.device_class for e in resident.pod.row.devices)
                ),
                key=lambda each: (-each.priority, each.started_s or each.created_s, each.uid),
            )
            for each in more:
                cluster.remove(each.uid)
            if self._refused(ask, row):
                return None
            needed = []
            for each in more:  # the most important first: spared if it can be
                with cluster.trial() as trial:
                    cluster.place(each, node)
                    if not self._refused(ask, row):
                        trial.keep()
                    else:
                        needed.append(each.uid)
            return [*given, *needed]

    def bind(self, pod: Pod, node: str) -> Placement | str:
        """Places the pod on the node with devices chosen afresh, or says why it cannot be there."""
        cluster = self._cluster
        self.forget(pod.uid)
        row = cluster.rows.get(node)
        if row is None:
            return f"node {node} is not known"
        with asking(self._verdicts, pod) as ask:
            if self._refused(ask, row):
                with cluster.trial() as trial:  # perhaps only for others who are not there yet
                    others = [held.uid for held in cluster.holds.on(row)]
                    for uid in others:
                        cluster.holds.release(uid)
                    if why := self._refused(ask, row):
                        return why
                    trial.keep()
                for uid in others:
                    del self.until[uid]
            placed = placing.placement(cluster, self._verdicts.profile, ask, row)
            return placing.reserve(cluster, self._verdicts.profile, ask, placed) or placed

    def _refused(self, ask: Ask, row: int) -> str:
        """Why the pod does not fit on the row; empty if it does."""
        view = View(self._cluster, np.array([row], dtype=np.intp))
        code = int(self._verdicts.refusals(ask, view)[0])
        if code >= 0:
            return ""
        return ", ".join(each.text for each in explain.reasons(self._verdicts, ask, code))
