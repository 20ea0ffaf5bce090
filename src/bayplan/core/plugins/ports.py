"""Host ports."""

from collections.abc import Sequence

import numpy as np

from bayplan.core.model.pods import RowKey
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins.hooks import Ask, Filter, Reads
from bayplan.core.state.arrays import Codes
from bayplan.core.state.view import View

ANY_IP = "0.0.0.0"


class NodePorts:
    """Refuses nodes where one of the pod's host ports is taken on the same address."""

    name = "NodePorts"
    reads = Reads.LOAD

    def concerns(self, row: RowKey) -> bool:
        return bool(row.ports)

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        taken: set[int] = set()
        for port in ask.row.ports:
            users = view.cluster.ports.get((port.protocol, port.port), {})
            few = view.rows is not None and len(view) < len(users)
            for row in view.row_numbers.tolist() if few else users:
                ips = users.get(row, ())
                if ips and (port.ip == ANY_IP or ANY_IP in ips or port.ip in ips):
                    taken.add(row)
        if not taken:
            return None
        return np.isin(view.row_numbers, list(taken)).astype(np.int64)

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        helped = frozenset({EventKind.NODE_ADDED, EventKind.POD_GONE})
        text = "node(s) didn't have free ports for the requested pod ports"
        return (Reason(text, True, helped),)


_: type[Filter] = NodePorts
