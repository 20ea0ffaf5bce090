"""Partitions: refuses nodes that reach no estate with a free block of the size that the pod asks
for, scores what the block costs the estate, and plans the devices. A pod has one partition, which
its containers share; the controller that makes it may choose other devices than planned.

The score is the model's cost as 0 to 99, of the best estate that the node reaches.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bayplan.core.devices import partition
from bayplan.core.devices.shared import Policy
from bayplan.core.model.devices import Held
from bayplan.core.model.holdings import at_once
from bayplan.core.model.partitions import divided
from bayplan.core.model.pods import RowKey
from bayplan.core.model.verdicts import EventKind, Reason
from bayplan.core.plugins import hooks
from bayplan.core.plugins.hooks import Ask, Reads
from bayplan.core.plugins.resources import FREED
from bayplan.core.state.arrays import Codes, Ints
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.estates import Line
from bayplan.core.state.view import View

# Below 0 in place of a score, the more hopeful the higher; and the bit of the reason.
SHORT, REFUSED, CLOSED, NEVER, NONE = -1, -2, -3, -4, -5
_SAID = frozenset({*FREED, EventKind.NODE_CHANGED})


class PartitionsArgs(Struct, frozen=True, forbid_unknown_fields=True):
    policy: Policy = "binpack"


class Partitions:
    name = "Partitions"
    reads = Reads.LOAD
    Args = PartitionsArgs

    def __init__(self, args: PartitionsArgs = PartitionsArgs()) -> None:  # noqa: B008
        self._policy: Policy = args.policy

    def concerns(self, row: RowKey) -> bool:
        return bool(row.partitions)

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        looks = self._looks(ask, view)
        if looks is None:
            return None
        bits = np.left_shift(1, np.maximum(-looks, 1) - 1)
        codes: Codes = np.where(looks >= 0, 0, bits)
        return codes

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        asks = ask.row.partitions
        what = f"{at_once(asks)} {asks[0].resource}" if asks else ""
        return (
            Reason(f"node(s) had no free partition of {what}", True, _SAID),
            Reason(f"node(s) reach a controller that refused a partition of {what}", False, _SAID),
            Reason(f"node(s) reach a controller for {what} that does not answer", False, _SAID),
            Reason(f"node(s) never have a partition of {what}", False, _SAID),
            Reason(f"node(s) reach no controller for {what}", False, _SAID),
        )

    def score(self, ask: Ask, view: View) -> Ints | None:
        looks = self._looks(ask, view)
        return None if looks is None else np.maximum(looks, 0)

    def choose(self, ask: Ask, row: int, cluster: Cluster) -> Sequence[Held]:
        asks = ask.row.partitions
        if not asks:
            return ()
        size, name = at_once(asks), asks[0].device_class
        lines = [each for each in cluster.estates.reached(row) if each.estate.device_class == name]
        line = max(lines, key=lambda line: self._look(line, size))
        block = partition.choose(line.estate.spots, line.free, size)
        assert block is not None, f"a partition of {size} was found to fit on row {row}"
        devices = [line.estate.devices[at] for at in partition.numbers(block)]
        return divided(asks, line.estate.name, devices)

    def _looks(self, ask: Ask, view: View) -> Ints | None:
        """Per row the best score, or why there is none; None: the pod asks for no partition."""
        asks = ask.row.partitions
        if not asks:
            return None
        if self not in view.answers:
            size = at_once(asks)
            looks = np.full(len(view), NONE, dtype=np.int64)
            position = {row: at for at, row in enumerate(view.row_numbers.tolist())}
            lines = view.cluster.estates.lines.values()
            name = asks[0].device_class
            for line in (each for each in lines if each.estate.device_class == name):
                look = self._look(line, size)
                here = [position[row] for row in line.rows if row in position]
                looks[here] = np.maximum(looks[here], look)
            view.answers[self] = looks
        found: Ints = view.answers[self]
        return found

    def _look(self, line: Line, size: int) -> int:
        if line.closed:
            return CLOSED
        look = partition.look(line.estate.spots, line.free, size, self._policy)
        if look >= 0:
            return REFUSED if line.refuses(size) else look
        return SHORT if look == partition.SHORT else NEVER


_: type[hooks.Filter] = Partitions
_score: type[hooks.Score] = Partitions
_choose: type[hooks.Choose] = Partitions
