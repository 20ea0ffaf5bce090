"""StatefulSets, Jobs and what owners leave behind: kube-controller-manager and ours do the same.

Each test runs on a real control plane with kube-controller-manager and on the embedded API with its
own controllers. On both the same pretend node runs the pods.
"""

import asyncio
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import find_source
from bayplan.local.kubelets import EXIT_CODE, RUN_SECONDS, Kubelets
from bayplan.local.spec import nodes
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.service import connect
from bayplan.testing.binaries import find
from bayplan.testing.controlplane import ControlPlane, Refused
from tests.embedded import EmbeddedPlane, Plane
from tests.real.rig import Json, until

NODE = "cpu-0"
CONTAINER = {"name": "main", "image": "registry.example/train:1"}
TRACKED = ["batch.kubernetes.io/job-tracking"]


@pytest.fixture(scope="module")
def managed(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of its own: a garbage collector would surprise other tests."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():  # a build is long, and says how far it is
        find("kube-controller-manager")
    with ControlPlane() as plane:
        plane.start_controller_manager()
        with running(plane):
            yield plane


@pytest.fixture(scope="module")
def embedded_managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPlane]:
    with EmbeddedPlane(tmp_path_factory.mktemp("embedded")) as plane, running(plane):
        yield plane


@contextmanager
def running(plane: Plane) -> Iterator[None]:
    """With a pretend node, in a thread of its own."""
    ready = threading.Event()
    stops: list[Callable[[], object]] = []

    async def kubelets() -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            source = find_source(str(plane.kubeconfig))
            client = await connect(source, RealClock(), Configuration(), stack)
            pretend = Kubelets(client, nodes("cpu*1"), random.Random(1))
            task = asyncio.create_task(pretend.run())
            await pretend.registered.wait()
            stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
            ready.set()
            await stopped.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(kubelets()), name="node", daemon=True)
    thread.start()
    assert ready.wait(20)
    yield
    for stop in stops:
        stop()
    thread.join(10)
    assert not thread.is_alive()


class Space:
    """One namespace, with the few requests that these tests make."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self._plane = plane
        self._bases = {
            "pods": f"/api/v1/namespaces/{namespace}/pods",
            "configmaps": f"/api/v1/namespaces/{namespace}/configmaps",
            "sets": f"/apis/apps/v1/namespaces/{namespace}/statefulsets",
            "jobs": f"/apis/batch/v1/namespaces/{namespace}/jobs",
        }

    def create(self, what: str, name: str, owners: list[Json] | None = None, **spec: Any) -> Json:
        about = {"name": name, **({"ownerReferences": owners} if owners else {})}
        body = {"metadata": about, **({"spec": spec} if spec else {})}
        made: Json = self._plane.request("POST", self._bases[what], body)
        return made

    def get(self, what: str, name: str, sub: str = "") -> Json:
        found: Json = self._plane.request("GET", f"{self._bases[what]}/{name}{sub}")
        return found

    def status(self, what: str, name: str) -> Json:
        """Without the times."""
        status: Json = untimed(self.get(what, name)["status"])
        return status

    def is_there(self, what: str, name: str) -> bool:
        try:
            self.get(what, name)
        except Refused:
            return False
        return True

    def patch(self, what: str, name: str, patch: Json, sub: str = "") -> None:
        self._plane.request("PATCH", f"{self._bases[what]}/{name}{sub}", patch)

    def delete(self, what: str, name: str, policy: str = "") -> None:
        body = {"propagationPolicy": policy} if policy else None
        self._plane.request("DELETE", f"{self._bases[what]}/{name}", body)

    def pods(self) -> dict[str, Json]:
        items = self._plane.request("GET", self._bases["pods"])["items"]
        return {item["metadata"]["name"]: item for item in items}

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.pods().values()]

    def scale(self, name: str, replicas: int) -> None:
        self.patch("sets", name, {"spec": {"replicas": replicas}}, "/scale")


@pytest.fixture(params=["real", "embedded"])
def space(request: pytest.FixtureRequest) -> Space:
    plane: Plane = request.getfixturevalue(
        "managed" if request.param == "real" else "embedded_managed"
    )
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return Space(plane, name)


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not k.endswith("Time")}
    return [untimed(entry) for entry in value] if isinstance(value, list) else value


def template(annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    about = {"labels": {"app": "web"}, "annotations": annotations or {}}
    return {"metadata": about, "spec": {"nodeName": NODE, "containers": [CONTAINER], **spec}}


def stateful(**more: Any) -> Json:
    return {
        "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(),
        "podManagementPolicy": "Parallel",
        **more,
    }


def job(annotations: dict[str, str], restarts: str = "Never", **more: Any) -> Json:
    return {"template": template(annotations, restartPolicy=restarts), **more}


def well(space: Space, replicas: int, generation: int) -> bool:
    """Whether all of a set's pods are there and ready, and nobody else."""
    status = space.status("sets", "web")
    revision = status.get("currentRevision", "")
    counts = ("readyReplicas", "currentReplicas", "updatedReplicas")
    whole = {
        "observedGeneration": generation,
        "replicas": replicas,
        **(dict.fromkeys(counts, replicas) if replicas else {}),
        "currentRevision": revision,
        "updateRevision": revision,
        "collisionCount": 0,
        "availableReplicas": replicas,
    }
    names = {f"web-{i}" for i in range(replicas)}
    return status == whole and set(space.pods()) == names


