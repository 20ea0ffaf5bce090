"""What the engine asks of the world. Imperatives: somebody else carries them out."""

from msgspec import Struct

from bayplan.core.model.devices import Held
from bayplan.core.model.grants import Confirmed
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Refusal


class Placement(Struct, frozen=True, gc=False):
    """A pod on a node, holding these devices."""

    pod: Pod
    node: str
    held: tuple[Held, ...] = ()


class Bind(Struct, frozen=True, gc=False):
    placement: Placement
    picked: int | None = None  # the candidate that a picker chose, for a replay


class Refuse(Struct, frozen=True, gc=False):
    """Say why the pod waits. Sent when the set of reasons is new for the pod."""

    pod: Pod
    refusal: Refusal
    nominated: str | None = None  # the node kept for it; empty: none any more; None: as it was


class Preempt(Struct, frozen=True, gc=False):
    """Delete the victims for the pod: the plan was proven, and their room is held for it. A Refuse
    that nominates the node goes with it."""

    pod: Pod
    node: str
    victims: tuple[Pod, ...]  # without those that are being deleted already


class Evict(Struct, frozen=True, gc=False):
    """Ask for the pod's eviction, which a budget may refuse."""

    pod: Pod
    why: str


class Dismantle(Struct, frozen=True, gc=False):
    """Delete a partition: no pod has it any more. Whatever was asked for it before comes first."""

    estate: str
    id: str


class Confirm(Struct, frozen=True, gc=False):
    """Say how many places an elastic job has of those that it was granted."""

    job: str  # its key
    confirmed: Confirmed
    uid: str = ""  # of the job


class Park(Struct, frozen=True, gc=False):
    """A plugin failed while deciding about this pod; it waits, and the story is told."""

    pod: Pod
    error: str  # the exception's type
    story: str  # with its traceback


class Report(Struct, frozen=True, gc=False):
    """Something in the world is not as it should be; nothing is lost by it."""

    text: str


Effect = Bind | Refuse | Preempt | Evict | Dismantle | Confirm | Park | Report
