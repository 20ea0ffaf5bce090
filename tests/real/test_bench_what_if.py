"""The benchmarks of questions and gangs in small: every figure is there. No times are judged."""

from collections import Counter

import pytest

from bayplan.bench import asking, gangs, live_gangs, what_if
from bayplan.bench.throughput import BenchError
from bayplan.cli.bench_questions import render_gangs, render_what_if
from bayplan.testing.controlplane import ControlPlane

ENGINE = what_if.Plan(nodes=20, questions=20, preemptions=5, gang_nodes=12, gangs=2, live=None)
LIVE = asking.Plan(gang_nodes=12, gangs=2, nodes=20, pods=100, rounds=1)


# Questions beside binds need more pods than fit into a test: see `bayplan bench what-if --quick`.
BESIDE = {
    "throughput_drop": 0.01,
    "pods_per_s_beside_fits": 99.0,
    "pods_per_s_beside_livez": 100.0,
    "cycle_ms_p99_beside_fits": 5.0,
    "cycle_ms_p99_beside_livez": 4.0,
}


def test_every_figure_is_there(wiped: ControlPlane) -> None:
    told: list[str] = []
    report = what_if.run(ENGINE) | asking.gangs(wiped, LIVE, told.append) | BESIDE

    for what in ("fits_node", "fits_without", "preempt_all"):
        assert 0 < report[f"{what}_ms_p50"] <= report[f"{what}_ms_p99"]
    assert report["bare_loop_us"] > 0
    assert report["gang_no_engine_ms"] > 0
    assert len(report["gang_no_all_ms"]) == 2
    assert told[-1].startswith("gang 2 of 2: refused after ")
    text = render_what_if(report)
    assert "20 nodes with 8 devices each, all held" in text
    assert "a drop of 1.0%" in text


def test_gangs_in_small() -> None:
    sizes = (gangs.Size(10, 4, 3), gangs.Size(6, 2, 3, what_if.GPUS))
    report = gangs.run(gangs.Plan(sizes, rounds=1, live=None))

    assert [each["gangs"] for each in report["results"]] == [4, 2]
    assert all(each["place_s"] > 0 and each["refuse_s"] > 0 for each in report["results"])
    assert "REFUSED AFTER S" in render_gangs(report)


def test_gangs_on_a_control_plane_in_small(wiped: ControlPlane) -> None:
    plan = live_gangs.Plan(nodes=20, gangs=5, size=3, rounds=1, settle_s=0.1)

    live = live_gangs.measure(wiped, plan)

    assert (live["nodes"], live["gangs"], live["size"]) == (20, 5, 3)
    assert live["bind_s"] > 0
    assert live["bare_bind_s"] > 0
    assert live["bind_over_bare"] == pytest.approx(live["bind_s"] / live["bare_bind_s"])
    assert [done["contender"] for done in live["rounds"]] == ["bayplan", "bare_loop"]
    assert "5 gangs of 3 on 20 nodes" in render_gangs({"results": [], "live": live})


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = Counter({0.001: 50, 0.002: 49, 0.1: 1})

    assert asking.quantile(counts, 0.5) == pytest.approx(0.001)
    assert asking.quantile(counts, 0.99) == pytest.approx(0.002)
    assert 0.002 < asking.quantile(counts, 0.995) < 0.1
    with pytest.raises(BenchError, match="counted no rounds"):
        asking.quantile({}, 0.5)
