"""Containers start with the devices of their pods' assignments, with a real kubelet where one runs.

The kubelet does not say for which pod it asks. Where it took pods of equal size in another order
than the agent thought, the assignments are put right, and it is that which is held here.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bayplan.core.model.devices import INVENTORY, Inventory, read_inventory
from bayplan.testing.controlplane import ControlPlane
from bayplan.testing.gotool import tell
from tests.real.node.bench import COUNT, DEVICES, GPU, MEMORY, MEMORY_MIB, Agent, Bench
from tests.real.node.kubelets import Kubelet
from tests.real.rig import Scheduler, until

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
ROUNDS = 20 if PROVE else 3
AT_ONCE = 4
KEPT = 2  # pods that live on through a restart and the next round


@pytest.fixture(scope="module")
def kubelet(
    kubelet_of: Callable[[str], AbstractContextManager[Kubelet]],
) -> Iterator[Kubelet]:
    with kubelet_of("devices") as kubelet:
        yield kubelet


@pytest.fixture
def bench(kubelet: Kubelet, node_plane: ControlPlane, tmp_path: Path) -> Iterator[Bench]:
    agent = Agent(kubelet, node_plane, tmp_path, ["--devices", f"nvidia={COUNT}x{MEMORY_MIB}MiB"])
    try:
        bench = Bench(node_plane, kubelet, agent)
        bench.wait_until_served()
        yield bench
        bench.remove(list(bench.pods()))
    finally:
        agent.stop()
        tell(agent.tail())  # pytest shows it when the test has failed


def test_a_container_starts_with_the_devices_of_its_assignment(bench: Bench) -> None:
    given = {"one": [6], "two": [1, 5], "three": [0, 2, 7]}
    for name, indexes in given.items():
        ids = [DEVICES[index] for index in indexes]
        bench.start({name: ids})
        assert bench.started(name) == ids
        assert bench.settle()[name] == ids

    assert bench.agent.counts()["bayplan_agent_swapped_total"] == 0
    assert bench.agent.counts()["bayplan_agent_drift_total"] == 0


def test_the_node_says_what_it_has_and_a_part_of_a_card_is_told_by_field(bench: Bench) -> None:
    def node() -> dict[str, dict[str, str]]:
        found = bench.plane.request("GET", f"/api/v1/nodes/{bench.kubelet.name}")
        return {"annotations": {}, **found["metadata"], **found["status"]}

    until(lambda: node()["allocatable"].get(MEMORY) == str(COUNT * MEMORY_MIB))
    inventory = read_inventory(node()["annotations"][INVENTORY])
    assert isinstance(inventory, Inventory)
    assert [device.id for device in inventory.classes["nvidia"].devices] == DEVICES

    bench.bind_memory("part", 4096, DEVICES[3])

    assert bench.started("part") == [DEVICES[3]]
    assert bench.says("part") == ([DEVICES[3]], DEVICES[3])


@pytest.mark.timeout(1800 if PROVE else 120, func_only=True)
def test_four_pods_at_once_and_restarts_in_between(
    bench: Bench, say: Callable[[str], None]
) -> None:
    rng = random.Random(6)
    restarts = (bench.kubelet.restart_kubelet, lambda: restart_agent(bench), lambda: crash(bench))
    for number in range(ROUNDS):
        size = 2 if number % 3 == 2 else 1
        if size * AT_ONCE + KEPT > COUNT:
            bench.remove(list(bench.asked))
        free = sorted(set(DEVICES) - {id for ids in bench.settle().values() for id in ids})
        rng.shuffle(free)
        at = {f"pod-{number}-{i}": free[i * size :][:size] for i in range(AT_ONCE)}

        bench.start(at)
        got, runs = bench.settle(), bench.runs()
        restarts[number % len(restarts)]()
        bench.wait_until_served()

        assert bench.settle() == got
        assert bench.runs() == runs
        bench.remove(list(bench.asked)[:-KEPT])

    counts = bench.agent.counts()
    assert counts["bayplan_agent_allocations_total"] == bench.containers
    assert counts["bayplan_agent_drift_total"] == 0
    say(
        f"{bench.kubelet.what}: {bench.containers} pods started in {ROUNDS} rounds, "
        f"{bench.swapped} of them with other devices than their Binding said; the agent wrote "
        f"{counts['bayplan_agent_swapped_total']} corrections and reported "
        f"{counts['bayplan_agent_drift_total']} drifts; {bench.agent.rss_mib} MiB"
    )


def test_what_the_scheduler_chooses_is_what_containers_get(bench: Bench, tmp_path: Path) -> None:
    """Nobody binds by hand: `bayplan run` reads the inventory and writes the assignments."""
    with Scheduler(tmp_path, bench.plane.kubeconfig):
        for i in range(3):
            bench.create(f"pair-{i}", {GPU: "2"})
        bench.create("part", {MEMORY: "4096"})
        bench.create("more", {GPU: "2"})  # one card is left, and one that is shared

        until(lambda: all(bench.is_bound(name) for name in ("pair-0", "pair-1", "pair-2", "part")))
        got = bench.settle()
        assert not bench.is_bound("more")

        card = got.pop("part")
        assert len(card) == 1
        assert not set(card) & {id for ids in got.values() for id in ids}
        assert sorted(map(len, got.values())) == [2, 2, 2]
        bench.remove(["pair-1"])
        until(lambda: bench.is_bound("more"))
        assert bench.started("more")
        bench.remove(["more"])


def restart_agent(bench: Bench) -> None:
    bench.agent.stop()
    bench.agent.start()


def crash(bench: Bench) -> None:
    bench.agent.stop(kill=True)
    bench.kubelet.restart_kubelet(kill=True)
    bench.agent.start()
