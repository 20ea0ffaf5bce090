"""Terms: selectors over pods, with the number of matching pods per node and per domain.

A term exists while somebody uses it: a pod that waits or is placed and has it as its own term, or
a question. Two things are counted for each. *Matched*: the placed pods that match it. *Owned*: the
placed pods that have it as their own affinity term, by role and topology key; they matter to a
newcomer that matches the term.

Nothing here decides; plugins read the counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bayplan.core.model.pods import AffinityTerm, Pod, PodTerms, Spread
from bayplan.core.model.selectors import Selector
from bayplan.core.state.arrays import Ints
from bayplan.core.state.labels import LabelColumn

Namespaces = Mapping[str, Mapping[str, str]]
ColumnOf = Callable[[str], LabelColumn]
NO_LABELS: Mapping[str, str] = {}


class Role(Enum):
    """What an owner's term means to a newcomer that matches it."""

    ANTI = "required anti-affinity"
    HARD = "required affinity"
    SOFT = "preferred, by signed weight"


class Part(Struct, frozen=True, cache_hash=True):
    """Pods by labels and namespace."""

    selector: Selector | None
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector | None = None

    def counts(self, pod: Pod, namespace_labels: Mapping[str, str] | None) -> bool:
        """Whether an owner counts this placed pod. The labels are None for an unknown namespace.

        As in kube-scheduler, a namespace selector that an empty label set satisfies (NotIn and
        DoesNotExist alone) counts pods of every namespace.
        """
        if pod.namespace not in self.namespaces:
            where = self.namespace_selector
            if where is None or not (
                where.matches(NO_LABELS)
                or (namespace_labels is not None and where.matches(namespace_labels))
            ):
                return False
        return self.selector is not None and self.selector.matches(pod.labels)

    def concerns(self, pod: Pod, namespace_labels: Mapping[str, str]) -> bool:
        """Whether a placed owner's term applies to this newcomer."""
        if pod.namespace not in self.namespaces:
            where = self.namespace_selector
            if where is None or not where.matches(namespace_labels):
                return False
        return self.selector is not None and self.selector.matches(pod.labels)


class TermKey(Struct, frozen=True, cache_hash=True):
    """A pod matches when it matches every part. `live`: terminating pods are not counted."""

    parts: tuple[Part, ...]
    live: bool = False


class Count:
    """Amounts per row and, for topology keys that were asked for, their sums per domain."""

    NOT_STATE = ("dense", "sums")  # derived from `by_row` on demand

    def __init__(self) -> None:
        self.by_row: dict[int, int] = {}
        self.dense: Ints | None = None  # the same as an array, once it was asked for
        self.sums: dict[str, tuple[LabelColumn, Ints]] = {}  # by topology key: per value code

    def add(self, row: int, amount: int) -> None:
        now = self.by_row.get(row, 0) + amount
        if now:
            self.by_row[row] = now
        else:
            self.by_row.pop(row, None)
        if self.dense is not None:
            if row >= len(self.dense):
                self.dense = np.concatenate((self.dense, np.zeros(row + 1, dtype=np.int64)))
            self.dense[row] += amount
        for column, _ in self.sums.values():
            self._sums(column)[column.codes[row]] += amount

    def per_row(self, rows: int) -> Ints:
        """The amount of each of the first `rows` rows."""
        if self.dense is None or len(self.dense) < rows:
            self.dense = np.zeros(rows, dtype=np.int64)
            for row, amount in self.by_row.items():
                self.dense[row] = amount
        return self.dense[:rows]

    def relabelled(self, row: int, column: LabelColumn, before: int) -> None:
        """The row's value for the column's key changed from code `before`."""
        if column.key in self.sums and (amount := self.by_row.get(row, 0)):
            sums = self._sums(column, before)
            sums[before] -= amount
            sums[column.codes[row]] += amount

    def domain_sums(self, column: LabelColumn) -> Ints:
        """Per value code the amount on nodes with that value; code 0 holds those without."""
        if column.key not in self.sums:
            sums = np.zeros(len(column.values) + 64, dtype=np.int64)
            rows = np.fromiter(self.by_row.keys(), dtype=np.intp, count=len(self.by_row))
            amounts = np.fromiter(self.by_row.values(), dtype=np.int64, count=len(self.by_row))
            np.add.at(sums, column.codes[rows], amounts)
            self.sums[column.key] = (column, sums)
        return self._sums(column)

    def _sums(self, column: LabelColumn, code: int = 0) -> Ints:
        _, sums = self.sums[column.key]
        needed = max(len(column.values), code + 1)
        if needed > len(sums):
            wider = np.zeros(2 * needed, dtype=np.int64)
            wider[: len(sums)] = sums
            sums = wider
            self.sums[column.key] = (column, sums)
        return sums


