"""The stories of gangs in small. What is judged is how they end, never how fast."""

import os
from typing import Any

from msgspec.structs import replace

from bayplan.bench import rivals
from bayplan.bench.gang_stories import Crowd, Halves, Plan, in_a_crowd, play, staged
from bayplan.cli.bench_stories import render_stories
from bayplan.testing.controlplane import ControlPlane

SMALL = Plan(
    Halves(nodes=1, size=5, rounds=1, run_s=0.2, limit_s=20.0),
    Crowd(nodes=1, size=6, lives_s=(1.0,), warm_s=1.5, limit_s=3.0),
)
# So many that pods which come in turn, more or less, never let one gang have all by chance.
IMPATIENT = Plan(Halves(nodes=1, size=8, rounds=3, limit_s=3.0), SMALL.crowd)


def test_two_gangs_that_could_block_each_other_both_run(wiped: ControlPlane) -> None:
    played = play(wiped, SMALL, rivals.bayplan(None))

    halves, crowd = played["halves"], played["crowd"]
    assert 0 < halves["first_s"] < halves["both_s"] == halves["both_max_s"]
    assert halves["in_part_max_s"] < halves["both_s"]
    assert [done["bound"] for done in halves["rounds"]] == [[5, 5]]
    assert crowd["small_bound"] > 0
    assert 0 < crowd["small_busy"] <= 1.0
    assert crowd["small_late_s"] > 0
    assert wiped.request("GET", "/api/v1/nodes")["items"] == []


def test_places_are_kept_for_a_gang_in_a_crowd(wiped: ControlPlane) -> None:
    crowd = replace(SMALL.crowd, lives_s=(2.0, 1.0), limit_s=30.0)
    rival = rivals.bayplan(None, reserve_after_s=2.0)

    with staged(wiped, rival, crowd.nodes) as stage:
        found = in_a_crowd(stage, crowd)

    assert found["gang_s"] is not None
    assert found["gang_in_part_s"] < found["gang_s"]


def test_single_pods_block_each_other(wiped: ControlPlane) -> None:
    halves = play(wiped, IMPATIENT, rivals.kube_scheduler())["halves"]

    assert halves["both_s"] is None
    assert len(halves["rounds"]) == 1  # and once is enough
    assert sum(halves["rounds"][0]["bound"]) == 8
    assert halves["in_part_max_s"] > 1.0


if "BAYPLAN_PROVE" in os.environ:  # it takes minutes to build

    def test_coscheduling_plays_too(wiped: ControlPlane) -> None:
        halves = play(wiped, IMPATIENT, rivals.coscheduling(print))["halves"]

        assert halves["first_s"] > 0


def test_a_rival_says_what_a_gang_is_in_its_own_words() -> None:
    assert rivals.bayplan(None).marks("train", 4) == {
        "annotations": {"bayplan.dev/gang": "train", "bayplan.dev/gang-min": "4"}
    }
    assert rivals.label("train", 4) == {"labels": {"scheduling.x-k8s.io/pod-group": "train"}}
    assert rivals.kube_scheduler().marks("train", 4) == {}


def test_the_crowd_is_as_dense_as_it_says() -> None:
    crowd = Crowd(nodes=2, load=0.5, lives_s=(2.0, 6.0))

    assert crowd.every_s == 0.5  # 8 pods at a time that live 4 s each


def test_the_stories_as_text() -> None:
    halves: dict[str, Any] = {"first_s": 1.0, "both_s": None, "both_max_s": None}
    crowd: dict[str, Any] = {"gang_s": None, "gang_in_part_s": 0.0, "small_busy": 0.95}
    crowd |= {"small_bound": 2_700, "small_wait_s": None, "small_waiting": 2}
    played = {"rival": "bayplan", "halves": halves | {"in_part_max_s": 0.03}, "crowd": crowd}
    plan = {
        "halves": {"nodes": 8, "size": 40, "run_s": 2.0, "limit_s": 60.0},
        "crowd": {"nodes": 8, "size": 48, "load": 0.95, "limit_s": 180.0},
    }
    missing = {"coscheduling": "there is no Go"}

    text = render_stories({"plan": plan, "results": [played], "missing": missing})

    assert text.splitlines() == [
        "two gangs of 40 on 64 GPUs; one that runs ends after 2 s",
        "         ONE RUNS AFTER S  BOTH RAN AFTER S  AT WORST   BOUND IN PART S",
        "bayplan              1.00  not in 60         not in 60             0.03",
        "",
        "a gang of 48 on 64 GPUs, of which small pods keep 95% busy",
        "         GANG RUNS AFTER S  BOUND IN PART S  SMALL PODS HOLD  BOUND  WAIT S",
        "bayplan  not in 180                    0.00              95%  2,700    0.00",
        "coscheduling did not play: there is no Go",
    ]
