"""Our engine agrees with kube-scheduler's own plugins on random cases.

Every run has another seed, and a failure names it; `BAYPLAN_SEED=7` runs the same cases again.
`BAYPLAN_PROVE=1` asks about more of them. Without Go these tests fail, and say what they miss.
"""

import os
from pathlib import Path

import pytest

from tests.oracle import coverage
from tests.oracle.parity import Stream, disagreements, print_seed

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
SHARDS = range(8)
CASES: dict[Stream, int] = {
    "filters": 20_000 if PROVE else 4_000,
    "scores": 6_000 if PROVE else 1_500,
    "kept": 4_000 if PROVE else 400,
    "volumes": 4_000 if PROVE else 400,
}
MEASURED = 10_000 if PROVE else 3_000
FIXED_SEED = 401
SHOWN = 5  # differences in a failure


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run for all its workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest, shared: Path) -> int:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    return print_seed(shared, capture.global_and_fixture_disabled())


def agree(stream: Stream, seed: int, shard: int) -> None:
    """No case of the shard may differ: integers are equal, and no difference is tolerated.

    Go's logarithm and ours could differ in the last digit, and rounding could show it. They have
    not; should they ever, the cases to tolerate are to be listed here one by one, with the reason.
    """
    count = CASES[stream] // len(SHARDS)
    found = disagreements(stream, seed, range(shard * count, (shard + 1) * count))
    some = "\n\n".join(found[:SHOWN])
    assert not found, f"BAYPLAN_SEED={seed}: {len(found)} of {count} cases differ\n\n{some}"


@pytest.mark.parametrize("shard", SHARDS)
def test_feasible_nodes_and_reasons_agree(seed: int, shard: int) -> None:
    agree("filters", seed, shard)


@pytest.mark.parametrize("shard", SHARDS)
def test_scores_agree(seed: int, shard: int) -> None:
    agree("scores", seed, shard)


@pytest.mark.parametrize("shard", SHARDS)
def test_kept_verdicts_agree_through_changes(seed: int, shard: int) -> None:
    agree("kept", seed, shard)


@pytest.mark.parametrize("shard", SHARDS)
def test_volumes_agree_through_changes(seed: int, shard: int) -> None:
    agree("volumes", seed, shard)


def test_cases_reach_their_bars(seed: int) -> None:
    """The rarest field stands at 2.7 %: in a short run, chance alone could take it below 2 %.

    So the short run measures one fixed seed, which changes only with the generator.
    """
    measured = seed if PROVE else FIXED_SEED
    report = coverage.measure(measured, MEASURED)
    assert not report.missed(), f"seed {measured}: {report.missed()}\n{report.table()}"
