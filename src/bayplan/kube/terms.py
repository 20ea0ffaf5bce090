"""Selectors, affinity, spread and times as Kubernetes writes them, read into the core's values.

What Kubernetes would refuse to parse raises `Wrong` with the field's path; what it quietly takes
to match nothing is kept as such. Nothing here knows nodes or other pods.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from bayplan.core.model.pods import AffinityTerm, PodTerms, Spread
from bayplan.core.model.selectors import (
    EVERYTHING,
    NodeTerm,
    Requirement,
    Selector,
    base10,
    is_label_key,
    is_label_value,
)
from bayplan.kube import wire

_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_NAME_FIELD = "metadata.name"
_AT = re.compile(r"(?s)(.*) - at `\$\.?(.*)`")
T = TypeVar("T")


class Wrong(ValueError):
    """Something in a field that cannot be understood."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field, self.why = field, why


def label_selector(selector: wire.LabelSelector | None, path: str) -> Selector | None:
    """As LabelSelectorAsSelector: None matches nothing, an empty selector everything."""
    if selector is None:
        return None
    requirements = [
        _requirement(wire.Expression(key, "In", [value]), f"{path}.matchLabels[{key}]")
        for key, value in (selector.match_labels or {}).items()
    ]
    for i, expression in enumerate(selector.match_expressions or ()):
        where = f"{path}.matchExpressions[{i}]"
        if expression.operator not in _NODE_OPERATORS[:4]:
            raise Wrong(f"{where}.operator", f"{expression.operator!r} is not an operator here")
        requirements.append(_requirement(expression, where))
    return _selector(requirements)


def with_labels(selector: Selector | None, labels: Mapping[str, str]) -> Selector | None:
    """Also asks for these labels; a selector that matches nothing stays so."""
    if selector is None or not labels:
        return selector
    more = (Requirement(key, "In", (value,)) for key, value in labels.items())
    return _selector((*selector.requirements, *more))


def node_term(term: wire.NodeSelectorTerm) -> NodeTerm:
    """One node selector term. What cannot be parsed, or is empty, matches no node: `broken`."""
    named = _named(term.match_fields or ())
    try:
        if not term.match_expressions and not term.match_fields:
            raise Wrong("", "an empty term matches nothing")
        expressions = [_requirement(e, "") for e in term.match_expressions or ()]
        name_in, name_not_in = _fields(term.match_fields or ())
    except Wrong:
        return NodeTerm(broken=True, named=named)
    return NodeTerm(tuple(sorted(set(expressions))), name_in, name_not_in, named=named)


def preferred_nodes(
    terms: Iterable[wire.PreferredNodes], path: str
) -> tuple[tuple[int, NodeTerm], ...]:
    """Weighted terms; those without weight or conditions are left out, broken ones are wrong."""
    result = []
    for i, preferred in enumerate(terms):
        term = preferred.preference
        if not preferred.weight or not term or not (term.match_expressions or term.match_fields):
            continue
        where = f"{path}[{i}].preference"
        for j, expression in enumerate(term.match_expressions or ()):
            _requirement(expression, f"{where}.matchExpressions[{j}]")
        parsed = node_term(term)
        if parsed.broken and not _never(term.match_fields or ()):
            raise Wrong(f"{where}.matchFields", "In and NotIn with one value are allowed here")
        result.append((preferred.weight, parsed))
    return tuple(result)


