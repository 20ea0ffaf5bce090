"""Objects that say what a gang is: PodGroups, whose members only name them."""

from typing import Literal

from msgspec import Struct

from bayplan.core.model.pods import Gang

Source = Literal["scheduling.x-k8s.io", "scheduling.sigs.k8s.io", "scheduling.k8s.io"]
SOURCES: tuple[Source, ...] = ("scheduling.x-k8s.io", "scheduling.sigs.k8s.io", "scheduling.k8s.io")


class PodGroup(Struct, frozen=True):
    """A PodGroup. Its members name it by a label, whichever of the first two groups of the API it
    is of; those of the third by a field of their own."""

    source: Source  # the group of the API that it is of
    gang: Gang  # whose key is that of its members
    resources: tuple[tuple[str, int], ...] = ()  # free on all nodes together, or it is not tried
    ended: int = 0  # members that have done their work: they count as placed
    wrong: str = ""  # why it cannot be understood; its members wait with that


class Patience(Struct, frozen=True):
    """How long gangs wait for what."""

    timeout_s: float = 300.0  # running in part, before the members that do are evicted
    reserve_s: float = 300.0  # refused and next in line, before places are kept for it


def group_key(source: Source, namespace: str, name: str) -> str:
    """The key of the gang that the object, or a pod that names it, means."""
    kind = "PodGroup.scheduling.k8s.io" if source == "scheduling.k8s.io" else "PodGroup"
    return f"{kind} {namespace}/{name}"
