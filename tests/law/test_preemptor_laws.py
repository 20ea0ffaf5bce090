"""The running extender deletes pods for others, between two kube-schedulers and an API with faults:
only less important ones, only those that have to go, never for nothing, and no device is promised
or given twice. In the end nobody waits for whom others could go, and nothing is kept for nobody.
"""

import asyncio
import os
import random
from contextlib import suppress

import pytest

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.pods import Part, Pod
from bayplan.extender.server import NotLeading
from bayplan.kube.client import NODES
from bayplan.kube.transport import ApiError, TransportError
from bayplan.local.faults import Chances, Faults
from bayplan.local.virtual import run
from tests.extender import decisions
from tests.extender.decisions import INF2, TRN1, Json, World
from tests.law.test_offer_laws import SIZES, Scheduler, given_twice, nothing_waits_that_fits

LONG = bool(os.environ.get("BAYPLAN_PROVE"))
SEEDS = range(int(os.environ.get("BAYPLAN_EXAMPLES", "60" if LONG else "2")))
PODS = 24
TROUBLE = Chances(
    latency=0.3,
    conflict=0.05,
    busy=0.05,
    error=0.05,
    lost_answer=0.1,
    refused=0.05,
    broken_watch=0.05,
    late_events=0.1,
    repeated_events=0.1,
    lateness=2.0,
)


class Patient(Scheduler):
    """One that asks again when nobody leads."""

    async def place(self, pod: Json) -> None:
        with suppress(NotLeading):
            await super().place(pod)


class Judge:
    """Looks at every preemption and every promise, on the engine as it was decided on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.preemptions = 0
        self._leaving: set[str] = set()  # who was to go before

    def step(self, event: on.Event, now: float, effects: list[do.Effect]) -> None:
        self._promised()
        for effect in effects:
            if isinstance(effect, do.Preempt):
                self.preemptions += 1
                assert isinstance(event, on.PlaceWanted)
                assert effect.node in event.nodes
                self._needed(effect)
        self._leaving = set(self._world.engine.nominations.doomed)

    def flush(self) -> None:
        """Nothing is held back."""

    def _needed(self, effect: do.Preempt) -> None:
        pod, doomed = effect.pod, self._world.engine.nominations.doomed
        mine = [uid for uid, owners in doomed.items() if pod.uid in owners]
        assert {victim.uid for victim in effect.victims} <= set(mine)
        assert all(victim.priority < pod.priority for victim in effect.victims)
        assert not any(victim.terminating for victim in effect.victims)
        assert self._fits_without(pod, mine, effect.node)
        for spared in set(mine) - self._leaving:
            left = [uid for uid in mine if uid != spared]
            assert not self._fits_without(pod, left, effect.node)

    def _fits_without(self, pod: Pod, gone: list[str], node: str) -> bool:
        engine = self._world.engine
        with engine.cluster.trial():
            for uid in gone:
                engine.cluster.remove(uid)
            return engine.offers.filter(pod, [node]).passed == [node]

    def _promised(self) -> None:
        """Kept places share no device."""
        engine = self._world.engine
        cluster, nominations = engine.cluster, engine.nominations
        for pods in cluster.holds.pods.values():
            kept = [pod for uid, pod in pods.items() if uid in nominations]
            parts = [(part.device_class, part.id) for pod in kept for part in devices(pod)]
            assert len(parts) == len(set(parts)), "two were promised the same"


def devices(pod: Pod) -> tuple[Part, ...]:
    assert pod.held is not None
    return pod.held.parts


class Cluster:
    """What happens beside the extender."""

    def __init__(self, world: World, rng: random.Random, judge: Judge) -> None:
        self.world, self.rng, self.judge = world, rng, judge

    async def end_pods(self) -> None:
        """As kubelets do, a while after a pod was told to go."""
        while True:
            await self.world.clock.sleep(self.rng.random() * 4)
            for value in list(self.world.api.store.values("pods")):
                if value["metadata"].get("deletionTimestamp") and self.rng.random() < 0.7:
                    with suppress(ApiError, TransportError):
                        await self.world.delete(value["metadata"]["name"])

    async def happen(self, number: int) -> None:
        world = self.world
        if self.rng.random() < 0.15:
            with suppress(ApiError, TransportError):
                await world.delete(f"p{self.rng.randrange(number + 1)}")
        if number == PODS // 3:
            await world.delete("n2", NODES)
            await world.clock.sleep(1)
            await world.add_node(decisions.node("n2", INF2))
        if number == PODS // 2:
            await world.kill()
            world.start()
            world.service.loop.recorders.append(self.judge)
            await world.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_pods_go_only_for_more_important_ones_and_never_in_vain(seed: int) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        world = World(faults=Faults(TROUBLE, random.Random(seed)))
        judge = Judge(world)
        world.service.loop.recorders.append(judge)
        kinds = (INF2, TRN1, INF2)
        await world.add_node(*(decisions.node(f"n{i}", kind) for i, kind in enumerate(kinds)))
        await world.add_priorities(1, 2, 3)
        await world.run()
        cluster = Cluster(world, rng, judge)
        schedulers = [Patient(world, seed + i) for i in range(2)]
        tasks = [asyncio.create_task(each.work()) for each in schedulers]
        tasks.append(asyncio.create_task(cluster.end_pods()))
        try:
            for i in range(PODS):
                priority = rng.choice((0, 0, 1, 2, 3))
                made = await world.add(decisions.pod(f"p{i}", rng.choice(SIZES), priority=priority))
                rng.choice(schedulers).pods.append(made)
                await world.clock.sleep(rng.random())
                await cluster.happen(i)
                assert given_twice(world) == []
                still_at_work(tasks)
            world.faults.chances = Chances()
            await world.clock.sleep(90)
            still_at_work(tasks)
            assert given_twice(world) == []
            assert judge.preemptions
            assert nothing_waits_that_fits(world, list(schedulers)) == []
            assert could_be_helped(world) == []
            assert not world.engine.nominations.owners
            assert not world.engine.nominations.doomed
            audit = await world.service.live._compare()
            assert {each.kind for each in audit.differences} <= {"namespace_missing"}, audit
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await world.stop()
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    run(story())


def still_at_work(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()  # its error


def could_be_helped(world: World) -> list[str]:
    """Pods that wait though others could go for them."""
    engine, found = world.engine, []
    for value in world.api.store.values("pods"):
        name = value["metadata"]["name"]
        if world.node_of(name):
            continue
        pod = world.service.watches.reader.pod(decisions.raw(value))
        if engine.offers._room(pod, list(engine.cluster.rows)) is not None:
            found.append(name)
    return found
