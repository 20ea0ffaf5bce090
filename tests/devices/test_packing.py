"""Rows stay whole: a small form of `bayplan bench contiguous`."""

import random

import pytest
from click.testing import CliRunner

from bayplan.bench import contiguous
from bayplan.cli.bench import bench, render_contiguous

SMALL = contiguous.Plan(nodes=32, arrivals=2_000, seeds=(0,))


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    return contiguous.run(SMALL)


def test_fewer_large_requests_are_refused_than_with_the_original(report: dict[str, object]) -> None:
    for found in (report, report["equal_load"]):
        assert isinstance(found, dict)
        assert found["refused_original"] >= 4
        assert found["refused_ours"] <= found["refused_original"] / 2
        assert found["ratio"] == pytest.approx(
            found["refused_ours"] / found["refused_original"], abs=1e-4
        )


def test_every_contender_meets_the_same_pods_and_refuses_what_it_says() -> None:
    arrivals = contiguous.stream(SMALL, 3)
    assert arrivals == contiguous.stream(SMALL, 3)
    assert arrivals != contiguous.stream(SMALL, 4)
    assert {arrival.size for arrival in arrivals} == {1, 4, 8, 16}
    for profile in contiguous.contenders(random.Random(0)).values():
        tally = contiguous.play(SMALL, arrivals[:400], profile)
        assert 0 <= tally.refused <= tally.refused_in_all < 200
        assert 0.3 < tally.busy < 0.9


def test_the_original_gives_the_lowest_indexes() -> None:
    profile = contiguous.contenders(random.Random(0))["original"]
    nodes = contiguous.Nodes(1, profile)
    sizes = (1, 4, 1, 8)
    assert [nodes.place(contiguous.pod(i, n), n, 0.0, 1.0) for i, n in enumerate(sizes)] == [
        True
    ] * 4
    held = {pod.uid: pod.held for pod in nodes.pods()}
    given = {uid: [part.id for part in found.parts] for uid, found in held.items() if found}
    assert given["pod-0"] == ["0"]
    assert given["pod-1"] == ["4", "5", "6", "7"]
    assert given["pod-2"] == ["1"]
    assert given["pod-3"] == [str(i) for i in range(8, 16)]


def test_the_report_as_a_table(report: dict[str, object]) -> None:
    text = render_contiguous(report)
    assert text.splitlines()[0].split() == [
        *("SEED", "BAYPLAN", "DEVICES", "ALONE", "BEHIND", "EXTENDER", "ORIGINAL")
    ]
    assert "at equal load: bayplan" in text.splitlines()[-1]
    shown = CliRunner().invoke(bench, ["contiguous", "--help"])
    assert "--quick" in shown.output
