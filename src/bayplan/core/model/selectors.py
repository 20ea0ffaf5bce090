"""Selectors, taints and tolerations: the small questions asked of labels.

One requirement type serves label selectors and node selectors alike. A selector that matches
nothing is `None`; one that matches everything is a `Selector` without requirements.
"""

import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache

from msgspec import Struct

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")


@lru_cache(maxsize=16_384)
def is_label_key(key: str) -> bool:
    """Kubernetes' "qualified name": a name of at most 63 characters, maybe after a DNS prefix."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _NAME.fullmatch(name) is not None


@lru_cache(maxsize=16_384)
def is_label_value(value: str) -> bool:
    return not value or (len(value) <= 63 and _NAME.fullmatch(value) is not None)


class Op(Enum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class Effect(Enum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


def base10(text: str) -> int | None:
    """The int64 that Go's `strconv.ParseInt(text, 10, 64)` reads, or None where it fails."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not digits.isascii() or not digits.isdigit() or len(digits) > 400:
        return None
    number = int(text)
    return number if INT64_MIN <= number <= INT64_MAX else None


class Requirement(Struct, frozen=True, cache_hash=True, order=True):
    """One condition on one label key. `values` is sorted and without repeats."""

    key: str
    op: str  # an Op's value, kept as text so that requirements sort
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.op:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        number, bound = base10(value) if value is not None else None, base10(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.op == "Gt" else number < bound


class Selector(Struct, frozen=True, cache_hash=True):
    """All requirements must hold. Requirements are sorted, so equal selectors are equal values."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


EVERYTHING = Selector()


class NodeTerm(Struct, frozen=True, cache_hash=True):
    """One node selector term: all expressions over labels and all conditions on the name hold.

    A term that Kubernetes cannot parse matches no node: the reader leaves it out, except that
    its `named` still narrows the search, as kube-scheduler's PreFilter does.
    """

    expressions: tuple[Requirement, ...] = ()
    name_in: tuple[str, ...] = ()  # metadata.name must equal every one of these
    name_not_in: tuple[str, ...] = ()  # metadata.name must equal none of these
    broken: bool = False  # could not be parsed: matches no node
    named: tuple[str, ...] | None = None  # the nodes that its In conditions leave; None: any


class Taint(Struct, frozen=True, cache_hash=True):
    key: str
    value: str
    effect: str


class Toleration(Struct, frozen=True, cache_hash=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Lt and Gt are behind a gate that is off by default: they tolerate nothing."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and self.value == taint.value
