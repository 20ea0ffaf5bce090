"""Pods go for each other on a real API server, while the scheduler is killed again and again."""

import os
import random
import threading
import time
from collections.abc import Iterator

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import Json, waiting_for_less
from tests.real.chaos.judging import judge
from tests.real.chaos.load import Load, make_nodes, pod
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.replica import Start
from tests.real.chaos.session import Session, Unreachable
from tests.real.chaos.waiting import eventually

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
KILLS = 20 if PROVE else 4
POLL_S = 0.1
CLASSES = {"chaos-low": 0, "chaos-middle": 100, "chaos-high": 1000}
CLASS_PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
PREEMPTED = "PreemptionByScheduler"


class Ranked(Load):
    """Pods of three priorities, and some that go slowly."""

    def _pod(self, name: str) -> Json:
        (rank,) = self._rng.choices(list(CLASSES), (5, 3, 2))
        gpus = self._rng.choice((1, 1, 2, 4, 8))
        return pod(name, gpus=gpus, priorityClassName=rank)


class Undertaker:
    """Ends pods that are being deleted, as their kubelets would; and sees who was preempted."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.preempted: set[str] = set()  # uids
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Undertaker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        session = Session(self._plane)
        while not self._stopping.wait(POLL_S):
            try:
                for value in session.request("GET", "/api/v1/pods")[1]["items"]:
                    about = value["metadata"]
                    if "deletionTimestamp" not in about:
                        continue
                    conditions = value["status"].get("conditions", ())  # none before its scheduler
                    if any(c.get("reason") == PREEMPTED for c in conditions):
                        self.preempted.add(about["uid"])
                    path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
                    session.request("DELETE", f"{path}?gracePeriodSeconds=0")
            except Unreachable:
                continue
        session.close()


@pytest.fixture
def classes(empty: ControlPlane) -> Iterator[None]:
    for name, value in CLASSES.items():
        empty.request("POST", CLASS_PATH, {"metadata": {"name": name}, "value": value})
    yield
    for name in CLASSES:
        empty.request("DELETE", f"{CLASS_PATH}/{name}")


@pytest.mark.timeout(900, func_only=True)
@pytest.mark.usefixtures("classes")
def test_killed_while_pods_go_for_others_nobody_waits_for_less_important_ones(
    empty: ControlPlane, namespace: str, start: Start, rng: random.Random
) -> None:
    make_nodes(empty)
    load = Ranked(empty, namespace, random.Random(rng.random()))
    with Recorder(empty) as recorder, Undertaker(empty) as undertaker, load:
        for _ in range(KILLS):
            replica = start()
            replica.wait_until_ready()
            before = len(undertaker.preempted)
            eventually(lambda n=before: len(undertaker.preempted) > n, "a preemption")  # type: ignore[misc]
            time.sleep(rng.uniform(0.0, 1.0))  # any moment
            replica.kill()
        last = start()
        last.wait_until_ready()
        load.stop()
        eventually(lambda: not vain(empty), "the last preemptions", 60.0)
        seen = judge(empty, recorder)
        assert not vain(empty)
        last.stop()
    print(f"{KILLS} kills, {len(undertaker.preempted)} pods preempted; {seen}")  # noqa: T201


def vain(plane: ControlPlane) -> list[str]:
    pods = plane.request("GET", "/api/v1/pods")["items"]
    return list(waiting_for_less(pods, plane.request("GET", "/api/v1/nodes")["items"]))
