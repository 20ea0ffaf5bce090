"""Persistent volumes: claims that must be there, volumes that a node can reach, zones, one pod.

Most claims are one pod's own, so nothing of this is kept: these plugins are asked about a pod with
claims each time, on top of what is kept for its template. A claim that waits for its first pod is
made where the pod goes: `VolumeBinding` says which nodes would do, and the scheduler has it made
before it binds the pod. Choosing among volumes that exist already is left to others.
"""

from collections.abc import Sequence

import numpy as np

from bayplan.core.model.pods import RowKey
from bayplan.core.model.selectors import Requirement
from bayplan.core.model.verdicts import Changed, EventKind, Help, Reason
from bayplan.core.model.volumes import ONE_POD, Claim
from bayplan.core.plugins.hooks import Ask, Filter, NeedsClaims, Reads, Reject
from bayplan.core.plugins.node_affinity import any_term
from bayplan.core.state.arrays import Codes, Mask
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.storage import Use
from bayplan.core.state.view import View

NODES = frozenset[Help]({EventKind.NODE_ADDED, EventKind.NODE_CHANGED})
UNREACHED, NOT_MADE, NO_VOLUME, NOT_CHOSEN = 1, 2, 4, 8

# Labels of volumes and nodes, in kube-scheduler's order; nodes may have only the newer one.
NEWER = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}


class VolumeRestrictions:
    """Refuses a pod while another uses the same claim that is for one pod only."""

    name = "VolumeRestrictions"
    reads = Reads.CLUSTER
    needs_claims = True

    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None:
        for use in uses(ask, cluster) or ():
            if use.claim is None and not use.ephemeral:
                return rejection(ask, f'persistentvolumeclaim "{use.name}" not found')
        return None

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        taken = any(
            use.users and not use.ephemeral and use.claim and ONE_POD in use.claim.access_modes
            for use in uses(ask, view.cluster) or ()
        )
        return np.ones(len(view), dtype=np.int8) if taken else None

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        text = (
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
            "already in-use by another pod"
        )
        return (Reason(text, True, claims_changed(ask.row) | {EventKind.POD_GONE}),)


class VolumeBinding:
    """Refuses a pod whose claims are not there, and nodes that cannot reach its volumes, or where
    those that wait for their first pod cannot be made."""

    name = "VolumeBinding"
    reads = Reads.CLUSTER
    needs_claims = True

    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None:
        found = uses(ask, cluster)
        if found is None:
            return None
        for why in (self._unusable, self._unbound):
            for use in found:
                text = why(use, ask)
                if text is not None:
                    return rejection(ask, text)
        return None

    def _unusable(self, use: Use, ask: Ask) -> str | None:
        claim, pod = use.claim, ask.pod
        name = f'persistentvolumeclaim "{use.name}"'
        if claim is None:
            if use.ephemeral:
                return f"waiting for ephemeral volume controller to create the {name}"
            return f"{name} not found"
        if claim.lost:
            return f'{name} bound to non-existent persistentvolume "{claim.volume}"'
        if claim.deleting:
            return f"{name} is being deleted"
        if use.ephemeral and claim.owner != ask.row.claim_owner:
            return f"PVC {use.key} was not created for pod {pod.key} (pod is not owner)"
        return None

    def _unbound(self, use: Use, ask: Ask) -> str | None:
        claim = use.claim
        assert claim is not None
        if claim.bound or (use.storage_class is not None and use.storage_class.waits):
            return None
        if use.class_is_hidden:
            return (
                f'persistentvolumeclaim "{use.name}" is not bound, and its storageclass '
                f'"{claim.storage_class}" is not known'
            )
        return "pod has unbound immediate PersistentVolumeClaims"

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        found = uses(ask, view.cluster)
        if found is None:
            return None
        return self._unreached(found, view) | self._not_made(found, view)

    def _unreached(self, found: Sequence[Use], view: View) -> Codes:
        """About claims that have their volume; on each row the first that fails counts."""
        unreached = np.zeros(len(view), dtype=np.bool_)
        for use in found:
            if use.claim is None or not use.claim.bound:
                continue
            if use.volume is None:
                return np.where(unreached, np.int8(UNREACHED), np.int8(NO_VOLUME))
            if use.volume.terms is not None:
                unreached |= ~any_term(use.volume.terms, view)
        return unreached.view(np.int8)  # 1 is UNREACHED

    def _not_made(self, found: Sequence[Use], view: View) -> Codes:
        """About claims that are made for their first pod."""
        codes = np.zeros(len(view), dtype=np.int8)
        for use in found:
            if use.claim is None or use.claim.volume or use.storage_class is None:
                continue
            if not use.storage_class.provisions:
                why = (
                    NOT_CHOSEN if use.volumes_left and use.claim.selected_node is None else NOT_MADE
                )
                return np.full(len(view), why, dtype=np.int8)
            codes |= ~self._makes(use, use.claim, view)
        return codes * np.int8(NOT_MADE)

    def _makes(self, use: Use, claim: Claim, view: View) -> Mask:
        assert use.storage_class is not None
        made = np.ones(len(view), dtype=np.bool_)
        if claim.selected_node is not None:
            made = view.named((claim.selected_node,))
        elif use.users:  # the first pod has its place, and the claim will be made there
            made = np.isin(view.row_numbers, use.users)
        if use.storage_class.topologies:
            made &= any_term(use.storage_class.topologies, view)
        return made

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        helped = NODES | claims_changed(ask.row)
        made = helped | {EventKind.STORAGE_CLASS_CHANGED, EventKind.POD_GONE}
        gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
        chosen = "node(s) may have volumes for an unbound claim, but this scheduler chooses none"
        return (
            Reason("node(s) didn't match PersistentVolume's node affinity", False, helped),
            Reason("node(s) didn't find available persistent volumes to bind", False, made),
            Reason(gone, False, helped),
            Reason(chosen, False, made),
        )


