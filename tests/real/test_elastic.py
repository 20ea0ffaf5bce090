"""Elastic jobs on a real API server, with kube-controller-manager: `bayplan run` and `bayplan
elastic` as processes, pretend nodes, and a record of every version of every pod."""

import asyncio
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from bayplan.elastic.allocator import Job as Asking
from bayplan.elastic.allocator import faithful
from bayplan.elastic.curves import amdahl
from bayplan.elastic.workers import worker
from bayplan.kube.client import Client
from bayplan.kube.clock import RealClock
from bayplan.kube.credentials import Credentials, find_source
from bayplan.kube.elastic import GENERAL, HOROVOD, RESOURCES, read_job
from bayplan.kube.http import HttpTransport
from bayplan.local.kubelets import Kubelets
from bayplan.testing.controlplane import ControlPlane, Process, Refused, free_ports
from tests.elastic.stage import elastic, horovod
from tests.elastic.test_two_jobs import AFTER_DEATH, BEST
from tests.fake.ledger import job_of
from tests.real.apicheck import Json, Pod, read_pod
from tests.real.chaos.recorder import Recorder
from tests.real.rig import Cluster, Scheduler, node, until
from tests.real.rights import apply, printed

NODES = ("v", "w", "x")
AT_ONCE_S = 5.0  # from a worker's first version to its node, on a busy machine


@pytest.fixture(scope="module")
def managed() -> Iterator[ControlPlane]:
    """With our kinds, and the controllers of StatefulSets, Jobs and what owners leave behind."""
    with ControlPlane() as plane:
        apply(plane, printed("crds"))
        until(lambda: all(is_served(plane, resource.path()) for resource in RESOURCES.values()))
        plane.start_controller_manager()
        yield plane


def is_served(plane: ControlPlane, path: str) -> bool:
    try:
        plane.request("GET", path)
    except Refused:
        return False
    return True


@pytest.fixture
def space(managed: ControlPlane) -> Iterator["Space"]:
    managed.wipe()
    name = f"test-{uuid.uuid4().hex[:8]}"
    managed.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    space = Space(managed, name)
    with PretendNodes(managed, dict.fromkeys(NODES, 2)) as space.nodes, space.record:
        yield space
    for kind in RESOURCES.values():
        managed.request("DELETE", kind.path(name))
    managed.wipe()


