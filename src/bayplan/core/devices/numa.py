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

from bayplan.core.model.numa import Policy, Topology, is_memory, together
from bayplan.core.model.pods import RowKey, ZoneAsk
from bayplan.core.state.cluster import Cluster

MOST_SETS = 4096  # of zones that are looked at; all that 12 zones have
Zones = Sequence[Mapping[str, int]]  # per zone what there is, by resource
Amounts = Sequence[tuple[str, int]]
Trouble = Literal["container", "init container", "pod"]


class Room:
    """A node's zones while containers are put into them."""

    def __init__(self, topology: Topology, free: Zones, at_most: Zones) -> None:
        """`at_most`: what each zone has when nobody is there."""
        self.policy: Policy = topology.policy
        self.free = [dict(zone) for zone in free]
        self.at_most = at_most
        self.zonal = {name for zone in free for name in zone}
        if not any(
            name == "cpu" and amount for z in topology.zones for name, amount in z.allocatable
        ):
            self.zonal.discard("cpu")  # of a kubelet that gives nobody cpus of their own
        self.reusable: dict[tuple[str, int], int] = {}  # by resource and zone: see `lend`

    def asked(self, amounts: Amounts) -> Amounts:
        """What of it is in zones. What no zone lists belongs to the node as a whole."""
        return [(name, amount) for name, amount in amounts if name in self.zonal]

    def sets(self, amounts: Amounts) -> Iterator[tuple[int, ...]]:
        """The sets of zones that would do, the lowest first; the empty one, where any would."""
        asked = self.asked(amounts)
        if not asked:
            yield ()
            return
        count = 1 if self.policy == "single-numa-node" else self._common_width(asked)
        names = {name for name, _ in asked}
        needed = {zone for (name, zone), left in self.reusable.items() if left and name in names}
        every = combinations(range(len(self.free)), count) if count else ()
        for zones in islice(every, MOST_SETS):
            if needed <= set(zones) and fits(self.free, asked, zones):
                yield zones

    def take(self, amounts: Amounts, zones: tuple[int, ...]) -> None:
        for name, zone, taken in self._shared_out(amounts, zones):
            self.free[zone][name] -= taken
            left = self.reusable.get((name, zone), 0)
            self.reusable[name, zone] = max(left - taken, 0)

    def lend(self, amounts: Amounts, zones: tuple[int, ...]) -> None:
        """Of an init container: its cpus and devices are for the containers after it, and whoever
        of these asks for any must have all their zones, until they are taken."""
        for name, zone, taken in self._shared_out(amounts, zones):
            if not is_memory(name):
                left = self.reusable.get((name, zone), 0)
                self.reusable[name, zone] = max(left, taken)

    def _shared_out(
        self, amounts: Amounts, zones: tuple[int, ...]
    ) -> Iterator[tuple[str, int, int]]:
        """By resource and zone, the lowest first."""
        for name, amount in amounts:
            for zone in zones:
                taken = min(amount, max(self.free[zone].get(name, 0), 0))
                if taken:
                    yield name, zone, taken
                    amount -= taken

    def _common_width(self, asked: Amounts) -> int:
        """How many zones each of the resources takes on an empty node; 0 where they differ.
        Memory and huge pages come from the same zones, so they have one width."""
        memory = [each for each in asked if is_memory(each[0])]
        widths = {self._width([each]) for each in asked if each not in memory}
        if memory:
            widths.add(self._width(memory))
        return widths.pop() if len(widths) == 1 else 0

    def _width(self, asked: Amounts) -> int:
        """How many zones it takes on an empty node; 0: all of them do not do."""
        every = range(len(self.at_most))
        count = max(self._least(name, amount) for name, amount in asked)
        if len(asked) == 1 or not count:
            return count
        for width in range(count, len(every) + 1):
            sets = islice(combinations(every, width), MOST_SETS)
            if any(fits(self.at_most, asked, zones) for zones in sets):
                return width
        return 0

    def _least(self, name: str, amount: int) -> int:
        """How many zones one resource takes on an empty node; above all where these do not do."""
        total = 0
        most = sorted((zone.get(name, 0) for zone in self.at_most), reverse=True)
        for count, more in enumerate(most, start=1):
            total += more
            if total >= amount:
                return count
        return len(most) + 1


def fits(there: Zones, asked: Amounts, zones: tuple[int, ...]) -> bool:
    return all(sum(there[zone].get(n, 0) for zone in zones) >= amount for n, amount in asked)


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
    """What of the pod the kubelet could not align."""
    room = room_of(cluster, node, row)
    if cluster.zones.topologies[node].scope == "pod":
        return None if next(room.sets(together(row.aligned)), None) is not None else "pod"
    if len(row.aligned) > 1 and next(cluster.zones.uncounted(node), None) is not None:
        return None if fits_anyhow(cluster.zones.topologies[node], room, row) else "container"
    for ask in row.aligned:
        if take_container(room, ask) is None:
            return "container" if ask.phase == "main" else "init container"
    return None


def fits_anyhow(topology: Topology, room: Room, row: RowKey) -> bool:
    """Whether the containers fit wherever the kubelet puts the first ones.

    While nobody knows in which zones some pods of the node are, a lower zone may have more room
    than is known here, and containers may go elsewhere than is worked out. Then there must be room
    for all of them together: wherever the first ones go, the others find it. Only init containers
    bind the others to their zones, so wherever one may go there must be room for all.
    """
    fitting = list(room.sets(together(row.aligned)))
    firsts = [binding for ask in row.aligned if (binding := binds(room, ask))]
    if not firsts:
        return bool(fitting)
    most = Room(topology, [dict(zone.available) for zone in topology.zones], room.at_most)
    for name in room.zonal - most.zonal:  # devices, of which more is known
        for zone, there in zip(most.free, room.free, strict=True):
            zone[name] = there.get(name, 0)
    most.zonal = room.zonal
    starts = {zones for asked in firsts for zones in most.sets(asked)}
    alike = len({tuple(name for name, _ in asked) for asked in firsts}) == 1
    return bool(starts) and starts <= set(fitting) and (alike or len(starts) == 1)


def binds(room: Room, ask: ZoneAsk) -> Amounts:
    """What the container asks for, if others will have to have its zones."""
    asked = room.asked(ask.amounts) if ask.phase == "init" else ()
    return asked if any(not is_memory(name) for name, _ in asked) else ()


def take_container(room: Room, ask: ZoneAsk) -> tuple[int, ...] | None:
    """The zones that the container gets."""
    zones = next(room.sets(ask.amounts), None)
    if zones is not None and ask.phase == "init":
        room.lend(ask.amounts, zones)
    elif zones is not None:
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
        at_most[at][resource] = len(here)  # whether they are well or not
    room.zonal.add(resource)
