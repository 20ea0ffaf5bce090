"""The same life of a cluster (`simulation`), where pods ask for partitions of two controllers.

Controllers are slow, down, unwilling, late and forgetful; others make partitions there too; the
scheduler dies between any two steps. Whatever is bound has its partition at that moment. In the end
every pod that runs has its own, no partition of ours is left without its pod, and nobody waits for
one that could be made.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from bayplan.kube.client import NODES, PODS, Client
from bayplan.local.virtual import run
from bayplan.scheduler.config import Configuration, Pool
from bayplan.scheduler.service import Options, Service
from bayplan.scheduler.steward import HOST, ID, Site, prefix_of
from bayplan.vipu.controller import Controller, Refused, Unavailable
from bayplan.vipu.fake import Choice, FakeVipu, one_cluster
from bayplan.vipu.faults import Chances, Faulty
from tests.fake import simulation
from tests.fake.simulation import IPU, Json, Simulation, judged
from tests.real.apicheck import read_node, read_pod, waiting_that_fit

LABEL = "vipu-ctrl"
HOSTS = ("one", "two")
OURS = prefix_of("sim")
CONFIG = Configuration(
    check_live_every=60.0,
    pools=tuple(Pool(f"{host}:8090:{LABEL}={host}") for host in HOSTS),
    cluster_name="sim",
)


class Cut:
    """A controller as a process sees it that can die: from then on it asks nothing."""

    def __init__(self, inner: Controller, is_dead: Any) -> None:
        self._inner, self._is_dead = inner, is_dead

    def __getattr__(self, name: str) -> Any:
        if self._is_dead() and name != "close":
            raise Unavailable("the process is dead")
        return getattr(self._inner, name)


class Living(Service):
    """A scheduler whose controllers are the simulation's."""

    def __init__(self, client: Client, controllers: dict[str, Faulty]) -> None:
        transport: Any = client.transport

        def reach(pool: Pool) -> Site:
            host, port, label = pool.parts
            controller: Any = Cut(controllers[host], lambda: transport.dead)
            return Site(host, port, label, controller)

        super().__init__(CONFIG, Options(), client, reach)


