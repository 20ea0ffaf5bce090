"""Gangs on a real API server, while everybody gets in their way and the scheduler is killed."""

import os
import random
import time
from collections.abc import Iterator

import pytest

from bayplan.testing.controlplane import ControlPlane, Refused
from tests.real.apicheck import bound_more_than_once, too_full
from tests.real.chaos.gangs import Span, group_of, in_part, read_member, torn
from tests.real.chaos.jobs import RACKS, SIDES, Jobs, make_racks
from tests.real.chaos.judging import describe, nodes_of
from tests.real.chaos.recorder import Recorder
from tests.real.chaos.replica import Start
from tests.real.chaos.waiting import eventually
from tests.real.rights import apply, printed

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
KILLS = 12 if PROVE else 2
# Without a kill: long enough for gangs to be given up, some of them twice.
STAYS_S = 120.0 if PROVE else 15.0
TIMEOUT_S = 10.0
# When its time is over a gang may still rest from its last refusal, for 10 s at most; then there is
# an eviction for each member, on a machine that does much else.
SLACK_S = 10.0 + 3.0
CALM_S = 2 * (TIMEOUT_S + SLACK_S)  # for two gangs that are given up one after the other
POLL_S = 0.2
CONFIG = {"gangs": {"timeout": f"{TIMEOUT_S:g}s", "reserveAfter": "5s"}}
PLURAL = "podgroups.scheduling.x-k8s.io"


@pytest.fixture
def grouping(empty: ControlPlane) -> Iterator[ControlPlane]:
    """With the kind PodGroup, inside the test only."""
    apply(empty, printed("crds"))
    empty.kubectl("wait", f"crd/{PLURAL}", "--for=condition=Established", "--timeout=20s")
    eventually(lambda: is_served(empty), "PodGroups")
    yield empty
    empty.kubectl("delete", "crd", "-l", "app.kubernetes.io/name=bayplan")


def is_served(plane: ControlPlane) -> bool:
    """The API server takes a moment for a kind that is new."""
    try:
        plane.request("GET", "/apis/scheduling.x-k8s.io/v1alpha1/podgroups")
    except Refused:
        return False
    return True


@pytest.mark.timeout(900, func_only=True)
def test_killed_and_disturbed_gangs_are_whole_in_one_rack_and_their_status_is_true(
    grouping: ControlPlane, namespace: str, start: Start, rng: random.Random
) -> None:
    make_racks(grouping)
    nodes = nodes_of(grouping)
    jobs = Jobs(grouping, namespace, random.Random(rng.random()))
    running: list[Span] = []  # each from when it was ready to when it was killed
    with Recorder(grouping, read_member) as recorder, jobs:
        for _ in range(KILLS):
            replica = start(config=CONFIG)
            replica.wait_until_ready()
            ready = time.monotonic()
            assert recorder.wait_for_binds(rng.randrange(1, 12), 60.0), "no binds"
            running.append(Span(ready, time.monotonic()))
            replica.kill()
        last = start(config=CONFIG)
        last.wait_until_ready()
        ready = time.monotonic()
        while (left_s := ready + STAYS_S - time.monotonic()) > 0:
            recorder.wait_for_news(len(recorder.history), left_s)
        jobs.calm()
        eventually(lambda: jobs.is_calm, "calm")
        settled(grouping, jobs)
        last.stop()
        running.append(Span(ready, time.monotonic()))
        recorder.check()
        history = recorder.history
    racked = [change for change in history if group_of(change) in jobs.needs_rack]
    spells = list(in_part(history, jobs.said, running))
    wrong = [
        *bound_more_than_once(history),
        *too_full(history, nodes),
        *torn(racked, RACKS | SIDES, jobs.lost),
        *(f"in part: {spell}" for spell in spells if spell.seconds > TIMEOUT_S + SLACK_S),
    ]
    assert not wrong, "\n".join(wrong[:10])
    assert recorder.gaps == 0
    given_up = sum("of them are evicted" in line for line in last.said())
    assert given_up, "no gang was in part for long enough"
    worst = max(spells)
    print(f"{KILLS} kills, {given_up} given up, {worst}; {describe(recorder)}; {dict(jobs.done)}")  # noqa: T201


def settled(plane: ControlPlane, jobs: Jobs) -> None:
    """Once nobody is in their way: no gang is in part, and PodGroups say what pods say."""
    deadline = time.monotonic() + CALM_S
    while wrong := jobs.wrong(plane):
        assert time.monotonic() < deadline, "\n".join(wrong)
        time.sleep(POLL_S)
