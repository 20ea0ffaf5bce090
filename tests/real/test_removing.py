"""What is done to victims and preemptors, as a real API server and the embedded one take it."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest
from msgspec.structs import replace

from bayplan.core.model import events as on
from bayplan.core.model.effects import Evict, Preempt, Refuse
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Refusal
from bayplan.kube import wire
from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import find_source
from bayplan.kube.read import Reader
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.feed import scheduled_condition
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.service import connect
from bayplan.scheduler.writer import Settings, Writer
from tests.embedded import Plane
from tests.real.rig import Cluster, Json

REFUSAL = Refusal("0/1 nodes are available: 1 Insufficient cpu.", {}, frozenset(), 1)


@pytest.fixture
def cluster(plane: Plane) -> Cluster:
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    made = Cluster(plane, name)
    made.add_node("n")
    return made


class Rig:
    """A writer as the service makes it, with the server as its only memory."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.reader = cluster, Reader()
        self.uids: dict[str, str] = {}  # names

    def pod(self, name: str) -> Pod:
        found = self.reader.pod(self.cluster.pod(name))
        self.uids[found.uid] = name
        return found

    def act(self, story: Callable[[Writer], Awaitable[None]]) -> list[on.Event]:
        """What came back when all is written."""
        return asyncio.run(self._act(story))

    async def _act(self, story: Callable[[Writer], Awaitable[None]]) -> list[on.Event]:
        clock = RealClock()
        inbox = Inbox(clock)
        async with AsyncExitStack() as stack:
            source = find_source(str(self.cluster.plane.kubeconfig))
            client = await connect(source, clock, Configuration(), stack)

            def known(uid: str) -> object:
                body = msgspec.json.encode(self.cluster.pod(self.uids[uid]))
                return scheduled_condition(msgspec.json.decode(body, type=wire.Pod))

            writer = Writer(client, inbox, Fence(clock), known, Settings(workers=2))  # type: ignore[arg-type]
            working = asyncio.create_task(writer.run())
            try:
                await story(writer)
                await writer.close(10.0, 10.0)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        return inbox.take(100)

    def bound(self, name: str, **more: object) -> Pod:
        self.cluster.add_pod(name, 0, nodeName="n", **more)
        return self.pod(name)

    def target(self, name: str) -> Json:
        conditions = self.cluster.pod(name)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "DisruptionTarget"), {})

    def is_going(self, name: str) -> bool:
        return "deletionTimestamp" in self.cluster.pod(name)["metadata"]


@pytest.fixture
def rig(cluster: Cluster) -> Rig:
    return Rig(cluster)


def test_a_victim_is_marked_deleted_with_its_own_grace_and_told(rig: Rig) -> None:
    victim = rig.bound("victim", terminationGracePeriodSeconds=77)
    rig.cluster.add_pod("big", 0)
    big = rig.pod("big")

    async def story(writer: Writer) -> None:
        writer.preempt(Preempt(big, "n", (victim,)))
        writer.refuse(Refuse(big, REFUSAL, nominated="n"))

    assert rig.act(story) == []
    left = rig.cluster.pod("victim")
    assert left["metadata"]["deletionGracePeriodSeconds"] == 77
    mark = rig.target("victim")
    assert (mark["status"], mark["reason"]) == ("True", "PreemptionByScheduler")
    assert mark["message"] == "bayplan: preempting to accommodate a higher priority pod"
    (event,) = rig.cluster.events("victim")
    assert event["note"] == f"Preempted by pod {big.uid} on node n"
    assert (event["reason"], event["type"], event["action"]) == (
        "Preempted",
        "Normal",
        "Preempting",
    )
    assert event["related"]["uid"] == big.uid
    assert rig.cluster.pod("big")["status"]["nominatedNodeName"] == "n"
    assert rig.cluster.condition("big")["message"] == REFUSAL.message

    async def again(writer: Writer) -> None:
        writer.refuse(Refuse(big, REFUSAL, nominated=""))

    assert rig.act(again) == []
    assert "nominatedNodeName" not in rig.cluster.pod("big")["status"]


def test_another_pod_of_the_same_name_is_not_touched(rig: Rig) -> None:
    victim = replace(rig.bound("victim"), uid=str(uuid.uuid4()))  # the one before
    big, nobody = (replace(victim, name=n, uid=str(uuid.uuid4())) for n in ("big", "nobody"))

    async def story(writer: Writer) -> None:
        writer.preempt(Preempt(big, "n", (victim, nobody)))
        writer.evict(Evict(replace(victim, uid=str(uuid.uuid4())), "for the best"))

    assert rig.act(story) == []
    assert not rig.is_going("victim")
    assert rig.target("victim") == {}
    assert rig.cluster.events("victim") == []


def test_an_eviction_is_carried_out_unless_a_budget_refuses(rig: Rig) -> None:
    free, kept = rig.bound("free"), rig.bound("kept")
    running = {"status": {"phase": "Running"}}
    for name in ("free", "kept"):
        rig.cluster.patch_pod(name, running, "/status")
    budget: Json = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"name": "kept"}}},
    }
    path = f"/apis/policy/v1/namespaces/{rig.cluster.namespace}/poddisruptionbudgets"
    rig.cluster.plane.request("POST", path, budget)

    async def story(writer: Writer) -> None:
        writer.evict(Evict(free, "for the best"))
        writer.evict(Evict(kept, "for the best"))
        async with asyncio.timeout(10):
            while not (writer.done["eviction"] and writer.queued["put off"]):
                await RealClock().sleep(0.01)

    assert rig.act(story) == []
    assert rig.is_going("free")
    assert rig.target("free")["reason"] == "EvictionByEvictionAPI"
    assert rig.cluster.reasons("free") == ["Evicted"]
    assert not rig.is_going("kept")
