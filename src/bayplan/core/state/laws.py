"""The laws of the state: what must hold after every step, said as code.

`broken` recomputes everything that is counted or indexed from the nodes and the placed pods alone.
`picture` walks the whole object, so that an attribute that is added later is compared too, unless
its class says in NOT_STATE that it is a log, a version, or derived on demand; and what is derived
is recomputed by `broken`.
"""

import math
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from bayplan.core.model.holdings import unsaid
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.state.census import Census
from bayplan.core.state.cluster import Cluster, Resident
from bayplan.core.state.demand import CPU, MEMORY, SCORED_CPU, SCORED_MEMORY
from bayplan.core.state.deviceclasses import IMPLICIT
from bayplan.core.state.estates import Line, is_head
from bayplan.core.state.ordered import Ordered
from bayplan.core.state.pools import ARRAYS, Table
from bayplan.core.state.terms import Count, OwnTerms, Role, Term, TermTable
from bayplan.core.state.uses import add_use


def broken(cluster: Cluster) -> list[str]:
    """The laws that do not hold, one sentence each; empty when all is well."""
    return [
        *_rows(cluster),
        *_amounts(cluster),
        *_static(cluster),
        *_pods(cluster),
        *_holds(cluster),
        *_storage(cluster),
        *_classes_and_trust(cluster),
        *_zones(cluster),
        *_uses(cluster),
        *_pools(cluster),
        *_estates(cluster),
        *_terms(cluster),
    ]


def picture(cluster: Cluster) -> Any:
    """A comparable copy of the whole state. Arrays are cut to the rows and resources in use."""
    return _Walk(cluster.height, len(cluster.resources)).attributes(cluster)


VALUES = "bayplan.core.model."


class _Walk:
    """Renders an object attribute by attribute, all the way down."""

    def __init__(self, height: int, width: int) -> None:
        self._height = height
        self._width = width

    def attributes(self, thing: Any) -> Any:
        hidden = getattr(thing, "NOT_STATE", ())
        shown = {name: value for name, value in vars(thing).items() if name not in hidden}
        if isinstance(thing, TermTable):  # elsewhere, terms are only referred to
            for name in ("terms", "own"):
                shown[name] = {key: self.attributes(term) for key, term in shown[name].items()}
        return (type(thing).__name__, {name: self.of(value) for name, value in shown.items()})

    def of(self, thing: Any) -> Any:
        if thing is None or isinstance(thing, str | int | float | bool | bytes | Enum):
            return thing
        if isinstance(thing, np.ndarray):
            used = thing[: self._height]
            return (str(thing.dtype), (used[:, : self._width] if used.ndim > 1 else used).tolist())
        if isinstance(thing, Counter):
            return {key: count for key, count in thing.items() if count}
        if isinstance(thing, dict):
            return {key: self.of(value) for key, value in thing.items()}
        if isinstance(thing, set | frozenset):
            return set(thing)
        if isinstance(thing, list | tuple) and thing and isinstance(thing[0], Term):
            return {term.key for term in thing}  # their order means nothing
        if isinstance(thing, tuple):
            return tuple(self.of(item) for item in thing)
        if isinstance(thing, list):
            one_per_row = bool(thing) and isinstance(thing[0], dict | Node | None)
            return [self.of(item) for item in thing[: self._height if one_per_row else len(thing)]]
        if isinstance(thing, Table):
            return self.table(thing)
        if isinstance(thing, Ordered):
            return self.ordered(thing)
        if isinstance(thing, Term):
            return ("Term", thing.key)
        if isinstance(thing, OwnTerms):
            return ("OwnTerms", thing.terms)
        if isinstance(thing, Struct):
            if type(thing).__module__.startswith(VALUES):
                return thing  # nobody changes those
            return (type(thing).__name__, tuple(self.of(field) for field in astuple(thing)))
        return self.attributes(thing)

    def table(self, table: Table) -> Any:
        """Without the columns that no pool is wide enough for."""
        positions = table.positions[: self._height]
        width = max((at + 1 for each in positions for at in each.values()), default=0)
        arrays = {name: getattr(table, name)[: self._height] for name in ARRAYS}
        shown = {name: a[..., :width] if a.ndim > 1 else a for name, a in arrays.items()}
        listed = {name: array.tolist() for name, array in shown.items()}
        return ("Table", listed, table.usable[: self._height], positions, table.pools)

    def ordered(self, table: Ordered) -> Any:
        shown = {name: value for name, value in vars(table).items() if name != "pools"}
        lines = {name: [*value[: self._height]] for name, value in shown.items()}
        lines["holders"] = [list(line) for line in lines["holders"]]
        return ("Ordered", lines, table.pools)


