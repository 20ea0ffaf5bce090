"""Devices in the running scheduler, on the embedded API and in virtual time: what is written with
the Binding, and what is made of what others write."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.cli.embedded import Cluster, running
from bayplan.cli.story import node, pod
from bayplan.core.model.devices import ASSIGNMENT, Assignment, read_assignment
from bayplan.kube.client import PODS, Client
from bayplan.kube.transport import MERGE_PATCH
from bayplan.local.spec import nodes
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import Options, Service

VGPU, MEMORY = "alnair/vgpu-memory", "bayplan.dev/gpu-memory-mib"
GIB = 1 << 10
Json = dict[str, Any]
Scene = Callable[[Cluster], Awaitable[None]]
NOTES = {
    "ai.centaurus.io/physical-gpu-count": "2",
    "ai.centaurus.io/virtual-gpu-count": "16,16",
    "ai.centaurus.io/physical-gpu-uuids": "GPU-0,GPU-1",
}


def play(made: list[Json], scene: Scene) -> None:
    async def whole() -> None:
        async with running(made, Configuration(), VirtualClock(), seed=0) as cluster:
            await scene(cluster)

    run(whole())


async def create(cluster: Cluster, made: Json) -> None:
    await cluster.client.request("POST", PODS.path("default"), body=msgspec.json.encode(made))


async def get(cluster: Cluster, name: str) -> Json:
    found: Json = msgspec.json.decode(
        await cluster.client.request("GET", PODS.path("default", name))
    )
    return found


async def noted(cluster: Cluster, name: str) -> dict[str, str]:
    """The annotations of a pod, once it is bound."""
    while not (found := await get(cluster, name))["spec"].get("nodeName"):
        await cluster.client.clock.sleep(0.1)
    notes: dict[str, str] = found["metadata"].get("annotations") or {}
    return notes


async def waits(cluster: Cluster, name: str) -> str:
    """Why the pod waits, once that is said."""
    while True:
        for condition in (await get(cluster, name))["status"].get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition["message"])
        await cluster.client.clock.sleep(0.1)


async def annotate(cluster: Cluster, name: str, **notes: str | None) -> None:
    body = msgspec.json.encode({"metadata": {"annotations": notes}})
    path = PODS.path("default", name)
    await cluster.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def test_a_binding_says_which_devices() -> None:
    async def scene(cluster: Cluster) -> None:
        made = pod("train", "alnair-cost-saving", **{VGPU: 4})
        made["metadata"]["annotations"] = {"theirs": "1", ASSIGNMENT: "forged"}
        await create(cluster, made)
        notes = await noted(cluster, "train")

        assert notes["theirs"] == "1"
        assert notes["ids.bayplan.dev/main"] == "GPU-0"
        assert notes["ai.centaurus.io/scheduler-timestamp"].isdecimal()
        assert notes[ASSIGNMENT] == (
            '{"held":[{"container":"main","devices":[{"amount":4,"id":"GPU-0","index":0}],'
            '"pool":"n1","resource":"alnair/vgpu-memory"}],"node":"n1","v":1}'
        )

    play([node("n1", notes=NOTES, **{VGPU: 32})], scene)


def test_pretend_nodes_publish_their_cards() -> None:
    async def scene(cluster: Cluster) -> None:
        await create(cluster, pod("two", "bayplan", 2))
        await create(cluster, pod("part", "bayplan", **{MEMORY: 40 * GIB}))
        two = read_assignment((await noted(cluster, "two"))[ASSIGNMENT])
        part = (await noted(cluster, "part"))["ids.bayplan.dev/main"]

        assert isinstance(two, Assignment)
        ids = {device.id for held in two.held for device in held.devices}
        assert len(ids) == 2
        assert part not in ids

    play(nodes("4xA100"), scene)


def test_a_restart_finds_what_was_given() -> None:
    async def scene(cluster: Cluster) -> None:
        for i in range(3):
            await create(cluster, pod(f"p{i}", "alnair-high-performance", **{VGPU: 10 - i}))
        given = [(await noted(cluster, f"p{i}"))["ids.bayplan.dev/main"] for i in range(2)]
        assert sorted(given) == ["GPU-0", "GPU-1"]
        assert "no device with enough room" in await waits(cluster, "p2")

        clock = cluster.client.clock
        client = Client(DirectTransport(cluster.api, clock), clock, cluster.client.rng)
        again = Service(replace(Configuration(), listen=":0"), Options(dry_run=True), client)
        task = asyncio.create_task(again.run())
        while not again.watches.pods.is_synced or len(again.inbox):
            await clock.sleep(0.1)
        await clock.sleep(1)
        ours, theirs = cluster.service.engine.cluster, again.engine.cluster
        for name, row in ours.rows.items():
            table, other = ours.pools.tables["nvidia"], theirs.pools.tables["nvidia"]
            line = other.cells[theirs.rows[name]]
            assert table.cells[row].tolist() == line.tolist()
        again.loop.stop()
        await task

    play([node("n1", notes=NOTES, **{VGPU: 32})], scene)


def test_what_the_node_side_says_moves_what_is_held() -> None:
    async def scene(cluster: Cluster) -> None:
        await create(cluster, pod("first", "alnair-cost-saving", **{VGPU: 10}))
        assert (await noted(cluster, "first"))["ids.bayplan.dev/main"] == "GPU-0"
        text = ",".join(f"GPU-1_{i}" for i in range(10))
        await annotate(cluster, "first", **{"ai.centaurus.io/alnair-gpu-id": text})
        await cluster.client.clock.sleep(1)
        await create(cluster, pod("second", "alnair-cost-saving", **{VGPU: 10}))

        assert (await noted(cluster, "second"))["ids.bayplan.dev/main"] == "GPU-0"

    play([node("n1", notes=NOTES, **{VGPU: 32})], scene)


def test_a_forged_assignment_closes_the_class_until_it_is_put_right() -> None:
    async def scene(cluster: Cluster) -> None:
        await create(cluster, pod("first", "alnair-cost-saving", **{VGPU: 4}))
        true = (await noted(cluster, "first"))[ASSIGNMENT]
        for forged in ("{}", true.replace('"amount":4', '"amount":1'), true.replace("n1", "n2")):
            await annotate(cluster, "first", **{ASSIGNMENT: forged})
            await cluster.client.clock.sleep(1)
            await create(cluster, pod("second", "alnair-cost-saving", **{VGPU: 4}))
            await create(cluster, pod("web", "alnair-cost-saving"))
            assert "devices that are not known" in await waits(cluster, "second")
            await noted(cluster, "web")
            await annotate(cluster, "first", **{ASSIGNMENT: true})
            assert (await noted(cluster, "second"))["ids.bayplan.dev/main"] == "GPU-0"
            for name in ("second", "web"):
                await cluster.client.request("DELETE", PODS.path("default", name))
            await cluster.client.clock.sleep(60)

    play([node("n1", notes=NOTES, **{VGPU: 32})], scene)
