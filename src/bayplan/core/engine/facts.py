"""What the world says that is neither a pod nor a node, and whom it may help."""

import math
from collections.abc import Iterable

from bayplan.core.devices.usecolumns import next_end
from bayplan.core.model import events as on
from bayplan.core.model.groups import PodGroup, Source
from bayplan.core.model.numa import Topology
from bayplan.core.model.verdicts import Changed, EventKind
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.waiting import Waiting


class Facts:
    def __init__(self, cluster: Cluster, waiting: Waiting, schedulers: Iterable[str]) -> None:
        self._cluster, self._waiting = cluster, waiting
        self._schedulers = tuple(schedulers)
        self.next_end = math.inf  # when more pods may be known to be in what is published

    def learn(self, event: on.Event, now: float) -> None:
        match event:
            case on.NamespaceSeen(name, labels):
                self._cluster.set_namespace(name, labels)
                self._waiting.wake((EventKind.NAMESPACE_CHANGED,), now)
            case on.NamespaceGone(name):
                self._cluster.set_namespace(name, None)
                self._waiting.wake((EventKind.NAMESPACE_CHANGED,), now)
            case on.KubeletRefused(node, resources):
                if node in self._cluster.rows:
                    for resource in resources:
                        self._cluster.distrusted.refused(node, resource, now)
            case on.BudgetSeen(budget):
                self._cluster.budgets.set(budget.key, budget)
            case on.BudgetGone(key):
                self._cluster.budgets.set(key, None)
            case on.TopologySeen(topology):
                self._see_topology(topology.node, topology, now)
            case on.TopologyGone(node):
                self._see_topology(node, None, now)
            case on.UseSeen(node, use):
                if node in self._cluster.rows:
                    self._cluster.note_use(self._cluster.rows[node], use)
                    self._waiting.wake((EventKind.USE_CHANGED,), now)
            case on.GroupSeen(group):
                self._see_group(group.source, group.gang.key, group, now)
            case on.GroupGone(source, key):
                self._see_group(source, key, None, now)
            case on.DeviceClassSeen(name, resource):
                self._see_device_class(name, resource, now)
            case on.DeviceClassGone(name):
                self._see_device_class(name, None, now)
            case _:
                self._learn_storage(event, now)

    def _learn_storage(self, event: on.Event, now: float) -> None:
        storage = self._cluster.storage
        match event:
            case on.ClaimSeen(claim):
                if storage.set_claim(claim.key, claim):
                    self._wake_claims((claim.key,), now)
            case on.ClaimGone(key):
                if storage.set_claim(key, None):
                    self._wake_claims((key,), now)
            case on.VolumeSeen(volume):
                if storage.set_volume(volume.name, volume):
                    self._wake_claims(storage.claims_on.get(volume.name, ()), now)
            case on.VolumeGone(name):
                if storage.set_volume(name, None):
                    self._wake_claims(storage.claims_on.get(name, ()), now)
            case on.StorageClassSeen(storage_class):
                if storage.set_class(storage_class.name, storage_class):
                    self._waiting.wake((EventKind.STORAGE_CLASS_CHANGED,), now)
            case on.StorageClassGone(name):
                if storage.set_class(name, None):
                    self._waiting.wake((EventKind.STORAGE_CLASS_CHANGED,), now)
            case on.StorageClassesHidden(hidden):
                if storage.hide_classes(hidden):
                    self._waiting.wake((EventKind.STORAGE_CLASS_CHANGED,), now)

    def _wake_claims(self, keys: Iterable[str], now: float) -> None:
        self._waiting.wake([Changed(EventKind.CLAIM_CHANGED, key) for key in keys], now)

    def settle(self, now: float, day_s: float) -> None:
        """Pods may be known to be in what is published of zones: they take nothing beside it."""
        zones = self._cluster.zones
        if (zones.unsure or zones.next_s <= day_s) and zones.settle(day_s):
            self._waiting.wake((EventKind.TOPOLOGY_CHANGED,), now)
        next_s = min(zones.next_s, self._age(now, day_s))
        self.next_end = now + next_s - day_s if day_s else math.inf

    def _age(self, now: float, day_s: float) -> float:
        """What was measured may be too old by now to keep a node closed. Gives the time of day at
        which the next will be, where somebody waits for that; mostly nobody does."""
        uses = self._cluster.uses
        before, uses.day_s = uses.day_s, day_s
        if not day_s or not self._waiting.awaits(EventKind.USE_CHANGED):
            return math.inf
        if next_end(self._cluster, before) <= day_s:
            self._waiting.wake((EventKind.USE_CHANGED,), now)
        return next_end(self._cluster, day_s)

    def _see_topology(self, node: str, topology: Topology | None, now: float) -> None:
        if self._cluster.zones.publish(node, topology):
            self._waiting.wake((EventKind.TOPOLOGY_CHANGED,), now)

    def _see_group(self, source: Source, key: str, group: PodGroup | None, now: float) -> None:
        if self._cluster.groups.set(source, key, group):
            for scheduler in self._schedulers:
                self._waiting.rouse_gang(scheduler, key, now)

    def _see_device_class(self, name: str, resource: str | None, now: float) -> None:
        if self._cluster.device_classes.set(name, resource):
            self._waiting.wake((EventKind.DEVICE_CLASS_CHANGED,), now)