def _rows(cluster: Cluster) -> Iterator[str]:
    named = {node.name: row for row, node in enumerate(cluster.nodes) if node is not None}
    if named != cluster.rows:
        yield f"rows {cluster.rows} are not those of the nodes, {named}"
    alive = [row for row in range(cluster.height) if cluster.alive[row]]
    if sorted(named.values()) != alive:
        yield f"rows with a node {sorted(named.values())} are not those alive, {alive}"
    empty = sorted(set(range(cluster.height)) - set(alive))
    if sorted(cluster.vacant) != empty:
        yield f"vacant rows {sorted(cluster.vacant)} are not the empty ones, {empty}"


def _amounts(cluster: Cluster) -> Iterator[str]:
    """free = allocatable − held, on every row."""
    lacking: Counter[int] = Counter()
    for name, row in cluster.rows.items():
        node = cluster.nodes[row]
        assert node is not None
        total = np.zeros(cluster.free.shape[1], dtype=np.int64)
        for resource, amount in node.allocatable.items():
            total[cluster.resource_columns[resource]] = amount
        total[SCORED_CPU], total[SCORED_MEMORY] = total[CPU], total[MEMORY]
        if (cluster.allocatable[row] != total).any():
            yield f"allocatable of {name} is not what the node says"
        lacking.update(np.flatnonzero(total[: len(cluster.resources)] == 0).tolist())
        for pod in _counting(cluster, row):
            total -= cluster.demand(pod.row).take
        if (cluster.free[row] != total).any():
            yield f"free of {name} is {cluster.free[row].tolist()}, not {total.tolist()}"
    if +lacking != +cluster.lacking or frozenset(+lacking) != cluster.lacked:
        yield f"columns lacking {+cluster.lacking} are not {+lacking}"


def _counting(cluster: Cluster, row: int) -> Iterator[Pod]:
    """Who uses the row, or will."""
    yield from (resident.pod for resident in cluster.residents[row].values())
    yield from cluster.holds.on(row)


def _holds(cluster: Cluster) -> Iterator[str]:
    holds = cluster.holds
    listed = {uid: row for row, pods in holds.pods.items() for uid in pods}
    if listed != holds.rows or not all(holds.pods.values()):
        yield f"holds by pod {holds.rows} are not those by row {listed}"
    for uid, row in holds.rows.items():
        if cluster.nodes[row] is None or uid in cluster.pods:
            yield f"something is held for pod {uid} without need"


def _static(cluster: Cluster) -> Iterator[str]:
    images: dict[str, dict[int, int]] = {}
    for name, row in cluster.rows.items():
        node = cluster.nodes[row]
        assert node is not None
        taints = cluster.taint_sets.values[cluster.taints[row]] or ()
        if taints != node.taints or bool(cluster.unschedulable[row]) != node.unschedulable:
            yield f"taints or cordon of {name} are not what the node says"
        if cluster.unreadable[row] != len(cluster.closed.get(name, ())):
            yield f"unreadable pods of {name} are miscounted"
        for key, column in cluster.labels.columns.items():
            if column.values.values[column.codes[row]] != node.labels.get(key):
                yield f"label {key} of {name} is not what the node says"
        for image in node.images:
            for image_name in image.names:
                images.setdefault(image_name, {})[row] = image.size_bytes
    if images != cluster.images:
        yield "images are not those of the nodes"
    for key, column in cluster.labels.columns.items():
        users = Counter(int(code) for code in column.codes[: cluster.height] if code)
        if users != Counter({c: n for c, n in enumerate(column.values.users) if n}):
            yield f"values of label {key} are miscounted"
        if users.total() != column.holders:
            yield f"nodes with label {key} are miscounted"


