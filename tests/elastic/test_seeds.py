"""Minutes of elastic jobs with everything going wrong, then peace: one seed, one story.

The controller meets refusals, conflicts, lost answers and broken watches; it and the stand-in for
the scheduler die and start anew; jobs come, change, fail and go; nodes come and die. Each write is
judged when it is sent (`stage.Judge`). In peace everybody has what is there to have.
"""

import os
import random
from contextlib import suppress

import pytest

from bayplan.elastic.seen import Snapshot
from bayplan.kube.transport import ApiError
from bayplan.local.faults import Chances
from tests.elastic.stage import Stage, elastic, horovod, node, play

SEEDS = range(200 if os.environ.get("BAYPLAN_PROVE") else 6)
TROUBLE = 40  # happenings
PEACE_S = 900.0  # longer than any rest, and a watch that is silent


class Happenings:
    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage, self._rng, self._made = stage, rng, 0
        self.deaths = 0

    async def happen(self) -> None:
        what = self._rng.choices(
            (self._arrive, self._leave, self._edit, self._pod, self._end, self._node, self._kill),
            (6, 2, 3, 3, 4, 2, 3),
        )[0]
        with suppress(ApiError):
            await what()

    def _name(self) -> str:
        self._made += 1
        return f"x{self._made}"

    def _job(self) -> tuple[str, str] | None:
        kinds = {"elasticjobs.bayplan.dev": "ElasticJob"}
        kinds["elastichorovodjobs.ai.centauruscloud.io"] = "ElasticHorovodJob"
        every = [(n, kind) for store, kind in kinds.items() for n in self._stage.objects(store)]
        return self._rng.choice(every) if every else None

    async def _arrive(self) -> None:
        least = self._rng.randint(1, 3)
        most = least + self._rng.randint(0, 4)
        if self._rng.random() < 0.25:
            await self._stage.submit(horovod(self._name(), least, most))
        else:
            await self._stage.submit(elastic(self._name(), least, most, backoffLimit=2))

    async def _leave(self) -> None:
        if job := self._job():
            await self._stage.remove(*job)

    async def _edit(self) -> None:
        if (job := self._job()) and job[1] == "ElasticJob":
            most = self._stage.job(*job).minimum + self._rng.randint(0, 4)
            spec = {"maxWorkers": most, "suspend": self._rng.random() < 0.2}
            await self._stage.change(job[0], spec)

    async def _pod(self) -> None:
        await self._stage.pod(self._name(), self._rng.randint(1, 2))

    async def _end(self) -> None:
        pods = self._stage.objects("pods")
        if not pods:
            return
        name = self._rng.choice(sorted(pods))
        if self._rng.random() < 0.4 and pods[name]["spec"].get("nodeName"):
            await self._stage.end_pod(name, self._rng.choice(("Failed", "Failed", "Succeeded")))
        else:
            await self._stage.user.request("DELETE", f"/api/v1/namespaces/default/pods/{name}")

    async def _node(self) -> None:
        names = sorted(self._stage.objects("nodes"))
        if len(names) > 1 and self._rng.random() < 0.5:
            self.deaths += 1
            await self._stage.kubelets.vanish(self._rng.choice(names))
        elif len(names) < 5:
            await self._stage.kubelets.add(node(self._name(), self._rng.randint(1, 4)))

    async def _kill(self) -> None:
        if self._rng.random() < 0.3:
            self._stage.standin.holds.clear()
        if self._stage.process is not None:
            await self._stage.kill()
        self._stage.start()


@pytest.mark.parametrize("seed", SEEDS)
def test_grants_hold_whatever_happens(seed: int) -> None:
    async def story(stage: Stage) -> None:
        rng = random.Random(seed)
        stage.faults.chances = Chances(
            latency=0.2,
            refused=0.02,
            conflict=0.03,
            busy=0.02,
            error=0.02,
            lost_answer=0.02,
            expired_watch=0.1,
            broken_watch=0.02,
            dropped_events=0.02,
            repeated_events=0.05,
            late_events=0.05,
        )
        happenings = Happenings(stage, rng)
        for _ in range(TROUBLE):
            await stage.pass_time(rng.expovariate(1 / 4))
            await happenings.happen()
        stage.faults.chances = Chances()
        await stage.pass_time(PEACE_S)
        judge(stage, happenings)

    play(story, left=3, right=4)


def judge(stage: Stage, happenings: Happenings) -> None:
    jobs = [seen.job for seen in snapshot(stage).jobs]
    free = {
        name: int(found["status"]["allocatable"].get("nvidia.com/gpu", 0))
        for name, found in stage.objects("nodes").items()
    }
    assert all(job.grant.passing == 0 for job in jobs)
    for seen in snapshot(stage).jobs:
        assert len(seen.living) == seen.job.grant.workers == seen.placed, seen
        for worker in seen.workers:
            assert worker.state not in ("lost", "going")
            if worker.takes:
                free[worker.node] -= seen.job.counted[1]
    assert all(left >= 0 for left in free.values())
    if not happenings.deaths:
        assert stage.standin.overtaken == []


def snapshot(stage: Stage) -> Snapshot:
    assert stage.process is not None
    return stage.process.controller.cluster.snapshot("")
