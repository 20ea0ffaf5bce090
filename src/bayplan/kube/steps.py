"""The steps of a hypothetical question, from JSON or YAML as people write them.

A body that is no question at all is a `BadQuestion`. A single step that cannot be understood is
told in its answer, and the others are asked all the same. Manifests become pods by the caller's
function, which knows the cluster's classes.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bayplan.core.model import steps
from bayplan.core.model.pods import Pod
from bayplan.core.model.steps import MOST_COUNTED, MOST_STEPS, Step
from bayplan.kube.manifests import BadFile, load_objects
from bayplan.kube.read import json_of
from bayplan.kube.terms import located

Json = dict[str, Any]
PodOf = Callable[[Json], Pod]

WRONG = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)

Manifest = Annotated[
    Json, Meta(description="A Pod, or anything with a pod template, as in a manifest.")
]
PodName = Annotated[
    str, Meta(min_length=1, max_length=512, description="namespace/name; a name alone is default's")
]
NodeName = Annotated[str, Meta(min_length=1, max_length=253)]
GangName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?$")]
Count = Annotated[int, Meta(ge=1, le=10_000)]


_SOME = Meta(extra_json_schema={"minProperties": 1})  # which no struct can say by itself
_ONE = Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})


class BadQuestion(ValueError):
    """Not a question: what is wrong with it as a whole."""


class FitsStep(Struct, forbid_unknown_fields=True):
    """Would the pod fit: anywhere, or on the node; as things are, or without some pods?"""

    pod: Manifest
    node: NodeName | None = None
    without: list[PodName] = []


class GangStep(Struct, forbid_unknown_fields=True, rename="camel"):
    """`count` pods, of which at least `minMember` (all of them, unless it is given) start."""

    name: GangName
    pod: Manifest
    count: Count
    min_member: Count | None = None


class PlaceStep(Struct, forbid_unknown_fields=True):
    """From here on, the pod or the gang is where it would go. One of the two."""

    pod: Manifest | UnsetType = UNSET
    gang: GangStep | UnsetType = UNSET


class AddStep(Struct, forbid_unknown_fields=True):
    """New nodes as this one is."""

    like: NodeName
    count: Count = 1


class NodesStep(Struct, forbid_unknown_fields=True):
    """From here on, some nodes are gone, and then there are new ones. One of the two, or both."""

    add: AddStep | UnsetType = UNSET
    remove: list[NodeName] | UnsetType = UNSET


class PreemptStep(Struct, forbid_unknown_fields=True):
    """Which pods would have to go for this one?"""

    pod: Manifest


class CapacityStep(Struct, forbid_unknown_fields=True):
    """How many more of these would fit now, up to `limit`?"""

    pod: Manifest
    limit: Annotated[int, Meta(ge=1, le=100_000)] = MOST_COUNTED


class OneStep(Struct, forbid_unknown_fields=True):
    """Exactly one of these."""

    fits: FitsStep | UnsetType = UNSET
    evict: list[PodName] | UnsetType = UNSET
    place: Annotated[PlaceStep, _ONE] | UnsetType = UNSET
    nodes: Annotated[NodesStep, _SOME] | UnsetType = UNSET
    preempt: PreemptStep | UnsetType = UNSET
    capacity: CapacityStep | UnsetType = UNSET


class Question(Struct, forbid_unknown_fields=True):
    """Steps on one trial of the cluster; nothing lasts."""

    steps: list[Annotated[OneStep, _ONE]]


class _Body(Struct, forbid_unknown_fields=True):
    """The same, but a step can be wrong by itself."""

    steps: list[Raw]


def read_file(text: bytes, pod_of: PodOf) -> list[Step]:
    """A file, in YAML or JSON."""
    return read_steps(body_of(text), pod_of)


def body_of(text: bytes) -> bytes:
    """A file as the JSON that a server takes."""
    try:
        found = load_objects(text)
        if len(found) != 1:
            raise BadQuestion(f"it should be one question, but is {len(found) or 'none'}")
        return bytes(json_of(found[0]))
    except BadQuestion:
        raise
    except (BadFile, *WRONG) as error:
        raise BadQuestion(str(error) or type(error).__name__) from None


def read_steps(body: bytes, pod_of: PodOf) -> list[Step]:
    """A question as JSON. Too many steps are not read one by one."""
    raw_steps = _raw_steps(body)
    if len(raw_steps) > MOST_STEPS:
        raise BadQuestion(f"a question may have {MOST_STEPS} steps, not {len(raw_steps)}")
    return [_step(raw, pod_of) for raw in raw_steps]


def read_fits(body: bytes, pod_of: PodOf) -> Step:
    """What one `fits` step would say, as JSON."""
    try:
        return _fits(msgspec.json.decode(body, type=FitsStep), pod_of)
    except WRONG as error:
        raise BadQuestion(_words(error)) from None


def _raw_steps(body: bytes) -> list[Raw]:
    try:
        return msgspec.json.decode(body, type=_Body).steps
    except WRONG as error:
        raise BadQuestion(_words(error)) from None


def _words(error: Exception) -> str:
    """What is wrong, and where."""
    why, where = located(error)
    return f"{where}: {why}" if where else why or type(error).__name__


def _step(raw: Raw, pod_of: PodOf) -> Step:
    try:
        return _understood(msgspec.json.decode(raw, type=OneStep), pod_of)
    except WRONG as error:  # of the manifest too
        return steps.Unreadable(_words(error))


def _understood(one: OneStep, pod_of: PodOf) -> Step:
    known = one.__struct_fields__
    given = [name for name in known if getattr(one, name) is not UNSET]
    if len(given) != 1:
        raise ValueError(f"a step has one of {', '.join(known)}, and this has {len(given)}")
    match getattr(one, given[0]):
        case FitsStep() as fits:
            return _fits(fits, pod_of)
        case PlaceStep() as place:
            return _place(place, pod_of)
        case NodesStep() as change:
            return _nodes(change)
        case PreemptStep(pod):
            return steps.Preempt(pod_of(pod))
        case CapacityStep(pod, limit):
            return steps.Capacity(pod_of(pod), limit)
        case names:
            return steps.Evict(tuple(names))


def _fits(fits: FitsStep, pod_of: PodOf) -> Step:
    return steps.Fits(pod_of(fits.pod), fits.node, tuple(fits.without))


def _place(place: PlaceStep, pod_of: PodOf) -> Step:
    if (place.pod is UNSET) == (place.gang is UNSET):
        raise ValueError("place: it takes either a pod or a gang")
    if isinstance(place.gang, GangStep):
        gang = place.gang
        minimum = gang.min_member or gang.count
        if minimum > gang.count:
            why = f"minMember is {minimum}, but there are only {gang.count} pods"
            raise ValueError(f"place.gang: {why}")
        return steps.PlaceGang(gang.name, pod_of(gang.pod), gang.count, minimum)
    assert isinstance(place.pod, dict)
    return steps.Place(pod_of(place.pod))


def _nodes(change: NodesStep) -> Step:
    if change.add is UNSET and change.remove is UNSET:
        raise ValueError("nodes: it takes add, remove or both")
    remove = () if isinstance(change.remove, UnsetType) else tuple(change.remove)
    if isinstance(change.add, UnsetType):
        return steps.ChangeNodes(remove)
    return steps.ChangeNodes(remove, steps.AddNodes(change.add.like, change.add.count))