def _pods(cluster: Cluster) -> Iterator[str]:
    placed: dict[str, Resident] = {}
    ports: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
    for row, residents in enumerate(cluster.residents):
        for uid, resident in residents.items():
            if uid in placed:
                yield f"pod {resident.pod.key} is on two rows"
            placed[uid] = resident
            if resident.row != row or uid != resident.pod.uid:
                yield f"pod {resident.pod.key} is not where it is listed"
            for port in resident.pod.row.ports:
                ips = ports.setdefault((port.protocol, port.port), {}).setdefault(row, {})
                ips[port.ip] = ips.get(port.ip, 0) + 1
    if placed != cluster.pods:
        yield "pods by uid are not the pods on the rows"
    census = Census()
    for resident in placed.values():
        census.count(resident.pod, 1)
    if vars(census) != vars(cluster.census):
        yield "priorities or gangs are not those of the placed pods"
    if ports != cluster.ports:
        yield "host ports are not those of the placed pods"
    for key, values in cluster.index.keys.items():
        fresh: dict[str, dict[str, None]] = {}
        for uid, resident in cluster.pods.items():
            if (value := resident.pod.labels.get(key)) is not None:
                fresh.setdefault(value, {})[uid] = None
        if fresh != values:
            yield f"pods by label {key} are not those placed"
    orphans_by_uid = {uid: node for node, pods in cluster.orphans.items() for uid in pods}
    if orphans_by_uid != cluster.orphan_nodes or not placed.keys().isdisjoint(orphans_by_uid):
        yield "pods whose node is not known are listed wrongly"
    for node, orphans in cluster.orphans.items():
        if node in cluster.rows or not orphans or any(p.node != node for p in orphans.values()):
            yield f"pods wait for node {node} without need"


def _storage(cluster: Cluster) -> Iterator[str]:
    storage = cluster.storage
    claims_on: dict[str, dict[str, None]] = {}
    for key, claim in storage.claims.items():
        if key != claim.key:
            yield f"claim {claim.key} is listed as {key}"
        if claim.volume:
            claims_on.setdefault(claim.volume, {})[key] = None
    if claims_on != storage.claims_on:
        yield "claims by volume are not those that name it"
    unclaimed = Counter(v.storage_class for v in storage.volumes.values() if v.unclaimed)
    if unclaimed != storage.unclaimed:
        yield f"unclaimed volumes are {storage.unclaimed}, not {unclaimed}"
    users: dict[str, dict[int, int]] = {}
    for resident in cluster.pods.values():
        for key in resident.pod.row.claims:
            rows = users.setdefault(key, {})
            rows[resident.row] = rows.get(resident.row, 0) + 1
    if users != storage.users:
        yield f"users of claims are {storage.users}, not {users}"


def _classes_and_trust(cluster: Cluster) -> Iterator[str]:
    classes = cluster.device_classes.resources
    served = {f"{IMPLICIT}{name}" for name in classes} | {r for r in classes.values() if r}
    if served != cluster.device_classes.served:
        yield "resources that device classes serve are not those that they name"
    distrusted = cluster.distrusted
    if not distrusted.nodes.keys() <= cluster.rows.keys():
        yield "a node that is gone is distrusted"
    ends = [d.until for kept in distrusted.nodes.values() for d in kept.values() if d.closed]
    if distrusted.next_end != min(ends, default=math.inf):
        yield "the first end of a distrust is not the first"


def _zones(cluster: Cluster) -> Iterator[str]:
    zones = cluster.zones
    for node, free in zones.kept().items():
        if free != zones.worked_out(node):
            yield f"the zones of {node} have {free} free, not {zones.worked_out(node)}"
    for node in zones.counted:
        if node not in zones.topologies:
            yield f"pods are counted in the zones of {node}, of which nothing is published"


def _uses(cluster: Cluster) -> Iterator[str]:
    seen: dict[Any, dict[str, dict[int, int]]] = {}
    for resident in cluster.pods.values():
        if resident.pod.use is not None:
            add_use(seen, resident.pod, 1)
    if seen != cluster.uses.by_kind:
        yield "what pods of a kind were seen to use is not what its placed pods say"


