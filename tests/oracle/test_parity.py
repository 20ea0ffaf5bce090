"""Our engine agrees with kube-scheduler's own plugins on random cases.

Every run has another seed, and a failure names it; `BAYPLAN_SEED=7` runs the same cases again.
`BAYPLAN_PROVE=1` asks more of them. Without Go these tests fail, and say what they miss.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import Raw, Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.verdicts import SCORE_SHIFT
from bayplan.core.model.events import NamespaceGone, NamespaceSeen, NodeGone, NodeSeen
from bayplan.core.model.events import PodGone, PodSeen
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Ask
from bayplan.core.state.terms import OwnTerms
from bayplan.core.state.view import View
from bayplan.kube.read import Reader
from tests.oracle import coverage
from tests.oracle.cases import NAMESPACES
from tests.oracle.kube_oracle import KubeOracle
from tests.oracle.parity import Answer, Case, Stream, disagreements, load, make, run_seed
from tests.oracle.parity import verdicts_of

Json = dict[str, Any]

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
SHARDS = range(8)
CASES: dict[Stream, int] = {
    "filters": 20_000 if PROVE else 4_000,
    "scores": 6_000 if PROVE else 1_500,
}
COVERED = 10_000 if PROVE else 3_000
HISTORIES = 100 if PROVE else 25  # per shard
STEPS = 6  # of a history

# Differences that are known and right, as (plugin, why), such as a last digit of Go's logarithm
# against NumPy's. There is none; one that is added here must be told apart in `disagreements`.
TOLERATED: tuple[tuple[str, str], ...] = ()


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The run's seed; the first worker to need it prints it."""
    chosen = run_seed()
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    try:
        (shared / "seed-was-printed").touch(exist_ok=False)
    except FileExistsError:
        return chosen
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stdout.write(f"\nparity with kube-scheduler: BAYPLAN_SEED={chosen}\n")
        sys.stdout.flush()
    return chosen


def agree(stream: Stream, seed: int, shard: int) -> None:
    count = CASES[stream] // len(SHARDS)
    found = disagreements(stream, seed, range(shard * count, (shard + 1) * count))
    some = "\n\n".join(found[:5])
    assert not found, f"BAYPLAN_SEED={seed}: {len(found)} of {count} cases differ\n\n{some}"


@pytest.mark.parametrize("shard", SHARDS)
def test_feasible_nodes_and_reasons_agree(seed: int, shard: int) -> None:
    agree("filters", seed, shard)


@pytest.mark.parametrize("shard", SHARDS)
def test_scores_agree(seed: int, shard: int) -> None:
    agree("scores", seed, shard)


def test_no_difference_is_tolerated() -> None:
    assert TOLERATED == ()


def test_cases_reach_their_bars(seed: int) -> None:
    report = coverage.measure(seed, COVERED)
    assert not report.missed(), f"BAYPLAN_SEED={seed}: {report.missed()}\n{report.table()}"


# Kept verdicts, through changes


class History:
    """A case that goes on: an engine that keeps verdicts, and the objects as they are by now."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = random.Random(f"{seed}/history/{index}")
        self.objects = make("scores", seed, index)
        self.donor = make("scores", seed + 1, index)  # where new objects come from
        self.reader = Reader()
        case = msgspec.json.decode(json.dumps(self.objects), type=Case)
        self.engine, self.pod = load(case)
        self.own = self.pod.terms and self.engine.cluster.acquire_terms(self.pod.terms)
        self.made = 0
        self.changes: list[str] = []

    def ask(self) -> Ask:
        cluster = self.engine.cluster
        return Ask(self.pod, cluster.demand(self.pod.row), self.own, cluster.terms.concerning(self.pod))