def pod_terms(
    spec: wire.PodSpec, namespace: str, labels: Mapping[str, str], bound: bool
) -> PodTerms | None:
    """A pod's terms about other pods, None where there are none.

    Of a bound pod, a list that cannot be parsed is left out, as kube-scheduler does.
    """
    affinity, constraints = spec.affinity, spec.topology_spread_constraints
    if affinity is None and not constraints:
        return None

    def read(parse: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        try:
            return parse()
        except Wrong:
            if bound:
                return ()
            raise

    near = (affinity and affinity.pod_affinity) or wire.PodAffinity()
    far = (affinity and affinity.pod_anti_affinity) or wire.PodAffinity()
    at, anti = "spec.affinity.podAffinity", "spec.affinity.podAntiAffinity"
    where = f"{at}.{wire.PREFERRED}", f"{anti}.{wire.PREFERRED}"
    found = PodTerms(
        namespace=namespace,
        spread=read(lambda: spread(constraints or (), labels, "spec.topologySpreadConstraints")),
        affinity=read(
            lambda: affinity_terms(near.required or (), namespace, f"{at}.{wire.REQUIRED}")
        ),
        anti_affinity=read(
            lambda: affinity_terms(far.required or (), namespace, f"{anti}.{wire.REQUIRED}")
        ),
        preferred=(
            *read(lambda: preferred_pods(near.preferred or (), namespace, where[0], 1)),
            *read(lambda: preferred_pods(far.preferred or (), namespace, where[1], -1)),
        ),
    )
    return found if found != PodTerms(namespace) else None


def affinity_terms(
    terms: Iterable[wire.PodAffinityTerm], namespace: str, path: str
) -> tuple[AffinityTerm, ...]:
    return tuple(_affinity_term(t, namespace, f"{path}[{i}]") for i, t in enumerate(terms))


def preferred_pods(
    terms: Iterable[wire.PreferredPods], namespace: str, path: str, sign: int
) -> tuple[tuple[int, AffinityTerm], ...]:
    result = []
    for i, preferred in enumerate(terms):
        term = preferred.pod_affinity_term or wire.PodAffinityTerm()
        parsed = _affinity_term(term, namespace, f"{path}[{i}].podAffinityTerm")
        result.append((sign * (preferred.weight or 0), parsed))
    return tuple(result)


def spread(
    constraints: Iterable[wire.SpreadConstraint], labels: Mapping[str, str], path: str
) -> tuple[Spread, ...]:
    """Constraints with matchLabelKeys merged, as filterTopologySpreadConstraints does."""
    result = []
    for i, constraint in enumerate(constraints):
        if constraint.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
            continue
        selector = label_selector(constraint.label_selector, f"{path}[{i}].labelSelector")
        keys = constraint.match_label_keys or ()
        policy = constraint.node_affinity_policy
        result.append(
            Spread(
                max_skew=constraint.max_skew or 0,
                topology_key=constraint.topology_key or "",
                hard=constraint.when_unsatisfiable == "DoNotSchedule",
                selector=with_labels(selector, {k: labels[k] for k in keys if k in labels}),
                min_domains=1 if constraint.min_domains is None else constraint.min_domains,
                honor_affinity=policy is None or policy == "Honor",
                honor_taints=constraint.node_taints_policy == "Honor",
            )
        )
    return tuple(result)


def _selector(requirements: Iterable[Requirement]) -> Selector:
    unique = tuple(sorted(set(requirements)))
    return Selector(unique) if unique else EVERYTHING


def _requirement(expression: wire.Expression, path: str) -> Requirement:
    """As labels.NewRequirement."""
    key, operator, values = expression.key or "", expression.operator, expression.values or []
    if not is_label_key(key):
        raise Wrong(path, f"{short(key)} is not a label key")
    if operator not in _NODE_OPERATORS:
        raise Wrong(f"{path}.operator", f"{operator!r} is not an operator")
    if operator in ("In", "NotIn") and not values:
        raise Wrong(f"{path}.values", f"{operator} needs a value")
    if operator in ("Exists", "DoesNotExist") and values:
        raise Wrong(f"{path}.values", f"{operator} takes no values")
    if operator in ("Gt", "Lt") and (len(values) != 1 or base10(values[0]) is None):
        raise Wrong(f"{path}.values", f"{operator} takes one integer")
    for value in values:
        if not is_label_value(value):
            raise Wrong(path, f"{short(value)} is not a label value")
    return Requirement(key, operator, tuple(sorted(set(values))))


def _affinity_term(term: wire.PodAffinityTerm, namespace: str, path: str) -> AffinityTerm:
    own = not term.namespaces and term.namespace_selector is None
    return AffinityTerm(
        selector=label_selector(term.label_selector, f"{path}.labelSelector"),
        topology_key=term.topology_key or "",
        namespaces=(namespace,) if own else tuple(sorted(set(term.namespaces or ()))),
        namespace_selector=label_selector(term.namespace_selector, f"{path}.namespaceSelector"),
    )


def _fields(conditions: Iterable[wire.Expression]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a node must and must not have; nodes have no other field, so it reads ""."""
    wanted: set[str] = set()
    unwanted: set[str] = set()
    for condition in conditions:
        if condition.operator not in ("In", "NotIn") or len(condition.values or ()) != 1:
            raise Wrong("", "In and NotIn with one value are allowed here")
        value = (condition.values or [""])[0]
        if condition.key == _NAME_FIELD:
            (wanted if condition.operator == "In" else unwanted).add(value)
        elif (condition.operator == "In") == (value != ""):
            raise Wrong("", "no node has such a field")
    return tuple(sorted(wanted)), tuple(sorted(unwanted))


def _never(conditions: Iterable[wire.Expression]) -> bool:
    """Whether the conditions can be parsed, though no node meets them."""
    return all(
        condition.operator in ("In", "NotIn") and len(condition.values or ()) == 1
        for condition in conditions
    )


def _named(conditions: Iterable[wire.Expression]) -> tuple[str, ...] | None:
    """The nodes that In conditions on the name leave, as PreFilter looks for them."""
    left: set[str] | None = None
    for condition in conditions:
        if condition.key == _NAME_FIELD and condition.operator == "In":
            values = set(condition.values or ())
            left = values if left is None else left & values
    return None if left is None else tuple(sorted(left))


def seconds_of(time: str | None, field: str) -> float:
    """Since 1970; 0 for none."""
    if time is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(time)
        if moment.tzinfo is None:
            raise ValueError
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise Wrong(field, f"{time[:40]!r} is not an RFC 3339 time") from None


def short(text: str) -> str:
    return repr(text if len(text) <= 70 else text[:67] + "...")


def located(error: Exception) -> tuple[str, str]:
    """What a decoder found wrong, and in which field, if it says so."""
    found = _AT.fullmatch(str(error))
    return (found[1], found[2]) if found else (str(error), "")