def _pools(cluster: Cluster) -> Iterator[str]:
    """What is left of each device = what there is − what the node's pods hold of it."""
    classes = {
        pool.device_class for node in cluster.nodes if node is not None for pool in node.pools
    }
    tables = cluster.pools.every()
    if classes != tables.keys():
        yield f"classes of devices are {sorted(tables)}, not {sorted(classes)}"
        return
    for name, table in tables.items():
        fresh = type(table)(len(cluster.nodes))
        for row in cluster.rows.values():
            node = cluster.nodes[row]
            assert node is not None
            pool = next((pool for pool in node.pools if pool.device_class == name), None)
            if pool is None:
                continue
            fresh.write(row, pool)
            for pod in _counting(cluster, row):
                holding = pod.held or unsaid(pod.row.devices)
                fresh.unknown[row] += name in holding.unknown
                for part in holding.parts:
                    if part.device_class == name:
                        fresh.take(row, part, 1)
        walk = _Walk(cluster.height, 0)
        if walk.of(fresh) != walk.of(table):
            yield f"what is left of {name} devices is {walk.of(table)}, not {walk.of(fresh)}"


def _estates(cluster: Cluster) -> Iterator[str]:
    """What is free of each estate = what works − what is held − what nobody knows."""
    for name, line in cluster.estates.lines.items():
        fresh = Line(line.estate)
        fresh.strays, fresh.refused, fresh.closed = line.strays, line.refused, line.closed
        for row in cluster.rows.values():
            node = cluster.nodes[row]
            assert node is not None
            if is_head(node, line.estate):
                fresh.rows[row] = None
        for pod in cluster.everybody():
            fresh.take(pod, 1)
        if name != line.estate.name or vars(fresh) != vars(line):
            yield f"estate {name} is {vars(line)}, not {vars(fresh)}"


def _terms(cluster: Cluster) -> Iterator[str]:
    table = cluster.terms
    matched: dict[Term, Counter[int]] = {term: Counter() for term in table.terms.values()}
    owned: dict[tuple[Term, Role, str], Counter[int]] = {}
    for resident in cluster.pods.values():
        counting = {term for term in matched if term.counts(resident.pod, table.namespaces)}
        if set(resident.matched) != counting:
            yield f"pod {resident.pod.key} is counted by the wrong terms"
        for term in counting:
            matched[term][resident.row] += 1
        if (resident.own is None) != (resident.pod.terms is None):
            yield f"own terms of pod {resident.pod.key} are not resolved"
        if resident.own is not None:
            for role, amount, affinity, term in resident.own.roles():
                owners = owned.setdefault((term, role, affinity.topology_key), Counter())
                owners[resident.row] += amount
    for term, rows in matched.items():
        yield from _count(cluster, term.matched, rows, "matched")
        for sums in term.eligible:
            here = sums.domain[: len(cluster.nodes)]
            fresh = np.zeros_like(sums.sums)
            for row, amount in rows.items():
                if row < len(here):
                    fresh[here[row]] += amount
            if sums.position >= 0 and (fresh[1:] != sums.sums[1:]).any():
                yield "sums over eligible nodes are wrong"
        for (role, key), count in term.owned.items():
            yield from _count(cluster, count, owned.pop((term, role, key), Counter()), str(role))
    for (_, role, key), rows in owned.items():
        if any(rows.values()):
            yield f"owners {role} by {key} are not counted"
    for term_key, term in table.terms.items():
        if term_key != term.key or term.users < 1:
            yield "a term is kept that nobody uses"


def _count(cluster: Cluster, count: Count, rows: Counter[int], what: str) -> Iterator[str]:
    fresh = {row: amount for row, amount in rows.items() if amount}
    if count.by_row != fresh:
        yield f"{what} pods per row are {count.by_row}, not {fresh}"
    if count.dense is not None:
        dense = {row: int(n) for row, n in enumerate(count.dense) if n}
        if dense != fresh:
            yield f"{what} pods per row, as an array, are {dense}, not {fresh}"
    for column, sums in count.sums.values():
        domains: Counter[int] = Counter()
        for row, amount in fresh.items():
            domains[int(column.codes[row])] += amount
        held = {code: int(n) for code, n in enumerate(sums) if n}
        if held != {code: n for code, n in domains.items() if n}:
            yield f"{what} pods per {column.key} are {held}, not {dict(domains)}"
