"""Nodes whose kubelet refused a pod a short while ago."""

from collections.abc import Sequence

import numpy as np

from bayplan.core.model.numa import unaligned, without_kind
from bayplan.core.model.pods import RowKey
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import Ask, Filter, Reads
from bayplan.core.state.arrays import Codes
from bayplan.core.state.view import View

HELPED_BY = frozenset({EventKind.NODE_ADDED, EventKind.NODE_FORGIVEN})


class NodeAccepts:
    """Refuses nodes that are closed to pods which ask for a resource, since their kubelet refused
    one for want of it although by our count there was enough."""

    name = "NodeAccepts"
    reads = Reads.STATIC

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        cluster = view.cluster
        names = asked(ask.row)
        closed: dict[int, int] = {}  # row: bits
        for node, kept in cluster.distrusted.nodes.items():
            bits = 0
            for bit, name in enumerate(names):
                if name in kept and kept[name].closed:
                    bits |= 1 << bit
            if bits:
                closed[cluster.rows[node]] = bits
        if not closed:
            return None
        codes = np.zeros(cluster.height, dtype=np.int64)
        codes[list(closed)] = list(closed.values())
        return codes if view.rows is None else codes[view.rows]

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return [
            Reason(f"node(s) refused a pod for {without_kind(name)} recently", False, HELPED_BY)
            for name in asked(ask.row)
        ]


def asked(row: RowKey) -> list[str]:
    """By name. Of zones, what the same containers were refused for: others may fit."""
    zones = [unaligned(row.aligned)] if row.aligned else []
    return ["pods", *(name for name, _ in row.requests), *zones]


_: type[Filter] = NodeAccepts
