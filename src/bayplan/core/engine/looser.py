"""What a pod would have to allow: taints to tolerate, and constraints to give up.

As few as possible. Taints that say how a node is at the moment are no matter of the pod, nor is a
cordon.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from bayplan.core.engine.ground import Ground
from bayplan.core.engine.what_if import PASSING
from bayplan.core.model.advice import Change, Loosen, Suggestion
from bayplan.core.model.effects import Placement
from bayplan.core.model.pods import Pod, PodTerms, RowKey
from bayplan.core.model.selectors import NodeTerm, Requirement, Taint, Toleration
from bayplan.core.plugins.taints import HARD_EFFECTS
from bayplan.core.state.arrays import distinct
from bayplan.core.state.terms import Role, Term

MOST = 3  # suggestions of a kind
MOST_SETS = 8  # of taints that are tried
MOST_PARTS = 24  # constraints that are looked at
NAME = "metadata.name"
ANYTHING = Toleration(operator="Exists")


# ---- taints


def tolerations(ground: Ground, pod: Pod) -> list[Suggestion]:
    cluster = ground.cluster
    rows = ground.rows(tolerating(pod, (ANYTHING,)))
    rows = rows[~cluster.unschedulable[rows]]
    sets = (cluster.taint_sets.values[code] for code in distinct(cluster.taints[rows]).tolist())
    needed = [_missing(pod, taints or ()) for taints in sets]
    lists = [each for each in needed if each and not any(_passes_by(taint) for taint in each)]
    lists.sort(key=lambda each: (len(each), str(each)))
    found: dict[tuple[Toleration, ...], Suggestion] = {}
    for taints in lists[:MOST_SETS]:
        if found and len(taints) > len(next(iter(found))):
            break
        more = _fewest(ground, pod, tuple(map(_toleration, taints)))
        placed = ground.where(tolerating(pod, more))
        if placed is not None and len(found) < MOST:
            text = f"tolerate {', '.join(map(_spelled, more))}"
            found[more] = Suggestion("toleration", text, placed.node, Change(tolerations=more))
    return list(found.values())


def tolerating(pod: Pod, more: tuple[Toleration, ...]) -> Pod:
    return replace(pod, row=replace(pod.row, tolerations=pod.row.tolerations + more))


def _fewest(ground: Ground, pod: Pod, more: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Without those that are not needed: spread constraints may count other nodes without them."""
    for each in more if len(more) > 1 else ():
        fewer = tuple(one for one in more if one != each)
        if fewer and len(ground.rows(tolerating(pod, fewer))):
            more = fewer
    return more


def _missing(pod: Pod, taints: Iterable[Taint]) -> list[Taint]:
    hard = [taint for taint in taints if taint.effect in HARD_EFFECTS]
    return [t for t in hard if not any(each.tolerates(t) for each in pod.row.tolerations)]


def _passes_by(taint: Taint) -> bool:
    return taint.key.startswith(PASSING)


def _toleration(taint: Taint) -> Toleration:
    operator = "Equal" if taint.value else "Exists"
    return Toleration(taint.key, operator, taint.value, taint.effect)


def _spelled(toleration: Toleration) -> str:
    value = f"={toleration.value}" if toleration.value else ""
    return f"{toleration.key}{value}:{toleration.effect}"


# ---- constraints


def labels(ground: Ground, pod: Pod) -> list[Suggestion]:
    """Constraints on labels that could be given up, each alone if that is enough."""
    parts = list(_parts(pod))[:MOST_PARTS]
    found = []
    for part in (*parts, *_own_labels(ground, pod)):
        placed = ground.where(loosened(pod, [part]))
        if placed is not None:
            found.append(_suggestion([_with_value(ground, pod, part, placed)], placed))
        if len(found) == MOST:
            break
    if found or len(parts) < 2 or not len(ground.rows(loosened(pod, parts))):
        return found
    for part in list(parts):
        fewer = [each for each in parts if each is not part]
        if len(ground.rows(loosened(pod, fewer))):
            parts = fewer
    placed = ground.where(loosened(pod, parts))
    return [] if placed is None else [_suggestion(parts, placed)]


def _parts(pod: Pod) -> Iterator[Loosen]:
    for key, value in pod.row.node_selector:
        yield Loosen("nodeSelector", key, (value,))
    for number, term in enumerate(pod.row.required or ()):
        for one in term.expressions:
            yield Loosen("nodeAffinity", one.key, one.values, one.op, number)
        if term.name_in or term.name_not_in or term.named is not None:
            yield Loosen("nodeAffinity", NAME, term=number)
    if pod.terms is None:
        return
    for number, spread in enumerate(pod.terms.spread):
        if spread.hard:
            yield Loosen("spread", spread.topology_key, term=number)
    for number, about in enumerate(pod.terms.anti_affinity):
        yield Loosen("podAntiAffinity", about.topology_key, term=number)
    for number, about in enumerate(pod.terms.affinity):
        yield Loosen("podAffinity", about.topology_key, term=number)


