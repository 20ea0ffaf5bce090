"""Devices and zones: which zone the node's inventory puts a device in, and which ones are given."""

from typing import Any

from bayplan.core.model import events as on
from bayplan.core.model.devices import Device
from bayplan.core.model.nodes import Pool
from bayplan.core.model.numa import Policy, Scope, Topology, Zone, unaligned
from bayplan.core.model.pods import ZoneAsk
from bayplan.kube.refusals import refused_resources
from bayplan.testing.world import GPU, World, asks, pod

Amounts = tuple[tuple[str, int], ...]


def cards(*numa: int) -> dict[str, Any]:
    """Facts of a node whose cards are in these zones."""
    devices = tuple(Device(f"GPU-{i}", i, 1000, zone) for i, zone in enumerate(numa))
    return {"pools": (Pool("nvidia", devices),), "allocatable": {GPU: len(numa)}}


def zone(number: int, **free: int) -> Zone:
    amounts = tuple(sorted({"cpu": 8000, **free}.items()))
    return Zone(f"z{number}", number, (("cpu", 8000),), amounts)


def world_of(
    *zones: Zone,
    numa: tuple[int, ...] = (0, 0, 1, 1),
    policy: Policy = "single-numa-node",
    scope: Scope = "container",
) -> World:
    world = World()
    world.node("a", **cards(*numa))
    world.tell(on.TopologySeen(Topology("a", policy, scope, zones)))
    return world


def ask(gpus: int = 0, cpu: int = 0, **more: int) -> ZoneAsk:
    named = {GPU: gpus, "cpu": 1000 * cpu, **more}
    return ZoneAsk(tuple(sorted((name, amount) for name, amount in named.items() if amount)))


def test_devices_come_from_the_zone_that_has_the_cpus() -> None:
    world = world_of(zone(0, cpu=2000), zone(1))
    world.submit("p", gpus=2, aligned=(ask(gpus=2, cpu=4),), guaranteed=True)

    assert world.devices["p"] == ["GPU-2", "GPU-3"]


def test_without_cpus_of_its_own_a_pod_takes_the_lowest_zone_with_enough_devices() -> None:
    world = world_of(zone(0), zone(1), numa=(0, 1, 1, 1))
    world.submit("p", gpus=2, aligned=(ask(gpus=2),))

    assert set(world.devices["p"]) <= {"GPU-1", "GPU-2", "GPU-3"}


def test_more_devices_than_a_zone_has_fit_nowhere() -> None:
    world = world_of(zone(0), zone(1))
    world.submit("p", gpus=3, aligned=(ask(gpus=3),))

    assert world.waiting() == {"p": "0/1 nodes are available: 1 cannot align container."}


def test_devices_that_pods_hold_are_known_at_once_whatever_is_published() -> None:
    """The ids that were given say the zone, so no other zone is reserved for them."""
    world = world_of(zone(0), zone(1))
    for name in ("p", "q"):
        world.submit(name, gpus=2, aligned=(ask(gpus=2),))

    assert (world.devices["p"], world.devices["q"]) == (["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"])


def test_what_is_published_as_used_is_not_given() -> None:
    free = {GPU: 0}
    world = world_of(zone(0, **free), zone(1, **{GPU: 2}))
    world.submit("p", gpus=1, aligned=(ask(gpus=1),))

    assert world.devices["p"][0] in ("GPU-2", "GPU-3")


def test_devices_without_a_zone_are_the_nodes() -> None:
    world = world_of(zone(0, cpu=0), zone(1), numa=(-1, -1))
    world.submit("p", gpus=2, aligned=(ask(gpus=2, cpu=1),), guaranteed=True)

    assert world.running() == {"p": "a"}


def test_a_pod_in_one_zone_gets_the_devices_of_all_containers_there() -> None:
    world = world_of(zone(0), zone(1), numa=(0, 1, 1, 1), scope="pod")
    both = (*asks("one", gpus=1), *asks("two", gpus=1))
    world.submit("p", devices=both, aligned=(ask(gpus=1), ask(gpus=1)))

    assert "GPU-0" not in world.devices["p"]


def test_a_restricted_node_gives_devices_of_as_few_zones_as_it_takes() -> None:
    world = world_of(zone(0), zone(1), numa=(0, 1, 1, 1), policy="restricted")
    world.submit("p", gpus=4, aligned=(ask(gpus=4),))
    world.submit("q", gpus=4, cpu=4000, aligned=(ask(gpus=4, cpu=4),), guaranteed=True)

    assert world.running() == {"p": "a"}
    world.finish("p")
    world.wait(1)
    assert world.waiting() == {"q": "0/1 nodes are available: 1 cannot align container."}


def test_a_kubelet_that_could_not_align_is_left_alone_by_pods_that_it_would_have_to() -> None:
    world = world_of(zone(0), zone(1))
    picky = pod("p", cpu=1000, aligned=(ask(cpu=1),), guaranteed=True)
    told = refused_resources("TopologyAffinityError", "Resources cannot be allocated", picky)
    assert told == (unaligned(picky.row.aligned),)
    world.tell(on.KubeletRefused("a", told))
    world.see(picky)
    world.submit("plain", cpu=1000)

    assert world.running() == {"plain": "a"}
    assert world.waiting() == {
        "p": "0/1 nodes are available: 1 node(s) refused a pod for NUMA zones recently."
    }
    world.wait(10)
    assert world.running() == {"plain": "a", "p": "a"}


def test_only_the_kind_that_was_refused_is_kept_away_and_never_for_long() -> None:
    world = world_of(zone(0), zone(1))
    picky = pod("p", cpu=1000, aligned=(ask(cpu=1),), guaranteed=True)
    (told,) = refused_resources("TopologyAffinityError", "", picky)
    assert told == "NUMA zones of aac05824e21452a5"  # in every process
    for _ in range(9):
        world.tell(on.KubeletRefused("a", (told,)))
    world.see(picky)
    world.submit("other", cpu=2000, aligned=(ask(cpu=2),), guaranteed=True)

    assert world.running() == {"other": "a"}
    world.wait(300)
    assert world.running() == {"other": "a", "p": "a"}
