"""Did a scheduler do its work? Judged from nothing but what the API server showed.

A history is every version of every pod, in the order in which the API server made them. Three
things must hold: each pod is bound once, no node ever holds more than it has, and in the end
nothing waits that would fit.

It is naive on purpose and shares no code with the scheduler. It knows requests, node selectors,
taints and cordons; a pod that asks for more than that is an error here, not a guess.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

Json = dict[str, Any]
Amounts = dict[str, Fraction]  # by resource

PODS = "pods"  # a node's allocatable counts them like any resource
_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGT", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGT", 1)},
}
_TERMINAL = ("Succeeded", "Failed")
_NOT_JUDGED = (
    "initContainers",
    "affinity",
    "topologySpreadConstraints",
    "overhead",
    "schedulingGates",
    "resourceClaims",
    "volumes",
    "resources",
)


@dataclass(frozen=True)
class Node:
    name: str
    room: Amounts
    labels: Mapping[str, str]
    taints: frozenset[tuple[str, str]]  # key and value of those that keep pods away
    cordoned: bool


@dataclass(frozen=True)
class Pod:
    """One version of a pod."""

    uid: str
    name: str
    version: int
    node: str
    ended: bool
    terminating: bool
    requests: Amounts
    selector: Mapping[str, str]
    tolerates: frozenset[tuple[str, str]]
    waits_because: str  # of its PodScheduled condition; empty without one

    @property
    def waits(self) -> bool:
        return not (self.node or self.ended or self.terminating)

    @property
    def holds(self) -> bool:
        """Whether it takes room of its node; one that is being deleted does until it is gone."""
        return bool(self.node) and not self.ended


class Change(NamedTuple):
    pod: Pod
    gone: bool = False


def amount(text: str) -> Fraction:
    found = re.fullmatch(r"(\d+)([a-zA-Z]*)", text)
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is a quantity that the checker does not know")
    return int(found[1]) * _SUFFIXES[found[2]]


def read_node(raw: Json) -> Node:
    spec = raw.get("spec", {})
    taints = [taint for taint in spec.get("taints", ()) if taint["effect"] != "PreferNoSchedule"]
    return Node(
        name=raw["metadata"]["name"],
        room={name: amount(text) for name, text in raw["status"]["allocatable"].items()},
        labels=raw["metadata"].get("labels", {}),
        taints=frozenset((taint["key"], taint.get("value", "")) for taint in taints),
        cordoned=spec.get("unschedulable", False),
    )


def read_pod(raw: Json) -> Pod:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    name = f"{metadata['namespace']}/{metadata['name']}"
    if beyond := [field for field in _NOT_JUDGED if spec.get(field)]:
        raise ValueError(f"pod {name} has {', '.join(beyond)}, which the checker does not know")
    requests: Amounts = defaultdict(Fraction)
    for container in spec["containers"]:
        for resource, text in container.get("resources", {}).get("requests", {}).items():
            requests[resource] += amount(text)
    requests[PODS] = Fraction(1)
    said = [
        condition
        for condition in status.get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    return Pod(
        uid=metadata["uid"],
        name=name,
        version=int(metadata["resourceVersion"]),
        node=spec.get("nodeName", ""),
        ended=status.get("phase") in _TERMINAL,
        terminating="deletionTimestamp" in metadata,
        requests=dict(requests),
        selector=spec.get("nodeSelector", {}),
        tolerates=frozenset(
            (toleration["key"], toleration.get("value", ""))
            for toleration in spec.get("tolerations", ())
            if toleration.get("operator", "Equal") == "Equal"
        ),
        waits_because=said[0].get("message", "") if said else "",
    )


# ---- the three things


def bound_more_than_once(history: Iterable[Change]) -> Iterator[str]:
    nodes: dict[str, str] = {}  # by uid
    for change in history:
        pod = change.pod
        before = nodes.get(pod.uid, "")
        if before and pod.node != before:
            yield f"pod {pod.name} was on {before}, and then on {pod.node or 'no node'}"
        nodes[pod.uid] = pod.node


def too_full(history: Iterable[Change], nodes: Iterable[Node]) -> Iterator[str]:
    """Nodes that held more than they have, at any point."""
    room = {node.name: node.room for node in nodes}
    held: dict[str, Pod] = {}  # by uid: where it takes room
    used: dict[str, Amounts] = defaultdict(lambda: defaultdict(Fraction))  # by node
    for pod, gone in history:
        before = held.pop(pod.uid, None)
        if before is not None:
            _add(used[before.node], before.requests, -1)
        if gone or not pod.holds:
            continue
        held[pod.uid] = pod
        _add(used[pod.node], pod.requests, 1)
        if before is not None and before.node == pod.node and before.requests == pod.requests:
            continue  # that is no news
        if pod.node not in room:
            yield f"pod {pod.name} is on {pod.node}, which does not exist"
            continue
        for resource, wanted in used[pod.node].items():
            has = room[pod.node].get(resource, Fraction(0))
            if wanted > has and pod.requests.get(resource):
                yield (
                    f"with pod {pod.name}, at version {pod.version}, node {pod.node} holds "
                    f"{float(wanted):g} {resource} of {float(has):g}"
                )


def waiting_that_fit(pods: Iterable[Pod], nodes: Iterable[Node]) -> Iterator[str]:
    """Each pod by itself: room for one of them is enough."""
    pods = list(pods)
    free = {node.name: dict(node.room) for node in nodes}
    for pod in pods:
        if pod.holds and pod.node in free:
            _add(free[pod.node], pod.requests, -1)
    for pod in pods:
        if pod.waits:
            fitting = [node.name for node in nodes if _fits(pod, node, free[node.name])]
            if fitting:
                yield f"pod {pod.name} waits and would fit on {', '.join(fitting)}"


def waiting_without_a_word(pods: Iterable[Pod]) -> Iterator[str]:
    for pod in pods:
        if pod.waits and not pod.waits_because:
            yield f"pod {pod.name} waits, and no condition says why"


def not_as_listed(history: Iterable[Change], listed: Iterable[Pod]) -> Iterator[str]:
    """Where the history does not end in what a list says: then it is not the whole history."""
    last = last_of(history)
    now = {pod.uid: pod for pod in listed}
    for uid in last.keys() | now.keys():
        seen, is_ = last.get(uid), now.get(uid)
        if seen is None or is_ is None or seen.version != is_.version:
            known = seen or is_
            assert known is not None
            yield f"pod {known.name}: the history says {seen}, the list {is_}"


def violations(
    history: Sequence[Change], listed: Sequence[Pod], nodes: Sequence[Node]
) -> list[str]:
    return [
        *bound_more_than_once(history),
        *too_full(history, nodes),
        *waiting_that_fit(listed, nodes),
        *waiting_without_a_word(listed),
        *not_as_listed(history, listed),
    ]


def last_of(history: Iterable[Change]) -> dict[str, Pod]:
    """The pods that there are after it, by uid."""
    pods: dict[str, Pod] = {}
    for pod, gone in history:
        pods[pod.uid] = pod
        if gone:
            del pods[pod.uid]
    return pods


def _fits(pod: Pod, node: Node, free: Amounts) -> bool:
    return (
        not node.cordoned
        and node.taints <= pod.tolerates
        and all(node.labels.get(key) == value for key, value in pod.selector.items())
        and all(want <= free.get(name, Fraction(0)) for name, want in pod.requests.items() if want)
    )


def _add(to: Amounts, amounts: Amounts, sign: int) -> None:
    for resource, number in amounts.items():
        to[resource] = to.get(resource, Fraction(0)) + sign * number


def waiting_for_less(pods: Sequence[Json], nodes: Iterable[Json]) -> Iterator[str]:
    """Pods that wait although less important ones have the room that they need. Members of gangs
    are not judged; nor are nodes with taints, which keep everybody away here."""
    taken: dict[str, list[tuple[int, Pod]]] = defaultdict(list)
    for value in pods:
        pod = read_pod(value)
        if pod.holds:
            taken[pod.node].append((value["spec"].get("priority", 0), pod))
    for value in pods:
        pod, mine = read_pod(value), value["spec"].get("priority", 0)
        if not pod.waits or "bayplan.dev/gang" in value["metadata"].get("annotations", {}):
            continue
        for node in map(read_node, nodes):
            left = dict(node.room)
            for priority, other in taken[node.name]:
                if priority >= mine:
                    for name, amount in {**other.requests, PODS: Fraction(1)}.items():
                        left[name] = left.get(name, Fraction(0)) - amount
            needs = {**pod.requests, PODS: Fraction(1)}
            roomy = all(left.get(name, 0) >= amount for name, amount in needs.items())
            lower = any(priority < mine for priority, _ in taken[node.name])
            if roomy and lower and not node.cordoned and not node.taints:
                yield f"pod {pod.name} waits for room that less important pods have on {node.name}"
