"""What the profiler writes and when: on virtual time, against the embedded API."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bayplan.agent.counts import Counts
from bayplan.agent.inventory import FileSource
from bayplan.agent.pods import PodsHere
from bayplan.agent.profile import Window
from bayplan.agent.profiler import Here, Profiler
from bayplan.agent.publish import Publisher
from bayplan.agent.samples import Card, OnCard, Sample, Take
from bayplan.agent.usage import Kernel
from bayplan.core.model.devices import Device, Devices, Inventory
from bayplan.core.model.vendors import Vendors
from bayplan.kube.client import NODES, PODS, Client
from bayplan.kube.reflector import Reflector
from bayplan.kube.transport import MERGE_PATCH, Response
from bayplan.local.api import Api
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from tests.agent import rig as real

Json = dict[str, Any]
NODE, GIB, MIB = "n1", 1 << 30, 1 << 20
AI = "ai.centaurus.io"
STATIC, FIRST, SECOND, STAMP = (
    f"{AI}/{name}" for name in ("gpu-static", "gpu-0", "gpu-1", "timestamp")
)


def card(index: int = 0, gpu: int = 50, used: int = GIB, pids: tuple[int, ...] = ()) -> Card:
    processes = tuple(OnCard(pid, 100 * MIB) for pid in pids)
    return Card(f"GPU-{index}", index, "H200", 100 * GIB, used, "5x16", gpu, 7, processes)


class Played:
    """Says every second what it was told to say; nothing while there is nothing."""

    troubles = 0

    def __init__(self, *cards: Card) -> None:
        self.cards: tuple[Card, ...] | None = cards
        self.broken = False

    async def run(self, take: Take) -> NoReturn:
        while True:
            if self.broken:
                self.broken = False
                raise RuntimeError("a mistake of ours")
            if self.cards is not None:
                take(Sample(self.cards))
            await asyncio.sleep(1.0)


async def directly(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


class Transport(DirectTransport):
    """Notes patches of the profiler, and refuses those that it is told to."""

    def __init__(self, api: Api, clock: VirtualClock) -> None:
        super().__init__(api, clock)
        self.patches: list[tuple[float, str, Json]] = []
        self.refuse: Callable[[str], int] = lambda path: 0

    async def request(self, method: str, path: str, **others: Any) -> Any:
        if method == "PATCH":
            body = json.loads(others["body"])
            if any(key.startswith(AI) for key in body["metadata"]["annotations"]):
                self.patches.append((asyncio.get_running_loop().time(), path, body))
                if status := self.refuse(path):
                    return Response(status, {}, b"{}")
        return await super().request(method, path, **others)


class Rig:
    def __init__(self, root: Path, *cards: Card) -> None:
        self.clock, self.root = VirtualClock(), root
        self.api = Api(self.clock, random.Random(1))
        self.transport = Transport(self.api, self.clock)
        self.client = Client(self.transport, self.clock, random.Random(2))
        self.played, self.counts = Played(*cards), Counts()
        self.pods = PodsHere(self.client, NODE)
        self.publisher = Publisher(self.client, NODE, Vendors(), self.pods, self.counts)
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        here = Here(NODE, self.played, Kernel(self.root), aside=directly)
        profiler = Profiler(self.client, here, self.publisher, self.pods, self.counts)
        watches = [
            Reflector(self.client, self.pods.watched, self.pods).run(),
            Reflector(self.client, self.publisher.watched, self.publisher).run(),
        ]
        for each in (*watches, profiler.run()):
            self._tasks.append(asyncio.create_task(each))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def until(self, second: float) -> None:
        await self.clock.sleep(second - self.clock.time())

    async def ask(self, method: str, path: str, body: Any = None) -> Json:
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        sent = None if body is None else json.dumps(body).encode()
        answer = await self.client.request(method, path, body=sent, content_type=kind)
        found: Json = json.loads(answer)
        return found

    async def annotate(self, annotations: dict[str, str | None]) -> None:
        await self.ask("PATCH", NODES.path(name=NODE), {"metadata": {"annotations": annotations}})
        self.transport.patches.clear()

    async def told(self, pod: str = "") -> dict[str, str]:
        path = PODS.path("default", pod) if pod else NODES.path(name=NODE)
        found = (await self.ask("GET", path))["metadata"].get("annotations") or {}
        return {key: text for key, text in found.items() if key.startswith(AI)}

    async def add_pod(
        self, name: str, *pids: int, annotations: dict[str, str] | None = None
    ) -> None:
        """Bound here, with these processes."""
        about = {"name": name, "namespace": "default", "annotations": annotations or {}}
        spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "i"}]}
        made = await self.ask("POST", PODS.path("default"), {"metadata": about, "spec": spec})
        for pid in pids:
            file = self.root / f"proc/{pid}/cgroup"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"0::/kubepods/pod{made['metadata']['uid']}/abc\n")
        self.use(made["metadata"]["uid"], 0)

    def use(self, uid: str, cpu_us: int) -> None:
        group = self.root / f"sys/fs/cgroup/kubepods/pod{uid}"
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.stat").write_text(f"usage_usec {cpu_us}\n")
        (group / "memory.current").write_text("5000000\n")

    def times(self, path: str = "/nodes/") -> list[float]:
        return [time for time, where, _ in self.transport.patches if path in where]


@asynccontextmanager
async def running(root: Path, *cards: Card) -> AsyncIterator[Rig]:
    rig = Rig(root, *cards)
    await rig.ask("POST", NODES.path(), {"metadata": {"name": NODE, "annotations": {"x/y": "z"}}})
    rig.start()
    try:
        yield rig
    finally:
        await rig.stop()


def played(story: Callable[[Rig], Awaitable[None]], root: Path, *cards: Card) -> None:
    async def whole() -> None:
        async with running(root, *cards) as rig:
            await story(rig)

    run(whole())


@pytest.mark.parametrize("known", [range(121), range(0, 121, 2), range(60, 121), range(0, 110)])
def test_a_period_is_of_the_samples_that_say_something(known: range) -> None:
    window = Window()
    for second in range(121):
        bandwidth = 90 * (second // 5 % 2) if second in known else None
        seen = Card("GPU-0", 0, "H200", GIB, 0, gpu=1, bandwidth=bandwidth)
        window.take(Sample((seen,)), float(second))
    assert window.look(120.0, {})[0].period_s == 10.0


def test_it_is_written_when_it_changes_and_once_a_minute(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.until(300)
        first, *others = rig.times()
        assert 15 <= first <= 30
        assert others == pytest.approx([first + 60 * i for i in range(1, len(others) + 1)])
        assert len(others) == 4
        told = await rig.told()
        assert set(told) == {STATIC, FIRST, STAMP}
        assert told[STAMP].startswith("2026-01-01 00:0")
        assert told[FIRST] == (
            "{'mem_used': '1GB', 'mem_free': '99GB', 'process_cnt': 0, 'cyclic_pattern': False, "
            "'max_mem_bw_util': 7, 'max_gpu_util': 50}"
        )
        rig.transport.patches.clear()
        for i in range(5):
            rig.played.cards = (card(gpu=60 + i),)
            await rig.clock.sleep(30)
        assert len(rig.times()) == 5
        assert "'max_gpu_util': 64" in (await rig.told())[FIRST]
        await rig.clock.sleep(119)
        assert "'max_gpu_util': 64" in (await rig.told())[FIRST]
        assert (await rig.ask("GET", NODES.path(name=NODE)))["metadata"]["annotations"][
            "x/y"
        ] == "z"
        assert rig.counts.profiled == len(rig.transport.patches) + 5
        assert rig.counts.troubles == 0

    played(story, tmp_path, card())


def test_no_timestamp_is_ever_older_than_the_promise(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.until(31)
        rng = random.Random(3)
        for _ in range(400):
            if rng.random() < 0.3:
                rig.played.cards = (card(gpu=rng.randrange(100)),)
            await rig.clock.sleep(5.0)
        times = rig.times()
        gaps = [after - before for before, after in pairwise(times)]
        assert max(gaps) <= 61.0
        assert min(gaps) >= 29.0

    played(story, tmp_path, card())


def test_a_card_that_is_gone_is_told_no_more(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.until(40)
        assert set(await rig.told()) == {STATIC, FIRST, SECOND, STAMP}
        rig.played.cards = (card(1),)
        await rig.until(95)
        told = await rig.told()
        assert set(told) == {STATIC, SECOND, STAMP}
        assert "'count': '1'" in told[STATIC]
        rig.played.cards = None  # the driver hangs: nobody knows
        await rig.until(150)
        assert await rig.told() == {}
        rig.transport.patches.clear()
        await rig.until(400)
        assert rig.times() == []
        rig.played.cards = (card(0),)
        await rig.until(440)
        assert set(await rig.told()) == {STATIC, FIRST, STAMP}

    played(story, tmp_path, card(0), card(1))


def test_what_an_earlier_agent_left_goes_and_what_others_wrote_stays(tmp_path: Path) -> None:
    theirs = {f"{AI}/GPU-0-job-type": "DLT", f"{AI}/gpu-x": "1", f"{AI}/gpu-static-2": "1"}

    async def story(rig: Rig) -> None:
        await rig.annotate({f"{AI}/gpu-7": "{}", **theirs})
        await rig.add_pod("idle", annotations={f"{AI}/cpu_util": "5", f"{AI}/mine": "1"})
        await rig.until(40)
        assert set(await rig.told()) == {STATIC, FIRST, STAMP, *theirs}
        assert await rig.told("idle") == {f"{AI}/mine": "1"}

    played(story, tmp_path, card())


def test_what_somebody_removes_is_written_again(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.until(40)
        await rig.annotate({FIRST: None})
        await rig.until(70)
        assert FIRST in await rig.told()
        await rig.ask("DELETE", NODES.path(name=NODE))
        await rig.until(80)
        await rig.ask("POST", NODES.path(), {"metadata": {"name": NODE}})
        await rig.until(121)
        assert set(await rig.told()) == {STATIC, FIRST, STAMP}

    played(story, tmp_path, card())


def test_cards_go_by_the_indexes_of_the_inventory(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        rig.publisher.show(Inventory({"nvidia": Devices((Device("GPU-0", 1), Device("GPU-1", 0)))}))
        await rig.until(40)
        told = await rig.told()
        assert "'max_gpu_util': 20" in told[FIRST]
        assert "'max_gpu_util': 10" in told[SECOND]

    played(story, tmp_path, card(0, gpu=10), card(1, gpu=20))


def test_pods_are_told_what_they_do(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.add_pod("train", 7, 8)
        await rig.add_pod("idle")
        await rig.until(31)
        uid = next(pod.uid for pod in rig.pods.all() if pod.key[1] == "train")
        told = await rig.told("train")
        assert told == {
            f"{AI}/n1-gpu-0_util": "50",
            f"{AI}/n1-gpu-0_mem_mb": "200.0",
            f"{AI}/n1-gpu-0_mem_bw_util": "7",
            f"{AI}/n1-gpu-1_util": "30",
            f"{AI}/n1-gpu-1_mem_mb": "100.0",
            f"{AI}/n1-gpu-1_mem_bw_util": "7",
            f"{AI}/cpu_mem_mb": "5.0",
            STAMP: told[STAMP],
        }
        assert await rig.told("idle") == {}
        rig.use(uid, 45_000_000)  # of thirty seconds
        await rig.until(61)
        assert (await rig.told("train"))[f"{AI}/cpu_util"] == "150.0"
        rig.played.cards = (card(0, pids=(8,)), card(1))
        await rig.until(91)
        told = await rig.told("train")
        assert told[f"{AI}/n1-gpu-0_mem_mb"] == "100.0"
        assert not [key for key in told if "gpu-1" in key]
        await rig.until(300)
        assert max(rig.times("/pods/train")) > 240  # a heartbeat
        rig.played.cards = (card(0), card(1))
        await rig.until(340)
        assert await rig.told("train") == {}
        rig.transport.patches.clear()
        await rig.until(500)
        assert rig.times("/pods/") == []

    played(story, tmp_path, card(0, pids=(7, 8, 99)), card(1, gpu=30, pids=(7,)))


def test_another_pod_of_the_same_name_is_not_told(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.add_pod("train", 7)
        await rig.until(5)
        old = rig.pods.all()
        await rig.ask("DELETE", PODS.path("default", "train"), {"gracePeriodSeconds": 0})
        await rig.add_pod("train")
        await rig.until(10)
        rig.pods.replace(old, "")  # a watch that lags
        await rig.until(31)
        assert len(rig.times("/pods/train")) == 1
        assert await rig.told("train") == {}
        assert rig.counts.troubles == 1  # the uid is another
        assert FIRST in await rig.told()

    played(story, tmp_path, card(pids=(7,)))


@pytest.mark.parametrize("status", [403, 409, 429, 500])
def test_a_write_that_fails_is_made_with_the_next_period(tmp_path: Path, status: int) -> None:
    async def story(rig: Rig) -> None:
        rig.transport.refuse = lambda path: status
        await rig.until(100)
        assert await rig.told() == {}
        tries = rig.times()
        assert [round(b - a) for a, b in pairwise(tries)] == [30] * (len(tries) - 1)
        assert len(tries) == 3
        assert rig.counts.troubles == 1
        rig.transport.refuse = lambda path: 0
        await rig.until(131)
        assert set(await rig.told()) == {STATIC, FIRST, STAMP}

    played(story, tmp_path, card())


def test_a_pod_that_refuses_does_not_disturb_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(rig: Rig) -> None:
        await rig.add_pod("a", 7)
        await rig.add_pod("b", 8)
        rig.transport.refuse = lambda path: 403 if path.endswith("/a") else 0
        await rig.until(100)
        assert f"{AI}/n1-gpu-0_util" in await rig.told("b")
        assert await rig.told("a") == {}
        assert rig.counts.troubles == 1
        assert "what default/a does on cards is not written" in caplog.text

    played(story, tmp_path, card(pids=(7, 8)))


def test_an_api_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        hangs = rig.transport.request

        async def request(method: str, path: str, **others: Any) -> Any:
            if method == "PATCH":
                await asyncio.sleep(1000)
            return await hangs(method, path, **others)

        rig.transport.request = request  # type: ignore[method-assign]
        await rig.until(100)
        assert rig.counts.troubles == 1
        rig.transport.request = hangs  # type: ignore[method-assign]
        await rig.until(150)
        assert FIRST in await rig.told()

    played(story, tmp_path, card())


def test_a_mistake_of_ours_ends_neither_it_nor_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(rig: Rig) -> None:
        rig.played.broken = True
        await rig.until(100)
        assert FIRST in await rig.told()
        assert rig.counts.troubles == 1
        assert "a mistake of ours" in caplog.text

    played(story, tmp_path, card())


# ---- the whole agent


async def test_an_agent_with_a_file_tells_node_and_pod(folder: Path) -> None:
    """In real time, with a kubelet and threads."""
    inventory, cards = folder / "devices.json", folder / "cards.yaml"
    device = {"id": "GPU-5", "index": 2, "memoryMib": 1000}
    inventory.write_text(json.dumps({"classes": {"nvidia": {"devices": [device]}}}))
    cards.write_text(
        "cards: [{index: 0, id: GPU-5, memoryMib: 1000, gpu: 9, processes: [{pid: 7}]}]"
    )
    async with real.running(folder, FileSource(inventory, Vendors())) as rig:
        await rig.stop_agent()
        await rig.add_pod("train")
        await rig.bind("train")
        await rig.eyes.until(lambda: ("Pod", "train") in rig.eyes.objects)
        uid = rig.eyes.objects["Pod", "train"]["metadata"]["uid"]
        proc = folder / "root/proc/7"
        await asyncio.to_thread(proc.mkdir, parents=True)
        (proc / "cgroup").write_text(f"0::/kubepods/pod{uid}/abc\n")
        await rig.start_agent(profile=True, profile_file=str(cards), profile_s=0.2)

        await rig.eyes.until(lambda: f"{AI}/gpu-2" in rig.annotations(real.NODE, "Node"))
        await rig.eyes.until(lambda: f"{AI}/n1-gpu-2_util" in rig.annotations("train"))
        assert rig.agent.counts.profiled >= 2
        cards.unlink()
        await rig.until(lambda: rig.agent.counts.troubles > 0)
        assert rig.agent.is_ready


async def test_an_agent_without_it_writes_none(folder: Path) -> None:
    async with real.running(folder) as rig:
        await rig.until(lambda: rig.agent.is_ready)
        assert rig.agent.profiler is None
        assert rig.agent.counts.profiled == 0
