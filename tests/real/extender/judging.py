"""Waits until nothing moves any more, then judges all that the API server has shown."""

import time

from tests.real.chaos.recorder import Recorder
from tests.real.chaos.waiting import eventually
from tests.real.extender import rules
from tests.real.extender.rig import Fleet

QUIET_S = 2.0
SETTLE_S = 120.0
MAPS_S = 30.0
SHOWN = 10


def settle(fleet: Fleet, recorder: Recorder, timeout_s: float = SETTLE_S) -> None:
    """Until nothing waits that fits and nothing changed for a while, or until that took too long:
    the judge will then say what is open."""
    nodes = list(fleet.nodes().values())
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        seen = len(recorder.history)
        open_ = any(rules.waiting_that_fit(recorder.pods(), nodes))
        moved = recorder.wait_for_news(seen, left_s if open_ else QUIET_S)
        recorder.check()
        if not moved and not open_:
            return


def judge(fleet: Fleet, recorder: Recorder, timeout_s: float = SETTLE_S) -> str:
    """Fails with what is wrong; says in one line what it saw."""
    settle(fleet, recorder, timeout_s)
    nodes, pods = fleet.nodes(), recorder.pods()
    wrong = [
        *rules.odd(pods, nodes),
        *rules.shared(recorder.history),
        *rules.waiting_that_fit(pods, nodes.values()),
    ]
    if {pod.name.partition("/")[2] for pod in pods} != set(fleet.names):
        wrong.append("other pods are there than were made")
    assert not wrong, f"{len(wrong)} wrongs:\n" + "\n".join(wrong[:SHOWN])
    eventually(lambda: not _wrong_maps(fleet, recorder), "maps that are true", MAPS_S)
    bound = sum(pod.holds for pod in pods)
    return f"{bound} bound, {len(pods) - bound} waiting, {recorder.gaps} gaps"


def _wrong_maps(fleet: Fleet, recorder: Recorder) -> list[str]:
    return list(rules.wrong_maps(recorder.pods(), fleet.nodes().values()))