def _own_labels(ground: Ground, pod: Pod) -> Iterator[Loosen]:
    """Labels by which pods that are there keep this one away."""
    against = [t for t in ground.cluster.terms.concerning(pod) if _keeps_away(t)]
    keys = {
        requirement.key
        for term in against
        for part in term.key.parts
        if part.selector is not None
        for requirement in part.selector.requirements
    }
    for key, value in list(pod.labels.items())[:MOST_PARTS]:
        if key in keys:
            yield Loosen("labels", key, (value,))


def _keeps_away(term: Term) -> bool:
    return any(role is Role.ANTI for role, _ in term.owned)


def loosened(pod: Pod, parts: Sequence[Loosen]) -> Pod:
    """The pod without these constraints; with other values where they say so."""
    about = None if pod.terms is None else _looser_terms(pod.terms, parts)
    dropped = {part.key for part in parts if part.where == "labels"}
    own = {key: value for key, value in pod.labels.items() if key not in dropped}
    return replace(pod, row=_looser_row(pod.row, parts), terms=about, labels=own)


def _looser_row(row: RowKey, parts: Sequence[Loosen]) -> RowKey:
    instead = {part.key: part.instead for part in parts if part.where == "nodeSelector"}
    kept = ((key, instead.get(key, value)) for key, value in row.node_selector)
    selector = tuple((key, value) for key, value in kept if value is not None)
    required = row.required
    if required is not None and any(part.where == "nodeAffinity" for part in parts):
        terms = [
            _looser_term(term, [p for p in parts if p.where == "nodeAffinity" and p.term == number])
            for number, term in enumerate(required)
        ]
        required = None if None in terms else tuple(term for term in terms if term is not None)
    return replace(row, node_selector=selector, required=required)


def _looser_term(term: NodeTerm, parts: Sequence[Loosen]) -> NodeTerm | None:
    """None: it asks for nothing any more."""
    if not parts:
        return term
    gone = {(part.key, part.operator, part.values): part.instead for part in parts}
    expressions = []
    for one in term.expressions:
        instead = gone.get((one.key, one.op, one.values), "")
        if (one.key, one.op, one.values) not in gone:
            expressions.append(one)
        elif instead is not None:
            expressions.append(Requirement(one.key, one.op, tuple(sorted({*one.values, instead}))))
    term = replace(term, expressions=tuple(expressions))
    if any(part.key == NAME and not part.operator for part in parts):
        term = replace(term, name_in=(), name_not_in=(), named=None)
    empty = not (term.expressions or term.name_in or term.name_not_in or term.named is not None)
    return None if empty else term


def _looser_terms(terms: PodTerms, parts: Sequence[Loosen]) -> PodTerms:
    gone = {(part.where, part.term) for part in parts}
    return replace(
        terms,
        spread=tuple(s for i, s in enumerate(terms.spread) if ("spread", i) not in gone),
        affinity=tuple(t for i, t in enumerate(terms.affinity) if ("podAffinity", i) not in gone),
        anti_affinity=tuple(
            t for i, t in enumerate(terms.anti_affinity) if ("podAntiAffinity", i) not in gone
        ),
    )


def _with_value(ground: Ground, pod: Pod, part: Loosen, placed: Placement) -> Loosen:
    """The constraint with the value that the node has, if that is enough."""
    if part.where != "nodeSelector" and part.operator != "In":
        return part
    node = ground.cluster.nodes[ground.cluster.rows[placed.node]]
    value = None if node is None else node.labels.get(part.key)
    if value is None:
        return part
    other = replace(part, instead=value)
    again = ground.where(loosened(pod, [other]))
    return other if again is not None and again.node == placed.node else part


def _suggestion(parts: Sequence[Loosen], placed: Placement) -> Suggestion:
    text = " and ".join(map(_words, parts))
    return Suggestion("label", text, placed.node, Change(loosen=tuple(parts)))


def _words(part: Loosen) -> str:
    value = part.values[0] if part.values else ""
    match part.where:
        case "nodeSelector" if part.instead is not None:
            return f"select nodes with {part.key}={part.instead} instead of {value}"
        case "nodeSelector":
            return f"give up the node selector {part.key}={value}"
        case "nodeAffinity" if part.instead is not None:
            return f"allow nodes with {part.key}={part.instead} too"
        case "nodeAffinity":
            said = " ".join((part.key, part.operator, ",".join(part.values))).strip()
            return f"give up the node affinity {said}"
        case "spread":
            return f"give up the spread over {part.key}"
        case "podAffinity":
            return f"give up the affinity to pods in one {part.key}"
        case "podAntiAffinity":
            return f"give up the anti-affinity to pods in one {part.key}"
        case "labels":
            return f"give up the pod's label {part.key}={value}, by which others keep it away"