class VolumeZone:
    """Refuses nodes outside the zone or region that a volume's labels name."""

    name = "VolumeZone"
    reads = Reads.CLUSTER
    needs_claims = True

    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None:
        for use in uses(ask, cluster) or ():
            if use.claim and use.claim.volume and use.volume is None and not use.ephemeral:
                return rejection(ask, f'persistentvolume "{use.claim.volume}" not found')
        return None

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        zones = [
            zone
            for use in uses(ask, view.cluster) or ()
            if use.volume is not None and not use.ephemeral
            for zone in use.volume.zones
        ]
        if not zones:
            return None
        outside = np.zeros(len(view), dtype=np.bool_)
        for label, values in zones:
            column, codes = view.labels(label)
            inside = column.matches(Requirement(label, "In", values), codes)
            newer, others = view.labels(NEWER[label])
            inside |= (codes == 0) & newer.matches(Requirement(newer.key, "In", values), others)
            outside |= ~inside
        zoned = np.zeros(len(view), dtype=np.bool_)
        for label in NEWER:
            zoned |= view.labels(label)[1] != 0
        return (outside & zoned).view(np.int8)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        helped = NODES | claims_changed(ask.row)
        return (Reason("node(s) had no available volume zone", False, helped),)


def uses(ask: Ask, cluster: Cluster) -> tuple[Use, ...] | None:
    """What is known of the pod's claims; None where it has none."""
    return cluster.storage.uses(ask.pod.row) if ask.pod.row.claims else None


def rejection(ask: Ask, text: str) -> Reason:
    helped = claims_changed(ask.row) | {EventKind.STORAGE_CLASS_CHANGED}
    return Reason(text, False, helped)


def claims_changed(row: RowKey) -> frozenset[Help]:
    return frozenset(Changed(EventKind.CLAIM_CHANGED, key) for key in row.claims)


_: tuple[type[Filter], ...] = (VolumeRestrictions, VolumeBinding, VolumeZone)
__: tuple[type[Reject], ...] = (VolumeRestrictions, VolumeBinding, VolumeZone)
___: tuple[type[NeedsClaims], ...] = (VolumeRestrictions, VolumeBinding, VolumeZone)
