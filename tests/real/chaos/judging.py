"""The end of a test under load: wait until nothing moves, then judge the whole history."""

import time
from collections import Counter

from bayplan.testing.controlplane import ControlPlane
from tests.real.apicheck import (
    Node,
    Pod,
    read_node,
    read_pod,
    violations,
    waiting_that_fit,
    waiting_without_a_word,
)
from tests.real.chaos.recorder import Recorder

QUIET_S = 3.0
# A refused pod rests for up to 10 s; a watch that lost its server begins again after up to 30 s.
SETTLE_S = 60.0
SHOWN = 10


def nodes_of(plane: ControlPlane) -> list[Node]:
    return [read_node(raw) for raw in plane.request("GET", "/api/v1/nodes")["items"]]


def pods_of(plane: ControlPlane) -> list[Pod]:
    return [read_pod(raw) for raw in plane.request("GET", "/api/v1/pods")["items"]]


def settle(plane: ControlPlane, recorder: Recorder, timeout_s: float = SETTLE_S) -> None:
    """Until all is done and nothing changed for a while, or until that took too long."""
    nodes = nodes_of(plane)
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        seen, pods = len(recorder.history), recorder.pods()
        open_ = any(waiting_that_fit(pods, nodes)) or any(waiting_without_a_word(pods))
        moved = recorder.wait_for_news(seen, left_s if open_ else QUIET_S)
        recorder.check()
        if not moved and not open_:
            return


def judge(plane: ControlPlane, recorder: Recorder) -> str:
    """Fails with what is wrong; says in one line what it saw."""
    settle(plane, recorder)
    recorder.check()
    wrong = violations(recorder.history, pods_of(plane), nodes_of(plane))
    if wrong:
        more = f"\nand {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise AssertionError(f"{len(wrong)} wrongs:\n" + "\n".join(wrong[:SHOWN]) + more)
    return describe(recorder)


def describe(recorder: Recorder) -> str:
    uids = {change.pod.uid for change in recorder.history}
    now = Counter("waiting" if pod.waits else "on nodes" for pod in recorder.pods())
    left = ", ".join(f"{count} {state}" for state, count in sorted(now.items()))
    return (
        f"{len(uids)} pods in {len(recorder.history)} versions, {recorder.bound()} bound; "
        f"in the end {left}; {recorder.gaps} gaps in the history"
    )
