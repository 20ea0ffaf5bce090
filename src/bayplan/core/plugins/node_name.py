"""Nodes by name, nodes that are cordoned, and nodes that hold a pod that nobody can read."""

from collections.abc import Sequence

import numpy as np

from bayplan.core.model.selectors import Taint
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import Ask, Filter, Reads
from bayplan.core.state.arrays import Codes
from bayplan.core.state.view import View

CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class NodeName:
    """Refuses every node but the one that the pod names."""

    name = "NodeName"
    reads = Reads.STATIC

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        if not ask.row.node_name:
            return None
        return (~view.named((ask.row.node_name,))).view(np.int8)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        text = "node(s) didn't match the requested node name"
        return (Reason(text, False, frozenset({EventKind.NODE_ADDED})),)


class NodeUnschedulable:
    """Refuses cordoned nodes, unless the pod tolerates the cordon's taint."""

    name = "NodeUnschedulable"
    reads = Reads.STATIC

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        if any(toleration.tolerates(CORDON) for toleration in ask.row.tolerations):
            return None
        return view.unschedulable.view(np.int8)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        helped = frozenset({EventKind.NODE_ADDED, EventKind.NODE_CHANGED})
        return (Reason("node(s) were unschedulable", False, helped),)


class NodeReadable:
    """Refuses nodes with a bound pod that cannot be understood: what it uses is not known."""

    name = "NodeReadable"
    reads = Reads.STATIC

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        cluster = view.cluster
        if not cluster.closed:
            return None
        return (cluster.unreadable[view.row_numbers] > 0).astype(np.int64)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        helped = frozenset({EventKind.NODE_ADDED, EventKind.NODE_CHANGED})
        return (Reason("node(s) had a pod that cannot be read", False, helped),)


_: tuple[type[Filter], ...] = (NodeName, NodeUnschedulable, NodeReadable)
