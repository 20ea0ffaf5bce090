"""A node appears or changes: what is known of it, and whom that may help."""

from msgspec.structs import replace

from bayplan.core.engine import doubts
from bayplan.core.model import effects as do
from bayplan.core.model.nodes import Node
from bayplan.core.model.verdicts import EventKind
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.waiting import Waiting


class Nodes:
    def __init__(self, cluster: Cluster, waiting: Waiting) -> None:
        self._cluster, self._waiting = cluster, waiting

    def see(self, node: Node, now: float) -> list[do.Effect]:
        row = self._cluster.rows.get(node.name)
        if row is None:
            self._cluster.add_node(node)
            self._waiting.wake((EventKind.NODE_ADDED,), now)
            return list(doubts.of_node(self._cluster, node))
        old = self._cluster.nodes[row]
        assert old is not None
        if old == node:
            return []
        if old.maps != node.maps and old == replace(node, maps=old.maps):
            self._cluster.note_maps(row, node.maps)
            return []
        if old == replace(node, use=old.use):
            self._cluster.note_use(row, node.use)
            self._waiting.wake((EventKind.USE_CHANGED,), now)
            return []
        if old.uid != node.uid:  # deleted and made again under the same name
            self._cluster.remove_node(node.name)
            self._cluster.add_node(node)
            self._waiting.wake((EventKind.NODE_ADDED, EventKind.NODE_CHANGED), now)
            return list(doubts.of_node(self._cluster, node))
        self._cluster.update_node(node)
        kinds = []
        if old.allocatable != node.allocatable and self._start_afresh(old, node):
            kinds.append(EventKind.NODE_FORGIVEN)
        if old.static != node.static:
            kinds.append(EventKind.NODE_CHANGED)
        grew = any(old.allocatable.get(n, 0) < amount for n, amount in node.allocatable.items())
        if grew or old.pools != node.pools:
            kinds.append(EventKind.NODE_GREW)
        if old.use != node.use:
            kinds.append(EventKind.USE_CHANGED)
        self._waiting.wake(kinds, now)
        for held in self._cluster.holds.on(row) if kinds else ():  # they may have lost their place
            if held.uid in self._waiting.pods:
                self._waiting.rouse(held.uid, now)
        return [] if old.pools == node.pools else list(doubts.of_node(self._cluster, node))

    def _start_afresh(self, old: Node, new: Node) -> bool:
        """A kubelet that counts otherwise now is trusted again."""
        names = old.allocatable.keys() | new.allocatable.keys()
        changed = {n for n in names if old.allocatable.get(n, 0) != new.allocatable.get(n, 0)}
        return self._cluster.distrusted.forgive(new.name, changed)
