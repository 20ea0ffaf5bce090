"""Which devices of an AWS instance may go together, and whether a history of pods keeps to that.

Written from AWS's documents and naive on purpose: it shares no code with what it judges. On inf1
and inf2 any number of consecutive ids, and none around the end; on trn1.32xlarge 1, 4, 8 or 16: one
device, a row, the upper or the lower two rows, all.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.real.apicheck import Change, Json, Pod, read_pod

NEURON = "aws.amazon.com/neuron"
TYPE = "node.kubernetes.io/instance-type"
INF1, INF2, TRN1 = "inf1.24xlarge", "inf2.48xlarge", "trn1.32xlarge"
DEVICES = {INF1: 16, INF2: 12, TRN1: 16}
CORES = {INF1: 4, INF2: 2, TRN1: 2}  # of a device
SIZES = {INF1: (1, 2, 3, 5), INF2: (1, 2, 3, 5), TRN1: (1, 4, 8, 16)}
OWN = "example.com/own"  # an annotation of the pod's owner
USE, CORE_USE = "NEURON_DEV_USAGE_MAP", "NEURON_CORE_USAGE_MAP"

Ids = frozenset[int]


@dataclass(frozen=True)
class NeuronPod(Pod):
    """With what its annotations say; None where they say nothing."""

    asked: int
    told: tuple[int, ...] | None  # AWS_NEURON_IDS
    assigned: tuple[int, ...] | None  # bayplan.dev/assignment
    assigned_on: str
    own: str

    @property
    def kind(self) -> str:
        return self.selector[TYPE]


@dataclass(frozen=True)
class Node:
    name: str
    kind: str
    annotations: Mapping[str, str]


def read(raw: Json) -> NeuronPod:
    said = raw["metadata"].get("annotations", {})
    assignment = json.loads(said.get("bayplan.dev/assignment", "{}"))
    held = assignment.get("held")
    told = said.get("AWS_NEURON_IDS")
    pod = read_pod(raw)
    return NeuronPod(
        **vars(pod),
        asked=int(pod.requests[NEURON]),
        told=None if told is None else tuple(int(part) for part in told.split(",")),
        assigned=None
        if held is None
        else tuple(device["index"] for part in held for device in part["devices"]),
        assigned_on=assignment.get("node", ""),
        own=said.get(OWN, ""),
    )


def read_node(raw: Json) -> Node:
    metadata = raw["metadata"]
    return Node(metadata["name"], metadata["labels"][TYPE], metadata.get("annotations", {}))


def legal(kind: str, count: int) -> list[Ids]:
    """Every set of that many devices which a pod may have."""
    if kind == TRN1:
        starts = {1: range(16), 4: (0, 4, 8, 12), 8: (0, 8), 16: (0,)}[count]
    else:
        starts = range(DEVICES[kind] - count + 1)
    return [frozenset(range(start, start + count)) for start in starts]


def odd(pods: Iterable[Pod], nodes: Mapping[str, Node]) -> Iterator[str]:
    """Bound pods that do not have what they asked for, or not as the rules say."""
    for pod in map(neuron, pods):
        if not pod.holds:
            continue
        what = f"pod {pod.name} on {pod.node}, which asked for {pod.asked},"
        if pod.told != pod.assigned or pod.assigned_on != pod.node:
            yield f"{what} is told {pod.told} and has {pod.assigned} of {pod.assigned_on}"
        elif frozenset(pod.told or ()) not in legal(pod.kind, pod.asked):
            yield f"{what} has {pod.told}"
        elif len(pod.told or ()) != pod.asked or nodes[pod.node].kind != pod.kind:
            yield f"{what} has {pod.told} of a {nodes[pod.node].kind}"
        elif pod.own != pod.name.partition("/")[2]:
            yield f"{what} has lost its own annotation: {pod.own!r}"


def shared(history: Iterable[Change]) -> Iterator[str]:
    """Devices that two pods held at any point."""
    held: dict[tuple[str, int], str] = {}  # by node and id: the uid
    of: dict[str, list[tuple[str, int]]] = {}  # by uid
    for change in history:
        pod = neuron(change.pod)
        for place in of.pop(pod.uid, ()):
            held.pop(place, None)
        if change.gone or not pod.holds:
            continue
        of[pod.uid] = [(pod.node, i) for i in pod.told or ()]
        for place in of[pod.uid]:
            if place in held:
                yield f"pod {pod.name} got device {place}, which {held[place]} had"
            held[place] = pod.uid


def used(pods: Iterable[Pod]) -> dict[str, set[int]]:
    """By node: the devices that pods have."""
    found: dict[str, set[int]] = defaultdict(set)
    for pod in map(neuron, pods):
        if pod.holds:
            found[pod.node] |= set(pod.told or ())
    return found


def waiting_that_fit(pods: Iterable[Pod], nodes: Iterable[Node]) -> Iterator[str]:
    """Each pod by itself. Equal pods are looked at once."""
    pods, nodes = list(pods), list(nodes)
    taken = used(pods)
    waiting = {(pod.kind, pod.asked): pod for pod in map(neuron, pods) if pod.waits}
    for (kind, count), pod in waiting.items():
        fitting = [
            node.name
            for node in nodes
            if node.kind == kind and any(not ids & taken[node.name] for ids in legal(kind, count))
        ]
        if fitting:
            yield f"pod {pod.name} waits for {count} and would fit on {fitting[:3]}"


def wrong_maps(pods: Iterable[Pod], nodes: Iterable[Node]) -> Iterator[str]:
    """Nodes whose maps do not say what is in use; where nothing is, there need be none."""
    taken = used(pods)
    for node in nodes:
        ids, cores = taken[node.name], CORES[node.kind]
        devices = [i in ids for i in range(DEVICES[node.kind])]
        of_cores = [i // cores in ids for i in range(cores * len(devices))]
        for key, truth in ((USE, devices), (CORE_USE, of_cores)):
            text = ",".join(str(value).lower() for value in truth)
            said = node.annotations.get(key, text if not ids else "")
            if said != text:
                yield f"node {node.name}: {key} is {said!r}, and should be {text!r}"


def neuron(pod: Pod) -> NeuronPod:
    assert isinstance(pod, NeuronPod)
    return pod
