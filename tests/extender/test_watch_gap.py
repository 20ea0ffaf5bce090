"""Pods that come, are bound and go while no watch tells of them: nothing of them stays."""

import asyncio

import pytest

from bayplan.kube.client import PODS
from bayplan.local.faults import Chances
from tests.extender.decisions import World, node, play, pod


class Gap:
    """The watch of pods ends when its time is over, and is not opened again before `end`."""

    def __init__(self, world: World) -> None:
        self._world, self._open = world, asyncio.Event()
        self.opened = 0  # streams of pods since the gap began

    async def begin(self) -> None:
        world = self._world

        async def opening(path: str) -> None:
            if path == PODS.path():
                self.opened += 1
                await self._open.wait()

        world.transport.opening = opening
        await world.clock.sleep(601)
        assert self.opened == 1

    async def end(self) -> None:
        """Where the watch ended nobody knows any more, so there is a list."""
        self._world.api.store.compact()
        reflector = self._world.service.watches.reflectors["pod"]
        lists = reflector.lists
        self._open.set()
        await self._world.until(lambda: reflector.lists > lists)
        await self._world.clock.sleep(0.1)


def held(world: World) -> set[str]:
    return {resident.pod.name for resident in world.engine.cluster.pods.values()}


@pytest.mark.parametrize("goes", [True, False], ids=["goes", "stays"])
def test_a_pod_that_was_bound_in_a_gap_is_known_by_the_list_after_it(goes: bool) -> None:
    async def story(world: World) -> None:
        gap = Gap(world)
        await gap.begin()
        made = await world.add(pod("p", 6))
        assert await world.place(made, "n") == ""
        await world.clock.sleep(0.1)
        if goes:
            await world.delete("p")
        assert held(world) == {"p"}
        await gap.end()

        assert held(world) == (set() if goes else {"p"})
        other = await world.add(pod("other", 6))
        found = await world.filter(other, "n")
        assert found.node_names == (["n"] if goes else [])

    play(story, node("n"))


def test_a_pod_that_was_bound_after_the_list_began_is_not_dropped_by_it() -> None:
    """What is on its way from the server was said before the pod was there."""

    async def story(world: World) -> None:
        gap, pods = Gap(world), world.service.watches.pods
        await gap.begin()
        await world.add(pod("before"))
        world.faults.chances = Chances(late_events=1.0, lateness=10.0)
        await gap.end()
        made = await world.add(pod("p", 6))
        assert await world.place(made, "n") == ""
        await world.clock.sleep(0.1)
        assert "before" not in {each.name for each in pods.known.values()}  # no list yet
        uid = made["metadata"]["uid"]
        for _ in range(100):
            await world.clock.sleep(0.2)
            assert held(world) == {"p"}
        assert uid in pods.known
        await world.delete("p")
        await world.clock.sleep(20)
        assert held(world) == set()

    play(story, node("n"))
