"""Which NUMA zones a kubelet would give the containers of a pod, and whether it would at all.

As the topology manager merges hints: there must be one set of zones in which every resource that
has zones is free in all that is asked, and which for each of them has no more zones than it would
take on an empty node. `single-numa-node` wants a set of one. Of several sets the lowest is taken,
container by container, and nothing is taken back. The managers of cpus, memory and devices are
taken to be static; how a set of several zones is shared out among them is a guess: the lowest
first.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Literal

from bayplan.core.model.numa import Policy, Topology, is_zonal, together
from bayplan.core.model.pods import RowKey, ZoneAsk
from bayplan.core.state.cluster import Cluster

MOST_SETS = 4096  # of zones that are looked at; all that 12 zones have
Zones = Sequence[Mapping[str, int]]  # per zone what there is, by resource
Trouble = Literal["container", "init container", "pod"]


class Room:
    """A node's zones while containers are put into them."""

    def __init__(self, topology: Topology, free: Zones, at_most: Zones) -> None:
        """`at_most`: what each zone has when nobody is there."""
        self.policy: Policy = topology.policy
        self.free = [dict(zone) for zone in free]
        self.at_most = at_most
        self.zonal = {name for zone in free for name in zone}

    def sets(self, amounts: Sequence[tuple[str, int]]) -> Iterator[tuple[int, ...]]:
        """The sets of zones that would do, the lowest first."""
        asked = [(name, amount) for name, amount in amounts if name in self.zonal]
        if any(is_zonal(name) and name not in self.zonal for name, _ in amounts):
            return
        count = 1 if self.policy == "single-numa-node" else self._common_width(asked)
        every = combinations(range(len(self.free)), count) if count else ()
        for zones in islice(every, MOST_SETS):
            if all(self._sum(name, zones) >= amount for name, amount in asked):
                yield zones

    def take(self, amounts: Sequence[tuple[str, int]], zones: tuple[int, ...]) -> None:
        for name, amount in amounts:
            for zone in zones:
                there = self.free[zone].get(name)
                if there is not None:
                    taken = min(amount, max(there, 0))
                    self.free[zone][name] = there - taken
                    amount -= taken

    def _common_width(self, asked: Sequence[tuple[str, int]]) -> int:
        """How many zones each of the resources takes on an empty node; 0 where they differ."""
        widths = {self._width(name, amount) for name, amount in asked}
        return widths.pop() if len(widths) == 1 else 0 if widths else 1

    def _width(self, name: str, amount: int) -> int:
        """How many zones it takes on an empty node; 0: all of them do not do."""
        total = 0
        most = sorted((zone.get(name, 0) for zone in self.at_most), reverse=True)
        for count, more in enumerate(most, start=1):
            total += more
            if total >= amount:
                return count
        return 0

    def _sum(self, name: str, zones: tuple[int, ...]) -> int:
        return sum(self.free[zone].get(name, 0) for zone in zones)


def room_of(cluster: Cluster, node: str, row: RowKey) -> Room:
    """The node's zones. Of devices with ids, the node's inventory and their holders say more than
    what is published."""
    topology = cluster.zones.topologies[node]
    at_most = cluster.zones.at_most[node]
    room = Room(topology, cluster.zones.free(node), at_most)
    if row.devices:
        more = [dict(zone) for zone in at_most]
        for named in _wholes(row):
            _add_devices(cluster, node, named, room, more)
        room.at_most = more
    return room


def trouble(cluster: Cluster, node: str, row: RowKey) -> Trouble | None:
    """What of the pod the kubelet could not align.

    While nobody knows in which zones some pods of the node are, a lower zone may have more room
    than is known here, and containers may go elsewhere than is worked out. Then there must be room
    for all of them together: wherever the first ones go, the others find it.
    """
    room = room_of(cluster, node, row)
    everything = together(row.aligned)
    if cluster.zones.topologies[node].scope == "pod":
        return None if next(room.sets(everything), None) is not None else "pod"
    if len(row.aligned) > 1 and next(cluster.zones.uncounted(node), None) is not None:
        return None if next(room.sets(everything), None) is not None else "container"
    for ask in row.aligned:
        if take_container(room, ask) is None:
            return "container" if ask.phase == "main" else "init container"
    return None


def take_container(room: Room, ask: ZoneAsk) -> tuple[int, ...] | None:
    """The zones that the container gets. What init containers had is free again after them."""
    zones = next(room.sets(ask.amounts), None)
    if zones is not None and ask.phase != "init":
        room.take(ask.amounts, zones)
    return zones


def zones_for_devices(cluster: Cluster, node: str, row: RowKey, resource: str) -> set[int] | None:
    """The zones, by number, that devices of the resource must come from; None: any.

    Where several containers of a pod ask for it and each has zones of its own, nothing is said.
    """
    topology = cluster.zones.topologies.get(node)
    if topology is None or not topology.refuses or topology.unknown or not row.aligned:
        return None
    room = room_of(cluster, node, row)
    if resource not in room.zonal:
        return None
    asking = [ask for ask in row.aligned if any(name == resource for name, _ in ask.amounts)]
    zones: tuple[int, ...] | None = None
    if topology.scope == "pod":
        zones = next(room.sets(together(row.aligned)), None)
    elif len(asking) == 1:
        for ask in row.aligned:
            zones = take_container(room, ask)
            if ask is asking[0] or zones is None:
                break
    return None if zones is None else {topology.zones[zone].number for zone in zones}


def _wholes(row: RowKey) -> list[tuple[str, str]]:
    """By resource and class."""
    asks = (ask for ask in row.devices if ask.kind == "whole" and not ask.consecutive)
    return list(dict.fromkeys((ask.resource, ask.device_class) for ask in asks))


def _add_devices(
    cluster: Cluster, node: str, named: tuple[str, str], room: Room, at_most: list[dict[str, int]]
) -> None:
    """Devices in the zones that the node's inventory puts them in, unless less is published."""
    resource, device_class = named
    row = cluster.rows[node]
    table, seen = cluster.pools.tables.get(device_class), cluster.nodes[row]
    pool = next((p for p in (seen.pools if seen else ()) if p.device_class == device_class), None)
    if table is None or pool is None or all(device.numa < 0 for device in pool.devices):
        return
    free = table.free_wholes(row)
    for at, zone in enumerate(cluster.zones.topologies[node].zones):
        here = [i for i, device in enumerate(pool.devices) if device.numa == zone.number]
        count = sum(i in free for i in here)
        room.free[at][resource] = min(count, dict(zone.available).get(resource, count))
        at_most[at][resource] = sum(pool.devices[i].healthy for i in here)
    room.zonal.add(resource)