class Partitioned(Simulation):
    def __init__(self, seed: int, steps: int = 60) -> None:
        super().__init__(seed, steps)
        self.controllers = {host: self._controller(host) for host in HOSTS}
        self.lost: set[str] = set()  # uids of pods whose partition vanished by itself
        self.foreign = self.bound = 0
        self.wrong: list[str] = []
        self._seen: set[str] = set()  # uids of pods that were bound

    def _controller(self, host: str) -> Faulty:
        rng = random.Random(self.rng.random())
        ipus, domain = rng.choice(((16, 16), (16, 8), (32, 16)))
        allocations = {"a": 2, "b": 1} if rng.random() < 0.3 else None
        choice: Choice = rng.choice(("first", "last", "random"))
        fake = Forgetful(one_cluster(ipus, domain, allocations), choice, rng)
        fake.owner = self
        return Faulty(fake, self.clock, _chances(rng), rng)

    def make(self, client: Client) -> Service:
        return Living(client, self.controllers)

    # ---- what happens

    async def _happen(self) -> None:
        if self.rng.random() < 0.2:
            host = self.rng.choice(HOSTS)
            trouble = self.rng.choice(
                (self._stranger, self._outage, self._machine, self._vanishing)
            )
            trouble(self.controllers[host])
        else:
            await super()._happen()

    def _stranger(self, controller: Faulty) -> None:
        """Somebody else makes a partition by hand, or deletes one."""
        mine = [each.id for each in controller.fake.partitions() if each.id.startswith("hand-")]
        if mine and self.rng.random() < 0.5:
            controller.fake.delete(self.rng.choice(mine))
            return
        self.foreign += 1
        places = [each.id for each in controller.fake.inventory().allocations] or [""]
        with suppress(Refused):
            controller.fake.create(
                f"hand-{self.foreign}", self.rng.choice((1, 2, 4)), allocation=places[0]
            )

    def _outage(self, controller: Faulty) -> None:
        chances = controller.chances
        controller.chances = Chances(down=0.0 if chances.down else 1.0)

    def _machine(self, controller: Faulty) -> None:
        agent = self.rng.choice(controller.fake.inventory().agents)
        controller.fake.set_health(agent.id, self.rng.random() < 0.6)

    def _vanishing(self, controller: Faulty) -> None:
        if there := controller.fake.partitions():
            controller.fake.lose(self.rng.choice(there).id)

    async def _add_pods(self) -> None:
        size, seconds = self.rng.choice((1, 1, 2, 4, 8)), self.rng.choice((None, 0, 5, 30))
        for _ in range(self.rng.randint(1, 5)):
            self.pods += 1
            made = simulation.pod(f"pod-{self.pods}", 0, seconds)
            if self.rng.random() < 0.5:
                made["metadata"]["annotations"][IPU] = str(size)
            else:
                resources = made["spec"]["containers"][0]["resources"]
                resources["limits"] = {IPU: str(size)}
            await self._post(PODS.path("default"), made)

    async def _add_node(self) -> None:
        await super()._add_node()
        name = f"node-{len(self.nodes) - 1}"
        labels = {LABEL: self.rng.choice(HOSTS)}
        self.nodes[name]["metadata"]["labels"] |= labels
        await self._patch(NODES.path(name=name), {"metadata": {"labels": labels}})

    async def _make_peace(self) -> None:
        for controller in self.controllers.values():
            controller.chances = Chances()
            for agent in controller.fake.inventory().agents:
                controller.fake.set_health(agent.id, True)
        service = self.process.service if self.process is not None else None
        await super()._make_peace()
        if service is not None and service.metrics.differences:
            self.wrong.append(f"memory and API differ: {dict(service.metrics.differences)}")
        for controller in self.controllers.values():
            controller.settle()

    # ---- judging

    def _hear(self) -> None:
        before = len(self.history)
        log = self.api.store.log("pods")
        fresh = [change.last.value for change in log.changes[self._read - log.first :]]
        super()._hear()
        assert len(self.history) == before + len(fresh)
        for value in fresh:
            self._look_at_bind(value)

    def _look_at_bind(self, value: Json) -> None:
        uid = value["metadata"]["uid"]
        if not value["spec"].get("nodeName") or uid in self._seen:
            return
        self._seen.add(uid)
        self.bound += 1
        there = self._partition(value)
        if there is None and uid not in self.lost:
            self.wrong.append(f"pod {value['metadata']['name']} was bound without its partition")
        elif there is not None and sorted(there) != sorted(assigned(value)):
            self.wrong.append(f"pod {value['metadata']['name']} was told others than it has")

    def _partition(self, value: Json) -> list[str] | None:
        """The IPUs of the pod's partition, as the controller has them."""
        host = host_of(value)
        id = value["metadata"]["annotations"].get(ID, "") if host else ""
        found = self.controllers[host].fake.get(id) if host else None
        return None if found is None else [ipu.name for ipu in found.ipus]

    def judge(self) -> list[str]:
        pods = list(self.api.store.values("pods"))
        living = {p["metadata"]["uid"]: p for p in pods if holds(p)}
        wrong = list(self.wrong)
        for uid, value in living.items():
            if self._partition(value) is None and uid not in self.lost:
                wrong.append(f"pod {value['metadata']['name']} runs without its partition")
        for host, controller in self.controllers.items():
            for each in controller.fake.partitions():
                owner = living.get(each.id.removeprefix(OURS))
                mine = owner is not None and host == host_of(owner)
                if each.id.startswith(OURS) and not mine:
                    wrong.append(f"partition {each.id} of {host} has no pod")
        wrong += list(self._in_vain(pods))
        general = super().judge()  # it knows no partitions, so not who waits in vain
        return wrong + [words for words in general if "would fit on" not in words]

    def _in_vain(self, pods: list[Json]) -> Iterator[str]:
        """Who waits though a controller would make the partition, and a head node has room. Where a
        pod has lost its own and nobody would replace the pod, its devices stay its own."""
        bereft = {host_of(pod) for pod in pods if pod["metadata"]["uid"] in self.lost}
        for host, controller in self.controllers.items():
            if host in bereft:
                continue
            nodes = [
                read_node(node)
                for node in self._living().values()
                if node["metadata"]["labels"].get(LABEL) == host
            ]
            here = [p for p in pods if not is_waiting(p) or has_room(controller.fake, size_of(p))]
            yield from waiting_that_fit([read_pod(judged(pod)) for pod in here], nodes)


class Forgetful(FakeVipu):
    """Tells the simulation whose partition is lost."""

    owner: Partitioned

    def lose(self, id: str) -> None:
        if id.startswith(OURS):
            self.owner.lost.add(id.removeprefix(OURS))
        super().lose(id)


def has_room(fake: FakeVipu, size: int) -> bool:
    """Asks for a partition, and deletes it again."""
    for allocation in [each.id for each in fake.inventory().allocations] or [""]:
        try:
            fake.create("probe", size, allocation=allocation)
        except Refused:
            continue
        fake.delete("probe")
        return True
    return False


def is_waiting(pod: Json) -> bool:
    return not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")


def host_of(pod: Json) -> str:
    """The controller that has its partition."""
    return str(pod["metadata"].get("annotations", {}).get(HOST, ""))


def size_of(pod: Json) -> int:
    noted = pod["metadata"].get("annotations", {}).get(IPU)
    return int(noted or pod["spec"]["containers"][0]["resources"]["limits"][IPU])


def holds(pod: Json) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return bool(pod["spec"].get("nodeName")) and not ended


def assigned(pod: Json) -> list[str]:
    told = json.loads(pod["metadata"]["annotations"]["bayplan.dev/assignment"])
    return [device["id"] for held in told["held"] for device in held["devices"]]


def _chances(rng: random.Random) -> Chances:
    def chance(most: float) -> float:
        return rng.random() * most if rng.random() < 0.6 else 0.0

    return Chances(
        down=chance(0.2),
        refuse=chance(0.2),
        late=chance(0.2),
        twice=chance(0.2),
        lose=chance(0.02),
        unheard=chance(0.2),
        latency_s=(0.0, chance(5.0)),
    )


def play(seed: int) -> Partitioned:
    async def story() -> Partitioned:
        simulation = Partitioned(seed)
        await simulation.play()
        await asyncio.sleep(0)
        return simulation

    played = run(story())
    wrong = played.judge()
    assert not wrong, f"seed {seed}: " + "\n".join(wrong[:10])
    return played
