"""An unchanged kube-scheduler and our extender, killed in turns while Neuron pods come and go.

Whatever happens, a pod has the consecutive devices or whole rows that it asked for, no device is
given twice, the maps on nodes come true again, and nothing waits that fits.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from bayplan.testing.controlplane import ControlPlane, Process
from tests.real.chaos.recorder import Recorder
from tests.real.extender.judging import judge
from tests.real.extender.rig import Extender, Fleet, StartExtender, StartScheduler, recorder
from tests.real.extender.rules import INF1, INF2, TRN1

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
PODS = 1_000 if PROVE else 250
TIMES = 2 if PROVE else 1  # that all kinds of trouble come
# A little less than all the pods need: some wait, most of the time.
NODES = {INF1: PODS // 20, INF2: PODS // 16, TRN1: PODS // 8}
BINDS_S = 60.0
MOST_CONFLICTS = 0.01


class Both:
    """The extender and kube-scheduler, each of which can be killed and started again."""

    def __init__(self, start_extender: StartExtender, start_scheduler: StartScheduler) -> None:
        self._start_extender, self._start_scheduler = start_extender, start_scheduler
        self.extender: Extender = start_extender().wait_until_ready()
        self.port = self.extender.port
        self.scheduler: Process = start_scheduler(self.port)
        self._binds: Counter[str] = Counter()  # of extenders that are gone

    def kill_extender(self) -> None:
        self._binds = self.binds()
        self.extender.kill()

    def extender_again(self) -> None:
        self.extender = self._start_extender(port=self.port).wait_until_ready()

    def kill_scheduler(self) -> None:
        self.scheduler.kill()

    def scheduler_again(self) -> None:
        self.scheduler = self._start_scheduler(self.port)

    def binds(self) -> Counter[str]:
        """Of all extenders, by result; what the last moment of a killed one brought is lost."""
        now = self.extender.binds() if self.extender.process.running else Counter[str]()
        return self._binds + now


@pytest.mark.timeout(3600 if PROVE else 600, func_only=True)
def test_killed_in_turns_they_give_legal_devices_once(
    wiped: ControlPlane,
    fleet: Fleet,
    start_extender: StartExtender,
    start_scheduler: StartScheduler,
) -> None:
    fleet.add_nodes(NODES)
    both = Both(start_extender, start_scheduler)
    with recorder(wiped) as seen:
        said = []
        for trouble in (first, *TIMES * (removed, falsified, both_at_once)):
            trouble(fleet, both, seen)
            said.append(f"{trouble.__name__}: {judge(fleet, seen)}")
    binds = both.binds()
    conflicts = binds.total() - binds["bound"]
    print(f"{'; '.join(said)}; binds {dict(binds)}")  # noqa: T201
    assert conflicts < MOST_CONFLICTS * binds.total()


@contextmanager
def amid(change: Callable[[], None], seen: Recorder) -> Iterator[None]:
    """The block runs in the middle of it, when some pods were bound; it is over after the block."""
    enough = seen.bound() + PODS // 16
    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        assert seen.wait(lambda: seen.bound() >= enough, BINDS_S), "few binds before the kill"
        yield
        changing.result()


def first(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """All pods come at once, and first the one and then the other is killed."""
    with amid(lambda: fleet.add_pods(PODS), seen):
        both.kill_extender()
        both.extender_again()
        assert seen.wait_for_binds(PODS // 16, BINDS_S), "few binds after the extender is back"
        both.kill_scheduler()
        both.scheduler_again()


def removed(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """All that the extender wrote on nodes is gone when it starts again."""
    with amid(lambda: replaced(fleet), seen):
        both.kill_extender()
        fleet.annotate_nodes(falsely=False)
        both.extender_again()


def falsified(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """Every node says that all of it is in use when the extender starts again."""
    with amid(lambda: replaced(fleet), seen):
        both.kill_extender()
        fleet.annotate_nodes(falsely=True)
        both.extender_again()


def both_at_once(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """Both are away while pods come and go."""
    with amid(lambda: replaced(fleet), seen):
        both.kill_scheduler()
        both.kill_extender()
    replaced(fleet)
    both.scheduler_again()
    both.extender_again()


def replaced(fleet: Fleet) -> None:
    """Half of the pods are deleted, and as many others come."""
    fleet.add_pods(fleet.delete_half())
