"""Which pods would get the same verdict, and which changes of a pod change nothing."""

from collections.abc import Hashable

from bayplan.core.model.pods import Pod
from bayplan.core.state.terms import Namespaces, TermKey
from bayplan.core.state.waiting import Waiter

NONE: frozenset[TermKey] = frozenset()


def group_key(waiter: Waiter, namespaces: Namespaces) -> Hashable:
    """What pods must share to get the same verdict; labels count only through the terms."""
    pod, own = waiter.pod, waiter.own
    life = pod.lifecycle
    concerning = NONE
    if waiter.concerning:
        concerning = frozenset(term.key for term in waiter.concerning)  # found in any order
    row, scheduler, priority = pod.row, pod.scheduler, pod.priority
    if own is None:
        return row, scheduler, priority, life.preempts, life.run_s, pod.worker, concerning
    itself = [s.selector is not None and s.selector.matches(pod.labels) for s, _ in own.spread]
    itself += [term.counts(pod, namespaces) for _, term in own.affinity]
    alike = row, scheduler, priority, life.preempts, life.run_s, pod.worker, concerning
    return (*alike, own.terms, tuple(itself))


def same_room(old: Pod, new: Pod) -> bool:
    """Whether a place that is kept for the pod is still one for it, whatever its labels are."""
    return (old.row, old.priority, old.gang) == (new.row, new.priority, new.gang)


def same_to_us(old: Pod, new: Pod) -> bool:
    """Whether nothing that the engine reads has changed."""
    return old.node == new.node and old.labels == new.labels and same_on_its_node(old, new)


def same_on_its_node(old: Pod, new: Pod) -> bool:
    """Whether nothing else than the node and the labels has changed."""
    was, now = old.lifecycle, new.lifecycle
    return (
        old.row == new.row
        and old.terms == new.terms
        and old.priority == new.priority
        and was.gates == now.gates
        and old.terminating == new.terminating
        and old.scheduler == new.scheduler
        and old.held == new.held
        and old.gang == new.gang
        and was.preempts == now.preempts
        and was.run_s == now.run_s
        and old.worker == new.worker
    )
