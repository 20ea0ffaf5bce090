"""What was measured of the use of devices, beside what stands on the nodes themselves.

Nodes carry what a profiler said of them. Here is what the pods of each kind were seen to use, which
says something of the next pod of that kind, and from where on columns must be made anew. The
columns are `devices.usecolumns`'s, and are only made where a profile asks for them.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.model.utilisation import PodUse
from bayplan.core.state.arrays import RowLog


class Uses:
    # Not state: the log only grows, time is the driver's, and the rest is derived on demand.
    NOT_STATE = ("log", "day_s", "columns", "answers")

    def __init__(self) -> None:
        # by namespace and row key, then uid: of the pods that have a place
        self.by_kind: dict[tuple[str, RowKey], dict[str, PodUse]] = {}
        self.log = RowLog()  # rows whose use, devices or holders may be others
        self.day_s = 0.0  # the time of day at the last Tick; 0: nobody knows
        self.columns: Any = None
        # What rows say to pods, by what is asked, the least recently asked first.
        self.answers: OrderedDict[Hashable, Any] = OrderedDict()

    def count(self, pod: Pod, row: int, sign: int) -> None:
        """The pod comes to the row, or leaves it."""
        if pod.use is not None:
            kind = (pod.namespace, pod.row.plain)
            if sign > 0:
                self.by_kind.setdefault(kind, {})[pod.uid] = pod.use
            else:
                del self.by_kind[kind][pod.uid]
                if not self.by_kind[kind]:
                    del self.by_kind[kind]
        if pod.use is not None or pod.held is not None or pod.row.devices:
            self.log.append(row)
