"""Two elastic jobs on six GPUs, a third, an end and a death: with the real scheduler, on virtual
time. The counts are those of docs/elastic-allocator.md, and nobody waits for what was promised. A
controller that looks at what is free and scales at once has workers that wait."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bayplan.elastic.allocator import Job as Asking
from bayplan.elastic.allocator import faithful
from bayplan.elastic.curves import amdahl
from bayplan.elastic.planner import Settings
from bayplan.elastic.sizes import Policy
from bayplan.elastic.workers import worker
from bayplan.kube.client import PODS, Client
from bayplan.kube.elastic import GENERAL, HOROVOD
from bayplan.kube.transport import Response
from bayplan.local.virtual import run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import Options, Service
from tests.elastic.stage import (
    GPU,
    Json,
    Stage,
    all_jobs,
    elastic,
    gpus_of,
    horovod,
    node,
    patch,
    template,
)
from tests.fake.ledger import Ledger

SETTLE_S = 30.0
AT_ONCE_S = 2.0  # a worker's place is there when it comes
BEST = [{"a": 5}, {"a": 3, "b": 3}, {"a": 2, "b": 2, "c": 2}, {"b": 3, "c": 3}]
FAITHFUL = [{"a": 5}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}, {"b": 2, "c": 2}]
AFTER_DEATH = {"b": 2, "c": 2}


class Real:
    """In the place of the stand-in: the scheduler itself."""

    def __init__(self, client: Client) -> None:
        self.service = Service(Configuration(), Options(), client)

    async def run(self) -> None:
        await self.service.run()


class Both(Stage):
    """Scheduler and controller together, and a ledger of what was promised."""

    def __init__(self, settings: Settings | None = None, **gpus: int) -> None:
        super().__init__(settings, **gpus)
        self.standin: Any = Real(self.user)
        self.ledger = Ledger(self.api, self.clock)
        self.waits: dict[str, str] = {}  # workers that were told that there is no room: why
        self.late: set[str] = set()  # workers that had no node at once
        self.betrayed: set[str] = set()  # workers that waited for a place that they had
        self._promised: dict[str, float] = {}  # those who wait for one: since when

    async def play(self, story: Callable[["Both"], Awaitable[None]]) -> None:
        self.ledger.listen()
        self.api.store.listen("pods", self._hear)
        await super().play(story)  # type: ignore[arg-type]

    def _hear(self) -> None:
        """Every version of every worker."""
        now = self.clock.time()
        for pod in self.api.store.values("pods"):
            about, conditions = pod["metadata"], pod["status"].get("conditions") or ()
            seen = self.ledger.pods.get(about["uid"])
            if seen is None or not seen.job:
                continue
            for condition in conditions:
                if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                    self.waits[about["name"]] = condition.get("message", "")
            if not seen.node and seen.lives and now - seen.born > AT_ONCE_S:
                self.late.add(about["name"])
        waiting = {pod.name for pod, _ in self.ledger.waiting()}
        self._promised = {name: self._promised.get(name, now) for name in waiting}
        self.betrayed |= {name for name in waiting if now - self._promised[name] > AT_ONCE_S}

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            await super().pass_time(1.0)
            self._hear()

    def sizes(self) -> dict[str, int]:
        """Living workers on nodes that live, by the job's name."""
        nodes = self.objects("nodes")
        found: dict[str, int] = {}
        for pod in self.ledger.pods.values():
            if pod.job and pod.lives and pod.node in nodes:
                name = pod.job.rpartition("/")[2]
                found[name] = found.get(name, 0) + 1
        return dict(sorted(found.items()))

    async def ordinary(self, name: str, gpus: int) -> None:
        spec = template(gpus)["spec"] | {"schedulerName": "bayplan"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self.post(PODS.path("default"), body)


def play(
    story: Callable[[Both], Awaitable[None]], settings: Settings | None = None, **gpus: int
) -> Both:
    async def whole() -> Both:
        stage = Both(settings, **gpus)
        await stage.play(story)
        return stage

    return run(whole())


def made(kind: str, name: str) -> Json:
    return elastic(name, 2, 5) if kind == GENERAL else horovod(name, 2, 5)


@pytest.mark.parametrize("kinds", [(GENERAL,) * 3, (HOROVOD,) * 3, (GENERAL, HOROVOD, GENERAL)])
@pytest.mark.parametrize(("policy", "counts"), [("best", BEST), ("faithful", FAITHFUL)])
def test_the_counts_are_as_documented_and_nobody_waits(
    policy: Any, counts: list[dict[str, int]], kinds: tuple[str, ...]
) -> None:
    async def story(stage: Both) -> None:
        for number, (name, kind) in enumerate(zip("abc", kinds, strict=True)):
            await stage.submit(made(kind, name))
            await stage.pass_time(SETTLE_S)
            assert stage.sizes() == counts[number]
        await stage.remove("a", kinds[0])
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == counts[3]
        await stage.kubelets.vanish("x")
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == AFTER_DEATH
        await stage.kubelets.add(node("y", 2))
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == counts[3]

    stage = play(story, Settings(Policy(policy)), v=2, w=2, x=2)

    assert stage.ledger.wrong == []
    assert stage.betrayed == set()
    if HOROVOD not in kinds:  # after a death a StatefulSet makes pods without asking anybody
        assert stage.waits == {}
        assert stage.late == set()


def test_nodes_that_no_worker_tolerates_do_not_count() -> None:
    """Else the second job would wait for them, and the first would not be cut."""

    async def story(stage: Both) -> None:
        taints = [{"key": "dedicated", "value": "others", "effect": "NoSchedule"}]
        await stage.kubelets.add(node("tainted", 4) | {"spec": {"taints": taints}})
        await stage.submit(elastic("a", 1, 4))
        await stage.pass_time(SETTLE_S)
        await stage.submit(elastic("b", 2, 4))
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == {"a": 2, "b": 2}

    assert play(story, v=4).waits == {}


def test_a_new_job_of_the_same_name_does_not_count_on_the_workers_of_the_old() -> None:
    """Those hang, and are smaller: what they leave is not enough."""

    async def story(stage: Both) -> None:
        old = elastic("a", 3, 3)
        old["spec"]["template"]["metadata"]["finalizers"] = ["example.com/hangs"]
        await stage.submit(old)
        await stage.pass_time(SETTLE_S)
        await stage.remove("a")
        await stage.submit(elastic("a", 3, 3, gpus=2))
        await stage.pass_time(SETTLE_S)
        await stage.ordinary("other", 4)
        await stage.pass_time(SETTLE_S)
        for index in range(3):
            path = PODS.path("default", f"a-worker-{index}")
            await patch(stage.user, path, {"metadata": {"finalizers": None}})
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == {"a": 3}

    stage = play(story, v=9)

    assert stage.ledger.wrong == []
    assert stage.betrayed == set()


# The race


async def naive(stage: Both, arrive: Callable[[], Awaitable[None]]) -> None:
    """As the original does it: what is free now, and all workers at once. `arrive` is what happens
    after it has decided."""
    free = sum(int(each["status"]["allocatable"][GPU]) for each in stage.objects("nodes").values())
    free -= sum(gpus_of(pod) for pod in stage.api.store.values("pods"))
    jobs = {job.key: job for job in all_jobs(stage.api)}
    asking = [
        Asking(job.key, job.minimum, job.maximum, 0, amdahl(), job.arrival) for job in jobs.values()
    ]
    sizes = faithful(asking, free)
    await arrive()
    for key, job in jobs.items():
        for index in range(sizes[key]):
            await stage.post(PODS.path("default"), worker(job, index))


def test_without_grants_somebody_else_takes_what_was_counted_on() -> None:
    async def story(stage: Both) -> None:
        await stage.kill()  # there is no other controller
        await stage.submit(elastic("a", 2, 5))
        await naive(stage, lambda: stage.ordinary("other", 2))
        await stage.pass_time(SETTLE_S)
        assert stage.sizes() == {"a": 4}

    stage = play(story, v=3, w=3)

    assert len(stage.waits) == len(stage.late) == 1
    assert "Insufficient nvidia.com/gpu" in "".join(stage.waits.values())


@pytest.mark.parametrize(
    ("moment", "size", "runs"),
    [("decided", 4, True), ("confirmed", 5, False), ("made", 5, False)],
)
def test_with_grants_whoever_comes_in_between_costs_no_worker_its_place(
    moment: str, size: int, runs: bool
) -> None:
    """Before the grant is written less is confirmed; afterwards the other waits."""

    async def story(stage: Both) -> None:
        came = asyncio.Event()
        assert stage.process is not None
        judge, send = stage.process.judge, stage.process.judge.request

        async def request(method: str, path: str, **more: Any) -> Response:
            """The controller's own requests, one after the other."""
            if not came.is_set() and moment == happening(stage, method, more.get("body") or b""):
                came.set()
                await stage.ordinary("other", 2)
                await stage.clock.sleep(0.01)
            return await send(method, path, **more)

        judge.request = request  # type: ignore[method-assign]
        await stage.submit(elastic("a", 2, 5))
        await stage.pass_time(SETTLE_S)
        assert came.is_set()
        assert stage.sizes() == {"a": size}
        (other,) = (pod for pod in stage.ledger.pods.values() if pod.name == "other")
        assert bool(other.node) == runs

    stage = play(story, v=3, w=3)

    assert stage.ledger.wrong == []
    assert stage.waits == {}
    assert stage.late == set()


def happening(stage: Both, method: str, body: bytes) -> str:
    """What the controller is about to do, or has just learned."""
    if method == "PATCH" and b'"grant"' in body:
        return "decided"
    job = stage.ledger.jobs[f"{GENERAL} default/a"]
    if method == "POST":
        return "made" if stage.ledger.living(job.key) else "confirmed"
    return ""
