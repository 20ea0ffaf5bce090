"""The cluster benchmarks in small: every figure is there and makes sense. No times are judged."""

import pytest

from bayplan.bench import memory, throughput
from bayplan.bench.throughput import Plan, Round, Size
from bayplan.cli.bench import render_memory, render_throughput
from bayplan.testing.controlplane import ControlPlane

SMALL = Plan(
    sizes=(Size(20, 60),), rounds=1, steady_per_s=40.0, steady_s=1.0, steady_rounds=1, settle_s=0.1
)
# others read these
KEYS = {
    "nodes",
    "pods",
    "bayplan_pods_per_s",
    "kube_scheduler_pods_per_s",
    "bare_loop_pods_per_s",
    "bayplan_events_pods_per_s",
    "kube_scheduler_events_pods_per_s",
    "bare_loop_events_pods_per_s",
    "bayplan_cpu_ms_per_pod",
    "bare_loop_cpu_ms_per_pod",
    "bayplan_requests_per_pod",
    "bayplan_rss_mib",
    "kube_scheduler_rss_mib",
}
RATIOS = {
    "bayplan_over_kube",
    "bayplan_over_bare",
    "bayplan_events_over_kube",
    "bayplan_events_over_bare",
    "bayplan_cpu_over_bare",
}
STEADY = {
    f"steady_{who}_ms_{which}" for who in ("bayplan", "kube_scheduler") for which in ("p50", "p99")
}


def done(contender: str, pods_per_s: float) -> Round:
    return Round(
        round=1,
        contender=contender,
        pods_per_s=pods_per_s,
        events_pods_per_s=pods_per_s / 2,
        cpu_ms_per_pod=0.5,
        requests_per_pod=2.0,
        rss_mib=80.0,
        start_to_first_bind_s=1.0,
        start_to_last_bind_s=4.0,
        events=60,
        events_by_last_bind=0,
        observer_cpu_ms_per_pod=0.05,
        observer_cuts=0,
        elsewhere_cores=0.1,
    )


def test_a_small_run_gives_every_figure(wiped: ControlPlane) -> None:
    report = throughput.measure(wiped, SMALL)

    (result,) = report["results"]
    assert result.keys() >= KEYS | RATIOS
    assert report.keys() >= STEADY
    assert (result["nodes"], result["pods"]) == (20, 60)
    assert all(result[key] > 0 for key in KEYS if "cpu" not in key)
    assert 0 < report["steady_bayplan_ms_p50"] <= report["steady_bayplan_ms_p99"]
    for who in ("bayplan", "bare_loop"):
        assert result[f"{who}_events_pods_per_s"] <= result[f"{who}_pods_per_s"]
        assert 2.0 <= result[f"{who}_requests_per_pod"] <= 2.2  # 0.2: lists, over few pods
    rounds = {ran["contender"]: ran for ran in result["rounds"]}
    assert {name: ran["events"] for name, ran in rounds.items()} == {
        "kube_scheduler": 60,
        "bayplan": 60,
        "bare_loop": 60,
    }
    assert wiped.request("GET", "/api/v1/nodes")["items"] == []


def test_memory_in_small(wiped: ControlPlane) -> None:
    report = memory.measure(wiped, memory.Plan(nodes=20, pods=100, batches=2))

    found = report["memory"]
    assert len(found["peak_mib"]) == len(found["bound_mib"]) == 2
    assert found["peak_over_bound"] >= 1.0
    assert -0.5 < found["peak_growth"][0] < 0.5  # a little may have been given back
    assert "100 pods at once on 20 nodes" in render_memory(report)


def test_figures_are_medians_and_ratios_are_theirs() -> None:
    rounds = [done("kube_scheduler", 100.0), done("bare_loop", 500.0)]
    rounds += [done("bayplan", rate) for rate in (300.0, 10.0, 400.0)]

    result = throughput.summary(Size(20, 60), rounds)

    assert result["bayplan_pods_per_s"] == 300.0
    assert result["bayplan_over_kube"] == 3.0
    assert result["bayplan_over_bare"] == pytest.approx(0.6)
    assert result["bayplan_events_over_kube"] == 3.0


def test_another_contender_begins_each_round() -> None:
    first = [throughput.in_turn(number)[0].key for number in (1, 2, 3, 4)]

    assert first == ["kube_scheduler", "bayplan", "bare_loop", "kube_scheduler"]


def test_the_figures_as_text() -> None:
    rounds = [done("kube_scheduler", 100.0), done("bayplan", 300.0), done("bare_loop", 400.0)]
    result = throughput.summary(Size(1000, 3000), rounds)
    steady = {"steady_bayplan_ms_p50": 5.0, "steady_bayplan_ms_p99": 9.0}

    text = render_throughput({"results": [result], **steady})

    assert text.splitlines() == [
        "NODES   PODS  CONTENDER       PODS/S  WITH EVENTS/S  CPU MS/POD  REQUESTS/POD  RSS MIB",
        "1,000  3,000  kube-scheduler     100             50        0.50          2.00       80",
        "1,000  3,000  bayplan            300            150        0.50          2.00       80",
        "1,000  3,000  bare loop          400            200        0.50          2.00       80",
        "1,000 nodes: bayplan is 3.00 times kube-scheduler and 0.75 times the bare loop; "
        "with events 3.00 and 0.75; CPU 1.00 times the bare loop's",
        "from creation to bind at a steady pace, bayplan: p50 5.0 ms, p99 9.0 ms",
    ]
