"""Two kube-schedulers that know nothing of each other ask one extender."""

import os

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.extender.judging import judge
from tests.real.extender.rig import Fleet, StartExtender, StartScheduler, recorder
from tests.real.extender.rules import INF1, INF2, TRN1

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
PODS = 600 if PROVE else 150
NODES = {INF1: PODS // 20, INF2: PODS // 16, TRN1: PODS // 8}
NAMES = ("first-scheduler", "second-scheduler")


@pytest.mark.timeout(900, func_only=True)
def test_no_device_is_given_twice(
    wiped: ControlPlane,
    fleet: Fleet,
    start_extender: StartExtender,
    start_scheduler: StartScheduler,
) -> None:
    fleet.add_nodes(NODES)
    extender = start_extender().wait_until_ready()
    with recorder(wiped) as seen:
        for name in NAMES:
            start_scheduler(extender.port, name)
        fleet.add_pods(PODS, NAMES)
        said = [judge(fleet, seen)]
        fleet.add_pods(fleet.delete_half(), NAMES)
        said.append(judge(fleet, seen))
    print(f"{'; '.join(said)}; binds {dict(extender.binds())}")  # noqa: T201
