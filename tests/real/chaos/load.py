"""Pods that come and go without end, on a few nodes that are always too full for all of them."""

import random
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import Json
from tests.real.chaos.replica import SCHEDULER
from tests.real.chaos.session import Session, Unreachable

ZONES = ("east", "west")
NODES = 12
MOST_PODS = 130  # alive; about twice what fits, so that a freed device is always fought for
PER_S = 150.0  # steps: a pod made or deleted, or now and then a node cordoned
WAVE = 20  # pods that go at once, now and then, so that many binds follow
AWAY_S = 0.05  # before the next try, when the server is away
TAINT = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}
GONE, CONFLICT = 404, 409


def node(name: str, zone: str, tainted: bool = False) -> Json:
    room = {"cpu": "32", "memory": "64Gi", "pods": "12", "nvidia.com/gpu": "8"}
    return {
        "metadata": {"name": name, "labels": {"zone": zone}},
        "spec": {"taints": [TAINT]} if tainted else {},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, gpus: int = 1, cpu: str = "1", memory: str = "1Gi", **spec: Any) -> Json:
    requests = {"cpu": cpu, "memory": memory}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": requests | limits, "limits": limits},
    }
    return {
        "metadata": {"name": name},
        "spec": {"schedulerName": SCHEDULER, "containers": [container], **spec},
    }


def make_nodes(plane: ControlPlane, count: int = NODES) -> None:
    for n in range(count):
        tainted = n == count - 1
        plane.request("POST", "/api/v1/nodes", node(f"node-{n}", ZONES[n % 2], tainted))


class Load:
    """Runs inside a `with` block, in a thread; `stop` ends it earlier."""

    def __init__(self, plane: ControlPlane, namespace: str, rng: random.Random) -> None:
        self._plane, self._rng = plane, rng
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._alive: list[str] = []  # names; some may be gone, or were never made
        self._leaving: list[str] = []  # being deleted; nobody but us will end them
        self._cordoned: list[str] = []
        self._made = 0
        self.answers: Counter[str] = Counter()  # by what was asked and the status
        self._wave = threading.Event()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def stop(self) -> None:
        """Ends it and raises what went wrong in it."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def wave(self) -> None:
        """Lets many pods go at once: as many binds will follow."""
        self._wave.set()

    def _run(self) -> None:
        session = Session(self._plane)
        try:
            pause = 1 / PER_S
            while not self._stopping.wait(pause):
                try:
                    self._step(session)
                    pause = self._rng.expovariate(PER_S)
                except Unreachable:
                    self.answers["no answer"] += 1
                    pause = AWAY_S
        except BaseException as error:
            self._failure = error
        finally:
            session.close()

    def _step(self, session: Session) -> None:
        chance = self._rng.random()
        if chance < 0.005:
            self._cordon(session)
        elif chance < 0.01 or self._wave.is_set():
            self._wave.clear()
            for name in self._rng.sample(self._alive, min(WAVE, len(self._alive))):
                self._alive.remove(name)
                self._end(session, name)
        elif chance < 0.25 and self._leaving:
            self._end(session, self._leaving.pop(self._rng.randrange(len(self._leaving))))
        elif len(self._alive) + len(self._leaving) < self._rng.uniform(0.7, 1.0) * MOST_PODS:
            self._make(session)
        elif self._alive:
            name = self._alive.pop(self._rng.randrange(len(self._alive)))
            if self._rng.random() < 0.5:
                self._end(session, name)
            else:
                self._leaving.append(name)
                self._ask(session, "ask to go", "DELETE", f"{self._path}/{name}", (200, GONE))

    def _make(self, session: Session) -> None:
        self._made += 1
        name = f"pod-{self._made}"
        self._alive.append(name)
        self._ask(session, "make", "POST", self._path, (201,), self._pod(name))

    def _end(self, session: Session, name: str) -> None:
        path = f"{self._path}/{name}?gracePeriodSeconds=0"
        self._ask(session, "end", "DELETE", path, (200, GONE))

    def _cordon(self, session: Session) -> None:
        """At most two nodes at a time."""
        if self._cordoned and (len(self._cordoned) > 1 or self._rng.random() < 0.5):
            name, to = self._cordoned.pop(0), False
        else:
            name, to = f"node-{self._rng.randrange(NODES)}", True
            self._cordoned.append(name)
        body = {"spec": {"unschedulable": to}}
        self._ask(session, "cordon", "PATCH", f"/api/v1/nodes/{name}", (200, CONFLICT), body)

    def _pod(self, name: str) -> Json:
        rng = self._rng
        kind = rng.random()
        if kind < 0.04:
            return pod(name, gpus=9)  # no node will ever have that many
        if kind < 0.08:
            return pod(name, nodeSelector={"zone": "north"})
        spec: Json = {}
        if kind < 0.3:
            spec["nodeSelector"] = {"zone": rng.choice(ZONES)}
        if kind > 0.8:
            spec["tolerations"] = [TAINT | {"operator": "Equal"}]
        return pod(
            name,
            gpus=rng.choice((0, 1, 1, 1, 2, 2, 4, 8)),
            cpu=rng.choice(("100m", "500m", "1", "4", "12")),
            memory=rng.choice(("256Mi", "1Gi", "4Gi", "24Gi")),
            **spec,
        )

    def _ask(
        self,
        session: Session,
        what: str,
        method: str,
        path: str,
        good: tuple[int, ...],
        body: Json | None = None,
    ) -> None:
        status, answer = session.request(method, path, body)
        self.answers[f"{what}: {status}"] += 1
        if status == 429 or status >= 500:  # a server that comes or goes
            raise Unreachable(f"{method} {path}: {status}")
        assert status in good, f"{method} {path}: {status}: {answer}"
