"""The API server goes away under load and comes back; the scheduler goes on, the same process."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bayplan.testing.controlplane import ControlPlane
from tests.real.chaos import leases
from tests.real.chaos.judging import judge
from tests.real.chaos.load import Load, make_nodes
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.replica import Start

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
RESTARTS = 5 if PROVE else 1
AGAIN_S = 150.0  # a watch begins again up to a minute after its server is back, and may then list
# so short that the lease is lost while the server is away
ELECTION = {
    "leaderElect": True,
    "leaseDuration": "4s",
    "renewDeadline": "3s",
    "retryPeriod": "500ms",
}


@contextmanager
def away(plane: ControlPlane, how: str) -> Iterator[None]:
    """It crashes, stops in an orderly way, or hangs; when the block ends it is back."""
    if how == "SIGSTOP":
        assert plane._apiserver is not None
        os.kill(plane._apiserver.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(plane._apiserver.pid, signal.SIGCONT)
        return
    plane.stop_apiserver(kill=how == "SIGKILL")
    try:
        yield
    finally:
        plane.start_apiserver()


@pytest.mark.timeout(900, func_only=True)
@pytest.mark.parametrize(
    ("how", "elects"), [("SIGKILL", False), ("SIGTERM", True), ("SIGSTOP", True)]
)
def test_the_api_server_is_away_under_load(
    empty: ControlPlane,
    namespace: str,
    start: Start,
    rng: random.Random,
    how: str,
    elects: bool,
) -> None:
    leases.forget(empty)
    make_nodes(empty)
    with Recorder(empty) as recorder, Load(empty, namespace, random.Random(rng.random())) as load:
        replica = start(config={"leaderElection": ELECTION} if elects else None)
        replica.wait_until_ready()
        before = replica.lists()
        back_after: list[float] = []
        for _ in range(RESTARTS):
            assert recorder.wait_for_binds(5, AGAIN_S), "nothing is bound"
            load.wave()
            assert recorder.wait_for_binds(rng.randrange(1, 10), AGAIN_S), "nothing is bound"
            with away(empty, how):
                time.sleep(rng.uniform(1.0, 5.0))
            back = time.monotonic()
            assert recorder.wait_for_binds(5, AGAIN_S), "nothing is bound afterwards"
            back_after.append(time.monotonic() - back)
        load.stop()
        seen = judge(empty, recorder)
        after = replica.lists()
        assert replica.process.running
        replica.stop()
    relists = sum(after.values()) - sum(before.values())
    shown = ", ".join(f"{seconds:.1f}" for seconds in back_after)
    print(  # noqa: T201
        f"{RESTARTS} times away, binding again after {shown} s, {relists:g} lists of "
        f"{len(before)} kinds; {seen}; {dict(load.answers)}"
    )
    # a new server has a new watch cache, and may have to refuse the version that we had
    restarts = 0 if how == "SIGSTOP" else RESTARTS
    assert all(after[kind] - before[kind] <= restarts for kind in before)
