"""Hostile annotations on the embedded API, through the whole scheduler: left out with a reason, and
nothing else is disturbed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.cli.embedded import Cluster, running
from bayplan.cli.story import node, pod
from bayplan.core.engine.profile import PluginConfig
from bayplan.kube.client import NODES, PODS
from bayplan.kube.profiles import NEW, OLD
from bayplan.kube.transport import MERGE_PATCH
from bayplan.local.virtual import EPOCH, VirtualClock, run
from bayplan.scheduler.config import Configuration
from tests.fake.test_devices import create, get, noted, waits

Json = dict[str, Any]
Scene = Callable[[Cluster], Awaitable[None]]
HOSTILE = {
    "code": "{'max_gpu_util': __import__('os').abort()}",
    "a call": "__import__('os').abort()",
    "200 kB": "{'max_gpu_util': '" + "x" * 200_000 + "'}",
    "NaN": "{'max_gpu_util': nan, 'mem_used': NaN}",
    "a list": "[1, 2, 3]",
    "negative": "{'max_gpu_util': -5}",
    "deep": "{'a':" * 3_000,
    "bytes": "{'max_gpu_util': b'1'}",
    "a huge number": "{'max_gpu_util': " + "9" * 5_000 + "}",
    "nothing": "",
}
IDLE = "{'mem_used': '0GB', 'mem_free': '12GB', 'max_gpu_util': 0, 'max_mem_bw_util': 0}"
BUSY = "{'mem_used': '0GB', 'mem_free': '12GB', 'max_gpu_util': 95, 'max_mem_bw_util': 90}"
STRANGE = "{'mem_used': '6GB', 'mem_free': '6GB', 'max_gpu_util': 95, 'max_mem_bw_util': 90}"


def play(made: list[Json], scene: Scene, config: Configuration | None = None) -> None:
    async def whole() -> None:
        async with running(made, config or Configuration(), VirtualClock(), seed=0) as cluster:
            await scene(cluster)
            assert not any(task.done() for task in cluster.tasks)

    run(whole())


def used(name: str, **notes: str) -> Json:
    return node(name, 1, notes={OLD + key.replace("_", "-"): text for key, text in notes.items()})


async def annotate(cluster: Cluster, name: str, notes: dict[str, str | None]) -> None:
    body = msgspec.json.encode({"metadata": {"annotations": notes}})
    path = NODES.path("", name)
    await cluster.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)


async def placed(cluster: Cluster, name: str) -> str:
    await noted(cluster, name)
    return str((await get(cluster, name))["spec"]["nodeName"])


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.name == "bayplan"]
    return [each for each in found if "annotations" in each]


def test_the_profile_sends_pods_to_idle_devices() -> None:
    async def scene(cluster: Cluster) -> None:
        await create(cluster, pod("train", "utilsched", 1))
        assert await placed(cluster, "train") == "idle"

    play([used("busy", gpu_0=BUSY), used("idle", gpu_0=IDLE), used("unknown")], scene)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_node_is_read_without_it(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps its pods and takes new ones, and its neighbours are compared as before."""

    async def scene(cluster: Cluster) -> None:
        for name in ("first", "second", "third"):
            await create(cluster, pod(name, "utilsched", 1))
        assert await placed(cluster, "first") == "idle"
        assert await placed(cluster, "second") == "hostile"  # as if nobody had measured it
        assert await placed(cluster, "third") == "busy"
        (use,) = (n.use for n in cluster.service.engine.cluster.nodes if n and n.name == "hostile")
        assert use is not None
        assert (use.model, use.devices) == ("Tesla K80", ())
        assert cluster.service.engine.plugin_errors == 0

    static = "{'count': '1', 'model': 'Tesla K80'}"
    hostile = used("hostile", gpu_0=HOSTILE[kind], gpu_static=static)
    with caplog.at_level(logging.WARNING):
        play([used("busy", gpu_0=BUSY), hostile, used("idle", gpu_0=IDLE)], scene)
    said = words(caplog)
    assert said
    at = "node hostile: metadata.annotations[ai.centaurus.io/gpu-0]"
    assert all(each.startswith(at) and each.endswith("; it is left out") for each in said)
    assert all(len(each) < 300 for each in said)


