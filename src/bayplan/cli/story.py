"""What a story of `bayplan demo` is made of.

A story is data: nodes, pods in the order in which they come and where each must end up, and what is
asked in between.
"""

from typing import Any

from msgspec import Struct

Json = dict[str, Any]


class Arrival(Struct, frozen=True):
    """A pod, where it must go, and why; None: it must wait, and this is what is said of it."""

    pod: Json
    node: str | None
    because: str
    devices: tuple[str, ...] = ()  # the ids that it must get, where they are given by id
    after_s: float = 0.0  # that pass before it comes


class Later(Struct, frozen=True):
    """A pod that came before, and where it must be by now."""

    name: str
    node: str
    because: str


class Asked(Struct, frozen=True):
    """A hypothetical question, and what must be answered."""

    words: str
    step: Json  # as in `bayplan what-if`
    ok: bool
    node: str | None = None
    victims: tuple[str, ...] = ()
    count: int | None = None
    because: str = ""


class Change(Struct, frozen=True):
    """Something is done, and how many workers each elastic job has then, by name. Of a job that
    another controller runs it is the places that it was promised."""

    words: str
    request: tuple[str, str, Json | None]  # method, path, body
    workers: dict[str, int]
    because: str


Scene = Arrival | Later | Asked | Change


class Story(Struct, frozen=True):
    name: str
    says: str
    nodes: tuple[Json, ...]
    scenes: tuple[Scene, ...]
    config: str = ""  # a file among the manifests; without one, the default
    others: tuple[tuple[str, Json], ...] = ()  # objects that are there before: path, object
    ipus: int = 0  # of a pretend V-IPU controller
    reserve_after_s: float | None = None  # `gangs.reserveAfter`; without it, the default
    elastic: bool = False  # with the kinds of elastic jobs and their controller


def node(name: str, gpus: int = 0, notes: dict[str, str] | None = None, **more: int) -> Json:
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    amounts |= {resource: str(amount) for resource, amount in more.items()}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    labels = {"kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": notes or {}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, scheduler: str | None, gpus: int = 0, **more: int) -> Json:
    limits = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    limits |= {resource: str(amount) for resource, amount in more.items()}
    named = {"schedulerName": scheduler} if scheduler else {}
    container = {"name": "main", "image": "nginx", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**named, "containers": [container]},
    }