class EligibleSums:
    """Matched pods per domain over the rows that one kind of newcomer counts.

    Kept for a spread constraint of pods with equal node affinity and tolerations. The rows'
    eligibility follows the static log; the counts are pushed by the term.
    """

    def __init__(self, term: "Term", rows: int) -> None:
        self.term = term
        term.eligible.append(self)
        self.domain: NDArray[np.intp] = np.zeros(rows, dtype=np.intp)  # 0: not counted
        self.sums: Ints = np.zeros(64, dtype=np.int64)  # per value code
        self.nodes: Ints = np.zeros(64, dtype=np.int64)  # eligible nodes per value code
        self.position = -1  # in the static log
        self._counted: NDArray[np.intp] | None = None

    def add(self, row: int, amount: int) -> None:
        if row < len(self.domain):
            self.sums[self.domain[row]] += amount

    def counted(self) -> NDArray[np.intp]:
        """The codes of domains with an eligible node."""
        if self._counted is None:
            self._counted = np.flatnonzero(self.nodes[1:]) + 1
        return self._counted

    def rebuild(self, domain: NDArray[np.intp], width: int) -> None:
        self.domain = domain.copy()
        self._counted = None
        self.nodes = np.bincount(domain, minlength=width).astype(np.int64)
        self.sums = np.zeros(len(self.nodes), dtype=np.int64)
        for row, amount in self.term.matched.by_row.items():
            self.sums[self.domain[row]] += amount

    def move(self, row: int, code: int) -> None:
        """The row now counts in the domain `code`."""
        old = self.domain[row]
        if old == code:
            return
        if code >= len(self.sums):
            self.sums = np.concatenate((self.sums, np.zeros(code + 1, dtype=np.int64)))
            self.nodes = np.concatenate((self.nodes, np.zeros(code + 1, dtype=np.int64)))
        amount = self.term.matched.by_row.get(row, 0)
        self.sums[old] -= amount
        self.sums[code] += amount
        self.nodes[old] -= 1
        self.nodes[code] += 1
        self._counted = None
        self.domain[row] = code


class Term:
    """The pods that match, and the pods that have it as their own."""

    NOT_STATE = ("eligible",)  # derived from `matched` on demand

    def __init__(self, key: TermKey) -> None:
        self.key = key
        self.users = 0
        self.matched = Count()
        self.owned: dict[tuple[Role, str], Count] = {}  # by role and topology key
        self.eligible: list[EligibleSums] = []

    def counts(self, pod: Pod, namespaces: Namespaces) -> bool:
        """Whether a placed pod is one of the matched."""
        if self.key.live and pod.terminating:
            return False
        labels = namespaces.get(pod.namespace)
        return all(part.counts(pod, labels) for part in self.key.parts)

    def concerns(self, pod: Pod, namespaces: Namespaces) -> bool:
        """Whether owners' terms apply to a newcomer; an unknown namespace has no labels."""
        labels = namespaces.get(pod.namespace, NO_LABELS)
        return all(part.concerns(pod, labels) for part in self.key.parts)

    def add_matched(self, row: int, amount: int) -> None:
        self.matched.add(row, amount)
        for sums in self.eligible:
            sums.add(row, amount)

    def add_owner(self, role: Role, topology_key: str, row: int, amount: int) -> bool:
        """True when the term got its first owner or lost its last."""
        had = bool(self.owned)
        count = self.owned.get((role, topology_key))
        if count is None:
            count = self.owned[role, topology_key] = Count()
        count.add(row, amount)
        if not count.by_row:
            del self.owned[role, topology_key]
        return had != bool(self.owned)


