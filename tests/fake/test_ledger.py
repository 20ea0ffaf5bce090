"""The judge of promises is judged: what it blames, and what it does not."""

import random

from bayplan.local.api import Api
from bayplan.local.virtual import VirtualClock, run
from tests.fake.ledger import GPU, LAG_S, Json, Ledger

JOB = "ElasticJob default/a"


class Told:
    """A node of two GPUs; a job that was told of two places, and has two workers there. One goes
    by itself. Then somebody has a place."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger(Api(self.clock, random.Random(0)), self.clock)
        amounts = {"allocatable": {GPU: "2"}}
        self.ledger._node({"metadata": {"name": "n"}, "status": amounts}, False)
        resources = {"limits": {GPU: "1"}}
        template = {"spec": {"containers": [{"resources": resources}]}}
        grant = {"generation": 1, "workers": 2, "passing": 0, "counts": {GPU: 2}}
        job = {
            "metadata": {"namespace": "default", "name": "a"},
            "spec": {"minWorkers": 1, "maxWorkers": 2, "template": template},
            "status": {"grant": grant, "confirmed": {"generation": 1, "workers": 2}},
        }
        self.ledger._job_hearer("ElasticJob")(job, False)
        for name in ("a-0", "a-1"):
            self.see(name, node="n")
        assert self.ledger.wrong == []

    def see(
        self, name: str, node: str = "", nominated: str = "", priority: int = 0, gone: bool = False
    ) -> None:
        notes = {"bayplan.dev/elastic": "a"} if name.startswith("a-") else {}
        about = {"name": name, "uid": name, "namespace": "default", "annotations": notes}
        containers = [{"resources": {"limits": {GPU: "1"}}}]
        spec: Json = {"containers": containers, "nodeName": node, "priority": priority}
        status = {"nominatedNodeName": nominated}
        self.ledger._pod({"metadata": about, "spec": spec, "status": status}, gone)

    def blames(self) -> bool:
        return bool(self.ledger.wrong)


async def after(priority: int, nominated: str, lag_s: float) -> Told:
    """A worker went; so much later another pod was told to wait for a node, and has its place."""
    told = Told()
    told.see("a-1", node="n", gone=True)
    told.see("other", priority=priority)
    await told.clock.sleep(lag_s)
    told.see("other", nominated=nominated, priority=priority)
    told.see("other", node="n", priority=priority)
    return told


def test_whoever_preempts_a_worker_that_has_just_gone_has_its_place() -> None:
    told = run(after(priority=1, nominated="n", lag_s=2.0))

    assert not told.blames()
    assert len(told.ledger.jobs[JOB].taken) == 1
    assert told.ledger._left == []  # nobody has it a second time


def test_nobody_else_has_it() -> None:
    assert run(after(priority=1, nominated="", lag_s=2.0)).blames()
    assert run(after(priority=1, nominated="elsewhere", lag_s=2.0)).blames()
    assert run(after(priority=0, nominated="n", lag_s=2.0)).blames()
    assert run(after(priority=1, nominated="n", lag_s=LAG_S)).blames()


def test_a_worker_that_went_after_the_nomination_was_not_meant_by_it() -> None:
    async def story() -> Told:
        told = Told()
        told.see("other", nominated="n", priority=1)
        await told.clock.sleep(1.0)
        told.see("a-1", node="n", gone=True)
        told.see("other", node="n", priority=1)
        return told

    assert run(story()).blames()
