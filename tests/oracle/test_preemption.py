"""Our preemption agrees with kube-scheduler's own: the node, the victims, the budgets, the words.

Every run has another seed, and a failure names it; `BAYPLAN_SEED=7` runs the same cases again.
`BAYPLAN_PROVE=1` asks about more of them. Without Go these tests fail, and say what they miss.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.oracle.parity import print_seed
from tests.oracle.preemption import (
    ROOT,
    Recorded,
    apart,
    disagreement,
    equal_nodes,
    importances,
    record,
    write,
)

PROVE = os.environ.get("BAYPLAN_PROVE") == "1"
SHARDS = range(4)
CASES = 5_000 if PROVE else 400
WITH_LAWS = 300 if PROVE else 30
MEASURED = 2_000 if PROVE else 400
FIXED_SEED = 801
SHOWN = 5  # differences in a failure
BARS: dict[str, float] = {  # of the cases
    "the pod fits nowhere": 0.9,
    "some node would do": 0.4,
    "several nodes would do": 0.25,
    "several nodes are equal": 0.04,
    "equal pods: several outcomes on a node": 0.04,
    "a budget is broken": 0.05,
    "a budget is broken by one outcome and not by another": 0.005,
    "several victims": 0.05,
    "somebody is spared": 0.2,
    "a less important pod goes and a more important one on the node is spared": 0.1,
    "a victim is terminating": 0.01,
    "a victim has not started": 0.05,
    "no node would do": 0.2,
    "nobody to remove on a node": 0.05,
    "removing all is not enough on a node": 0.05,
    "preemptionPolicy is Never": 0.01,
    "victims on the nominated node are terminating": 0.01,
}


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


@pytest.mark.parametrize("shard", SHARDS)
def test_preemption_agrees(seed: int, shard: int, tmp_path: Path) -> None:
    """Apart, since here the laws are checked after every trial, and there are many."""
    count, cases = CASES // len(SHARDS), tmp_path / "cases.jsonl"
    write(cases, record(seed, range(shard * count, (shard + 1) * count)))
    assert apart(cases, ROOT / "src").difference == "", f"BAYPLAN_SEED={seed}"


def test_preemption_agrees_and_keeps_the_laws(seed: int) -> None:
    cases = record(seed, range(CASES, CASES + WITH_LAWS))
    found = [difference for case in cases if (difference := disagreement(case))]
    some = "\n\n".join(found[:SHOWN])
    assert not found, f"BAYPLAN_SEED={seed}: {len(found)} of {WITH_LAWS} cases differ\n\n{some}"


def test_cases_reach_their_bars() -> None:
    """On one fixed seed, which changes only with the generator."""
    shares = measure(record(FIXED_SEED, range(MEASURED)))
    table = "\n".join(f"{shares[name]:6.1%} {name} (bar {bar:.1%})" for name, bar in BARS.items())
    assert all(shares[name] >= bar for name, bar in BARS.items()), f"\n{table}"


def measure(cases: Iterable[Recorded]) -> dict[str, float]:
    """The share of the cases where each thing happens."""
    found, count = Counter[str](), 0
    for case in cases:
        count += 1
        found.update(set(happenings(case)))
    return {name: found[name] / count for name in BARS}


def happenings(case: Recorded) -> Iterator[str]:
    theirs = case.theirs.preemption
    if theirs is None:
        return
    yield "the pod fits nowhere"
    if not theirs.node:
        yield from _words(theirs.message)
        return
    yield "some node would do"
    ranks, candidates = importances(case.case), theirs.candidates
    if len(candidates) > 1:
        yield "several nodes would do"
    if len(equal_nodes(theirs, ranks)) > 1:
        yield "several nodes are equal"
    for outcomes in candidates.values():
        if len({tuple(sorted(outcome.victims)) for outcome in outcomes}) > 1:
            yield "equal pods: several outcomes on a node"
        if len({outcome.violations for outcome in outcomes}) > 1:
            yield "a budget is broken by one outcome and not by another"
    chosen = candidates[theirs.node][0]
    if chosen.violations:
        yield "a budget is broken"
    if len(chosen.victims) > 1:
        yield "several victims"
    objects = json.loads(bytes(case.case))
    pods = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": p for p in objects["pods"]}
    own = objects["pod"]["spec"].get("priority", 0)
    spared = [
        key
        for key, pod in pods.items()
        if pod["spec"]["nodeName"] == theirs.node
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
        and ranks[key].priority < own
        and key not in chosen.victims
    ]
    least = max(ranks[key].rank for key in chosen.victims)
    if spared:
        yield "somebody is spared"
    if any(ranks[key].rank < least for key in spared):
        yield "a less important pod goes and a more important one on the node is spared"
    for victim in (pods[key] for key in chosen.victims):
        if "deletionTimestamp" in victim["metadata"]:
            yield "a victim is terminating"
        if "startTime" not in victim["status"]:
            yield "a victim has not started"


def _words(message: str) -> Iterator[str]:
    if "preemptionPolicy" in message:
        yield "preemptionPolicy is Never"
    elif "terminating" in message:
        yield "victims on the nominated node are terminating"
    else:
        yield "no node would do"
        reasons = message.partition("available: ")[2].split(", ")
        if any("No preemption victims" in reason for reason in reasons):
            yield "nobody to remove on a node"
        if any("reemption" not in reason for reason in reasons):
            yield "removing all is not enough on a node"
