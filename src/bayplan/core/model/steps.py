"""What can be asked in one hypothetical question, step by step, and what is answered.

Pods are named `namespace/name`. What an answer has depends on its step; `ok` is in all of them.
Answers are encoded as they are: an unset field is not there, and None is null.
"""

from msgspec import UNSET, Struct, UnsetType

from bayplan.core.model.devices import Held
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Tally

MOST_STEPS = 1_000  # of one question
MOST_COUNTED = 10_000  # by one `capacity`, unless it says otherwise


# ---- steps


class Fits(Struct, frozen=True):
    """Would the pod fit: anywhere, or on a node; as things are, or without some pods?"""

    pod: Pod
    node: str | None = None
    without: tuple[str, ...] = ()


class Evict(Struct, frozen=True):
    """From here on, these pods are gone."""

    pods: tuple[str, ...]


class Place(Struct, frozen=True):
    """From here on, the pod is where it would go."""

    pod: Pod


class PlaceGang(Struct, frozen=True):
    """From here on, `count` such pods, called name-0, name-1 …, are where they would go: at least
    `minimum` of them, or none."""

    name: str
    pod: Pod
    count: int
    minimum: int


class AddNodes(Struct, frozen=True):
    """Nodes as this one is, but new."""

    like: str
    count: int = 1


class ChangeNodes(Struct, frozen=True):
    """From here on, these nodes are gone, and then there are new ones."""

    remove: tuple[str, ...] = ()
    add: AddNodes | None = None


class Preempt(Struct, frozen=True):
    """Which pods would have to go for this one?"""

    pod: Pod


class Capacity(Struct, frozen=True):
    """How many more of these would fit now?"""

    pod: Pod
    limit: int = MOST_COUNTED


class Unreadable(Struct, frozen=True):
    """A step that could not be understood, and why."""

    why: str


OfPod = Fits | Place | PlaceGang | Preempt | Capacity
Step = OfPod | Evict | ChangeNodes | Unreadable


# ---- answers


class Failed(Struct, frozen=True, kw_only=True):
    """The step could not be done: it names what is not there, or cannot be read."""

    ok: bool = False
    error: str


class Where(Struct, frozen=True):
    """To `fits`, `place` and `preempt`. `pod`: what `place` calls it from here on."""

    ok: bool
    node: str | None = None
    devices: tuple[Held, ...] = ()
    victims: tuple[str, ...] = ()  # that had to go for it
    pod: str | UnsetType = UNSET
    message: str | UnsetType = UNSET  # on "no": kube-scheduler's sentence
    reasons: dict[str, Tally] | UnsetType = UNSET


class Member(Struct, frozen=True):
    """A pod of a gang, and where it would go."""

    pod: str
    node: str
    devices: tuple[Held, ...] = ()


class GangWhere(Struct, frozen=True):
    """To `place` of a gang. On "no", `placements` are those of the members that would fit."""

    ok: bool
    placed: int
    placements: tuple[Member, ...] = ()
    message: str | UnsetType = UNSET  # about the next member that does not fit
    reasons: dict[str, Tally] | UnsetType = UNSET


class Counted(Struct, frozen=True, kw_only=True):
    """To `capacity`. With `more`, the count is the limit."""

    ok: bool = True
    count: int
    more: bool | UnsetType = UNSET


class Changed(Struct, frozen=True, kw_only=True):
    """To `evict` and `nodes`: how many pods or nodes are gone or new."""

    ok: bool = True
    changed: int
    nodes: tuple[str, ...] | UnsetType = UNSET  # the new ones


Answer = Where | GangWhere | Counted | Changed | Failed


class Answers(Struct, frozen=True):
    """One answer a step, in order, as of a state of the cluster."""

    version: int
    answers: list[Answer]

    @property
    def ok(self) -> bool:
        return all(answer.ok for answer in self.answers)
