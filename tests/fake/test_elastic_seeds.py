"""Faults on, many seeds, elastic jobs: what was promised is kept, and sizes come to rest."""

import logging
import os
import sys
from collections import Counter

import pytest

from tests.fake.elastic import play

PROVE = bool(os.environ.get("BAYPLAN_PROVE"))
SEEDS = 300 if PROVE else 12
SHARES = 4


@pytest.mark.timeout(3600 if PROVE else 300)
@pytest.mark.parametrize("share", range(SHARES))
def test_whatever_happens_promises_are_kept_and_sizes_come_to_rest(
    share: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "bayplan")  # thousands of broken watches
    played = [play(seed) for seed in range(share, SEEDS, SHARES)]

    met = sum((each.ledger.counts for each in played), Counter())
    met["kills"] = sum(each.kills for each in played)
    met["kills of the controller"] = sum(each.controller_kills for each in played)
    seldom = ("passed", "grown", "shrunk", "workers preempted", "nodes lost or closed")
    for what in (*seldom, "kills", "kills of the controller"):
        assert met[what] > 0, (what, met)
    assert met["workers made"] > 5 * len(played)
    sys.stdout.write(f"in {len(played)} seeds: {dict(met)}\n")
