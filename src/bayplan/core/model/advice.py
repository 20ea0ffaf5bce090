"""Why a pod waits, and what would help: values that people read and programs apply.

A suggestion is the smallest change of its kind after which the pod has a place. What it says in
words stands in `change` once more, in the words of manifests and of hypothetical questions.
"""

from typing import Literal

from msgspec import Struct

from bayplan.core.model.devices import Held
from bayplan.core.model.selectors import Toleration
from bayplan.core.model.steps import AddNodes
from bayplan.core.model.verdicts import Tally

# The cheapest first: what the pod's owner can do alone, what only takes time, what costs
# something, and last what somebody else loses.
Kind = Literal["request", "toleration", "label", "gang", "end", "move", "node", "victims"]
Place = Literal[
    "nodeSelector", "nodeAffinity", "podAffinity", "podAntiAffinity", "spread", "labels"
]
State = Literal["waits", "fits", "bound", "held", "leaving"]

MIB = 1 << 20
BYTES = ("memory", "ephemeral-storage")


class Less(Struct, frozen=True, omit_defaults=True):
    """Ask for less of a resource: quantities, in all, or of the container that is named."""

    resource: str
    was: str
    now: str
    container: str = ""


class Loosen(Struct, frozen=True, omit_defaults=True):
    """A constraint to give up; with `instead`, this value of the label would do as well.

    `term`: the position of an affinity term or a spread constraint. `key`: a label, or the topology
    key, or "metadata.name".
    """

    where: Place
    key: str
    values: tuple[str, ...] = ()
    operator: str = ""
    term: int = 0
    instead: str | None = None


class Move(Struct, frozen=True, omit_defaults=True, rename={"to_node": "to", "from_node": "from"}):
    """A running pod would do as well elsewhere, with these devices."""

    pod: str
    from_node: str
    to_node: str
    devices: tuple[Held, ...] = ()


class Change(Struct, frozen=True, omit_defaults=True):
    """What to change. What is not there stays."""

    requests: tuple[Less, ...] = ()
    tolerations: tuple[Toleration, ...] = ()  # to add
    loosen: tuple[Loosen, ...] = ()
    minimum: int = 0  # of the gang
    evict: tuple[str, ...] = ()  # pods that end, or go
    moves: tuple[Move, ...] = ()
    nodes: AddNodes | None = None


class Suggestion(Struct, frozen=True):
    """What would help, where the pod would go then, and how to do it."""

    kind: Kind
    text: str
    node: str  # of a gang: of its first member
    change: Change


class GangState(Struct, frozen=True):
    """How far a gang has come."""

    name: str  # namespace/name
    minimum: int
    bound: int  # members on nodes
    waiting: int
    fit: int  # of those that wait


class Explanation(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is to be said of a pod. The suggestions stand by rank."""

    version: int
    pod: str
    state: State
    ok: bool  # it has a place, or would get one now
    message: str  # where it fits nowhere: kube-scheduler's sentence
    node: str = ""
    reasons: dict[str, Tally] = {}
    gang: GangState | None = None
    suggestions: tuple[Suggestion, ...] = ()


class UnknownPod(LookupError):
    """Nothing is known of the pod."""


def written(resource: str, amount: int) -> str:
    """An amount as the engine counts it, as a manifest has it."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource in BYTES or resource.startswith("hugepages-"):
        for unit, size in (("Ti", MIB << 20), ("Gi", MIB << 10), ("Mi", MIB)):
            if amount and not amount % size:
                return f"{amount // size}{unit}"
    return str(amount)