class OwnTerms:
    """A pod's own terms, resolved. Pods with equal terms share one, and with it `sums`."""

    NOT_STATE = ("sums",)

    def __init__(self, terms: PodTerms, resolve: Callable[[TermKey], Term]) -> None:
        self.terms = terms
        self.users = 0
        self.spread: tuple[tuple[Spread, Term], ...] = tuple(
            (s, resolve(TermKey((Part(counted(s), (terms.namespace,)),), live=True)))
            for s in terms.spread
        )
        self.hard = tuple([each for each in self.spread if each[0].hard])
        self.soft = tuple([each for each in self.spread if not each[0].hard])
        self.affinity: tuple[tuple[AffinityTerm, Term], ...] = tuple(
            (t, resolve(TermKey((part(t),)))) for t in terms.affinity
        )
        self.all_affinity: Term | None = None  # pods that match all affinity terms at once
        if terms.affinity:
            self.all_affinity = resolve(TermKey(tuple(part(t) for t in terms.affinity)))
        self.anti: tuple[tuple[AffinityTerm, Term], ...] = tuple(
            (t, resolve(TermKey((part(t),)))) for t in terms.anti_affinity
        )
        self.preferred: tuple[tuple[int, AffinityTerm, Term], ...] = tuple(
            (weight, t, resolve(TermKey((part(t),)))) for weight, t in terms.preferred
        )
        self.sums: dict[object, list[EligibleSums]] = {}  # by what decides eligibility

    def all_terms(self) -> Iterator[Term]:
        for _, term in self.spread:
            yield term
        for _, term in self.affinity + self.anti:
            yield term
        for _, _, term in self.preferred:
            yield term
        if self.all_affinity is not None:
            yield self.all_affinity

    def forget_sums(self) -> None:
        for key in list(self.sums):
            self.forget_sums_of(key)

    def forget_sums_of(self, key: object) -> None:
        for sums in self.sums.pop(key):
            sums.term.eligible.remove(sums)

    def own(self, row: int, sign: int) -> bool:
        """Counts an owner; True when a term got its first owner or lost its last."""
        changed = [
            term.add_owner(role, affinity.topology_key, row, sign * amount)
            for role, amount, affinity, term in self.roles()
        ]
        return any(changed)

    def roles(self) -> list[tuple[Role, int, AffinityTerm, Term]]:
        """What a placed pod with these terms is to newcomers, and how much it counts."""
        roles = [(Role.ANTI, 1, affinity, term) for affinity, term in self.anti]
        roles += [(Role.HARD, 1, affinity, term) for affinity, term in self.affinity]
        roles += [(Role.SOFT, w, affinity, term) for w, affinity, term in self.preferred if w]
        return roles


def counted(spread: Spread) -> Selector | None:
    """kube-scheduler counts nothing for a selector that matches everything."""
    return spread.selector if spread.selector and spread.selector.requirements else None


def part(term: AffinityTerm) -> Part:
    return Part(term.selector, term.namespaces, term.namespace_selector)


Place = tuple[str, str | None, str]  # label key, value, namespace; None and "" for any