class PretendNodes:
    """In a thread: pods that are bound to them run, and go when they are deleted."""

    def __init__(self, plane: ControlPlane, gpus: dict[str, int]) -> None:
        self._plane, self._first = plane, [node(name, many) for name, many in gpus.items()]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "PretendNodes":
        self._thread.start()
        self._do(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    async def _begin(self) -> None:
        clock = RealClock()
        credentials = Credentials(find_source(str(self._plane.kubeconfig)), clock)
        self._transport = HttpTransport(credentials, clock, 16)
        client = Client(self._transport, clock, random.Random(0))
        self.kubelets = Kubelets(client, self._first, random.Random(0))
        self._task = asyncio.create_task(self.kubelets.run())
        await self.kubelets.registered.wait()

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._transport.close()

    def vanish(self, name: str) -> None:
        self._do(self.kubelets.vanish(name))

    def add(self, name: str, gpus: int) -> None:
        self._do(self.kubelets.add(node(name, gpus)))


class Space(Cluster):
    """A namespace with elastic jobs, and what is known of their workers."""

    plane: ControlPlane
    nodes: PretendNodes

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(plane, namespace)
        self.record = Recorder(plane, self._read)
        self.jobs: dict[str, str] = {}  # by uid of a worker: its job's name
        self.born: dict[str, float] = {}  # by uid of a worker
        self.took: dict[str, float] = {}  # by name of a worker: seconds until it had a node
        self.waits: dict[str, str] = {}  # by name of a worker: what it was told

    def _read(self, raw: Json) -> Pod:
        """Every version, in the order of the watch."""
        pod = read_pod({**raw, "spec": plain(raw["spec"])})
        about = raw["metadata"]
        mark = (about.get("annotations") or {}).get("bayplan.dev/elastic", "")
        if mark:
            self.jobs[pod.uid] = job_of(mark, about["namespace"]).rpartition("/")[2]
            born = self.born.setdefault(pod.uid, time.monotonic())
            if pod.node:
                self.took.setdefault(pod.name, time.monotonic() - born)
            elif pod.waits_because:
                self.waits[pod.name] = pod.waits_because
        return pod

    def submit(self, job: Json) -> None:
        job["metadata"]["namespace"] = self.namespace
        self.plane.request("POST", RESOURCES[job["kind"]].path(self.namespace), job)

    def remove(self, name: str, kind: str) -> None:
        path = RESOURCES[kind].path(self.namespace, name)
        self.plane.request("DELETE", f"{path}?propagationPolicy=Background")

    def job(self, name: str, kind: str = GENERAL) -> Json:
        found: Json = self.plane.request("GET", RESOURCES[kind].path(self.namespace, name))
        return found

    def sizes(self) -> dict[str, int]:
        """Workers that have a node and are to stay, by job."""
        found = Counter(
            self.jobs[pod.uid]
            for pod in self.record.pods()
            if pod.uid in self.jobs and pod.holds and not pod.terminating
        )
        return dict(sorted(found.items()))

    def settles(self, counts: dict[str, int]) -> None:
        """These are the counts, and they are granted; nothing more is to be passed on."""
        until(lambda: self.sizes() == counts)
        until(lambda: self._granted() == counts)

    def _granted(self) -> dict[str, int]:
        found = {}
        for resource in RESOURCES.values():
            for item in self.plane.request("GET", resource.path(self.namespace))["items"]:
                grant = item.get("status", {}).get("grant", {})
                if grant.get("passing"):
                    return {}
                found[item["metadata"]["name"]] = grant.get("workers", 0)
        return dict(sorted(found.items()))


def plain(spec: Json) -> Json:
    """Volumes and tolerations of seconds are nothing that the judge looks at."""
    return {name: part for name, part in spec.items() if name not in ("volumes", "tolerations")}


class Elastic:
    """`bayplan elastic` in a process of its own."""

    def __init__(self, plane: ControlPlane) -> None:
        (port,) = free_ports(1)
        name = f"elastic-{port}"
        options = ["--kubeconfig", str(plane.kubeconfig), "--listen", f"127.0.0.1:{port}"]
        command = [sys.executable, "-m", "bayplan", "elastic", *options]
        self.process = Process(name, command, plane.directory / f"{name}.log")

    def __enter__(self) -> "Elastic":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.running:
            self.process.stop(20.0)


def test_the_counts_are_as_documented_and_nobody_waits(space: Space) -> None:
    """Jobs of both kinds."""
    plane = space.plane
    with Scheduler(plane.directory, plane.kubeconfig), Elastic(plane):
        for counts, job in zip(
            BEST, (elastic("a", 2, 5), horovod("b", 2, 5), elastic("c", 2, 5)), strict=False
        ):
            space.submit(job)
            space.settles(counts)
        space.remove("a", GENERAL)
        space.settles(BEST[3])
        assert space.waits == {}
        space.nodes.vanish("x")
        space.settles(AFTER_DEATH)
        space.nodes.add("y", 2)
        space.settles(BEST[3])
        until(lambda: space.job("b", HOROVOD)["status"].get("launcher"))
    space.record.check()

    # after the death the StatefulSet has made pods of itself, for which there was no promise
    assert not [name for name in space.waits if "/elastichorovodjob-b-workers" not in name]
    slow = {name: took for name, took in space.took.items() if took > AT_ONCE_S}
    assert not [name for name in slow if "/elastichorovodjob-b-workers" not in name]
    sys.stdout.write(f"the slowest worker had its node after {max(space.took.values()):.2f} s\n")


def test_without_grants_somebody_else_takes_what_was_counted_on(space: Space) -> None:
    """As the original does it: what is free now, and all workers at once."""
    plane = space.plane
    with Scheduler(plane.directory, plane.kubeconfig):
        space.submit(elastic("a", 2, 5, managedBy="example.com/naive"))
        job = read_job(GENERAL, space.job("a"))
        free = 2 * len(NODES)  # nobody has any yet
        sizes = faithful([Asking("a", job.minimum, job.maximum, 0, amdahl(), 0.0)], free)
        space.add_pod("other", 2)
        for index in range(sizes["a"]):
            made = worker(job, index)
            plane.request("POST", f"/api/v1/namespaces/{space.namespace}/pods", made)
        until(lambda: space.sizes() == {"a": 4})
        until(lambda: space.waits)
    assert len(space.waits) == 1
    assert "Insufficient nvidia.com/gpu" in "".join(space.waits.values())


def test_with_grants_whoever_comes_in_between_costs_no_worker_its_place(space: Space) -> None:
    plane = space.plane
    with Scheduler(plane.directory, plane.kubeconfig), Elastic(plane):
        space.submit(elastic("a", 2, 5))
        until(lambda: space.job("a").get("status", {}).get("grant"))
        space.add_pod("other", 2)
        until(lambda: space.sizes().get("a") in (4, 5))
        until(lambda: space.job("a")["status"]["confirmed"]["workers"] == space.sizes()["a"])
        until(lambda: space.node_of("other") or space.condition("other"))
    space.record.check()

    assert space.waits == {}
    assert len(space.took) == space.sizes()["a"]
