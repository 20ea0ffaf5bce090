"""What is gone stays gone: jobs that come again under a name, and answers that come too late."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bayplan.elastic.cluster import Cluster
from bayplan.kube.client import PODS
from bayplan.kube.elastic import GENERAL, HOROVOD, JOB_LABEL, RESOURCES
from bayplan.kube.transport import Response
from tests.elastic.stage import Json, Stage, elastic, horovod, patch, play

SET, LAUNCHER = "elastichorovodjob-h-workers", "elastichorovodjob-h-launcher"
SERVICE = "/api/v1/namespaces/default/services/elastichorovodjob-h"
LAUNCHER_PATH = f"/apis/batch/v1/namespaces/default/jobs/{LAUNCHER}"
GROUP = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/podgroup-ehjob-h"
SET_PATH = f"/apis/apps/v1/namespaces/default/statefulsets/{SET}"


async def again(stage: Stage) -> str:
    """Deleted and made again at once; the new uid."""
    await stage.remove("h", HOROVOD)
    await stage.submit(horovod("h", 2, 3))
    return stage.job("h", HOROVOD).uid


def owner(found: Json) -> str:
    return str(found["metadata"]["ownerReferences"][0]["uid"])


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_the_end_of_a_job_is_not_that_of_the_next_with_its_name(end: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(15)
        for _ in range(2):  # a launcher may fail once
            for name in stage.pods():
                if "launcher" in name:
                    await stage.end_pod(name, end)
            await stage.pass_time(30)
        phase = "Complete" if end == "Succeeded" else "Failed"
        assert stage.job("h", HOROVOD).said["phase"] == phase

        uid = await again(stage)
        await stage.pass_time(60)
        assert stage.job("h", HOROVOD).said["phase"] == "Running"
        assert stage.workers() == {"elastichorovodjob/h": 3}
        assert owner(stage.objects("jobs.batch")[LAUNCHER]) == uid

    play(story, only=3)


@pytest.mark.parametrize("path", [SERVICE, LAUNCHER_PATH, SET_PATH])
def test_what_an_earlier_job_leaves_is_waited_for(path: str) -> None:
    """It goes late, and something of the new job is made in its place."""

    async def story(stage: Stage) -> None:
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(15)
        await patch(stage.user, path, {"metadata": {"finalizers": ["x.io/y"]}})
        uid = await again(stage)
        await stage.pass_time(30)
        assert stage.job("h", HOROVOD).said["phase"] not in ("Complete", "Failed")
        await patch(stage.user, path, {"metadata": {"finalizers": None}})
        await stage.pass_time(60)
        assert stage.job("h", HOROVOD).said["phase"] == "Running"
        assert owner(msgspec.json.decode(await stage.user.request("GET", path))) == uid
        assert stage.workers() == {"elastichorovodjob/h": 3}

    play(story, only=3)


def test_a_launcher_that_nobody_owns_does_not_count_and_the_owner_is_told() -> None:
    """As it is left by `kubectl delete --cascade=orphan`."""

    async def story(stage: Stage) -> None:
        container = {"name": "main", "image": "train"}
        pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        about = {"name": LAUNCHER, "namespace": "default", "labels": {JOB_LABEL: "h"}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": about}
        await stage.post(LAUNCHER_PATH.rpartition("/")[0], job | {"spec": {"template": pod}})
        await stage.pass_time(5)
        (name,) = stage.pods()
        await stage.end_pod(name, "Succeeded")
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(30)
        said = stage.job("h", HOROVOD).said
        assert said["phase"] == "Running"
        assert said["message"].startswith("MakeLauncher: ")

    play(story, only=3)


def test_a_set_that_nobody_owns_is_asked_for_less_and_less_and_the_owner_is_told() -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(15)
        options = {"propagationPolicy": "Orphan"}
        path = RESOURCES[HOROVOD].path("default", "h")
        await stage.user.request("DELETE", path, body=msgspec.json.encode(options))
        await patch(stage.user, SET_PATH, {"spec": {"replicas": 0}})  # room for the new job
        await stage.pass_time(5)
        assert "ownerReferences" not in stage.objects("statefulsets.apps")[SET]["metadata"]
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(120)
        asked = [each for each in stage.judges[0].writes if each.endswith("statefulsets 409")]
        assert 3 < len(asked) < 12
        said = stage.job("h", HOROVOD).said
        assert said["message"].startswith("Scale: ")
        assert "already exists" in said["message"]
        for left in (SET_PATH, LAUNCHER_PATH):
            await stage.user.request("DELETE", left)
        await stage.pass_time(90)
        assert stage.workers() == {"elastichorovodjob/h": 3}
        assert stage.job("h", HOROVOD).said["message"] == ""

    play(story, only=3)


def test_workers_of_an_earlier_set_are_not_the_new_jobs() -> None:
    cluster, name = Cluster(), "elastichorovodjob-h-workers"
    tables = {table.what: table for _, table in cluster.watched()}

    def put(what: str, value: Json) -> None:
        tables[what].put(tables[what].decode(msgspec.Raw(msgspec.json.encode(value))))

    def of(kind: str, name: str, uid: str, made: str, owner: Json | None = None) -> Json:
        about = {"name": name, "namespace": "default", "uid": uid, "creationTimestamp": made}
        refs = [owner | {"controller": True}] if owner else []
        return {"kind": kind, "metadata": about | {"ownerReferences": refs}}

    job = horovod("h", 2, 3)
    job["metadata"] |= {"uid": "new", "creationTimestamp": "2026-01-02T00:00:00Z"}
    put(HOROVOD, job)
    for number, (uid, made) in enumerate([("old-set", "01-01"), ("set", "01-03")]):
        ref = {"name": name, "uid": uid}
        pod = of("Pod", f"{name}-{number}", f"pod-{number}", f"2026-{made}T00:00:00Z", ref)
        pod["metadata"]["annotations"] = {"bayplan.dev/elastic": "elastichorovodjob/h"}
        put("pod", pod)

    def workers() -> list[str]:
        return [worker.uid for worker in cluster.snapshot("").jobs[0].workers]

    assert workers() == ["pod-1"]  # without a set: those that are not older than the job
    put("stateful set", of("StatefulSet", name, "old-set", "", {"uid": "old"}))
    assert (workers(), cluster.snapshot("").jobs[0].replicas) == ([], None)
    put("stateful set", of("StatefulSet", name, "set", "", {"uid": "new"}))
    assert (workers(), cluster.snapshot("").jobs[0].replicas) == (["pod-1"], 1)


@pytest.mark.parametrize("path", [SERVICE, GROUP])
def test_what_somebody_deletes_of_a_job_is_made_again(path: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(15)
        writes = stage.judges[0].writes
        before = len(writes)
        await stage.user.request("DELETE", path)
        await stage.pass_time(5)
        found = msgspec.json.decode(await stage.user.request("GET", path))
        assert owner(found) == stage.job("h", HOROVOD).uid
        assert f"POST {path.rpartition('/')[0]} 201" in writes[before:]
        before = len(writes)
        await stage.pass_time(60)
        assert writes[before:] == []
        assert stage.workers() == {"elastichorovodjob/h": 3}

    play(story, only=3)


def test_a_service_that_was_there_before_is_used_and_labelled() -> None:
    async def story(stage: Stage) -> None:
        about = {"name": "elastichorovodjob-h", "namespace": "default"}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": about}
        await stage.post(SERVICE.rpartition("/")[0], service | {"spec": {"clusterIP": "None"}})
        await stage.submit(horovod("h", 2, 3))
        await stage.pass_time(30)
        assert stage.workers() == {"elastichorovodjob/h": 3}
        assert stage.objects("services")[about["name"]]["metadata"]["labels"] == {JOB_LABEL: "h"}
        assert sum(each.startswith(f"PATCH {SERVICE}") for each in stage.judges[0].writes) == 1

    play(story, only=3)


# Late answers


def slow(stage: Stage, seconds: float, chosen: Callable[[str, str, bytes], bool]) -> None:
    """The first answer to such a request of the controller comes late."""
    assert stage.process is not None
    judge, send = stage.process.judge, stage.process.judge.request
    late: list[str] = []

    async def request(method: str, path: str, **more: Any) -> Response:
        answer = await send(method, path, **more)
        if not late and chosen(method, path, more.get("body") or b""):
            late.append(path)
            await stage.clock.sleep(seconds)
        return answer

    judge.request = request  # type: ignore[method-assign]


def test_a_job_that_was_deleted_before_its_answer_came_does_not_come_back() -> None:
    async def story(stage: Stage) -> None:
        slow(stage, 1.0, lambda method, _, body: method == "PATCH" and b'"grant"' in body)
        await stage.submit(elastic("a", 5, 6))
        await stage.pass_time(0.5)
        assert stage.job("a").grant.workers
        await stage.remove("a")
        await stage.pass_time(5)
        await stage.submit(elastic("b", 2, 6))
        await stage.pass_time(30)
        assert stage.workers() == {"b": 6}
        assert stage.process is not None
        last = stage.process.controller.last
        assert last is not None
        assert [seen.job.name for seen in last.jobs] == ["b"]

    play(story, only=6)


def test_a_worker_that_was_deleted_before_its_answer_came_is_made_again() -> None:
    async def story(stage: Stage) -> None:
        slow(stage, 5.0, lambda method, path, _: method == "POST" and path.endswith("/pods"))
        await stage.submit(elastic("a", 2, 3))
        await stage.pass_time(2)
        assert stage.pods() == ["a-worker-0"]
        await stage.user.request("DELETE", PODS.path("default", "a-worker-0"))
        await stage.pass_time(60)
        assert stage.workers() == {"a": 3}

    play(story, only=3)


def body(version: str, uid: str = "one", **more: Any) -> bytes:
    about = {"name": "a", "namespace": "default", "uid": uid, "resourceVersion": version}
    return msgspec.json.encode(elastic("a", 1, 2) | {"metadata": about} | more)


def versions(cluster: Cluster) -> list[str]:
    return [seen.job.version for seen in cluster.snapshot("").jobs]


def test_an_answer_does_not_undo_what_the_watch_has_said_since() -> None:
    cluster = Cluster()
    (table,) = (table for _, table in cluster.watched() if table.what == GENERAL)
    table.put(table.decode(msgspec.Raw(body("10"))))
    cluster.take_job(GENERAL, body("9"))
    assert versions(cluster) == ["10"]
    cluster.take_job(GENERAL, body("11"))
    assert versions(cluster) == ["11"]
    cluster.take_job(GENERAL, body("x"))  # which of them is older nobody knows
    assert versions(cluster) == ["x"]


@pytest.mark.parametrize("relisted", [False, True])
def test_what_the_watch_has_dropped_is_not_taken_in_and_what_it_brings_is(relisted: bool) -> None:
    cluster = Cluster()
    (table,) = (table for _, table in cluster.watched() if table.what == GENERAL)
    old, new = (table.decode(msgspec.Raw(body(each, each))) for each in ("1", "2"))
    table.put(old)
    if relisted:
        table.replace([], "5")
    else:
        table.drop(old)
    cluster.take_job(GENERAL, body("6", "1"))
    assert versions(cluster) == []
    cluster.take_job(GENERAL, body("2", "2"))
    table.drop(old)  # late, of another with the same name
    assert versions(cluster) == ["2"]
    table.replace([], "1")  # a list that is older than the answer
    table.put(new)
    cluster.take_job(GENERAL, body("7", "2"))
    assert versions(cluster) == ["7"]
