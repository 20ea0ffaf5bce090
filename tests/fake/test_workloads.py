"""StatefulSets, Jobs and owners on virtual time: what a real control plane would take hours for.

That ours do what kube-controller-manager does is shown in tests/real/test_workloads.py.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from bayplan.kube.client import Client
from bayplan.kube.transport import MERGE_PATCH
from bayplan.local.api import Api
from bayplan.local.controllers import Controllers
from bayplan.local.kubelets import EXIT_CODE, RUN_SECONDS, Kubelets
from bayplan.local.requests import Request
from bayplan.local.spec import nodes
from bayplan.local.transport import DirectTransport
from bayplan.local.virtual import VirtualClock, run

Json = dict[str, Any]
SPACE = "/namespaces/default"
PODS, MAPS = f"/api/v1{SPACE}/pods", f"/api/v1{SPACE}/configmaps"
SETS, JOBS = f"/apis/apps/v1{SPACE}/statefulsets", f"/apis/batch/v1{SPACE}/jobs"


class World:
    def __init__(self, api: Api, clock: VirtualClock) -> None:
        self.api, self.clock = api, clock

    def ask(self, method: str, path: str, body: Any = None) -> Json:
        sort = MERGE_PATCH if method == "PATCH" else "application/json"
        raw = b"" if body is None else msgspec.json.encode(body)
        found: Json = msgspec.json.decode(
            self.api.handle(Request(method, path, {}, raw, sort)).body
        )
        return found

    def pods(self) -> dict[str, Json]:
        return {pod["metadata"]["name"]: pod for pod in self.ask("GET", PODS)["items"]}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = VirtualClock()
    api = Api(clock, random.Random(1))
    client = Client(DirectTransport(api, clock), clock, random.Random(2))
    kubelets = Kubelets(client, nodes("cpu*1"), random.Random(3))
    tasks = [asyncio.create_task(work) for work in (kubelets.run(), Controllers(api).run())]
    await kubelets.registered.wait()
    try:
        yield World(api, clock)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def story(tell: Callable[[World], Awaitable[None]]) -> None:
    async def told() -> None:
        async with world() as made:
            await tell(made)

    run(told())


def template(restarts: str = "Always", **annotations: str) -> Json:
    given = {f"bayplan.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    container = {"name": "c", "image": "i"}
    spec = {"nodeName": "cpu-0", "restartPolicy": restarts, "containers": [container]}
    return {"metadata": {"labels": {"app": "x"}, "annotations": given}, "spec": spec}


def stateful(**spec: Any) -> Json:
    base = {"selector": {"matchLabels": {"app": "x"}}, "template": template()}
    return {"metadata": {"name": "s"}, "spec": {**base, **spec}}


def job(restarts: str = "Never", seconds: str = "5", code: str = "0", **spec: Any) -> Json:
    made = template(restarts, run_seconds=seconds, exit_code=code)
    return {"metadata": {"name": "j"}, "spec": {"template": made, **spec}}


def test_names_of_annotations() -> None:
    assert template(run_seconds="1", exit_code="2")["metadata"]["annotations"] == {
        RUN_SECONDS: "1",
        EXIT_CODE: "2",
    }


def test_a_failing_job_tries_again_after_ten_twenty_and_forty_seconds() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", JOBS, job(code="1", backoffLimit=3))
        began, starts = world.clock.time(), []
        known: set[str] = set()
        while "completionTime" not in (status := world.ask("GET", f"{JOBS}/j")["status"]):
            for name in set(world.pods()) - known:
                known.add(name)
                starts.append(world.clock.time() - began)
            if any(c["type"] == "Failed" for c in status.get("conditions") or ()):
                break
            await world.clock.sleep(0.5)

        pauses = [later - sooner - 5 for sooner, later in pairwise(starts)]
        assert pauses == pytest.approx([10, 20, 40], abs=1.5)
        assert status["failed"] == 4
        assert [pod["status"]["phase"] for pod in world.pods().values()] == ["Failed"] * 4

    story(tell)


def test_a_success_forgets_earlier_failures() -> None:
    async def tell(world: World) -> None:
        def running() -> list[str]:
            return [n for n, pod in world.pods().items() if pod["status"]["phase"] == "Running"]

        world.ask("POST", JOBS, job(seconds="3600", completions=2))
        await world.clock.sleep(1)
        for fails in (1, 2):
            world.ask("DELETE", f"{PODS}/{running()[0]}")
            await world.clock.sleep(9)
            assert world.ask("GET", f"{JOBS}/j")["status"]["failed"] == fails
            assert running() == []
            await world.clock.sleep(2)
            assert len(running()) == 1
            await world.clock.sleep(3600)  # one succeeds

        assert world.ask("GET", f"{JOBS}/j")["status"]["conditions"][-1]["type"] == "Complete"

    story(tell)


def test_pods_in_order_are_there_for_a_while_before_the_next_comes() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", SETS, stateful(replicas=3, minReadySeconds=30))
        seen: dict[int, float] = {}
        for _ in range(100):
            seen.setdefault(len(world.pods()), world.clock.time())
            await world.clock.sleep(1)

        assert seen[2] - seen[1] == pytest.approx(31, abs=2)
        assert seen[3] - seen[2] == pytest.approx(31, abs=2)
        assert world.ask("GET", f"{SETS}/s")["status"]["availableReplicas"] == 3

    story(tell)


def test_pods_in_order_leave_from_the_highest_one_at_a_time() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", SETS, stateful(replicas=4))
        await world.clock.sleep(5)
        assert len(world.pods()) == 4
        world.ask("PATCH", f"{SETS}/s/scale", {"spec": {"replicas": 1}})
        left: list[list[str]] = []
        for _ in range(200):
            if not left or left[-1] != sorted(world.pods()):
                left.append(sorted(world.pods()))
            await world.clock.sleep(0.01)

        names = ["s-0", "s-1", "s-2", "s-3"]
        assert left == [names[:4], names[:3], names[:2], names[:1]]

    story(tell)


def test_a_pod_of_a_set_that_succeeds_is_replaced_too() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", SETS, stateful(template=template(run_seconds="60")))
        await world.clock.sleep(1)
        before = world.pods()["s-0"]["metadata"]["uid"]
        await world.clock.sleep(61)

        assert world.pods()["s-0"]["metadata"]["uid"] != before
        assert world.pods()["s-0"]["status"]["phase"] == "Running"

    story(tell)


def test_a_name_that_another_pod_has_is_waited_for() -> None:
    async def tell(world: World) -> None:
        other = {"metadata": {"name": "s-1"}, "spec": template()["spec"]}
        world.ask("POST", PODS, other)
        world.ask("POST", SETS, stateful(replicas=3, podManagementPolicy="Parallel"))
        await world.clock.sleep(20)
        assert world.ask("GET", f"{SETS}/s")["status"]["replicas"] == 2

        world.ask("DELETE", f"{PODS}/s-1")
        await world.clock.sleep(6)
        assert world.ask("GET", f"{SETS}/s")["status"]["readyReplicas"] == 3

    story(tell)


def test_a_chain_of_owners_goes_from_its_head() -> None:
    async def tell(world: World) -> None:
        above: Json | None = None
        for i in range(50):
            about: Json = {"name": f"m{i}"}
            if above:
                named = {k: above["metadata"][k] for k in ("name", "uid")}
                about["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", **named}]
            above = world.ask("POST", MAPS, {"metadata": about})
        await world.clock.sleep(1)
        assert len(world.ask("GET", MAPS)["items"]) == 50

        world.ask("DELETE", f"{MAPS}/m0")
        await world.clock.sleep(10)
        assert world.ask("GET", MAPS)["items"] == []

    story(tell)


def test_an_owner_of_a_kind_that_nobody_knows_is_not_gone() -> None:
    async def tell(world: World) -> None:
        owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u"}
        odd = {"apiVersion": "v1", "kind": "ConfigMap"}  # not even a name
        about = {"name": "m", "ownerReferences": [owner, odd]}
        world.ask("POST", MAPS, {"metadata": about})
        await world.clock.sleep(60)
        assert len(world.ask("GET", MAPS)["items"]) == 1

    story(tell)


def test_owners_are_remembered_when_the_log_is_not() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", SETS, stateful(replicas=3, podManagementPolicy="Parallel"))
        await world.clock.sleep(1)
        world.ask("DELETE", f"{SETS}/s")
        world.api.compact()
        await world.clock.sleep(5)
        assert world.pods() == {}

    story(tell)


def test_a_namespace_goes_with_its_sets_and_jobs() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
        for base, body in ((SETS, stateful(replicas=2)), (JOBS, job(seconds="3600"))):
            world.ask("POST", base.replace("default", "team"), body)
        await world.clock.sleep(2)
        world.ask("DELETE", "/api/v1/namespaces/team")
        await world.clock.sleep(10)
        assert world.ask("GET", "/api/v1/namespaces/team")["reason"] == "NotFound"

    story(tell)


def test_when_all_is_well_nothing_is_written() -> None:
    async def tell(world: World) -> None:
        world.ask("POST", SETS, stateful(replicas=3))
        world.ask("POST", JOBS, job())
        await world.clock.sleep(60)
        logs = {kind: log.end for kind, log in world.api.store.logs().items()}
        world.ask("POST", MAPS, {"metadata": {"name": "m"}})
        world.ask("DELETE", f"{MAPS}/m")
        await world.clock.sleep(600)

        after = {kind: log.end for kind, log in world.api.store.logs().items()}
        assert {kind for kind in after if after[kind] != logs.get(kind)} == {
            "configmaps",
            "leases.coordination.k8s.io",
        }

    story(tell)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (SETS, stateful(volumeClaimTemplates=[{"metadata": {"name": "v"}}]), "volume claims"),
        (SETS, stateful(updateStrategy={"rollingUpdate": {"partition": 1}}), "all pods of a Stat"),
        (JOBS, job(completionMode="Indexed", completions=2), "no indexed Jobs"),
        (JOBS, job(backoffLimitPerIndex=1), "no indexed Jobs"),
        (JOBS, job(podFailurePolicy={"rules": [{}]}), "no pod failure policies"),
        (JOBS, job(podReplacementPolicy="Failed"), "as soon as they end"),
    ],
)
def test_what_no_controller_here_would_do_is_refused(path: str, body: Json, words: str) -> None:
    async def tell(world: World) -> None:
        said = world.ask("POST", path, body)
        assert (said["code"], words in said["message"]) == (501, True)

    story(tell)


def test_many_pods_take_little_time() -> None:
    async def tell(world: World) -> None:
        unbound = template()
        del unbound["spec"]["nodeName"]
        many = stateful(replicas=2000, podManagementPolicy="Parallel", template=unbound)
        world.ask("POST", SETS, many)
        await world.clock.sleep(30)
        assert world.ask("GET", f"{SETS}/s")["status"]["replicas"] == 2000
        world.ask("DELETE", f"{SETS}/s")
        await world.clock.sleep(30)
        assert world.pods() == {}

    story(tell)
