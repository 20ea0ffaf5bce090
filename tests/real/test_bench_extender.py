"""The extender's benchmark in small: every figure is there and makes sense. No times are judged."""

import pytest

from bayplan.bench import extender, filters
from bayplan.bench.extender import Plan, Round
from bayplan.cli.bench import render_extender
from bayplan.testing.controlplane import ControlPlane

SMALL = Plan(nodes=20, pods=30, rounds=1, settle_s=0.1)
FILTERS = filters.Plan(nodes=60, warm_up=2, filters=10, bursts=2, singles=200)


def done(contender: str, pods_per_s: float, **binds: float) -> Round:
    return Round(
        round=1,
        contender=contender,
        pods_per_s=pods_per_s,
        scheduler_cpu_ms_per_pod=4.0,
        extender_cpu_ms_per_pod=0.0 if contender == "none" else 2.0,
        binds=binds,
        observer_cuts=0,
        elsewhere_cores=0.1,
    )


ROUNDS = [
    done("none", 200.0),
    done("accept_all", 100.0),
    *(done("bayplan", rate, bound=398.0, refused=2.0) for rate in (95.0, 10.0, 90.0)),
]


def test_filters_of_a_small_cluster() -> None:
    found = filters.run(FILTERS)

    for who in ("", "accept_all_"):
        assert 0 < found[f"{who}filter_ms_p50"] <= found[f"{who}filter_ms_p99"]
        assert 0 < found[f"{who}filter16_ms_p50"] <= found[f"{who}filter16_ms_p99"]
        assert found[f"{who}filter16_ms_p99"] <= found[f"{who}filter16_all_ms_p99"] * 1.01
        assert found[f"{who}filter_binds_per_s"] > 0


def test_a_small_run_with_every_contender(wiped: ControlPlane) -> None:
    report = extender.measure(wiped, SMALL)

    for contender in ("none", "accept_all", "bayplan"):
        assert report[f"{contender}_pods_per_s"] > 0
    assert report["throughput_ratio"] > 0
    assert report["binds"] >= SMALL.pods
    assert 0 <= report["conflict_rate"] < 1
    assert wiped.request("GET", "/api/v1/nodes")["items"] == []


def test_figures_are_medians_and_ratios_are_theirs() -> None:
    report = extender.summary(SMALL, ROUNDS)

    assert report["bayplan_pods_per_s"] == 90.0
    assert report["throughput_ratio"] == pytest.approx(0.9)
    assert (report["bayplan_over_none"], report["accept_all_over_none"]) == (0.45, 0.5)
    assert (report["binds"], report["conflict_rate"]) == (1200.0, pytest.approx(0.005))


def test_the_figures_as_text() -> None:
    times = {"filter_nodes": 5000, "filter_ms_p50": 2.0, "filter_ms_p99": 4.0}
    times |= {"filter16_ms_p50": 12.0, "filter16_ms_p99": 30.0}
    times |= {"accept_all_filter_ms_p99": 1.0, "accept_all_filter16_ms_p99": 10.0}

    text = render_extender(extender.summary(SMALL, ROUNDS) | times)

    assert text.splitlines() == [
        "a filter over 5,000 names beside 16 binds in flight: p50 2.00 ms, p99 4.00 ms; "
        "accept-all p99 1.00 ms",
        "each of 16 filters at once: p50 12.00 ms, p99 30.00 ms; accept-all p99 10.00 ms",
        "KUBE-SCHEDULER WITH  PODS/S  EXTENDER CPU MS/POD",
        "no extender           200.0                 0.00",
        "accept-all            100.0                 2.00",
        "bayplan                90.0                 2.00",
        "20 nodes, 30 pods: with bayplan 0.90 times as fast as with accept-all, 0.45 times as fast "
        "as with none; 0.50% of 1,200 binds were refused",
    ]
