"""What `bayplan demo` plays: for each system that Bayplan replaces, its own story in a few pods.

A story is data: nodes, pods in the order in which they come, and where each must end up.
"""

from typing import Any

from msgspec import Struct

Json = dict[str, Any]


class Arrival(Struct, frozen=True):
    """A pod, where it must go, and why; None: it must wait, and this is what is said of it."""

    pod: Json
    node: str | None
    because: str


class Story(Struct, frozen=True):
    name: str
    says: str
    nodes: tuple[Json, ...]
    arrivals: tuple[Arrival, ...]


def node(name: str, gpus: int = 0) -> Json:
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, scheduler: str, gpus: int = 0) -> Json:
    limits = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "main", "image": "nginx", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


def _toy(name: str, gpus: int, node: str | None, because: str) -> Arrival:
    return Arrival(pod(name, "toyscheduler", gpus), node, because)


TOY = Story(
    name="toy GPU scheduler",
    says="each pod goes where the fewest GPUs are left over",
    nodes=(node("large", 8), node("small", 4), node("plain")),
    arrivals=(
        _toy("nginx-1", 1, "small", "leaves 3 over; on large it would leave 7"),
        _toy("nginx-2", 1, "small", "leaves 2 over"),
        _toy("train", 5, "large", "only large has 5"),
        _toy("nginx-3", 2, "small", "leaves none over; on large it would leave 1"),
        _toy("web", 0, "plain", "needs no GPU, so it takes none away"),
        _toy("too-big", 8, None, "Insufficient nvidia.com/gpu"),
    ),
)

STORIES = (TOY,)
