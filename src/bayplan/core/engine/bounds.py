"""How much one question may ask for: the numbers, and the check before anything is done.

They are far above what people ask. They end what would not end, or would not fit into memory:
every label key is a column over all nodes, every term about pods is counted over all pods.
"""

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from bayplan.core.model import steps as ask_for
from bayplan.core.model.pods import AffinityTerm, Pod
from bayplan.core.model.selectors import NodeTerm, Requirement
from bayplan.core.model.steps import Step


class TooMuch(ValueError):
    """A question that asks for more than is answered at once."""


class TooLong(Exception):
    """A question that takes longer than it may."""


class Limits(Struct, frozen=True):
    """Of one question."""

    steps: int = ask_for.MOST_STEPS
    nodes: int = 10_000  # new ones, all steps together
    members: int = 10_000  # of gangs, all steps together
    capacity: int = 100_000  # of one `capacity`
    label_keys: int = 256  # of nodes, all pods together
    parts: int = 1_000  # of one pod: containers, requests, selectors with their values …
    terms: int = 32  # of one pod, about other pods
    seconds: float = math.inf  # needs a clock


def check(steps: Sequence[Step], limits: Limits) -> None:
    if len(steps) > limits.steps:
        raise TooMuch(f"a question may have {limits.steps} steps, not {len(steps)}")
    nodes = members = 0
    keys: set[str] = set()
    for step in steps:
        match step:
            case ask_for.ChangeNodes(_, ask_for.AddNodes(_, count)):
                nodes += count
            case ask_for.PlaceGang(_, _, count, _):
                members += count
            case ask_for.Capacity(_, limit) if limit > limits.capacity:
                raise TooMuch(f"the limit of a capacity may be {limits.capacity}, not {limit}")
        if isinstance(step, ask_for.OfPod):
            _check_pod(step.pod, limits)
            keys.update(label_keys(step.pod))
    if nodes > limits.nodes:
        raise TooMuch(f"a question may add {limits.nodes} nodes in all, not {nodes}")
    if members > limits.members:
        raise TooMuch(f"the gangs of a question may have {limits.members} pods, not {members}")
    if len(keys) > limits.label_keys:
        raise TooMuch(f"a question may look at {limits.label_keys} label keys, not {len(keys)}")


def _check_pod(pod: Pod, limits: Limits) -> None:
    found = parts(pod)
    if found > limits.parts:
        what = "containers, requests, ports, claims, tolerations, selectors and their values"
        raise TooMuch(f"pod {pod.key} has {found} {what}; in a question {limits.parts} are all")
    terms = len(_terms(pod)) + (len(pod.terms.spread) if pod.terms else 0)
    if terms > limits.terms:
        why = f"{terms} terms about other pods; in a question {limits.terms} are all"
        raise TooMuch(f"pod {pod.key} has {why}")


def parts(pod: Pod) -> int:
    """What it takes to look at the pod, roughly."""
    row = pod.row
    found = row.containers + len(row.requests) + len(row.devices) + len(row.images)
    found += len(row.tolerations) + len(row.ports) + len(row.claims) + len(pod.labels)
    for term in _node_terms(pod):
        found += len(term.name_in) + len(term.name_not_in)
    for about in _terms(pod):
        found += len(about.namespaces)
    return found + sum(1 + len(requirement.values) for requirement in _requirements(pod))


def label_keys(pod: Pod) -> Iterator[str]:
    """The labels of nodes that the pod looks at."""
    yield from (key for key, _ in pod.row.node_selector)
    for term in _node_terms(pod):
        yield from (requirement.key for requirement in term.expressions)
    yield from (term.topology_key for term in _terms(pod))
    yield from (spread.topology_key for spread in pod.terms.spread) if pod.terms else ()


def _node_terms(pod: Pod) -> tuple[NodeTerm, ...]:
    row = pod.row
    if not row.required and not row.preferred:
        return ()
    return (*(row.required or ()), *(term for _, term in row.preferred))


def _terms(pod: Pod) -> tuple[AffinityTerm, ...]:
    own = pod.terms
    if own is None:
        return ()
    return (*own.affinity, *own.anti_affinity, *(term for _, term in own.preferred))


def _requirements(pod: Pod) -> Iterator[Requirement]:
    for term in _node_terms(pod):
        yield from term.expressions
    selectors = [spread.selector for spread in pod.terms.spread] if pod.terms else []
    for about in _terms(pod):
        selectors += [about.selector, about.namespace_selector]
    for selector in selectors:
        yield from () if selector is None else selector.requirements
