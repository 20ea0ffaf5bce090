"""Node selectors and node affinity."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import RowKey
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import (
    MAX_SCORE,
    Ask,
    Filter,
    Normalise,
    Reads,
    Reject,
    Restrict,
    Score,
)
from bayplan.core.state.arrays import Codes, Ints, Mask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View

HELPED_BY = frozenset({EventKind.NODE_ADDED, EventKind.NODE_CHANGED})
NOT_MATCHED, NOT_ENFORCED, OUTSIDE = 1, 2, 4


class NodeAffinityArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """Affinity that the profile adds to every pod."""

    added_required: tuple[NodeTerm, ...] | None = None
    added_preferred: tuple[tuple[int, NodeTerm], ...] = ()


class NodeAffinity:
    """Refuses nodes outside the pod's node selector and required affinity; scores the preferred.

    Terms that name nodes narrow the search before any filter runs, as in kube-scheduler.
    """

    name = "NodeAffinity"
    reads = Reads.STATIC
    Args = NodeAffinityArgs

    def __init__(self, args: NodeAffinityArgs = NodeAffinityArgs()) -> None:  # noqa: B008
        self._args = args

    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None:
        if named_nodes(ask.row) != ():
            return None
        return Reason("pod affinity terms conflict", False, frozenset())

    def restrict(self, ask: Ask, view: View) -> Codes | None:
        named = named_nodes(ask.row)
        if named is None:
            return None
        return np.where(view.named(named), 0, OUTSIDE)

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        codes: Codes | None = None
        matched = required(ask.row, view)
        if matched is not None:
            codes = (~matched).view(np.int8)  # 1 is NOT_MATCHED
        if self._args.added_required is not None:
            enforced = any_term(self._args.added_required, view)
            before = 0 if codes is None else codes
            codes = np.where(enforced, before, NOT_ENFORCED)
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return (
            Reason("node(s) didn't match Pod's node affinity/selector", False, HELPED_BY),
            Reason("node(s) didn't match scheduler-enforced node affinity", False, HELPED_BY),
            Reason("node(s) didn't satisfy plugin(s) [NodeAffinity]", False, HELPED_BY),
        )

    def score(self, ask: Ask, view: View) -> Ints | None:
        preferred = self._args.added_preferred + ask.row.preferred
        if not self._args.added_preferred and not ask.row.has_preferred:
            return None
        total = np.zeros(len(view), dtype=np.int64)
        for weight, term in preferred:
            total += weight * one_term(term, view)
        return total

    def normalise(self, raw: Ints, high: int) -> Ints:
        return raw if high == 0 else MAX_SCORE * raw // high


def named_nodes(key: RowKey) -> tuple[str, ...] | None:
    """The only nodes that the required terms allow by name; None when they do not name any."""
    names: dict[str, None] = {}
    for term in key.required or ():
        if term.named is None:
            return None
        names |= dict.fromkeys(term.named)
    return tuple(names) if key.required else None


def required(key: RowKey, view: View) -> Mask | None:
    """The rows that satisfy node selector and required affinity; None: nothing is required."""
    if not key.node_selector and key.required is None:
        return None
    if len(view) == 1 and (node := view.cluster.nodes[view.row_numbers[0]]) is not None:
        return np.array([admits(key, node)])  # the usual question about one node
    matched: Mask | None = None
    for label, value in key.node_selector:
        column, codes = view.labels(label)
        matched = both(matched, np.equal(codes, column.values.codes.get(value, -1)))
    if key.required is not None:
        matched = both(matched, any_term(key.required, view))
    return matched


def admits(key: RowKey, node: Node) -> bool:
    """Whether the node satisfies node selector and required affinity."""
    labels, terms = node.labels, key.required
    if any(labels.get(label) != value for label, value in key.node_selector):
        return False
    return terms is None or any(holds(term, node) for term in terms)


def holds(term: NodeTerm, node: Node) -> bool:
    if term.broken or node.name in term.name_not_in:
        return False
    if any(name != node.name for name in term.name_in):
        return False
    return all(requirement.matches(node.labels) for requirement in term.expressions)


def any_term(terms: tuple[NodeTerm, ...], view: View) -> Mask:
    if len(terms) == 1:
        return one_term(terms[0], view)
    matched = np.zeros(len(view), dtype=np.bool_)
    for term in terms:
        matched |= one_term(term, view)
    return matched


def one_term(term: NodeTerm, view: View) -> Mask:
    if term.broken:
        return np.zeros(len(view), dtype=np.bool_)
    matched: Mask | None = None
    for requirement in term.expressions:
        matched = both(matched, expression(requirement, view))
    for name in term.name_in:
        matched = both(matched, view.named((name,)))
    if term.name_not_in:
        matched = both(matched, ~view.named(term.name_not_in))
    return np.ones(len(view), dtype=np.bool_) if matched is None else matched


def both(matched: Mask | None, also: Mask) -> Mask:
    return also if matched is None else matched & also


def expression(requirement: Requirement, view: View) -> Mask:
    column, codes = view.labels(requirement.key)
    return column.matches(requirement, codes)


_: type[Filter] = NodeAffinity
__: type[Reject] = NodeAffinity
___: type[Restrict] = NodeAffinity
____: type[Score] = NodeAffinity
_____: type[Normalise] = NodeAffinity
