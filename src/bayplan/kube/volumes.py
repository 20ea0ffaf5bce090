"""Claims, volumes and storage classes as Kubernetes writes them, read into the core's values.

Nothing here knows pods but for the names of the claims that they use. `Wrong` has the field's path.
"""

from collections.abc import Iterable

from bayplan.core.model.selectors import NodeTerm
from bayplan.core.model.volumes import Claim, StorageClass, Volume
from bayplan.kube import wire
from bayplan.kube.terms import node_term

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
_CLASS = "volume.beta.kubernetes.io/storage-class"  # older than the field, and stronger
_ZONES = (
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
_BETWEEN_ZONES = "__"


def pod_claims(spec: wire.PodSpec, namespace: str, pod: str) -> tuple[list[str], list[str]]:
    """The claims that a pod's volumes name, as namespace/name, and those that it must own."""
    claims, ephemeral = [], []
    for volume in spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            claims.append(f"{namespace}/{volume.persistent_volume_claim.claim_name or ''}")
        elif volume.ephemeral is not None:
            claims.append(f"{namespace}/{pod}-{volume.name or ''}")
            ephemeral.append(claims[-1])
    return claims, ephemeral


def claim_of(seen: wire.PersistentVolumeClaim, metadata: wire.FullMetadata) -> Claim:
    spec, status = seen.spec or wire.ClaimSpec(), seen.status or wire.ClaimStatus()
    notes, name = metadata.annotations or {}, metadata.name or ""
    owners = [o.uid or "" for o in metadata.owner_references or () if o.controller]
    namespace = metadata.namespace or "default"
    return Claim(
        namespace=namespace,
        name=name,
        uid=metadata.uid or f"{namespace}/{name}",
        volume=spec.volume_name or "",
        completed=BIND_COMPLETED in notes,
        storage_class=notes.get(_CLASS, spec.storage_class_name or ""),
        access_modes=tuple(spec.access_modes or ()),
        selected_node=notes.get(SELECTED_NODE),
        owner=owners[0] if owners else "",
        deleting=metadata.deletion_timestamp is not None,
        lost=status.phase == "Lost",
    )


def volume_of(seen: wire.PersistentVolume, metadata: wire.FullMetadata) -> Volume:
    spec, status = seen.spec or wire.VolumeSpec(), seen.status or wire.VolumeStatus()
    required = spec.node_affinity.required if spec.node_affinity is not None else None
    labels = metadata.labels or {}
    zones = [(label, _split(labels[label])) for label in _ZONES if label in labels]
    return Volume(
        name=metadata.name or "",
        terms=None if required is None else tuple(_terms(required.node_selector_terms or ())),
        zones=tuple((label, values) for label, values in zones if values),
        storage_class=(metadata.annotations or {}).get(_CLASS, spec.storage_class_name or ""),
        unclaimed=status.phase == "Available" and spec.claim_ref is None,
    )


def storage_class_of(seen: wire.StorageClass, metadata: wire.Metadata) -> StorageClass:
    return StorageClass(
        name=metadata.name or "",
        waits=seen.volume_binding_mode == "WaitForFirstConsumer",
        provisioner=seen.provisioner or "",
        topologies=tuple(map(_topology, seen.allowed_topologies or ())),
    )


def _terms(terms: Iterable[wire.NodeSelectorTerm]) -> Iterable[NodeTerm]:
    """Terms over labels: what kube-scheduler shows a volume's terms has no name to match."""
    for term in map(node_term, terms):
        yield NodeTerm(broken=True) if term.broken else NodeTerm(term.expressions)


def _topology(term: wire.TopologySelectorTerm) -> NodeTerm:
    wanted = [
        wire.Expression(each.key, "In", each.values) for each in term.match_label_expressions or ()
    ]
    return node_term(wire.NodeSelectorTerm(match_expressions=wanted))


def _split(label: str) -> tuple[str, ...]:
    """The zones of a label; none where one of them is empty, as kube-scheduler ignores it then."""
    values = {zone.strip() for zone in label.split(_BETWEEN_ZONES)}
    return () if "" in values else tuple(sorted(values))
