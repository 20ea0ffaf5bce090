"""What is in use of each node's Neuron devices, written on the node for people and other software.

Nobody here reads it: what is in use follows from the pods. A map that somebody changed or removed
is written again. Nodes are written one at a time, each not more often than every few seconds; a map
is worth less than a bind. So while pods are being bound, only nodes where something became free are
written: that also tells kube-scheduler, which may have asked too early, to ask again.
"""

import logging
from collections.abc import Callable

import msgspec

from bayplan.core.model.dialects import NEURON_CORE_MAP, NEURON_DEVICE_MAP
from bayplan.core.model.holdings import unsaid
from bayplan.core.model.nodes import Node
from bayplan.core.model.vendors import Vendors
from bayplan.core.state.cluster import Cluster
from bayplan.kube.client import NODES, Client
from bayplan.kube.transport import MERGE_PATCH, ApiError, Fenced, TransportError
from bayplan.scheduler.fence import Fence

log = logging.getLogger("bayplan")

LOOK_S = 1.0
EVERY_S = 5.0  # per node
LATE_S = 60.0  # a map waits no longer than this for binds to end
PASSED, LOOKED = 1, 16  # what it costs to pass by a node, and to look at it, in some 1.5 µs
AT_ONCE = 256  # so much between two turns of others
FORBIDDEN_S = 600.0  # until it is tried again without the right


class UsageMaps:
    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        vendors: Vendors,
        fence: Fence,
        binds: Callable[[], int] = lambda: 0,  # how many there were
    ) -> None:
        self._cluster, self._client, self._clock = cluster, client, client.clock
        self._fence, self._binds, self._last_binds = fence, binds, 0
        self.classes = [c.name for c in vendors.classes.values() if "neuron" in c.dialects]
        self._position = -1  # in the log of changes
        self._due: dict[int, float] = {}  # rows to be looked at: since when
        self._changed: set[int] = set()  # of those, since the last look at what is free
        self._free: dict[int, int] = {}  # by row: what was free when it was looked at last
        self._written: dict[str, float] = {}  # by node: when; not long ago
        self.writes = 0

    async def run(self, leads: Callable[[], bool]) -> None:
        """Until cancelled."""
        while self.classes:
            pause = LOOK_S
            if leads() and self._fence.is_open:
                pause = await self._round()
            else:
                self._position = -1  # whoever led meanwhile may have written
            await self._clock.sleep(pause)

    async def _round(self) -> float:
        self._hear()
        now = self._clock.time()
        self._written = {name: at for name, at in self._written.items() if now - at < EVERY_S}
        binds, self._last_binds = self._last_binds, self._binds()
        spent, is_busy = 0, binds != self._last_binds
        for row, since in list(self._due.items()):
            if spent >= AT_ONCE:
                spent = 0
                await self._clock.sleep(0.0)  # the others' turn
            spent += PASSED
            node = self._cluster.nodes[row] if row < len(self._cluster.nodes) else None
            if node is not None and node.name in self._written:
                continue
            is_busy = is_busy or self._binds() != self._last_binds
            if is_busy and now - since < LATE_S and not self._has_freed(row):
                continue
            del self._due[row]
            self._free[row] = self._free_on(row)
            spent += LOOKED
            wanted = {} if node is None else self.maps(row, node)
            if node is None or not wanted or wanted == node.maps:
                continue
            try:
                await self._write(node.name, wanted)
            except ApiError as error:
                if error.status == 403:
                    log.warning("going without maps of Neuron devices in use: %s", error)
                    self._due[row] = since
                    return FORBIDDEN_S
                if error.status != 404:
                    self._due[row] = since
            except TransportError:
                self._due[row] = since
            except Fenced:
                self._due[row] = since
                break
        return LOOK_S

    def _hear(self) -> None:
        """Which rows have changed since the last look."""
        log_of = self._cluster.load_log
        if not any(name in self._cluster.pools.ordered for name in self.classes):
            self._position = log_of.head
            return
        rows = log_of.since(self._position) if self._position >= 0 else None
        every = range(self._cluster.height) if rows is None else rows.tolist()
        now = self._clock.time()
        for row in every:
            self._due.setdefault(row, now)
            if row not in self._free:
                self._free[row] = self._free_on(row)
        self._changed.update(every)
        self._position = log_of.head

    def _has_freed(self, row: int) -> bool:
        """Whether something is free that was not at the last look."""
        if row not in self._changed:
            return False
        self._changed.discard(row)
        before, self._free[row] = self._free[row], self._free_on(row)
        return bool(self._free[row] & ~before)

    def _free_on(self, row: int) -> int:
        tables = (self._cluster.pools.ordered.get(name) for name in self.classes)
        return sum([table.free[row] for table in tables if table is not None])

    def maps(self, row: int, node: Node) -> dict[str, str]:
        """As they should stand on the node; empty where it has no such devices."""
        for pool in node.pools:
            if pool.device_class not in self.classes or pool.layout is None or pool.unknown:
                continue
            table, cores = self._cluster.pools.ordered[pool.device_class], pool.layout.cores
            used: set[int] = set()
            for resident in self._cluster.residents[row].values():
                holding = resident.pod.held or unsaid(resident.pod.row.devices)
                for part in holding.parts:
                    if part.device_class == pool.device_class:
                        used.update(table.positions[row].get(part.id, ()))
                if pool.device_class in holding.unknown:
                    used.update(range(len(pool.devices) * cores))
            last = pool.layout.indexes[-1] if pool.layout.indexes else -1
            by_core = [False] * ((last + 1) * cores)
            for at in used:
                by_core[pool.layout.indexes[at // cores] * cores + at % cores] = True
            devices = [any(by_core[i * cores : (i + 1) * cores]) for i in range(last + 1)]
            return {NEURON_DEVICE_MAP: _text(devices), NEURON_CORE_MAP: _text(by_core)}
        return {}

    async def _write(self, name: str, wanted: dict[str, str]) -> None:
        self._written[name] = self._clock.time()
        await self._client.request(
            "PATCH",
            NODES.path(name=name, sub="status"),
            body=msgspec.json.encode({"metadata": {"annotations": wanted}}),
            content_type=MERGE_PATCH,
            before_send=self._fence.check,
        )
        self.writes += 1


def _text(used: list[bool]) -> str:
    return ",".join("true" if each else "false" for each in used)