class TermIndex:
    """Finds the terms that a pod's labels may match, without asking each of them.

    A term stands under one In value, or one Exists key, of its first part, with its namespaces
    where they are plain names; a term that has neither is always asked.
    """

    def __init__(self) -> None:
        # by label key, then value, then namespace
        self.by_key: dict[str, dict[str | None, dict[str, list[Term]]]] = {}
        self.always: list[Term] = []

    def places(self, term: Term) -> list[Place]:
        first = term.key.parts[0]
        assert first.selector is not None
        spaces = first.namespaces if first.namespace_selector is None else ("",)
        for requirement in first.selector.requirements:
            if requirement.op == "In":
                return [(requirement.key, v, s) for v in requirement.values for s in spaces]
        for requirement in first.selector.requirements:
            if requirement.op == "Exists":
                return [(requirement.key, None, space) for space in spaces]
        return []

    def add(self, term: Term) -> None:
        if term.key.parts[0].selector is None:
            return  # matches nothing
        places = self.places(term)
        if not places:
            self.always.append(term)
        for key, value, space in places:
            spaces = self.by_key.setdefault(key, {}).setdefault(value, {})
            spaces.setdefault(space, []).append(term)

    def remove(self, term: Term) -> None:
        if term.key.parts[0].selector is None:
            return
        places = self.places(term)
        if not places:
            self.always.remove(term)
        for key, value, space in places:
            values = self.by_key[key]
            values[value][space].remove(term)
            if not values[value][space]:
                del values[value][space]
                if not values[value]:
                    del values[value]
                    if not values:
                        del self.by_key[key]

    def candidates(self, pod: Pod) -> list[Term]:
        found, by_key, labels = self.always.copy(), self.by_key, pod.labels
        for key in by_key if len(by_key) < len(labels) else labels:
            if key in by_key and key in labels:
                values, value = by_key[key], labels[key]
                if value in values:
                    found += of_namespace(values[value], pod.namespace)
                if None in values:
                    found += of_namespace(values[None], pod.namespace)
        return found


def of_namespace(spaces: dict[str, list[Term]], namespace: str) -> list[Term]:
    return [*spaces.get(namespace, ()), *spaces.get("", ())]


class TermTable:
    """The terms in use, their counts, and how to find them."""

    NOT_STATE = ("generation",)

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, str]] = {}
        self.terms: dict[TermKey, Term] = {}
        self.own: dict[PodTerms, OwnTerms] = {}
        self.index = TermIndex()
        self.generation = 0  # rises when a newcomer's `concerning` may have changed

    def acquire(self, terms: PodTerms, count: Callable[[Term], None]) -> OwnTerms:
        """The resolved terms, with one more user. `count` fills a term that is new."""
        own = self.own.get(terms)
        if own is None:
            fresh: list[Term] = []

            def resolve(key: TermKey) -> Term:
                term = self.terms.get(key)
                if term is None:
                    term = self.terms[key] = Term(key)
                    self.index.add(term)
                    fresh.append(term)
                return term

            own = self.own[terms] = OwnTerms(terms, resolve)
            self.use(own.all_terms())
            for term in fresh:
                count(term)
        own.users += 1
        return own

    def release(self, own: OwnTerms, uncount: Callable[[Term], None]) -> None:
        own.users -= 1
        if own.users:
            return
        del self.own[own.terms]
        own.forget_sums()
        self.leave(own.all_terms(), uncount)

    def use(self, terms: Iterable[Term]) -> None:
        """They are counted until they are left, also while nobody has them."""
        for term in terms:
            term.users += 1

    def leave(self, terms: Iterable[Term], uncount: Callable[[Term], None]) -> None:
        for term in terms:
            term.users -= 1
            if not term.users:
                del self.terms[term.key]
                self.index.remove(term)
                uncount(term)

    def counting(self, pod: Pod) -> tuple[Term, ...]:
        """The terms that count the pod once it is placed."""
        found = self.index.candidates(pod)
        return tuple(t for t in found if t.counts(pod, self.namespaces)) if found else ()

    def owned(self, own: OwnTerms, row: int, sign: int) -> None:
        """A pod with these terms appears on (+1) or leaves (-1) the row."""
        if own.own(row, sign):
            self.generation += 1

    def concerning(self, pod: Pod) -> tuple[Term, ...]:
        """The terms of placed pods that a newcomer matches."""
        found = self.index.candidates(pod)
        if not found:
            return ()
        return tuple(t for t in found if t.owned and t.concerns(pod, self.namespaces))

    def recoded(self, key: str) -> None:
        """The values of a label key got new codes: what is summed by them is summed anew."""
        for term in self.terms.values():
            for count in (term.matched, *term.owned.values()):
                count.sums.pop(key, None)
            for sums in term.eligible:
                sums.position = -1

    def relabelled(self, row: int, column: LabelColumn, before: int) -> None:
        for term in self.terms.values():
            term.matched.relabelled(row, column, before)
            for count in term.owned.values():
                count.relabelled(row, column, before)
