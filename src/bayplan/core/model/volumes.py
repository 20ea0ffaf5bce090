"""Persistent volume claims, volumes and storage classes, as far as they decide about nodes."""

from collections.abc import Mapping

from msgspec import Struct

from bayplan.core.model.selectors import NodeTerm

ONE_POD = "ReadWriteOncePod"
NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")


class Claim(Struct, frozen=True):
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    uid: str
    volume: str = ""  # the volume's name; it is bound only when `completed` too
    completed: bool = False  # has the annotation pv.kubernetes.io/bind-completed
    storage_class: str = ""
    access_modes: tuple[str, ...] = ()
    selected_node: str | None = None  # where a scheduler wants it to be made; None: nowhere yet
    owner: str = ""  # the uid of its controller: the pod, for a generic ephemeral volume
    deleting: bool = False
    lost: bool = False  # its volume is gone

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def bound(self) -> bool:
        return self.completed and self.volume != ""


class Volume(Struct, frozen=True):
    """A PersistentVolume."""

    name: str
    terms: tuple[NodeTerm, ...] | None = None  # required node affinity; None: any node
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()  # zone and region labels, and their values
    storage_class: str = ""
    unclaimed: bool = False  # available, and nobody's

    def reaches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels can use the volume. Terms are about labels alone."""
        return self.terms is None or any(
            not term.broken and all(each.matches(labels) for each in term.expressions)
            for term in self.terms
        )


class StorageClass(Struct, frozen=True):
    name: str
    waits: bool = False  # volumeBindingMode is WaitForFirstConsumer
    provisioner: str = ""
    topologies: tuple[NodeTerm, ...] = ()  # where volumes can be made; empty: everywhere

    @property
    def provisions(self) -> bool:
        return self.provisioner not in NO_PROVISIONER
