"""Extenders and kube-schedulers that end with their test."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.testing.controlplane import ControlPlane, Process
from tests.real.extender.rig import (
    Extender,
    Fleet,
    StartExtender,
    StartScheduler,
    scheduler_config,
)


@pytest.fixture
def rng() -> random.Random:
    """Another seed each time; `BAYPLAN_SEED=7` gives the same pods and moments again."""
    seed = int(os.environ.get("BAYPLAN_SEED") or random.randrange(1 << 30))
    print(f"BAYPLAN_SEED={seed}")  # noqa: T201
    return random.Random(seed)


@pytest.fixture
def fleet(wiped: ControlPlane, namespace: str, rng: random.Random) -> Fleet:
    return Fleet(wiped, namespace, rng)


@pytest.fixture
def start_extender(wiped: ControlPlane, tmp_path: Path) -> Iterator[StartExtender]:
    """`start_extender(port=..., config=...)`."""
    started: list[Extender] = []

    def start(**options: Any) -> Extender:
        started.append(Extender(wiped, tmp_path, **options))
        return started[-1]

    yield start
    for extender in started:
        if extender.process.running:
            extender.process.stop()


@pytest.fixture
def start_scheduler(wiped: ControlPlane) -> Iterator[StartScheduler]:
    """`start_scheduler(port, "a-scheduler-name")`: a kube-scheduler with the extender there. With
    `ignores=True` it does not count devices itself."""
    started: list[Process] = []

    def start(port: int, *names: str, ignores: bool = False) -> Process:
        config = scheduler_config(port, *names, ignores=ignores)
        started.append(wiped.start_kube_scheduler(config))
        return started[-1]

    yield start
    for scheduler in started:
        if scheduler.running:
            scheduler.stop()
