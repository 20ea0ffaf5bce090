"""The kinds of objects that the engine hears of beside pods, and how each becomes events."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct

from bayplan.core.model import events as on
from bayplan.core.model.grants import KINDS, Grant
from bayplan.core.model.groups import SOURCES, PodGroup, Source
from bayplan.core.model.nodes import Node
from bayplan.core.model.numa import Topology
from bayplan.kube.client import (
    BUDGETS,
    CLAIMS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    OLD_TOPOLOGIES,
    POD_GROUPS,
    STORAGE_CLASSES,
    TOPOLOGIES,
    VOLUMES,
)
from bayplan.kube.elastic import RESOURCES
from bayplan.kube.grants import grant_of
from bayplan.kube.read import Reader

NODE = "node"
STORAGE_CLASS = "storageclass"
TOPOLOGY = "noderesourcetopology"
T = TypeVar("T")


class Kind(Struct, Generic[T], frozen=True):
    """How one kind of object becomes events."""

    what: str
    path: str
    read: Callable[[Raw], T]
    name: Callable[[T], str]
    seen: Callable[[T], on.Event]
    gone: Callable[[T], on.Event]
    optional: bool = False  # a server, or a role, may not have it
    older_path: str = ""  # of a server that does not have the path
    doubt: Callable[[str, str], T] | None = None  # by name and why: one that cannot be read
    rare: bool = False  # few servers have it: where it is not, that is not worth a word


def node_kind(reader: Reader) -> Kind[Node]:
    return Kind(
        what=NODE,
        path=NODES.path(),
        read=reader.node,
        name=lambda node: node.name,
        seen=on.NodeSeen,
        gone=lambda node: on.NodeGone(node.name),
    )


def namespace_kind(reader: Reader) -> Kind[tuple[str, dict[str, str]]]:
    return Kind(
        what="namespace",
        path=NAMESPACES.path(),
        read=reader.namespace,
        name=lambda space: space[0],
        seen=lambda space: on.NamespaceSeen(*space),
        gone=lambda space: on.NamespaceGone(space[0]),
    )


def group_what(source: Source) -> str:
    """What PodGroups of this group of the API are called here."""
    return f"podgroup.{source}"


def group_kind(reader: Reader, source: Source) -> Kind[PodGroup]:
    return Kind(
        what=group_what(source),
        path=POD_GROUPS[source].path(),
        read=partial(reader.pod_group, of=source),
        name=lambda group: group.gang.key.rpartition(" ")[2],
        seen=on.GroupSeen,
        gone=lambda group: on.GroupGone(group.source, group.gang.key),
        optional=True,
        rare=True,
    )


def grant_kind(reader: Reader, kind: str) -> Kind[Grant]:
    """Elastic jobs, of which the engine knows what they were granted."""
    return Kind(
        what=kind.lower(),
        path=RESOURCES[kind].path(),
        read=partial(grant_of, kind, reader=reader),
        name=lambda grant: grant.key.rpartition(" ")[2],
        seen=on.GrantSeen,
        gone=lambda grant: on.GrantGone(grant.key),
        optional=True,
        rare=True,
    )


def kinds(reader: Reader) -> list[Kind[Any]]:
    """Everything but pods that the engine hears of."""
    return [
        node_kind(reader),
        namespace_kind(reader),
        Kind(
            what="persistentvolumeclaim",
            path=CLAIMS.path(),
            read=reader.claim,
            name=lambda claim: claim.key,
            seen=on.ClaimSeen,
            gone=lambda claim: on.ClaimGone(claim.key),
            optional=True,
        ),
        Kind(
            what="persistentvolume",
            path=VOLUMES.path(),
            read=reader.volume,
            name=lambda volume: volume.name,
            seen=on.VolumeSeen,
            gone=lambda volume: on.VolumeGone(volume.name),
            optional=True,
        ),
        Kind(
            what=STORAGE_CLASS,
            path=STORAGE_CLASSES.path(),
            read=reader.storage_class,
            name=lambda storage_class: storage_class.name,
            seen=on.StorageClassSeen,
            gone=lambda storage_class: on.StorageClassGone(storage_class.name),
            optional=True,
        ),
        Kind(
            what="deviceclass",
            path=DEVICE_CLASSES.path(),
            read=reader.device_class,
            name=lambda served: served[0],
            seen=lambda served: on.DeviceClassSeen(*served),
            gone=lambda served: on.DeviceClassGone(served[0]),
            optional=True,
        ),
        Kind(
            what="poddisruptionbudget",
            path=BUDGETS.path(),
            read=reader.budget,
            name=lambda budget: budget.key,
            seen=on.BudgetSeen,
            gone=lambda budget: on.BudgetGone(budget.key),
            optional=True,
        ),
        topology_kind(reader),
        *(group_kind(reader, source) for source in SOURCES),
        *(grant_kind(reader, kind) for kind in KINDS),
    ]


def topology_kind(reader: Reader) -> Kind[Topology]:
    """Of a node whose zones cannot be read it is known that nobody can say which they are."""
    return Kind(
        what=TOPOLOGY,
        path=TOPOLOGIES.path(),
        read=reader.topology,
        name=lambda topology: topology.node,
        seen=on.TopologySeen,
        gone=lambda topology: on.TopologyGone(topology.node),
        optional=True,
        rare=True,
        older_path=OLD_TOPOLOGIES.path(),
        doubt=lambda name, why: Topology(name.rpartition("/")[2], unknown=why),
    )
