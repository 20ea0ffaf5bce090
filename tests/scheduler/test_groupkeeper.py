"""PodGroups on the embedded API: the scheduler keeps their statuses, and nobody else's."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import yaml

from bayplan.cli.embedded import Cluster, running
from bayplan.cli.manifests import render
from bayplan.kube.client import POD_GROUPS, PODS, Client, Resource
from bayplan.kube.transport import MERGE_PATCH, Response
from bayplan.local.api import Api
from bayplan.local.faults import Chances, Faults
from bayplan.local.spec import nodes
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import Options, Service

Json = dict[str, Any]
NEW, OLD = "scheduling.x-k8s.io", "scheduling.sigs.k8s.io"
LABELS = {NEW: "scheduling.x-k8s.io/pod-group", OLD: "pod-group.scheduling.sigs.k8s.io"}
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
SOON_S = 5.0


class World:
    """A cluster of 16 GPUs, and the few requests that tests make."""

    def __init__(self, cluster: Cluster, source: str) -> None:
        self.cluster, self.source, self.label = cluster, source, LABELS[source]
        self.clock, self.soon_s = VirtualClock(), SOON_S

    async def define(self) -> None:
        definition = yaml.safe_load(render("crds", {}).replace(NEW, self.source))
        await self.send("POST", DEFINITIONS.path(), definition)
        await self.clock.sleep(70)  # the longest pause of a watch, and a little

    async def send(self, method: str, path: str, body: Json | None = None) -> Json:
        found: Json = json.loads(
            await self.cluster.client.request(
                method,
                path,
                body=None if body is None else json.dumps(body).encode(),
                content_type=MERGE_PATCH if method == "PATCH" else "application/json",
            )
        )
        return found

    async def group(self, name: str, minimum: Any, space: str = "default") -> None:
        made = {
            "apiVersion": f"{self.source}/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": minimum},
        }
        await self.send("POST", POD_GROUPS[self.source].path(space), made)

    async def pod(self, name: str, group: str, gpus: int = 1, **more: Any) -> None:
        metadata: Json = {"name": name, "labels": {self.label: group}}
        metadata |= {"annotations": more.pop("notes", {}), "ownerReferences": more.pop("owns", [])}
        container = {
            "name": "main",
            "image": "train:1",
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }
        spec = {"schedulerName": more.pop("scheduler", "bayplan"), "containers": [container]}
        body = {"metadata": metadata, "spec": spec}
        await self.send("POST", PODS.path(more.pop("space", "default")), body)

    async def status(self, name: str, space: str = "default") -> Json:
        found = await self.send("GET", POD_GROUPS[self.source].path(space, name))
        status: Json = found.get("status") or {}
        return status

    async def seen(self, name: str) -> tuple[str, int, int, int, int]:
        await self.clock.sleep(self.soon_s)
        found = await self.status(name)
        counts = ("scheduled", "running", "succeeded", "failed")
        return found.get("phase", ""), *(found.get(each, -1) for each in counts)


def play(
    story: Callable[[World], Awaitable[None]], source: str = NEW, faults: Faults | None = None
) -> None:
    async def whole() -> None:
        clock = VirtualClock()
        config = Configuration()
        async with running(nodes("8xA100*2"), config, clock, faults, seed=1) as cluster:
            await story(World(cluster, source))
            assert not any(task.done() for task in cluster.tasks)

    run(whole())


def condition(status: Json) -> tuple[str, str, str]:
    (found,) = status["conditions"]
    return found["status"], found["reason"], found["message"]


async def its_life(world: World, run_seconds: str = "60") -> None:
    await world.define()
    await world.group("g", 3)
    assert await world.seen("g") == ("Pending", 0, 0, 0, 0)
    owner = {"apiVersion": "example.com/v1", "kind": "Training", "name": "train", "uid": "u"}
    notes = {"bayplan.dev/run-seconds": run_seconds}
    for i in range(2):
        await world.pod(f"p{i}", "g", notes=notes, owns=[owner])
    assert await world.seen("g") == ("Pending", 0, 0, 0, 0)
    status, reason, message = condition(await world.status("g"))
    assert (status, reason) == ("False", "Unschedulable")
    assert "2 of 3 members are here" in message
    await world.pod("p2", "g", notes=notes, owns=[owner])
    assert await world.seen("g") == ("Running", 3, 3, 0, 0)
    found = await world.status("g")
    assert condition(found)[:2] == ("True", "Scheduled")
    assert found["occupiedBy"] == "default/train"
    assert found["scheduleStartTime"].startswith("20")
    await world.clock.sleep(float(run_seconds))
    assert await world.seen("g") == ("Finished", 3, 0, 3, 0)
    for i in range(3):
        await world.send("DELETE", PODS.path("default", f"p{i}"))
    assert await world.seen("g") == ("Finished", 0, 0, 0, 0)
    assert condition(await world.status("g"))[0] == "True"


def test_the_life_of_a_group() -> None:
    play(its_life)


def test_the_life_of_a_group_of_the_older_kind() -> None:
    play(its_life, OLD)


def test_its_life_where_the_api_is_in_trouble() -> None:
    chances = Chances(conflict=0.2, busy=0.1, error=0.1, refused=0.1, lost_answer=0.1)
    faults = Faults(chances, random.Random(3))

    async def story(world: World) -> None:
        world.soon_s = 120.0
        await its_life(world, "600")

    play(story, faults=faults)
    assert set(faults.met) >= {"conflict", "busy", "error", "refused", "lost_answer"}


def test_a_member_that_fails() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("g", 2)
        for i in range(2):
            await world.pod(f"p{i}", "g")
        assert await world.seen("g") == ("Running", 2, 2, 0, 0)
        failed = {"status": {"phase": "Failed"}}
        await world.send("PATCH", PODS.path("default", "p0", "status"), failed)
        assert await world.seen("g") == ("Failed", 1, 1, 0, 1)

    play(story)


def test_pods_of_other_namespaces_and_other_labels_are_not_counted() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("g", 1)
        await world.send("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
        await world.pod("p0", "g", space="other")
        await world.pod("p1", "another")
        assert await world.seen("g") == ("Pending", 0, 0, 0, 0)

    play(story)


def test_a_group_whose_members_are_another_schedulers_is_left_to_it() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.pod("p0", "g", scheduler="other")
        await world.clock.sleep(SOON_S)
        await world.group("g", 1)
        await world.clock.sleep(SOON_S)
        assert await world.status("g") == {}

    play(story)


def test_a_group_that_cannot_be_understood_says_so_itself() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("g", 0)
        await world.pod("p0", "g")
        await world.clock.sleep(SOON_S)
        found = await world.status("g")
        assert found["phase"] == "Unknown"
        assert condition(found) == (
            "False",
            "Invalid",
            "PodGroup default/g: spec.minMember: 0 is not a whole number from 1 to 2147483647",
        )
        path = POD_GROUPS[world.source].path("default", "g")
        await world.send("PATCH", path, {"spec": {"minMember": 1}})
        assert await world.seen("g") == ("Running", 1, 1, 0, 0)

    play(story)


def test_what_somebody_else_writes_is_put_right_and_other_words_stay() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("g", 1)
        await world.pod("p0", "g")
        assert await world.seen("g") == ("Running", 1, 1, 0, 0)
        path = POD_GROUPS[world.source].path("default", "g", "status")
        await world.send("PATCH", path, {"status": {"phase": "Failed", "theirs": 1, "running": 9}})
        assert await world.seen("g") == ("Running", 1, 1, 0, 0)
        assert (await world.status("g"))["theirs"] == 1

    play(story)


def test_a_group_that_does_not_change_is_not_written_again() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("waits", 3)
        await world.group("runs", 1)
        for i in range(2):
            await world.pod(f"w{i}", "waits")
        await world.pod("r0", "runs")
        await world.clock.sleep(60)
        before = [
            await world.send("GET", POD_GROUPS[NEW].path("default", n)) for n in ("waits", "runs")
        ]
        await world.clock.sleep(600)
        after = [
            await world.send("GET", POD_GROUPS[NEW].path("default", n)) for n in ("waits", "runs")
        ]
        assert before == after

    play(story)


def test_a_group_that_is_deleted_and_made_anew_is_followed_again() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("g", 1)
        await world.pod("p0", "g")
        assert await world.seen("g") == ("Running", 1, 1, 0, 0)
        await world.send("DELETE", POD_GROUPS[NEW].path("default", "g"))
        await world.clock.sleep(SOON_S)
        await world.group("g", 2)
        assert await world.seen("g") == ("Pending", 1, 1, 0, 0)

    play(story)


def test_without_the_kind_nothing_is_said_and_nothing_waits_for_it() -> None:
    async def story(world: World) -> None:
        watches = world.cluster.service.watches
        await world.clock.sleep(SOON_S)
        assert watches.synced
        assert world.cluster.service.loop.is_ready
        assert {f"podgroup.{source}" for source in POD_GROUPS} <= set(watches.missing)

    play(story)


# ---- another scheduler in its place


class Pruning(DirectTransport):
    """To a server whose definition of the kind has fewer fields than ours."""

    patches = 0

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, **more: Any
    ) -> Response:
        if method == "PATCH" and path.endswith("/g/status"):
            self.patches += 1
            patch = json.loads(body or b"")
            for field in ("scheduled", "conditions"):
                patch["status"].pop(field, None)
            body = json.dumps(patch).encode()
        return await super().request(method, path, body=body, **more)


@asynccontextmanager
async def another(world: World, transport: DirectTransport) -> AsyncIterator[None]:
    """Inside the block, a new scheduler instead of the one that the cluster came with."""
    world.cluster.service.loop.stop()
    await world.cluster.tasks[0]
    client = Client(transport, world.clock, random.Random(7))
    service = Service(Configuration(), Options(), client)
    running = asyncio.create_task(service.run())
    try:
        yield
        assert not running.done()
    finally:
        service.loop.stop()
        await running


def play_without_end(story: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        clock = VirtualClock()
        async with running(nodes("8xA100*2"), Configuration(), clock, seed=1) as cluster:
            await story(World(cluster, NEW))

    run(whole())


def test_a_scheduler_that_starts_anew_goes_on_where_the_last_one_ended() -> None:
    async def story(world: World) -> None:
        await world.define()
        await world.group("g", 2)
        await world.pod("p0", "g")
        await world.pod("p1", "g")
        assert await world.seen("g") == ("Running", 2, 2, 0, 0)
        before = await world.status("g")
        world.cluster.service.loop.stop()
        await world.cluster.tasks[0]
        failed = {"status": {"phase": "Failed"}}
        await world.send("PATCH", PODS.path("default", "p0", "status"), failed)
        async with another(world, DirectTransport(world.cluster.api, world.clock)):
            assert await world.seen("g") == ("Failed", 1, 1, 0, 1)
            after = await world.status("g")
        assert after["scheduleStartTime"] == before["scheduleStartTime"]
        assert after["conditions"] == before["conditions"]

    play_without_end(story)


def test_fields_that_the_server_does_not_keep_are_not_written_again_and_again() -> None:
    async def story(world: World) -> None:
        await world.define()
        pruning = Pruning(world.cluster.api, world.clock)
        async with another(world, pruning):
            await world.group("g", 2)
            await world.pod("p0", "g")
            assert await world.seen("g") == ("Pending", -1, 0, 0, 0)
            await world.clock.sleep(300)
            assert pruning.patches <= 2
            await world.pod("p1", "g")
            assert await world.seen("g") == ("Running", -1, 2, 0, 0)

    play_without_end(story)


def test_a_dry_run_writes_no_status() -> None:
    async def chores(dry_run: bool) -> int:
        clock = VirtualClock()
        client = Client(
            DirectTransport(Api(clock, random.Random(0)), clock), clock, random.Random(0)
        )
        service = Service(Configuration(devices=()), Options(dry_run=dry_run), client)
        return service.chores.count(service.keep_groups)

    assert (run(chores(False)), run(chores(True))) == (1, 0)
