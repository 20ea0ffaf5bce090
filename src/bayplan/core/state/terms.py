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

    def __init__(self) -> None:
        self.by_row: dict[int, int] = {}
        self.sums: dict[str, tuple[LabelColumn, Ints]] = {}  # by topology key: per value code

    def add(self, row: int, amount: int) -> None:
        now = self.by_row.get(row, 0) + amount
        if now:
            self.by_row[row] = now
        else:
            self.by_row.pop(row, None)
        for column, _ in self.sums.values():
            self._sums(column)[column.codes[row]] += amount

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
        self.domain: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)  # 0: not counted
        self.sums: Ints = np.zeros(64, dtype=np.int64)  # per value code
        self.nodes: Ints = np.zeros(64, dtype=np.int64)  # eligible nodes per value code
        self.position = -1  # in the static log

    def add(self, row: int, amount: int) -> None:
        if row < len(self.domain):
            self.sums[self.domain[row]] += amount

    def rebuild(self, domain: NDArray[np.int32], width: int) -> None:
        self.domain = domain.copy()
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
        self.domain[row] = code


class Term:
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

    def add_owner(self, role: Role, topology_key: str, row: int, amount: int) -> None:
        count = self.owned.get((role, topology_key))
        if count is None:
            count = self.owned[role, topology_key] = Count()
        count.add(row, amount)
        if not count.by_row:
            del self.owned[role, topology_key]


class OwnTerms:
    """A pod's own terms, resolved. Pods with equal terms share one, and with it `sums`."""

    def __init__(self, terms: PodTerms, resolve: Callable[[TermKey], Term]) -> None:
        self.terms = terms
        self.users = 0
        self.spread: tuple[tuple[Spread, Term], ...] = tuple(
            (s, resolve(TermKey((Part(counted(s), (terms.namespace,)),), live=True)))
            for s in terms.spread
        )
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
        for kept in self.sums.values():
            for sums in kept:
                sums.term.eligible.remove(sums)
        self.sums.clear()

    def own(self, row: int, sign: int) -> None:
        """A pod with these terms appears on (+1) or leaves (-1) the row."""
        for affinity, term in self.anti:
            term.add_owner(Role.ANTI, affinity.topology_key, row, sign)
        for affinity, term in self.affinity:
            term.add_owner(Role.HARD, affinity.topology_key, row, sign)
        for weight, affinity, term in self.preferred:
            if weight:
                term.add_owner(Role.SOFT, affinity.topology_key, row, sign * weight)


def counted(spread: Spread) -> Selector | None:
    """kube-scheduler counts nothing for a selector that matches everything."""
    return spread.selector if spread.selector and spread.selector.requirements else None


def part(term: AffinityTerm) -> Part:
    return Part(term.selector, term.namespaces, term.namespace_selector)


class TermIndex:
    """Finds the terms that a pod's labels may match, without asking each of them.

    A term stands under one In value, or one Exists key, of its first part, with its namespaces
    where they are plain names; a term that has neither stands under nothing and is always asked.
    """

    def __init__(self) -> None:
        self.buckets: dict[tuple[str, str, str | None], list[Term]] = {}

    def places(self, term: Term) -> list[tuple[str, str, str | None]]:
        first = term.key.parts[0]
        if first.selector is None:
            return []
        spaces = first.namespaces if first.namespace_selector is None else ("",)
        for requirement in first.selector.requirements:
            if requirement.op == "In":
                return [(s, requirement.key, v) for s in spaces for v in requirement.values]
        for requirement in first.selector.requirements:
            if requirement.op == "Exists":
                return [(space, requirement.key, None) for space in spaces]
        return [("", "", None)]

    def add(self, term: Term) -> None:
        for place in self.places(term):
            self.buckets.setdefault(place, []).append(term)

    def remove(self, term: Term) -> None:
        for place in self.places(term):
            bucket = self.buckets[place]
            bucket.remove(term)
            if not bucket:
                del self.buckets[place]

    def candidates(self, pod: Pod) -> Iterable[Term]:
        buckets = self.buckets
        if not buckets:
            return ()
        found: list[Term] = []
        space = pod.namespace
        for key, value in pod.labels.items():
            for place in (
                (space, key, value),
                ("", key, value),
                (space, key, None),
                ("", key, None),
            ):
                if place in buckets:
                    found += buckets[place]
        always = ("", "", None)
        if always in buckets:
            found += buckets[always]
        return found


class TermTable:
    """The terms in use, their counts, and how to find them."""

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, str]] = {}
        self.terms: dict[TermKey, Term] = {}
        self.own: dict[PodTerms, OwnTerms] = {}
        self.index = TermIndex()

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
            for term in own.all_terms():
                term.users += 1
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
        for term in own.all_terms():
            term.users -= 1
            if not term.users:
                del self.terms[term.key]
                self.index.remove(term)
                uncount(term)

    def counting(self, pod: Pod) -> tuple[Term, ...]:
        """The terms that count the pod once it is placed."""
        found = self.index.candidates(pod)
        return tuple(t for t in found if t.counts(pod, self.namespaces)) if found else ()

    def concerning(self, pod: Pod) -> tuple[Term, ...]:
        """The terms of placed pods that a newcomer matches."""
        found = self.index.candidates(pod)
        if not found:
            return ()
        return tuple(t for t in found if t.owned and t.concerns(pod, self.namespaces))

    def relabelled(self, row: int, column: LabelColumn, before: int) -> None:
        for term in self.terms.values():
            term.matched.relabelled(row, column, before)
            for count in term.owned.values():
                count.relabelled(row, column, before)
