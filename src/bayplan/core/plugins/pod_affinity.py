"""Inter-pod affinity and anti-affinity, both directions, required and preferred."""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import MAX_SCORE, Ask, Filter, Reads, Score
from bayplan.core.state.arrays import Codes, Ints, Mask
from bayplan.core.state.labels import LabelColumn
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
        for (bit, key), table in self._closed(ask, view).items():
            codes = marked(codes, table.take(view.labels(key)[1]), bit)
        if ask.own is not None and ask.own.affinity:
            codes = marked(codes, ~self._satisfied(ask, ask.own, view), NO_AFFINITY)
        return codes

    def _closed(self, ask: Ask, view: View) -> dict[tuple[int, str], Mask]:
        """By reason and topology key the domains that anti-affinity closes, the last check first:
        of several reasons the last one counts. Where nobody asks why, all have one reason."""
        tables: dict[tuple[int, str], Mask] = {}
        for bit, key, count in self._anti(ask):
            closed = populated(count, view.cluster.column(key))
            if closed.any():
                at = (bit if view.exact else OWN_ANTI, key)
                tables[at] = tables[at] | closed if at in tables else closed
        return tables

    def _anti(self, ask: Ask) -> Iterator[tuple[int, str, Count]]:
        for term in ask.concerning:
            for (role, key), count in term.owned.items():
                if role is Role.ANTI:
                    yield OTHERS_ANTI, key, count
        if ask.own is not None:
            for affinity, term in ask.own.anti:
                yield OWN_ANTI, affinity.topology_key, term.matched

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
            satisfied &= populated(together.matched, column).take(codes)
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

    def skips(self, ask: Ask) -> bool:
        has_own = ask.own is not None and bool(ask.own.preferred)
        if self._args.ignore_preferred_terms_of_existing_pods and not has_own:
            return True
        return next(self._weighted(ask), None) is None

    def score(self, ask: Ask, view: View) -> Ints | None:
        if self.skips(ask):
            return None
        tables: dict[str, Ints] = {}  # by topology key, per value code
        for weight, key, count in self._weighted(ask):
            column = view.cluster.column(key)
            sums = count.domain_sums(column)[: len(column.values)] * weight
            sums[0] = 0
            tables[key] = tables[key] + sums if key in tables else sums
        parts = [sums.take(view.labels(key)[1]) for key, sums in tables.items()]
        total: Ints = parts[0] if len(parts) == 1 else np.add.reduce(parts)
        low, high = int(total.min()), int(total.max())
        if high == low:
            return None
        return (MAX_SCORE * ((total - low) / (high - low))).astype(np.int64)

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


def marked(codes: Codes | None, refused: Mask, bit: int) -> Codes:
    """The codes, and this one where a row is refused."""
    if codes is None:
        return refused.view(np.int8) * np.int8(bit)
    return np.where(refused, np.int8(bit), codes)


def populated(count: Count, column: LabelColumn) -> Mask:
    """Per value code whether its domain holds any of the counted; without the label there is no
    domain."""
    table: Mask = count.domain_sums(column)[: len(column.values)] > 0
    table[0] = False
    return table


_: type[Filter] = InterPodAffinity
__: type[Score] = InterPodAffinity
