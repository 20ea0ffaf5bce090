"""A large gang against a stream of small pods, on a real API server: with places that are kept for
it, and without."""

import itertools
import time
import uuid
from collections import deque
from pathlib import Path

from bayplan.testing.controlplane import ControlPlane
from tests.real.rig import Cluster, Scheduler, pod, until

GPUS, MEMBERS = 8, 6
LIVES_S = (1.0, 3.0, 2.0)  # of the small pods, in turn
EVERY_S = 0.2  # from one small pod to the next: a quarter more than there is room for
TURN_S = 0.05
RESERVE_S = 5.0
# Until places are kept, the life of the last pod there, the rest of a gang that was refused, and
# something for a machine that does much else.
LIMIT_S = RESERVE_S + 3.0 + 10.0 + 2.0


class Crowd(Cluster):
    """A node, small pods that come for ever and end some seconds after they were bound, a gang."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane, f"test-{uuid.uuid4().hex[:8]}")
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.add_node("a", GPUS)
        self._began = time.monotonic()
        self._lives_s = itertools.cycle(LIVES_S)
        self._ends: dict[str, float] = {}  # by name of a small pod that runs
        self._waiting: deque[str] = deque()
        self._made = 0

    def turn(self) -> dict[str, str]:
        """Those whose time has come appear and end. Where the pods are."""
        time.sleep(TURN_S)
        now = time.monotonic()
        while self._began + self._made * EVERY_S <= now:
            self._made += 1
            self._waiting.append(f"small-{self._made}")
            self.add_pod(self._waiting[-1])
        places = self.places()
        for name in [name for name in self._waiting if name in places]:
            self._waiting.remove(name)
            self._ends[name] = now + next(self._lives_s)
        for name in [name for name, end in self._ends.items() if end <= now]:
            del self._ends[name]
            self.delete_pod(name)
        return places

    def add_gang(self) -> None:
        for number in range(MEMBERS):
            made = pod(f"large-{number}")
            notes = {"bayplan.dev/gang": "large", "bayplan.dev/gang-min": str(MEMBERS)}
            made["metadata"]["annotations"] = notes
            self.plane.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", made)


def gang_s(plane: ControlPlane, directory: Path, reserve_after: str) -> float | None:
    """After how many seconds the gang runs; None: not within the limit. Never a part of it."""
    crowd = Crowd(plane)
    config = {"gangs": {"reserveAfter": reserve_after}}
    with Scheduler(directory, plane.kubeconfig, config=config):
        until(lambda: len(crowd.turn()) == GPUS)
        crowd.add_gang()
        came = time.monotonic()
        while (now := time.monotonic()) < came + LIMIT_S:
            if any(name.startswith("large") for name in crowd.turn()):
                until(lambda: sum("large" in name for name in crowd.places()) == MEMBERS, 2.0)
                return now - came
    return None


def test_a_gang_runs_soon_after_places_are_kept_for_it(wiped: ControlPlane, tmp_path: Path) -> None:
    seconds = gang_s(wiped, tmp_path, f"{RESERVE_S:g}s")

    assert seconds is not None
    assert seconds > RESERVE_S  # it was not luck
    print(f"the gang ran after {seconds:.1f} s")  # noqa: T201


def test_where_no_places_are_kept_it_starves(wiped: ControlPlane, tmp_path: Path) -> None:
    assert gang_s(wiped, tmp_path, "never") is None
