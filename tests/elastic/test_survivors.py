"""Whoever is left runs on, and whoever is made again has its place at once: with the real
scheduler, for longer than a gang that is not whole is left alone (`gangs.timeout`)."""

import asyncio
import random

import pytest

from bayplan.elastic.controller import Controller
from bayplan.elastic.planner import Settings
from bayplan.kube.client import PODS, Client
from bayplan.kube.elastic import GENERAL, HOROVOD, RESOURCES
from bayplan.kube.transport import ApiError
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import run
from tests.elastic.stage import GPU, Json, elastic, horovod, patch
from tests.elastic.test_two_jobs import SETTLE_S, Both, Real, play

LONG_S = 700.0


async def delete(stage: Both, name: str) -> None:
    await stage.user.request("DELETE", PODS.path("default", name))


def test_a_worker_made_again_does_not_wait_for_one_that_failed_often() -> None:
    async def story(stage: Both) -> None:
        await stage.submit(elastic("a", 3, 3))
        await stage.pass_time(SETTLE_S)
        for times in range(6):
            await stage.end_pod("a-worker-1", "Failed")
            await stage.pass_time(10 * 2**times + 1 if times < 5 else 2)
        await delete(stage, "a-worker-2")
        await stage.pass_time(5)
        assert stage.sizes() == {"a": 2}
        await stage.pass_time(LONG_S)
        assert stage.sizes() == {"a": 3}

    assert not play(story, v=6).betrayed


def test_with_less_than_its_minimum_it_runs_on_and_survivors_are_replaced() -> None:
    async def story(stage: Both) -> None:
        await stage.submit(elastic("a", 4, 4))
        await stage.pass_time(SETTLE_S)
        await stage.kubelets.vanish("w")
        await stage.pass_time(2 * SETTLE_S)
        assert stage.sizes() == {"a": 3}
        await delete(stage, stage.pods()[0])
        await stage.pass_time(5)
        assert stage.sizes() == {"a": 3}
        await stage.pass_time(LONG_S)
        assert stage.sizes() == {"a": 3}

    play(story, v=3, w=1)


@pytest.mark.parametrize("kind", [GENERAL, HOROVOD])
def test_workers_that_wait_start_when_the_minimum_is_lowered(kind: str) -> None:
    """A node and the scheduler die when the workers have just been made, to start together."""

    async def story(stage: Both) -> None:
        scheduler = next(each for each in stage._tasks if "Real.run" in str(each.get_coro()))

        def die() -> None:
            scheduler.cancel()

        stage.api.store.listen("pods", die)
        await stage.submit(elastic("a", 3, 3) if kind == GENERAL else horovod("a", 3, 3))
        await stage.pass_time(5)
        assert len(stage.pods()) == 3
        assert stage.sizes() == {}
        await stage.kubelets.vanish("w")
        spec: Json = {"minWorkers": 1}
        if kind == HOROVOD:
            spec = {"workersSpec": {"minReplicas": 1}}
        await stage.change("a", spec, kind)
        again = asyncio.create_task(Real(stage.user).run())
        stage._tasks.append(again)
        await stage.pass_time(2 * SETTLE_S)
        assert stage.sizes() == {"a": 2}
        writes = stage.judges[0].writes
        many = len(writes)
        await stage.pass_time(LONG_S)
        assert stage.sizes() == {"a": 2}
        assert not [each for each in writes[many:] if "/pods" in each]

    play(story, v=2, w=1)


@pytest.mark.parametrize("gpus", [(1, 3), (2, 2)])
def test_a_stateful_set_runs_on_though_its_first_worker_died(gpus: tuple[int, int]) -> None:
    """It drops the highest and makes the lowest again, in the places that are left."""

    async def story(stage: Both) -> None:
        await stage.submit(horovod("a", 4, 4))
        await stage.pass_time(SETTLE_S)
        first = stage.objects("pods")["elastichorovodjob-a-workers-0"]["spec"]["nodeName"]
        left = dict(zip("vw", gpus, strict=True))
        del left[first]
        await stage.kubelets.vanish(first)
        await stage.pass_time(LONG_S)
        assert stage.sizes() == {"a": sum(left.values())}

    play(story, v=gpus[0], w=gpus[1])


@pytest.mark.parametrize("workers", [10_000, 2**31 - 1])
def test_what_another_controller_grants_in_vain_is_nobodys(workers: int) -> None:
    async def story(stage: Both) -> None:
        await stage.submit(elastic("good", 2, 5))
        await stage.pass_time(SETTLE_S)
        await stage.submit(elastic("other", 1, 10_000, managedBy="example.com/greedy"))
        grant = {"generation": 1, "workers": workers, "passing": 0, "counts": {GPU: workers}}
        path = RESOURCES[GENERAL].path("default", "other", "status")
        await patch(stage.user, path, {"status": {"grant": grant}})
        await stage.pass_time(2 * SETTLE_S)
        assert stage.sizes() == {"good": 5}

    play(story, v=8)


def test_a_size_that_the_owner_insists_on_is_not_above_the_maximum() -> None:
    async def story(stage: Both) -> None:
        await stage.submit(horovod("a", 1, 3, target=5))
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == {"a": 3}

    play(story, v=8)


def test_without_nodes_or_pods_nothing_is_planned() -> None:
    """Who may not read them for a moment would take all workers for too many, or for gone."""

    async def story() -> None:
        stage = Both(v=2)
        client = Client(DirectTransport(stage.api, stage.clock), stage.clock, random.Random(0))
        controller = Controller(client, Settings())
        for what in ("node", "pod", HOROVOD, "stateful set"):
            controller._tell(what, ApiError(403, "Forbidden", "you may not", None))
        assert {"node", "pod"} <= set(controller.unsynced())
        assert not {HOROVOD, "stateful set"} & set(controller.unsynced())

    run(story())


def test_a_refusal_that_is_over_is_not_told_any_more() -> None:
    async def story(stage: Both) -> None:
        await stage.ordinary("a-worker-0", 1)
        await stage.pass_time(5)
        await stage.submit(elastic("a", 2, 2))
        await stage.pass_time(SETTLE_S)
        assert "already exists" in stage.job("a").status.message
        await delete(stage, "a-worker-0")
        await stage.pass_time(2 * SETTLE_S)
        assert stage.sizes() == {"a": 2}
        assert stage.job("a").status.message == ""

    play(story, v=4)
