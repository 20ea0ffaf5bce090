"""Questions: what would happen, without its happening. What a question makes ends with it."""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from bayplan.core.engine import explain
from bayplan.core.engine.kept import SCORE_SHIFT
from bayplan.core.engine.preemption import Preemption
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Refusal
from bayplan.core.plugins.hooks import Ask, Normalise
from bayplan.core.state.arrays import Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.terms import OwnTerms, Term
from bayplan.core.state.view import View


class Fits(Struct, frozen=True):
    """Where a pod would fit, and why not elsewhere."""

    feasible: list[str]  # sorted
    reasons: dict[str, list[str]]  # by node
    helped_by_preemption: list[str]  # refused nodes where removing pods could help; sorted
    rejected: bool = False  # the pod as a whole, whatever the nodes are like


class aside:
    """Whatever a question does in the block is undone, and leaves nothing behind."""

    def __init__(self, cluster: Cluster, searches: Iterable[Preemption]) -> None:
        self._cluster = cluster
        self._turns = [(search, search.turn) for search in searches]

    def __enter__(self) -> None:
        self._derived = self._cluster.derived()
        self._trial = self._cluster.trial()

    def __exit__(self, *error: object) -> None:
        try:
            self._trial.__exit__(*error)
        finally:
            self._cluster.forget_derived(self._derived)
            for search, turn in self._turns:
                search.turn = turn


class asking:
    """The pod resolved for a question; its terms are counted for as long as the question."""

    def __init__(self, verdicts: Verdicts, pod: Pod) -> None:
        self._cluster, self._pod = verdicts.cluster, pod
        self._own: OwnTerms | None = None
        self._sums: set[object] = set()  # that its terms had before
        self._concerning: tuple[Term, ...] = ()

    def __enter__(self) -> Ask:
        cluster, pod = self._cluster, self._pod
        if pod.terms is not None:
            self._own = cluster.acquire_terms(pod.terms)
            self._sums = set(self._own.sums)
        # Of pods that go and come back on a trial meanwhile: a term that was dropped would be
        # another when it comes again, and what is asked here would not see it.
        self._concerning = cluster.terms.concerning(pod)
        cluster.terms.use(self._concerning)
        return Ask(pod, cluster.demand(pod.row), self._own, self._concerning)

    def __exit__(self, *_: object) -> None:
        self._cluster.leave_terms(self._concerning)
        if self._own is not None:
            for key in [key for key in self._own.sums if key not in self._sums]:
                self._own.forget_sums_of(key)
            self._cluster.release_terms(self._own)


def fits_on(verdicts: Verdicts, pod: Pod, node: str) -> bool:
    """Whether the pod would fit on the node."""
    row = verdicts.cluster.rows[node]
    with asking(verdicts, pod) as ask:
        return verdicts.takes(ask, row)


def best_node(verdicts: Verdicts, pod: Pod) -> str | None:
    """The node that the pod would go to; None when it fits nowhere."""
    with asking(verdicts, pod) as ask:
        row, _, _ = verdicts.best(ask, keep=False)
    return None if row < 0 else verdicts.cluster.name(row)


def fits(verdicts: Verdicts, pod: Pod) -> Fits:
    """For every node whether it would take the pod, and if not, why."""
    cluster = verdicts.cluster
    feasible: list[str] = []
    reasons: dict[str, list[str]] = {}
    with asking(verdicts, pod) as ask:
        verdict = verdicts.refusals(ask, View(cluster))
        texts: dict[int, list[str]] = {}
        for name in sorted(cluster.rows):
            code = int(verdict[cluster.rows[name]])
            if code >= 0:
                feasible.append(name)
                continue
            if code not in texts:
                texts[code] = [reason.text for reason in explain.reasons(verdicts, ask, code)]
            reasons[name] = list(texts[code])
        helps = explain.preemption_helps(verdicts, ask, verdict)
        rejected = verdicts.rejection(ask) is not None
    helped = sorted(name for name, row in cluster.rows.items() if helps[row])
    return Fits(feasible, reasons, helped, rejected)


def why_not(verdicts: Verdicts, pod: Pod) -> Refusal | None:
    """Why the pod fits nowhere; None when it fits somewhere."""
    with asking(verdicts, pod) as ask:
        verdict = verdicts.refusals(ask, View(verdicts.cluster))
        if (verdict >= 0).any():
            return None
        return explain.refusal(verdicts, ask, verdicts.cluster.version)


def scores(verdicts: Verdicts, pod: Pod) -> dict[str, dict[str, int]]:
    """Per feasible node each plugin's score without its weight, and the weighted total."""
    cluster = verdicts.cluster
    with asking(verdicts, pod) as ask:
        verdict = verdicts.on(ask, View(cluster))
        view = View(cluster, np.flatnonzero(verdict >= 0))
        if not len(view):
            return {}
        columns: dict[str, Ints] = {}
        for _, plugin in verdicts.profile.scores:
            raw = plugin.score(ask, view)
            if raw is not None and isinstance(plugin, Normalise) and len(raw):
                raw = plugin.normalise(raw, int(raw.max()))
            columns[plugin.name] = np.zeros(view.size, dtype=np.int64) if raw is None else raw
    places = {cluster.name(row): at for at, row in enumerate(view.row_numbers.tolist())}
    totals = verdict.take(view.row_numbers) >> SCORE_SHIFT
    return {
        name: {plugin: int(column[at]) for plugin, column in columns.items()}
        | {"total": int(totals[at])}
        for name, at in sorted(places.items())
    }
