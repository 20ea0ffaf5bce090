"""The controller dies right after each of its writes; the end is the same."""

import asyncio
import os

import pytest

from bayplan.kube.elastic import HOROVOD
from tests.elastic.stage import Stage, elastic, horovod, play

WRITES = 90  # of the whole story, and some more
PROVE = bool(os.environ.get("BAYPLAN_PROVE"))  # after every write; else after every tenth


async def replaced(stage: Stage) -> None:
    """When the controller dies, and with it the scheduler's memory, others take over."""
    assert stage.process is not None
    await stage.process.judge.died.wait()
    await stage.kill()
    stage.standin.holds.clear()
    await stage.pass_time(1)
    stage.start()


@pytest.mark.parametrize("offset", range(10 if PROVE else 1))
def test_it_dies_after_any_write(offset: int) -> None:
    """Two jobs grow, shrink for a third, one ends; each run has one death."""
    for live in range(1 + offset, WRITES, 10):

        async def story(stage: Stage, live: int = live) -> None:
            await stage.kill()
            stage.start(live)
            watching = asyncio.create_task(replaced(stage))
            await stage.submit(elastic("a", 2, 5))
            await stage.pass_time(6)
            await stage.submit(elastic("b", 2, 5, backoffLimit=9))
            await stage.pass_time(12)
            await stage.submit(elastic("c", 2, 5))
            await stage.pass_time(15)
            assert stage.workers() == {"a": 2, "b": 2, "c": 2}, live
            await stage.end_pod("b-worker-0", "Failed")
            await stage.remove("a")
            await stage.pass_time(40)
            assert stage.workers() == {"b": 3, "c": 3}, live
            assert stage.job("b").said["failures"] == 1, live
            grants = [stage.job(name).grant for name in "bc"]
            assert [(grant.workers, grant.passing) for grant in grants] == [(3, 0), (3, 0)]
            assert stage.standin.overtaken == []
            watching.cancel()

        play(story, left=3, right=3)


@pytest.mark.parametrize("live", range(1, 40, 1 if PROVE else 5))
def test_it_dies_after_any_write_for_a_horovod_job(live: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.kill()
        stage.start(live)
        watching = asyncio.create_task(replaced(stage))
        await stage.submit(horovod("sample", 1, 4))
        await stage.pass_time(15)
        await stage.submit(elastic("a", 2, 4))
        await stage.pass_time(20)
        assert stage.workers() == {"elastichorovodjob/sample": 2, "a": 2}
        (launcher,) = [name for name in stage.pods() if "launcher" in name]
        await stage.end_pod(launcher, "Succeeded")
        await stage.pass_time(30)
        assert stage.workers() == {"a": 4}
        assert stage.job("sample", HOROVOD).grant.places == 0
        watching.cancel()

    play(story, only=4)
