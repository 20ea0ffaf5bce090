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

Kind = tuple[str, RowKey]
OF_DEVICES = ("gpu_percent", "copy_percent", "gpu_memory_mib")  # what others of a kind tell


def add_use(by_kind: dict[Kind, dict[str, dict[int, int]]], pod: Pod, sign: int) -> None:
    kind = (pod.namespace, pod.row.plain)
    fields = by_kind.setdefault(kind, {})
    for name in OF_DEVICES:
        value, counts = getattr(pod.use, name), fields.setdefault(name, {})
        counts[value] = counts.get(value, 0) + sign
        if not counts[value]:
            del counts[value]
    if not any(fields.values()):
        del by_kind[kind]


class Uses:
    # Not state: the log only grows, time is the driver's, and the rest is derived on demand.
    NOT_STATE = ("log", "day_s", "columns", "answers")

    def __init__(self) -> None:
        # by namespace and row key, of the pods that have a place: how many there are of each value
        self.by_kind: dict[Kind, dict[str, dict[int, int]]] = {}
        self.log = RowLog()  # rows whose use, devices or holders may be others
        self.day_s = 0.0  # the time of day at the last Tick; 0: nobody knows
        self.columns: Any = None
        # What rows say to pods, by what is asked, the least recently asked first.
        self.answers: OrderedDict[Hashable, Any] = OrderedDict()

    def count(self, pod: Pod, row: int, sign: int) -> None:
        """A pod whose use was seen comes to the row, or leaves it."""
        add_use(self.by_kind, pod, sign)
        self.log.append(row)

    def most(self, pod: Pod) -> PodUse | None:
        """Of devices, the most that placed pods of this one's kind were seen to use."""
        fields = self.by_kind.get((pod.namespace, pod.row.plain))
        return None if fields is None else PodUse(**{n: max(c) for n, c in fields.items()})
