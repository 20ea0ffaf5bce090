"""The plain kubelet that the zones are tested against merges hints as the kubelet's own code does.

The Go program in zones/ is built with the modules that the tests' real kubelet is built of.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bayplan.testing import gotool
from bayplan.testing.binaries import SOURCES
from tests.numa.kubelet import Kubelet

CASES = 100_000 if os.environ.get("BAYPLAN_PROVE") else 5_000
HERE = Path(__file__).parent / "zones" / "main.go"
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
NAMES = ("cpu", "memory", "x.io/nic")


def build() -> Path:
    parts = (HERE, SOURCES / "go.mod", SOURCES / "go.sum")
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
    folder = gotool.cache_dir() / "oracle"
    target = folder / digest / "zones-oracle"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with gotool.alone(folder / "lock"):
            if not target.exists():
                for part in parts:
                    shutil.copy(part, target.parent)
                gotool.build(gotool.Package(".", target.parent, mode="mod"), target)
    return target


def machine(rng: random.Random) -> tuple[Kubelet, list[tuple[str, int]]]:
    """A kubelet in the middle of its work, and what the next container asks for."""
    names = NAMES[: rng.randint(1, 3)]
    there = [{name: rng.randint(0, 4) for name in names} for _ in range(rng.randint(1, 4))]
    kubelet = Kubelet(there, rng.choice(POLICIES), "container")
    kubelet.free = [{n: rng.randint(0, amount) for n, amount in zone.items()} for zone in there]
    return kubelet, [(name, rng.randint(1, 6)) for name in NAMES if rng.random() < 0.8]


def question(kubelet: Kubelet, amounts: list[tuple[str, int]]) -> dict[str, Any]:
    hints = {
        name: [
            {
                "zones": None if each.zones is None else sorted(each.zones),
                "preferred": each.preferred,
            }
            for each in kubelet.hints(name, amount)
        ]
        for name, amount in amounts
    }
    return {"policy": kubelet.policy, "count": len(kubelet.there), "hints": hints}


def test_the_plain_kubelet_merges_as_the_real_one() -> None:
    rng = random.Random(7)
    cases = [machine(rng) for _ in range(CASES)]
    lines = "".join(json.dumps(question(*case)) + "\n" for case in cases)
    done = subprocess.run([build()], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]

    assert len(answers) == CASES
    refused = 0
    for (kubelet, amounts), answer in zip(cases, answers, strict=True):
        zones = kubelet.merged(amounts)
        refused += zones is None
        assert (zones is not None) == answer["admit"], (kubelet.policy, amounts)
        everywhere = list(range(len(kubelet.there)))
        if zones is not None and kubelet.policy in ("restricted", "single-numa-node"):
            assert sorted(zones) == (answer["zones"] or everywhere), (kubelet.policy, amounts)
    assert CASES // 10 < refused < CASES * 9 // 10
