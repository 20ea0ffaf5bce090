"""Inter-pod affinity and anti-affinity, both directions, required and preferred."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Reads, Score
from bayplan.core.state.arrays import Codes, Ints, Mask
from bayplan.core.state.terms import Count, OwnTerms, Role
from bayplan.core.state.view import View

NO_AFFINITY, OWN_ANTI, OTHERS_ANTI = 1, 2, 4
CHANGES = frozenset(
    {
        EventKind.NODE_ADDED,
        EventKind.NODE_CHANGED,
        EventKind.POD_RELABELLED,
        EventKind.NAMESPACE_CHANGED,
    }
)


class PodAffinityArgs(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    hard_pod_affinity_weight: int = 1
    ignore_preferred_terms_of_existing_pods: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.hard_pod_affinity_weight <= 100:
            raise ValueError("hardPodAffinityWeight: must be 0 to 100")


class InterPodAffinity:
    """Refuses nodes in domains without the pods it needs, or with pods that exclude each other."""

    name = "InterPodAffinity"
    reads = Reads.CLUSTER
    needs_terms = True
    Args = PodAffinityArgs

    def __init__(self, args: PodAffinityArgs = PodAffinityArgs()) -> None:  # noqa: B008
        self._args = args

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        codes: Codes | None = None
        for bit, refused in self._refused(ask, view):  # the last check first: the first one wins
            if codes is None:
                codes = refused.view(np.int8) * np.int8(bit)
            elif view.exact:
                codes = np.where(refused, np.int8(bit), codes)
            else:
                codes |= refused
        return codes

    def _refused(self, ask: Ask, view: View) -> Iterator[tuple[int, Mask]]:
        for term in ask.concerning:
            for (role, key), count in term.owned.items():
                if role is Role.ANTI:
                    yield OTHERS_ANTI, populated(count, key, view)
        if ask.own is not None:
            for affinity, term in ask.own.anti:
                yield OWN_ANTI, populated(term.matched, affinity.topology_key, view)
            if ask.own.affinity:
                yield NO_AFFINITY, ~self._satisfied(ask, ask.own, view)

    def _satisfied(self, ask: Ask, own: OwnTerms, view: View) -> Mask:
        """Rows with every topology key whose domains all hold a pod that matches all terms."""
        assert own.all_affinity is not None
        together = own.all_affinity
        complete = np.ones(len(view), dtype=np.bool_)
        satisfied = np.ones(len(view), dtype=np.bool_)
        nobody = True
        for affinity, _ in own.affinity:
            column, codes = view.labels(affinity.topology_key)
            sums = together.matched.domain_sums(column)
            nobody = nobody and not sums[1:].any()
            complete &= codes != 0
            satisfied &= populated(together.matched, affinity.topology_key, view)
        if nobody and together.counts(ask.pod, view.cluster.terms.namespaces):
            return complete  # the first of a series that has affinity to itself
        return satisfied

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (
            Reason(
                "node(s) didn't match pod affinity rules",
                False,
                CHANGES | {EventKind.POD_PLACED, EventKind.POD_GONE},  # gone: it may be the first
            ),
            Reason(
                "node(s) didn't match pod anti-affinity rules", True, CHANGES | {EventKind.POD_GONE}
            ),
            Reason(
                "node(s) didn't satisfy existing pods anti-affinity rules",
                True,
                CHANGES | {EventKind.POD_GONE},
            ),
        )

    def score(self, ask: Ask, view: View) -> Ints | None:
        has_own = ask.own is not None and bool(ask.own.preferred)
        if self._args.ignore_preferred_terms_of_existing_pods and not has_own:
            return None
        weighted = list(self._weighted(ask))
        if not weighted:
            return None
        feasible = view.feasible_rows
        total: Ints | None = None
        for weight, key, count in weighted:
            column, codes = view.labels(key)
            sums = count.domain_sums(column) * weight
            sums[0] = 0
            added = sums.take(codes.take(feasible))
            total = added if total is None else total + added
        if total is None or not len(total):
            return None
        scores = np.zeros(len(view), dtype=np.int64)
        low, high = int(total.min()), int(total.max())
        if high > low:
            scores[feasible] = MAX_SCORE * ((total - low) / (high - low))
        return scores

    def _weighted(self, ask: Ask) -> Iterator[tuple[int, str, Count]]:
        """(weight, topology key, count) of everything that speaks for or against a domain."""
        if ask.own is not None:
            for weight, affinity, term in ask.own.preferred:
                yield weight, affinity.topology_key, term.matched
        for term in ask.concerning:
            for (role, key), count in term.owned.items():
                if role is Role.SOFT:
                    yield 1, key, count
                elif role is Role.HARD and self._args.hard_pod_affinity_weight:
                    yield self._args.hard_pod_affinity_weight, key, count


def populated(count: Count, key: str, view: View) -> Mask:
    """Rows whose domain holds any of the counted; rows without the label hold none."""
    column, codes = view.labels(key)
    table = count.domain_sums(column) > 0
    table[0] = False
    return table.take(codes)


_: type[Filter] = InterPodAffinity
__: type[Score] = InterPodAffinity
