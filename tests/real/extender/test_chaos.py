"""An unchanged kube-scheduler and our extender, killed in turns while Neuron pods come and go.

Whatever happens, a pod has the consecutive devices or whole rows that it asked for, no device is
given twice, the maps on nodes come true again, and nothing waits that fits.
"""

import os
from collections import Counter

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
        said = [amid_the_first(fleet, both, seen)]
        for _ in range(TIMES):
            for trouble in (removed, falsified, both_at_once):
                gone = fleet.delete_half()
                fleet.add_pods(gone)
                trouble(fleet, both, seen)
                said.append(f"{trouble.__name__}: {judge(fleet, seen)}")
    binds = both.binds()
    conflicts = binds.total() - binds["bound"]
    print(f"{'; '.join(said)}; binds {dict(binds)}")  # noqa: T201
    assert conflicts < MOST_CONFLICTS * binds.total()


def amid_the_first(fleet: Fleet, both: Both, seen: Recorder) -> str:
    """All pods come at once, and first the one and then the other is killed."""
    fleet.add_pods(PODS)
    assert seen.wait(lambda: seen.bound() > PODS // 8, BINDS_S), "few binds before the first kill"
    both.kill_extender()
    both.extender_again()
    assert seen.wait_for_binds(PODS // 8, BINDS_S), "few binds after the extender is there again"
    both.kill_scheduler()
    both.scheduler_again()
    return f"first: {judge(fleet, seen)}"


def removed(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """All that the extender wrote on nodes is gone when it starts again."""
    assert seen.wait_for_binds(PODS // 16, BINDS_S), "few binds before the kill"
    both.kill_extender()
    fleet.annotate_nodes(falsely=False)
    both.extender_again()


def falsified(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """Every node says that all of it is in use when the extender starts again."""
    assert seen.wait_for_binds(PODS // 16, BINDS_S), "few binds before the kill"
    both.kill_extender()
    fleet.annotate_nodes(falsely=True)
    both.extender_again()


def both_at_once(fleet: Fleet, both: Both, seen: Recorder) -> None:
    """Both are away while pods come and go."""
    both.kill_scheduler()
    both.kill_extender()
    fleet.add_pods(fleet.delete_half())
    both.scheduler_again()
    both.extender_again()
