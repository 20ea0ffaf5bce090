"""A pretend V-IPU controller: an object in memory, without a clock or a network.

It gives IPUs by an allocator of its own, so that it can disagree with whoever expects others. A
partition is an aligned block of a link domain: up to 4 IPUs of one IPU-Machine, else whole
neighbouring ones.
"""

import random
from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from bayplan.vipu.controller import (
    ACTIVE,
    ERROR,
    Agent,
    Allocation,
    Cluster,
    Inventory,
    Ipu,
    LinkDomain,
    Partition,
    Refused,
)

IPUS = 4  # of an IPU-Machine
CLUSTER = "cluster"

Choice = Literal["first", "last", "random"]


def one_cluster(
    ipus: int = 64, domain_ipus: int = 64, allocations: Mapping[str, int] | None = None
) -> Inventory:
    """IPU-Machines in a row, cut into link domains; each allocation takes its number of them."""
    for name, count in (("IPUs", ipus), ("IPUs of a link domain", domain_ipus)):
        if count < IPUS or count % IPUS:
            raise ValueError(f"the {name} should be a positive multiple of {IPUS}, not {count}")
    agents = tuple(f"ag{number}" for number in range(1, ipus // IPUS + 1))
    width = domain_ipus // IPUS
    starts = range(0, len(agents), width)
    domains = [LinkDomain(f"ild{n}", agents[at : at + width]) for n, at in enumerate(starts, 1)]
    return Inventory(
        tuple(Agent(agent, IPUS, True) for agent in agents),
        (Cluster(CLUSTER, tuple(domains)),),
        _allocations(agents, allocations or {}),
    )


def _allocations(agents: tuple[str, ...], counts: Mapping[str, int]) -> tuple[Allocation, ...]:
    found, at = [], 0
    for name, count in counts.items():
        if not 1 <= count <= len(agents) - at:
            left = len(agents) - at
            raise ValueError(f"allocation {name} of {count} agents, where {left} are left")
        found.append(Allocation(name, CLUSTER, agents[at : at + count]))
        at += count
    return tuple(found)


class FakeVipu:
    def __init__(
        self,
        inventory: Inventory | None = None,
        choice: Choice = "first",
        rng: random.Random | None = None,
    ) -> None:
        inventory = inventory or one_cluster()
        if any(agent.ipus != IPUS for agent in inventory.agents):
            raise ValueError(f"every agent should have {IPUS} IPUs")
        self._agents = {agent.id: agent for agent in inventory.agents}
        self._clusters = {cluster.id: cluster for cluster in inventory.clusters}
        self._allocations = {each.id: each for each in inventory.allocations}
        self._choice, self._rng = choice, rng or random.Random(0)
        self._partitions: dict[str, Partition] = {}

    def inventory(self) -> Inventory:
        agents, clusters = self._agents.values(), self._clusters.values()
        return Inventory(tuple(agents), tuple(clusters), tuple(self._allocations.values()))

    def partitions(self) -> tuple[Partition, ...]:
        return tuple(map(self._today, self._partitions.values()))

    def get(self, id: str) -> Partition | None:
        found = self._partitions.get(id)
        return found and self._today(found)

    def create(
        self,
        id: str,
        size: int,
        *,
        cluster: str = "",
        allocation: str = "",
        reconfigurable: bool = False,
    ) -> Partition:
        if not id:
            raise Refused("a partition needs an id")
        if found := self.get(id):
            if not found.fulfils(size, cluster, allocation):
                raise Refused(f"partition {id} exists with another size or place")
            return found
        where, ipus = self._choose(size, cluster, allocation)
        made = Partition(id, where, allocation, size, ipus, ACTIVE, reconfigurable)
        self._partitions[id] = made
        return made

    def delete(self, id: str) -> bool:
        return self._partitions.pop(id, None) is not None

    def lose(self, id: str) -> None:
        """A partition vanishes, and nobody asked for it."""
        del self._partitions[id]

    def set_health(self, agent: str, healthy: bool) -> None:
        self._agents[agent] = replace(self._agents[agent], healthy=healthy)

    def _today(self, partition: Partition) -> Partition:
        healthy = all(self._agents[ipu.agent].healthy for ipu in partition.ipus)
        return partition if healthy else replace(partition, state=ERROR)

    def _choose(self, size: int, cluster: str, allocation: str) -> tuple[str, tuple[Ipu, ...]]:
        if size < 1 or size.bit_count() > 1:
            raise Refused(f"{size} IPUs: the size should be a power of two")
        clusters, agents = self._places(cluster, allocation)
        free = self._free(agents)
        blocks = [
            (place.id, block)
            for place in clusters
            for domain in place.link_domains
            for block in _blocks(domain, size)
        ]
        if not blocks:
            raise Refused(f"{size} IPUs: no link domain has as many")
        fitting = [(place, block) for place, block in blocks if free.issuperset(block)]
        if not fitting:
            raise Refused(f"{size} IPUs: no room for them")
        if self._choice == "random":
            return self._rng.choice(fitting)
        return fitting[0 if self._choice == "first" else -1]

    def _places(self, cluster: str, allocation: str) -> tuple[list[Cluster], set[str]]:
        """The clusters and the agents that may be used."""
        if cluster and cluster not in self._clusters:
            raise Refused(f"there is no cluster {cluster}")
        if allocation:
            group = self._allocations.get(allocation)
            if group is None or cluster not in ("", group.cluster):
                within = f" in cluster {cluster}" if cluster else ""
                raise Refused(f"there is no allocation {allocation}{within}")
            return [self._clusters[group.cluster]], set(group.agents)
        divided = {group.cluster for group in self._allocations.values()}
        named = [self._clusters[cluster]] if cluster else list(self._clusters.values())
        whole = [each for each in named if each.id not in divided]
        if not whole:
            raise Refused(f"one of the allocations is needed: {', '.join(self._allocations)}")
        return whole, set(self._agents)

    def _free(self, agents: set[str]) -> set[Ipu]:
        held = {ipu for partition in self._partitions.values() for ipu in partition.ipus}
        healthy = [agent for agent in agents if self._agents[agent].healthy]
        return {Ipu(agent, index) for agent in healthy for index in range(IPUS)} - held


def _blocks(domain: LinkDomain, size: int) -> list[tuple[Ipu, ...]]:
    """At multiples of the size: so small ones are of one machine, and large ones whole machines."""
    row = [Ipu(agent, index) for agent in domain.agents for index in range(IPUS)]
    return [tuple(row[at : at + size]) for at in range(0, len(row) - size + 1, size)]