def test_a_hostile_pod_is_placed_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(cluster: Cluster) -> None:
        for i, text in enumerate(HOSTILE.values()):
            made = pod(f"p{i}", "utilsched")
            made["metadata"]["annotations"] = {
                NEW + "gpu_util": text,
                OLD + "n-gpu-0_util": text[:1000],
                OLD + "cpu_mem_mb": "2048",
            }
            await create(cluster, made)
        for i in range(len(HOSTILE)):
            assert await placed(cluster, f"p{i}") == "idle"
        uses = [each.pod.use for each in cluster.service.engine.cluster.pods.values()]
        assert [use and (use.gpu_percent, use.memory_mib) for use in uses] == [(-1, 2048)] * len(
            uses
        )

    with caplog.at_level(logging.WARNING):
        play([used("idle", gpu_0=IDLE)], scene)
    assert {each.split(":")[0] for each in words(caplog)} == {
        f"pod default/p{i}" for i in range(len(HOSTILE))
    }


def test_a_node_that_turns_hostile_loses_only_what_was_measured() -> None:
    async def scene(cluster: Cluster) -> None:
        await create(cluster, pod("first", "utilsched", 1))
        assert await placed(cluster, "first") == "a"
        before = cluster.service.engine.cluster.load_log.head
        for text in HOSTILE.values():
            await annotate(cluster, "b", {OLD + "gpu-0": text})
        await cluster.client.clock.sleep(1)
        assert cluster.service.engine.cluster.load_log.head == before
        await create(cluster, pod("second", "utilsched", 1))
        assert await placed(cluster, "second") == "b"

    play([used("a", gpu_0=IDLE), used("b", gpu_0=BUSY)], scene)


def closing() -> Configuration:
    config = Configuration()
    (profile,) = (each for each in config.profiles if each.scheduler_name == "utilsched")
    closed = replace(profile, plugin_config=(PluginConfig("UtilSched", {"closeAbove": 0.25}),))
    others = [each for each in config.profiles if each is not profile]
    return replace(config, profiles=(*others, closed))


def test_a_node_in_use_out_of_band_is_closed_until_the_news_is_too_old() -> None:
    """The old profiler says no time, so that counts from when it was heard."""

    async def scene(cluster: Cluster) -> None:
        clock = cluster.client.clock
        await create(cluster, pod("train", "utilsched", 1))
        await create(cluster, pod("other", "bayplan"))
        why = await waits(cluster, "train")
        assert "1 node(s) had devices in use by nobody known." in why
        assert "Preemption is not helpful" in why
        assert await placed(cluster, "other") == "a"
        assert await placed(cluster, "train") == "a"
        assert 90 <= clock.wall() - EPOCH < 95

    play([used("a", gpu_0=STRANGE)], scene, closing())


def test_a_heartbeat_keeps_what_was_measured_young() -> None:
    async def scene(cluster: Cluster) -> None:
        clock = cluster.client.clock
        await create(cluster, pod("train", "utilsched", 1))
        for beat in range(1, 6):
            await clock.sleep(60)
            await annotate(cluster, "a", {OLD + "timestamp": f"2026-01-01 00:0{beat}:00"})
        assert not (await get(cluster, "train"))["spec"].get("nodeName")
        await annotate(cluster, "a", {OLD + "gpu-0": IDLE})
        assert await placed(cluster, "train") == "a"
        assert clock.wall() - EPOCH < 311

    notes = {OLD + "gpu-0": STRANGE, OLD + "timestamp": "2026-01-01 00:00:00"}
    play([node("a", 1, notes=notes)], scene, closing())


def test_pods_annotations_do_not_reach_the_row_key() -> None:
    async def scene(cluster: Cluster) -> None:
        for i in range(3):
            made = pod(f"p{i}", "utilsched", 4)
            made["metadata"]["annotations"] = {OLD + "n-gpu-0_util": str(i)}
            await create(cluster, made)
        await asyncio.gather(*(waits(cluster, f"p{i}") for i in range(3)))
        assert len(cluster.service.engine.waiting.groups) == 1
        path = PODS.path("default", "p0")
        body = msgspec.json.encode({"metadata": {"annotations": {OLD + "n-gpu-0_util": "50"}}})
        before = cluster.service.engine.waiting.groups
        await cluster.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        await cluster.client.clock.sleep(1)
        found = cluster.service.engine.waiting
        assert list(found.groups) == list(before)
        assert {w.pod.use.gpu_percent for w, _ in found.pods.values() if w.pod.use} == {50, 1, 2}

    play([used("a", gpu_0=IDLE)], scene)