# ---- StatefulSets


def test_a_set_is_scaled_from_none_to_three_to_five_to_two(space: Space) -> None:
    space.create("sets", "web", **stateful(replicas=0))
    until(lambda: well(space, 0, 1))
    for generation, replicas in enumerate((3, 5, 2), 2):
        space.scale("web", replicas)
        until(partial(well, space, replicas, generation))

    assert space.get("sets", "web", "/scale")["status"] == {"replicas": 2, "selector": "app=web"}


def test_pods_of_a_set_have_names_and_owners(space: Space) -> None:
    made = space.create("sets", "web", **stateful(replicas=2))
    until(lambda: well(space, 2, 1))

    pod = space.pods()["web-1"]
    revision = space.status("sets", "web")["currentRevision"]
    labels = pod["metadata"]["labels"]
    assert {key: labels[key] for key in labels if "topology" not in key} == {
        "app": "web",
        "apps.kubernetes.io/pod-index": "1",
        "controller-revision-hash": revision,
        "statefulset.kubernetes.io/pod-name": "web-1",
    }
    assert pod["metadata"]["generateName"] == "web-"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("web-1", "web")
    assert pod["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": "web",
            "uid": made["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_a_pod_that_is_deleted_or_fails_comes_back(space: Space) -> None:
    space.create("sets", "web", **stateful(replicas=3))
    until(lambda: well(space, 3, 1))
    before = {name: pod["metadata"]["uid"] for name, pod in space.pods().items()}

    space.delete("pods", "web-1")
    space.patch("pods", "web-2", {"status": {"phase": "Failed"}}, "/status")

    def replaced() -> set[str]:
        after = {name: pod["metadata"]["uid"] for name, pod in space.pods().items()}
        return {name for name in before if after.get(name, before[name]) != before[name]}

    until(lambda: replaced() == {"web-1", "web-2"} and well(space, 3, 1))


def test_pods_in_order_wait_for_the_one_before(space: Space) -> None:
    waiting = {"template": template(nodeName=None), "podManagementPolicy": "OrderedReady"}
    space.create("sets", "web", **stateful(replicas=3, **waiting))

    def is_ready(name: str) -> None:
        now = "2026-01-01T00:00:00Z"
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        space.patch(
            "pods", name, {"status": {"phase": "Running", "conditions": [ready]}}, "/status"
        )

    seen = []
    for name in ("web-0", "web-1", "web-2"):
        until(partial(space.is_there, "pods", name))
        until(lambda: space.status("sets", "web").get("replicas") == len(space.pods()))
        seen.append(sorted(space.pods()))
        assert space.status("sets", "web").get("readyReplicas", 0) == len(seen) - 1
        is_ready(name)

    assert seen == [["web-0"], ["web-0", "web-1"], ["web-0", "web-1", "web-2"]]
    until(lambda: well(space, 3, 1))
    space.scale("web", 1)
    until(lambda: well(space, 1, 2))


def test_a_new_template_replaces_the_pods(space: Space) -> None:
    space.create("sets", "web", **stateful(replicas=3))
    until(lambda: well(space, 3, 1))
    before = space.status("sets", "web")["currentRevision"]

    newer = [{**CONTAINER, "image": "registry.example/train:2"}]
    space.patch("sets", "web", {"spec": {"template": {"spec": {"containers": newer}}}})

    until(lambda: space.images() == ["registry.example/train:2"] * 3 and well(space, 3, 2))
    assert space.status("sets", "web")["currentRevision"] != before


# ---- Jobs


def said(sort: str, reason: str, message: str, status: str = "True") -> Json:
    return {"type": sort, "status": status, "reason": reason, "message": message}


NOBODY = {"terminating": 0, "uncountedTerminatedPods": {}, "ready": 0}
REACHED = ("CompletionsReached", "Reached expected number of succeeded pods")
TOO_MANY = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")


def test_a_job_completes(space: Space) -> None:
    space.create("jobs", "once", **job({RUN_SECONDS: "0.1"}, parallelism=2, completions=3))

    conditions = [said("SuccessCriteriaMet", *REACHED), said("Complete", *REACHED)]
    whole = {"conditions": conditions, "succeeded": 3, **NOBODY}
    until(lambda: space.status("jobs", "once") == whole)
    pods = space.pods().values()
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 3
    assert [pod["metadata"].get("finalizers") for pod in pods] == [None] * 3
    times = space.get("jobs", "once")["status"]
    assert times["startTime"] <= times["completionTime"]


def test_a_job_runs(space: Space) -> None:
    space.create("jobs", "once", **job({}, parallelism=2))

    until(lambda: space.status("jobs", "once") == {**NOBODY, "active": 2, "ready": 2})
    pods = space.pods()
    assert [pod["metadata"]["finalizers"] for pod in pods.values()] == [TRACKED] * 2
    assert all(name.startswith("once-") for name in pods)

    space.patch("jobs", "once", {"spec": {"parallelism": 1}})
    until(lambda: space.status("jobs", "once") == {**NOBODY, "active": 1, "ready": 1})


@pytest.mark.parametrize(("restarts", "limit"), [("Never", 0), ("OnFailure", 1)])
def test_a_job_fails(space: Space, restarts: str, limit: int) -> None:
    failing = {RUN_SECONDS: "0.1", EXIT_CODE: "1"}
    space.create("jobs", "once", **job(failing, restarts, backoffLimit=limit))

    conditions = [said("FailureTarget", *TOO_MANY), said("Failed", *TOO_MANY)]
    whole = {"conditions": conditions, "failed": 1, **NOBODY}
    until(lambda: space.status("jobs", "once") == whole)


def test_a_job_takes_too_long(space: Space) -> None:
    space.create("jobs", "once", **job({}, activeDeadlineSeconds=1))

    words = ("DeadlineExceeded", "Job was active longer than specified deadline")
    conditions = [said("FailureTarget", *words), said("Failed", *words)]
    whole = {"conditions": conditions, "failed": 1, **NOBODY}
    until(lambda: space.status("jobs", "once") == whole)
    assert space.pods() == {}


def test_a_job_is_suspended_and_resumed(space: Space) -> None:
    space.create("jobs", "once", **job({}, suspend=True))
    suspended = [said("Suspended", "JobSuspended", "Job suspended")]
    until(lambda: space.status("jobs", "once") == {**NOBODY, "conditions": suspended})
    assert space.pods() == {}

    space.patch("jobs", "once", {"spec": {"suspend": False}})
    resumed = [said("Suspended", "JobResumed", "Job resumed", "False")]
    runs = {**NOBODY, "conditions": resumed, "active": 1, "ready": 1}
    until(lambda: space.status("jobs", "once") == runs)

    space.patch("jobs", "once", {"spec": {"suspend": True}})
    until(lambda: space.status("jobs", "once") == {**NOBODY, "conditions": suspended})
    assert space.pods() == {}
    assert "startTime" not in space.get("jobs", "once")["status"]


def test_a_finished_job_goes_after_its_time(space: Space) -> None:
    space.create("jobs", "once", **job({RUN_SECONDS: "0"}, ttlSecondsAfterFinished=1))

    until(lambda: not space.is_there("jobs", "once") and not space.pods())


# ---- owners


def owner(made: Json, api_version: str, kind: str, **more: Any) -> list[Json]:
    about = made["metadata"]
    named = {"apiVersion": api_version, "kind": kind, "name": about["name"], "uid": about["uid"]}
    return [{**named, **more}]


def test_what_an_owner_leaves_behind_goes(space: Space) -> None:
    mine = owner(space.create("configmaps", "mine"), "v1", "ConfigMap")
    others = owner(space.create("configmaps", "others"), "v1", "ConfigMap")
    space.create("sets", "web", mine, **stateful(replicas=2))
    space.create("configmaps", "ours", mine + others)
    space.create("jobs", "once", mine, **job({}))
    until(lambda: len(space.pods()) == 3)

    space.delete("configmaps", "mine")

    until(lambda: not space.pods())
    assert not space.is_there("sets", "web")
    assert not space.is_there("jobs", "once")
    assert space.is_there("configmaps", "ours")


def test_what_comes_after_its_owner_went_goes_too(space: Space) -> None:
    late = owner(space.create("configmaps", "mine"), "v1", "ConfigMap")
    space.delete("configmaps", "mine")
    space.create("configmaps", "mine")  # another of that name

    space.create("configmaps", "late", late)

    until(lambda: not space.is_there("configmaps", "late"))


def test_a_set_that_is_deleted_takes_its_pods_along(space: Space) -> None:
    space.create("sets", "web", **stateful(replicas=2))
    until(lambda: well(space, 2, 1))

    space.delete("sets", "web")

    until(lambda: not space.pods())


def test_a_job_that_is_deleted_leaves_its_pods_unless_it_is_told_not_to(space: Space) -> None:
    for name in ("kept", "dropped"):
        space.create("jobs", name, **job({}))
    until(lambda: len(space.pods()) == 2)

    space.delete("jobs", "kept")
    space.delete("jobs", "dropped", "Background")

    until(lambda: len(space.pods()) == 1 and not space.is_there("jobs", "kept"))
    (pod,) = space.pods().values()
    assert pod["metadata"]["name"].startswith("kept-")
    until(lambda: "finalizers" not in space.get("pods", pod["metadata"]["name"])["metadata"])
    assert "ownerReferences" not in space.get("pods", pod["metadata"]["name"])["metadata"]


def test_an_owner_in_the_foreground_waits_for_what_it_owns(space: Space) -> None:
    mine = space.create("configmaps", "mine")
    held = owner(mine, "v1", "ConfigMap", blockOwnerDeletion=True)
    space.create("configmaps", "held", held)
    space.patch("configmaps", "held", {"metadata": {"finalizers": ["example.com/held"]}})

    space.delete("configmaps", "mine", "Foreground")

    until(lambda: "deletionTimestamp" in space.get("configmaps", "held")["metadata"])
    assert space.get("configmaps", "mine")["metadata"]["finalizers"] == ["foregroundDeletion"]
    space.patch("configmaps", "held", {"metadata": {"finalizers": None}})
    until(lambda: not space.is_there("configmaps", "mine"))
