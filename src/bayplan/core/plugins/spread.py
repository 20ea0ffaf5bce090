"""Topology spread constraints, hard and soft.

Hard: on a node, the matching pods of its domain plus the newcomer may exceed the emptiest
domain's by at most maxSkew. Soft: the fewer matching pods in the domain, the better. Which nodes
count follows the newcomer's own affinity and tolerations, so the sums per domain are kept per
row key, beside the pod's terms, and follow the logs.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bayplan.core.model.pods import RowKey, Spread
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Reads, Score
from bayplan.core.plugins.node_affinity import required
from bayplan.core.plugins.taints import untolerated
from bayplan.core.state.arrays import Codes, Ints, Mask, Rows
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.terms import EligibleSums, OwnTerms
from bayplan.core.state.view import View

HOSTNAME = "kubernetes.io/hostname"
TOO_SKEWED, NO_LABEL = 1, 2
KEPT_KEYS = 64  # row keys per set of terms
HELPED_BY = frozenset(
    {
        EventKind.NODE_ADDED,
        EventKind.NODE_CHANGED,
        EventKind.POD_PLACED,
        EventKind.POD_GONE,
        EventKind.POD_RELABELLED,
    }
)


class PodTopologySpread:
    """Refuses nodes whose domain would hold too many of the pods that a constraint selects."""

    name = "PodTopologySpread"
    reads = Reads.CLUSTER
    needs_terms = True

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        own = ask.own
        if own is None or not own.hard:
            return None
        codes: Codes | None = None
        for (spread, _), sums in zip(
            own.hard, kept_sums(ask, view.cluster, hard=True), strict=True
        ):
            column, domains = view.labels(spread.topology_key)
            itself = spread.selector is not None and spread.selector.matches(ask.pod.labels)
            most = spread.max_skew - int(itself)  # where the emptiest domain has none
            is_complete = column.complete(view.cluster.node_count)
            if is_complete and sums.sums[1:].max(initial=0) <= most:
                continue
            counted = sums.counted()
            if len(counted) and len(counted) >= spread.min_domains:
                most += int(sums.sums.take(counted).min())
            verdicts = (padded(sums.sums, len(column.values)) > most).view(np.int8)
            verdicts[0] = NO_LABEL
            found = verdicts.take(domains)
            codes = found if codes is None else np.where(codes == 0, found, codes)
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        text = "node(s) didn't match pod topology spread constraints"
        return (
            Reason(text, True, HELPED_BY),
            Reason(f"{text} (missing required label)", False, HELPED_BY),
        )

    def skips(self, ask: Ask) -> bool:
        return ask.own is None or not ask.own.soft

    def score(self, ask: Ask, view: View) -> Ints | None:
        own = ask.own
        if own is None or not own.soft:
            return None
        scored = labelled(own, view)
        if scored is not None:
            scores = np.zeros(len(view), dtype=np.int64)
            scores[scored] = among(ask, own, View(view.cluster, view.row_numbers.take(scored)))
            return scores
        return among(ask, own, view)


def among(ask: Ask, own: OwnTerms, view: View) -> Ints:
    """The scores of nodes that have every label."""
    raw, cluster = np.zeros(len(view)), view.cluster
    for (spread, term), kept in zip(own.soft, kept_sums(ask, cluster, hard=False), strict=True):
        if spread.topology_key == HOSTNAME:
            at = term.matched.per_row(len(cluster.nodes)).take(view.row_numbers)
            size, counts = len(view), np.arange(at.max(initial=0) + 1)
        else:
            column, at = view.labels(spread.topology_key)
            present = np.zeros(len(column.values), dtype=np.bool_)
            present[at] = True
            size, counts = int(np.count_nonzero(present)), padded(kept.sums, len(present))
        # There are fewer counts than rows.
        raw += (counts * math.log(size + 2) + (spread.max_skew - 1)).take(at)
    return normalised(rounded(raw))


def labelled(own: OwnTerms, view: View) -> Rows | None:
    """Positions of the nodes that have every label of the soft constraints, which alone are scored;
    None for all."""
    found: Mask | None = None
    for spread, _ in own.soft:
        column = view.cluster.column(spread.topology_key)
        if not column.complete(view.cluster.node_count):
            has = view.labels(spread.topology_key)[1] != 0
            found = has if found is None else found & has
    return None if found is None or found.all() else np.flatnonzero(found)


def rounded(raw: NDArray[np.float64]) -> Ints:
    """Half away from zero, as Go rounds. Adding a half rounds nothing that is 0 or at least a half,
    and raw scores below that are 0: one pod more counts log 2 at least."""
    return (raw + 0.5).astype(np.int64)


def normalised(raw: Ints) -> Ints:
    """Fewer is better: 100 for the least."""
    high = int(raw.max(initial=0))
    if high == 0:
        return np.full(len(raw), MAX_SCORE, dtype=np.int64)
    values = np.arange(high + 1) if high < len(raw) else raw  # mostly there are fewer than rows
    scores = MAX_SCORE * (high + int(raw.min()) - values) // high
    return scores.take(raw) if values is not raw else scores


def padded(sums: Ints, size: int) -> Ints:
    return sums if len(sums) >= size else np.concatenate((sums, np.zeros(size - len(sums), int)))


def kept_sums(ask: Ask, cluster: Cluster, *, hard: bool) -> list[EligibleSums]:
    """The sums per domain for each constraint of the kind, brought up to date."""
    own = ask.own
    assert own is not None
    spreads = own.hard if hard else own.soft
    key = (ask.row, hard)
    kept = own.sums.get(key)
    if kept is None:
        if len(own.sums) >= 2 * KEPT_KEYS:
            own.forget_sums()
        kept = own.sums[key] = [EligibleSums(term, len(cluster.nodes)) for _, term in spreads]
    for (spread, _), sums in zip(spreads, kept, strict=True):
        refresh(sums, ask.row, spread, [s.topology_key for s, _ in spreads], cluster)
    return kept


def refresh(
    sums: EligibleSums, row: RowKey, spread: Spread, keys: list[str], cluster: Cluster
) -> None:
    log = cluster.static_log
    if sums.position == log.head:
        return
    rows = log.since(sums.position) if sums.position >= 0 else None
    whole = rows is None or len(rows) > cluster.height // 8
    whole = whole or len(sums.domain) < len(cluster.nodes)
    view = View(cluster, None if whole else rows)
    domains = eligible_domains(row, spread, keys, view)
    if whole:
        full = np.zeros(len(cluster.nodes), dtype=np.intp)
        full[: len(domains)] = domains
        sums.rebuild(full, len(cluster.column(spread.topology_key).values))
    else:
        for at, code in zip(view.row_numbers, domains, strict=True):
            sums.move(int(at), int(code))
    sums.position = log.head


def eligible_domains(row: RowKey, spread: Spread, keys: list[str], view: View) -> NDArray[np.intp]:
    """Per row its domain's code, 0 where the node does not count for this pod."""
    eligible = view.alive.copy()
    for key in keys:
        eligible &= view.labels(key)[1] != 0
    if spread.honor_affinity and (matched := required(row, view)) is not None:
        eligible &= matched
    if spread.honor_taints and (tainted := untolerated(row.tolerations, view)) is not None:
        eligible &= tainted == 0
    domains: NDArray[np.intp] = np.where(eligible, view.labels(spread.topology_key)[1], 0)
    return domains


_: type[Filter] = PodTopologySpread
__: type[Score] = PodTopologySpread
