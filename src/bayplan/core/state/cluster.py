"""The cluster as columns: one row per node, one array per fact.

Everything that a placement changes lives here, so that a trial can put it back. Every change is
one of a few operations, each with an exact inverse; a trial is the list of inverses since it
began. Nothing here knows Kubernetes, the clock, or why a pod was placed. The file is long because
each operation stands beside its inverse.

    seen ──assume──▶ assumed ──confirm──▶ running ──gone──▶ (forgotten)
                        └──── forget ────▶ seen

The columns of `free` and `allocatable` are `SCORED_CPU` and `SCORED_MEMORY` (what scores count,
where containers that request nothing get defaults), then `PODS`, `CPU`, `MEMORY`, `STORAGE`, then
one per other resource in the order of first sight. Both are kept together by row, since a
placement writes, and a refresh gathers, whole rows.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import HostPort, Pod, PodTerms, RowKey
from bayplan.core.model.selectors import Taint
from bayplan.core.model.utilisation import NodeUse
from bayplan.core.state.arrays import Interner, Ints, Mask, RowLog, grown
from bayplan.core.state.budgets import Budgets
from bayplan.core.state.census import Census
from bayplan.core.state.demand import (
    CPU,
    MEMORY,
    SCORED_CPU,
    SCORED_MEMORY,
    Demand,
    demand_of,
)
from bayplan.core.state.deviceclasses import DeviceClasses
from bayplan.core.state.distrust import Distrusted
from bayplan.core.state.estates import Estates
from bayplan.core.state.groups import Groups
from bayplan.core.state.holds import Holds
from bayplan.core.state.labels import WASTE, LabelColumn, LabelColumns
from bayplan.core.state.podindex import PodIndex
from bayplan.core.state.pools import Pools
from bayplan.core.state.storage import Storage
from bayplan.core.state.terms import OwnTerms, Term, TermTable
from bayplan.core.state.trial import Derived, Mark, Trial
from bayplan.core.state.uses import Uses
from bayplan.core.state.zones import Zones

KEPT_DEMANDS = 1 << 15  # 5 KiB each, with what plugins derive from them
MOST_COLUMNS = 1024  # label columns
COLUMNS = ("amounts", "alive", "unschedulable", "unreadable", "taints", "hashes")


class Resident(Struct, gc=False):
    """A pod on a row, with what was counted for it."""

    pod: Pod
    row: int
    matched: tuple[Term, ...]
    own: OwnTerms | None


class Cluster:
    """The one owner of the cluster's state."""

    # Not state: logs only grow, versions only rise, and the rest is derived on demand.
    NOT_STATE = (
        "static_log",
        "load_log",
        "victim_log",
        "image_versions",
        "facts_version",
        "_demands",
        "_undo",
    )

    def __init__(self, rows: int = 64) -> None:
        width = 8
        self.height = 0  # rows in use are below
        self.vacant: list[int] = []  # rows below `height` without a node
        self.rows: dict[str, int] = {}  # by node name
        self.nodes: list[Node | None] = [None] * rows
        self.residents: list[dict[str, Resident]] = [{} for _ in range(rows)]  # by uid
        self.resources: list[str] = ["", "", "pods", "cpu", "memory", "ephemeral-storage"]
        self.resource_columns: dict[str, int] = {n: i for i, n in enumerate(self.resources) if n}
        self.amounts: Ints = np.zeros((rows, 2 * width), dtype=np.int64)  # side by side:
        self.free: Ints = self.amounts[:, :width]  # rows × resources
        self.allocatable: Ints = self.amounts[:, width:]  # rows × resources
        self.lacking: Counter[int] = Counter()  # by column: the nodes that have none of it
        self.lacked: frozenset[int] = frozenset()  # the columns that some node has none of
        self.alive: Mask = np.zeros(rows, dtype=np.bool_)
        self.unschedulable: Mask = np.zeros(rows, dtype=np.bool_)
        self.unreadable: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)  # unreadable pods
        self.taints: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)  # codes of taint_sets
        self.hashes: NDArray[np.uint32] = np.zeros(rows, dtype=np.uint32)  # of the node's uid
        self.taint_sets: Interner[tuple[Taint, ...]] = Interner()
        self.labels = LabelColumns()
        self.images: dict[str, dict[int, int]] = {}  # by name: row → size in bytes
        # by protocol and port: row → address → pods that use it
        self.ports: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
        self.pods: dict[str, Resident] = {}  # by uid
        self.orphans: dict[str, dict[str, Pod]] = {}  # bound to unknown nodes: by node, then uid
        self.orphan_nodes: dict[str, str] = {}  # by uid
        self.closed: dict[str, set[str]] = {}  # node name: uids of unreadable pods
        self.index = PodIndex()
        self.census = Census()
        self.terms = TermTable()
        self.pools = Pools(rows)
        self.load_log = RowLog()
        self.estates = Estates(self._done, self.load_log.extend, self.everybody, self.anybody)
        self.storage = Storage(self._fact)
        self.budgets = Budgets(self._fact)
        self.groups = Groups(self._fact)
        self.holds = Holds(self._done, self._hold)
        self.distrusted = Distrusted(self._done, self._touch)
        self.zones = Zones(self._done, self._touch_load, self._on)
        self.uses = Uses()
        self._demands: dict[RowKey, Demand] = {}
        self.device_classes = DeviceClasses(self._fact, self._demands.clear)
        self.static_log = RowLog()
        self.victim_log = RowLog()  # rows where pods are other victims: a start, a checkpoint
        self.version = 0
        self.facts_version = 0  # rises with every change of what is no row's, see `_fact`
        self.image_versions: dict[str, int] = {}  # by name: that of when its holders changed
        self._undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] | None = None

    # ---- reading

    @property
    def node_count(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        node = self.nodes[row]
        assert node is not None
        return node.name

    def column(self, key: str) -> LabelColumn:
        column = self.labels.columns.get(key)
        if column is None:
            column = self.labels.column(key, self.nodes, len(self.nodes))
        return column

    def orphan(self, uid: str) -> Pod | None:
        """The pod, if it is bound to a node that is not known."""
        node = self.orphan_nodes.get(uid)
        return None if node is None else self.orphans[node][uid]

    def everybody(self) -> Iterator[Pod]:
        """All pods that hold something, or for whom it is held."""
        yield from (resident.pod for resident in self.pods.values())
        yield from (pod for pods in self.holds.pods.values() for pod in pods.values())
        yield from (pod for pods in self.orphans.values() for pod in pods.values())

    def anybody(self, uid: str) -> Pod:
        """One of them."""
        if uid in self.pods:
            return self.pods[uid].pod
        if uid in self.holds.rows:
            return self.holds.pods[self.holds.rows[uid]][uid]
        return self.orphans[self.orphan_nodes[uid]][uid]

    def in_the_way(self, pod: Pod, row: int) -> list[Resident]:
        """Who has what the pod could use there: the row's pods, and for a pod that asks for a
        partition, those elsewhere who hold devices that the row reaches."""
        found = list(self.residents[row].values())
        if pod.row.partitions:
            around = [each.uid for each in self.estates.around(row) if each.uid in self.pods]
            found += [self.pods[uid] for uid in around if self.pods[uid].row != row]
        return found

    def held_below(self, pod: Pod, row: int) -> list[Pod]:
        """The less important pods for whom something is held that the pod could use there: room on
        the row, and for a pod that asks for a partition, devices that the row reaches."""
        found = {held.uid: held for held in self.holds.on(row)}
        if pod.row.partitions:
            around = self.estates.around(row)
            found |= {held.uid: held for held in around if held.uid in self.holds.rows}
        return [found[uid] for uid in sorted(found) if found[uid].priority < pod.priority]

    def demand(self, key: RowKey) -> Demand:
        """The row key's amounts as vectors; kept, since pods of one template share them."""
        demand = self._demands.get(key)
        if demand is None:
            if len(self._demands) >= KEPT_DEMANDS:
                self._demands.clear()
            plain = key.plain
            if plain is not key:
                demand = self.demand(plain)
            else:
                served = self.device_classes.served
                demand = demand_of(key, self.resource_columns, self.free.shape[1], served)
            self._demands[key] = demand
        return demand

    # ---- operations: the only writers

    def add_node(self, node: Node) -> int:
        """A new node; pods that were bound to it before it came are placed on it."""
        row = self.vacant[-1] if self.vacant else self.height
        self._add_node(node, row)
        for pod in list(self.orphans.get(node.name, {}).values()):
            self._unorphan(pod)
            self.place_on(pod, row)
        return row

    def update_node(self, node: Node) -> None:
        self._update_node(self.rows[node.name], node)

    def note_maps(self, row: int, maps: dict[str, str]) -> None:
        """Somebody wrote other maps of devices in use on the node. Nothing else has changed."""
        node = self.nodes[row]
        assert node is not None
        self.nodes[row] = replace(node, maps=maps)
        self.load_log.append(row)
        self._done(self.note_maps, row, node.maps)

    def note_use(self, row: int, use: NodeUse | None) -> None:
        """Other use of the node's devices was measured. Nothing else has changed, so only who reads
        that looks at the row again."""
        node = self.nodes[row]
        assert node is not None
        self.nodes[row] = replace(node, use=use)
        self.uses.log.append(row)
        self._done(self.note_use, row, node.use)

    def note_pod(self, resident: Resident, pod: Pod) -> None:
        """The pod as it is now; nothing that is counted has changed, but perhaps its start."""
        old, resident.pod = resident.pod, pod
        if old.use != pod.use:
            for each, sign in ((old, -1), (pod, 1)):
                if each.use is not None:
                    self.uses.count(each, resident.row, sign)
        was, now = old.lifecycle, pod.lifecycle
        if old.started_s != pod.started_s or was.checkpoint_s != now.checkpoint_s:
            self.victim_log.append(resident.row)
        if old.started_s != pod.started_s:
            self.zones.changed(self.name(resident.row), pod)

    def relabel(self, uid: str, pod: Pod) -> None:
        """The pod as it is now, with other labels; it uses what it used. The API server itself adds
        the node's zone and region to each pod that is bound."""
        resident = self.pods[uid]
        old = resident.pod
        matched = self.terms.counting(pod)
        if matched != resident.matched:
            self._count(resident, -1)
            resident.matched = matched
            self._count(resident, 1)
        if self.index.keys:
            self.index.remove(old)
            self.index.add(pod)
        self.note_pod(resident, pod)
        self.victim_log.append(resident.row)  # budgets look at labels
        self._done(self.relabel, uid, old)

    def note_victim(self, uid: str) -> None:
        """Whether the pod may be removed for others has changed."""
        resident = self.pods.get(uid)
        if resident is not None:
            self.victim_log.append(resident.row)
            self.version += 1

    def remove_node(self, name: str) -> None:
        """The node is gone; pods bound to it are kept until they go too."""
        row = self.rows[name]
        for resident in list(self.residents[row].values()):
            self._remove(resident.pod.uid)
            self._orphan(replace(resident.pod, node=name))
        for pod in self.holds.on(row):
            self.holds.release(pod.uid)
        self.distrusted.forgive(name)
        self._remove_node(row, last=row == self.height - 1)

    def place(self, pod: Pod, name: str) -> None:
        """The pod uses the node from here on; where the node is not known, it waits for it."""
        row = self.rows.get(name)
        if row is None:
            self._orphan(replace(pod, node=name))
        else:
            self.place_on(pod, row)

    def remove(self, uid: str) -> None:
        """The pod uses nothing any more."""
        if uid in self.orphan_nodes and uid not in self.pods:
            self._unorphan(self.orphans[self.orphan_nodes[uid]][uid])
        else:
            self._remove(uid)

    def release_below(self, pod: Pod, row: int) -> None:
        """What is held for less important pods is not in the pod's way."""
        for held in self.held_below(pod, row):
            self.holds.release(held.uid)

    def close_node(self, name: str, uid: str) -> None:
        """Nothing more is placed on the node while the unreadable pod is there."""
        if uid not in self.closed.get(name, ()):
            self.closed.setdefault(name, set()).add(uid)
            self._recount_unreadable(name)
            self._done(self.open_node, name, uid)

    def open_node(self, name: str, uid: str) -> None:
        """The pod can be read, or is gone."""
        if uid in self.closed.get(name, ()):
            self.closed[name].remove(uid)
            if not self.closed[name]:
                del self.closed[name]
            self._recount_unreadable(name)
            self._done(self.close_node, name, uid)

    def set_namespace(self, name: str, labels: dict[str, str] | None) -> None:
        """The namespace's labels, or None when it is gone."""
        before = self.terms.namespaces.get(name)
        if before == labels:
            return
        affected = self._by_namespace_selector(name)
        for resident in affected:
            self._count(resident, -1)
        if labels is None:
            del self.terms.namespaces[name]
        else:
            self.terms.namespaces[name] = labels
        self.terms.generation += 1
        for resident in affected:
            resident.matched = self.terms.counting(resident.pod)
            self._count(resident, 1)
        self._fact(self.set_namespace, name, before)

    def acquire_terms(self, terms: PodTerms) -> OwnTerms:
        """Resolve a pod's own terms and keep their counts until they are released."""
        return self.terms.acquire(terms, self._fill)

    def release_terms(self, own: OwnTerms) -> None:
        self.terms.release(own, self._empty)

    def leave_terms(self, terms: Iterable[Term]) -> None:
        """The inverse of `terms.use`."""
        self.terms.leave(terms, self._empty)

    # ---- trials

    def trial(self) -> Trial:
        """For a block: operations inside are undone at its end unless the trial is kept. They
        nest."""
        outermost = self._undo is None
        if self._undo is None:
            self._undo = []
        sizes = (len(self._undo), len(self.resources), len(self.taint_sets), self.labels.sizes())
        return Trial(self, Mark(*sizes, self.version, outermost))

    def forget_undo(self) -> None:
        """No trial is left that could undo anything."""
        self._undo = None

    def derived(self) -> Derived:
        """What was derived on demand until now."""
        return Derived(set(self.labels.columns), set(self.index.keys), len(self._demands))

    def forget_derived(self, before: Derived) -> None:
        """What was derived on demand since then."""
        for key in [key for key in self.labels.columns if key not in before.columns]:
            self._drop_column(key)
        for key in [key for key in self.index.keys if key not in before.keys]:
            del self.index.keys[key]
        while len(self._demands) > before.demands:
            self._demands.popitem()  # the newest

    def undo_to(self, mark: Mark) -> None:
        undo = self._undo
        assert undo is not None
        self._undo = []  # what undoing records is not kept
        while len(undo) > mark.operations:
            inverse, arguments = undo.pop()
            inverse(*arguments)
        if len(self.resources) > mark.resources:
            for name in self.resources[mark.resources :]:
                del self.lacking[self.resource_columns.pop(name)]
            del self.resources[mark.resources :]
            self._demands.clear()
            self._note_lacked()
        self.taint_sets.cut(mark.taint_sets)
        self.labels.cut(mark.labels)
        self.version = mark.version
        self._undo = undo

    def _done(self, inverse: Callable[..., Any], *arguments: Any) -> None:
        self.version += 1
        if self._undo is not None:
            self._undo.append((inverse, arguments))

    def _fact(self, inverse: Callable[..., Any], *arguments: Any) -> None:
        """The same, of what no row has alone: how many nodes there are, images, namespaces, claims
        and volumes, budgets, groups, device classes."""
        self.facts_version += 1
        self._done(inverse, *arguments)

    # ---- operations on one row, each with its inverse

    def place_on(self, pod: Pod, row: int) -> None:
        demand = self.demand(pod.row)
        if demand.unknown:
            self._add_resources(demand.unknown)
            demand = self.demand(pod.row)
        free = self.free[row]
        np.subtract(free, demand.take, out=free)
        own = None if pod.terms is None else self.acquire_terms(pod.terms)
        resident = Resident(pod, row, self.terms.counting(pod), own)
        self.pods[pod.uid] = resident
        self.residents[row][pod.uid] = resident
        self.census.count(pod, 1)
        if resident.matched:
            self._count(resident, 1)
        if own is not None:
            self.terms.owned(own, row, 1)
        if pod.row.ports:
            self._use_ports(row, pod.row.ports, 1)
        if pod.row.claims:
            self.storage.count(pod.row.claims, row, 1)
        if pod.held is not None or pod.row.devices:
            self.pools.take(row, pod, 1)
            self.estates.take(pod, 1)
            self.uses.log.append(row)
        if pod.use is not None:
            self.uses.count(pod, row, 1)
        if self.index.keys:
            self.index.add(pod)
        if self.zones.topologies:
            self.zones.changed(self.name(row), pod)
        self.load_log.append(row)
        self.version += 1
        if self._undo is not None:  # as `_done`, which is a call more
            self._undo.append((self._remove, (pod.uid,)))

    def _remove(self, uid: str) -> None:
        resident = self.pods.pop(uid)
        pod, row = resident.pod, resident.row
        free = self.free[row]
        np.add(free, self.demand(pod.row).take, out=free)
        del self.residents[row][uid]
        self.census.count(pod, -1)
        if resident.matched:
            self._count(resident, -1)
        if self.index.keys:
            self.index.remove(pod)
        if resident.own is not None:
            self.terms.owned(resident.own, row, -1)
            self.release_terms(resident.own)
        if pod.row.ports:
            self._use_ports(row, pod.row.ports, -1)
        if pod.row.claims:
            self.storage.count(pod.row.claims, row, -1)
        if pod.held is not None or pod.row.devices:
            self.pools.take(row, pod, -1)
            self.estates.take(pod, -1)
            self.uses.log.append(row)
        if pod.use is not None:
            self.uses.count(pod, row, -1)
        if self.zones.topologies:
            self.zones.changed(self.name(row), pod)
        self.load_log.append(row)
        self.version += 1
        if self._undo is not None:  # likewise
            self._undo.append((self.place_on, (pod, row)))

    def _hold(self, pod: Pod, row: int, sign: int) -> None:
        """What is held for a pod, as far as others must leave it alone."""
        demand = self.demand(pod.row)
        if demand.unknown:
            self._add_resources(demand.unknown)
            demand = self.demand(pod.row)
        self.free[row] -= sign * demand.take
        self.pools.take(row, pod, sign)
        self.estates.take(pod, sign)
        self.zones.changed(self.name(row), pod)
        self.uses.log.append(row)
        self.load_log.append(row)

    def _orphan(self, pod: Pod) -> None:
        self.orphans.setdefault(pod.node, {})[pod.uid] = pod
        self.orphan_nodes[pod.uid] = pod.node
        self.estates.take(pod, 1)
        self._done(self._unorphan, pod)

    def _unorphan(self, pod: Pod) -> None:
        waiting = self.orphans[pod.node]
        del waiting[pod.uid], self.orphan_nodes[pod.uid]
        if not waiting:
            del self.orphans[pod.node]
        self.estates.take(pod, -1)
        self._done(self._orphan, pod)

    def _add_node(self, node: Node, row: int) -> None:
        new = row == self.height
        if new:
            self.height += 1
            if row == len(self.nodes):
                self._grow(2 * row)
        else:
            assert self.vacant.pop() == row
        self.alive[row] = True
        self._write_node(row, None, node)
        self.rows[node.name] = row
        self._recount_unreadable(node.name)
        self._fact(self._remove_node, row, new)

    def _remove_node(self, row: int, last: bool) -> None:
        """`last`: the row goes too; otherwise it stays vacant, as it was before the node came."""
        node = self.nodes[row]
        assert node is not None
        assert not self.residents[row]
        self._write_node(row, node, None)
        self.alive[row] = False
        self.unreadable[row] = 0
        del self.rows[node.name]
        if last:
            self.height -= 1
        else:
            self.vacant.append(row)
        self._fact(self._add_node, node, row)

    def _update_node(self, row: int, node: Node) -> None:
        old = self.nodes[row]
        assert old is not None
        self._write_node(row, old, node)
        self._done(self._update_node, row, old)

    def _write_node(self, row: int, old: Node | None, new: Node | None) -> None:
        self.nodes[row] = new
        self.hashes[row] = 0 if new is None else zlib.crc32(new.uid.encode())
        for key, before in self.labels.put(row, old, new):
            self.terms.relabelled(row, self.labels.columns[key], before)
        self._write_allocatable(row, old, new)
        taints = self.taint_sets.acquire(new.taints) if new is not None and new.taints else 0
        if self.taints[row]:
            self.taint_sets.release(int(self.taints[row]))
        self.taints[row] = taints
        self.unschedulable[row] = new is not None and new.unschedulable
        self._write_images(row, old, new)
        pods = (*(each.pod for each in self.residents[row].values()), *self.holds.on(row))
        self.pools.write(row, old, new, pods)
        self.estates.reach(row, new)
        if old is None or new is None or old.static != new.static:
            self.static_log.append(row)
        self.load_log.append(row)
        self.uses.log.append(row)
        if self._undo is None:
            self._compact()

    def _write_allocatable(self, row: int, old: Node | None, new: Node | None) -> None:
        amounts = new.allocatable if new is not None else {}
        self._add_resources([name for name in amounts if name not in self.resource_columns])
        line = self.allocatable[row]
        before = np.zeros_like(line) if old is None else line.copy()
        if old is not None:
            self.lacking.subtract(self._zeros(line))
        line[:] = 0
        for name, amount in amounts.items():
            line[self.resource_columns[name]] = amount
        line[SCORED_CPU], line[SCORED_MEMORY] = line[CPU], line[MEMORY]
        self.free[row] += line - before
        if new is not None:
            self.lacking.update(self._zeros(line))
        else:
            line[:] = 1  # nobody divides by a vacant row's zero
        self._note_lacked()

    def _note_lacked(self) -> None:
        self.lacked = frozenset(at for at, nodes in self.lacking.items() if nodes)

    def _zeros(self, line: Ints) -> list[int]:
        zeros: list[int] = np.flatnonzero(line[: len(self.resources)] == 0).tolist()
        return zeros

    def _write_images(self, row: int, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and old.images == new.images:
            return
        for name in (name for image in (old.images if old else ()) for name in image.names):
            holders = self.images.get(name)
            if holders is not None and holders.pop(row, None) is not None and not holders:
                del self.images[name]
            self._touch_image(name)
        for image in new.images if new else ():
            for name in image.names:
                self.images.setdefault(name, {})[row] = image.size_bytes
                self._touch_image(name)

    def _touch_image(self, name: str) -> None:
        self.facts_version += 1
        if name in self.images:
            self.image_versions[name] = self.facts_version
        else:
            self.image_versions.pop(name, None)

    def _recount_unreadable(self, name: str) -> None:
        row = self.rows.get(name)
        if row is not None:
            self.unreadable[row] = len(self.closed.get(name, ()))
            self._touch(name)

    def _touch(self, name: str) -> None:
        """What static plugins say about the node may be another now."""
        row = self.rows.get(name)
        if row is not None:
            self.static_log.append(row)
            self.load_log.append(row)

    def _touch_load(self, name: str) -> None:
        """What pods use on the node may be another now."""
        row = self.rows.get(name)
        if row is not None:
            self.load_log.append(row)

    def _on(self, name: str) -> Iterator[Pod]:
        """The pods of the node, and those for whom room is held there."""
        row = self.rows.get(name)
        if row is not None:
            yield from (resident.pod for resident in self.residents[row].values())
            yield from self.holds.on(row)

    def _use_ports(self, row: int, ports: tuple[HostPort, ...], sign: int) -> None:
        for port in ports:
            rows = self.ports.setdefault((port.protocol, port.port), {})
            ips = rows.setdefault(row, {})
            ips[port.ip] = ips.get(port.ip, 0) + sign
            if not ips[port.ip]:
                del ips[port.ip]
                if not ips:
                    del rows[row]
                    if not rows:
                        del self.ports[port.protocol, port.port]

    def tidy(self) -> None:
        """Where selectors have named more label keys than are worth keeping, their columns go; what
        is in use comes again, with other codes. To be called between questions."""
        if len(self.labels.columns) > MOST_COLUMNS and self._undo is None:
            for key in list(self.labels.columns):
                self._drop_column(key)

    def _drop_column(self, key: str) -> None:
        del self.labels.columns[key]
        self.terms.recoded(key)

    def _compact(self) -> None:
        """Forgets label values and taints of nodes that are long gone."""
        for column in self.labels.wasteful(self.node_count):
            column.codes = column.values.compact()[column.codes]
            self.terms.recoded(column.key)
        if len(self.taint_sets) > 2 * self.node_count + WASTE:
            self.taints = self.taint_sets.compact()[self.taints].astype(np.int32)

    # ---- terms

    def _count(self, resident: Resident, sign: int) -> None:
        for term in resident.matched:
            term.add_matched(resident.row, sign)

    def _fill(self, term: Term) -> None:
        """Count the placed pods that a new term matches."""
        for uid in self.index.candidates(term.key.parts[0].selector, self.pods):
            resident = self.pods[uid]
            if term.counts(resident.pod, self.terms.namespaces):
                resident.matched += (term,)
                term.add_matched(resident.row, 1)

    def _empty(self, term: Term) -> None:
        """Forget a dropped term on the pods that it counted."""
        for row in term.matched.by_row:
            for resident in self.residents[row].values():
                if term in resident.matched:
                    resident.matched = tuple(t for t in resident.matched if t is not term)

    def _by_namespace_selector(self, namespace: str) -> list[Resident]:
        """The pods of a namespace, if any term looks at namespace labels."""
        if not any(
            part.namespace_selector is not None and part.namespace_selector.requirements
            for key in self.terms.terms
            for part in key.parts
        ):
            return []
        return [r for r in self.pods.values() if r.pod.namespace == namespace]

    # ---- room

    def _grow(self, rows: int) -> None:
        more = rows - len(self.nodes)
        self.nodes += [None] * more
        self.residents += [{} for _ in range(more)]
        for name in COLUMNS:
            setattr(self, name, grown(getattr(self, name), rows))
        self._halve()
        self.labels.grow(rows)
        self.pools.grow(rows)

    def _add_resources(self, names: Iterable[str]) -> None:
        for name in names:
            column = self.resource_columns[name] = len(self.resources)
            self.resources.append(name)
            self._demands.clear()
            self.lacking[column] = self.node_count
            if column == self.free.shape[1]:
                spare = np.zeros((len(self.nodes), 8), dtype=np.int64)
                self.amounts = np.hstack((self.free, spare, self.allocatable, spare))
                self._halve()
                self.allocatable[self.vacant, column:] = 1
            self._note_lacked()

    def _halve(self) -> None:
        self.free, self.allocatable = np.hsplit(self.amounts, 2)
