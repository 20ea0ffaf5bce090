"""What the world tells the engine. Past tense: it has happened."""

from msgspec import Struct

from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod


class PodSeen(Struct, frozen=True, gc=False):
    """A pod was listed, created or changed."""

    pod: Pod


class PodGone(Struct, frozen=True, gc=False):
    """A pod was deleted or has ended."""

    uid: str


class PodUnreadable(Struct, frozen=True, gc=False):
    """A bound pod cannot be understood: its node takes nothing more until it can, or is gone."""

    uid: str
    node: str


class NodeSeen(Struct, frozen=True, gc=False):
    node: Node


class NodeGone(Struct, frozen=True, gc=False):
    name: str


class NamespaceSeen(Struct, frozen=True, gc=False):
    name: str
    labels: dict[str, str]


class NamespaceGone(Struct, frozen=True, gc=False):
    name: str


class BindDone(Struct, frozen=True, gc=False):
    uid: str


class BindFailed(Struct, frozen=True, gc=False):
    uid: str
    why: str


class Tick(Struct, frozen=True, gc=False):
    """Time to decide. At most `limit` pods are tried."""

    limit: int = 1024


Event = (
    PodSeen
    | PodGone
    | PodUnreadable
    | NodeSeen
    | NodeGone
    | NamespaceSeen
    | NamespaceGone
    | BindDone
    | BindFailed
    | Tick
)
