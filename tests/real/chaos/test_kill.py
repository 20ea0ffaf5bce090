"""`kill -9` at random moments under load: the next start finds the cluster as it is."""

import os
import random
import time

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.chaos.audit import AuditLog
from tests.real.chaos.judging import judge
from tests.real.chaos.load import Load, make_nodes
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.replica import Start

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
KILLS = 50 if PROVE else 6
STARTS_S = 1.5  # somewhat more than a start takes
AMID_S = 0.02


@pytest.mark.timeout(900, func_only=True)
def test_killed_at_random_moments_it_binds_each_pod_once_and_overfills_no_node(
    empty: ControlPlane, namespace: str, start: Start, rng: random.Random, audit: AuditLog
) -> None:
    make_nodes(empty)
    early = 0
    killed_at: list[float] = []  # wall clock
    with Recorder(empty) as recorder, Load(empty, namespace, random.Random(rng.random())) as load:
        for n in range(KILLS):
            replica = start()
            if n % 5 == 4:
                time.sleep(rng.uniform(0, STARTS_S))  # before it is ready, or just after
            else:
                replica.wait_until_ready()
                if n % 2:  # in the middle of many binds
                    load.wave()
                    assert recorder.wait_for_binds(rng.randrange(1, 10), 30.0), "no binds"
                else:
                    time.sleep(rng.uniform(0.2, 2.0))  # any moment
            early += not replica.is_ready
            killed_at.append(time.time())
            replica.kill()
        last = start()
        last.wait_until_ready()
        load.stop()
        seen = judge(empty, recorder)
        last.stop()
    sent = [bind.at for bind in audit.binds()]
    amid = sum(any(abs(at - kill) < AMID_S for at in sent) for kill in killed_at)
    print(  # noqa: T201
        f"{KILLS} kills, {early} before it was ready, {amid} within {AMID_S * 1000:g} ms of a "
        f"bind; {seen}; {dict(load.answers)}"
    )
