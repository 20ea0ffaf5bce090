"""A dry run touches nothing: what it would do is told, counted, and answered to the engine."""

import asyncio
import logging
import random

import pytest

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.verdicts import Refusal
from bayplan.kube.client import Client
from bayplan.scheduler.config import Configuration
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.service import Options, Service
from bayplan.scheduler.shadow import Shadow
from bayplan.testing import world
from tests.kube_net.manual_clock import ManualClock
from tests.scheduler.scripted import Scripted


def test_a_dry_run_deletes_evicts_and_nominates_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        api, clock = Scripted(), ManualClock()
        client = Client(api, clock, random.Random(1))
        service = Service(Configuration(), Options(dry_run=True), client)
        big, small = world.pod("big"), world.pod("small", node="n")
        refusal = Refusal("0/1 nodes are available", {}, frozenset(), 1)
        for effect in (
            do.Preempt(big, "n", (small,)),
            do.Refuse(big, refusal, nominated="n"),
            do.Evict(small, "for the best"),
        ):
            service.loop._carry_out(effect)
        await asyncio.sleep(0)
        assert api.sent == []
        assert service.inbox.take(9) == [on.VictimSpared("uid-small", "this is a dry run")]

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    told = [message for message in caplog.messages if message.startswith("dry run")]
    assert told == [
        "dry run: pod default/big would preempt default/small on n",
        "dry run: pod default/big would wait: 0/1 nodes are available",
        "dry run: pod default/small would be evicted: for the best",
    ]


def test_what_a_dry_run_would_preempt_is_counted() -> None:
    shadow = Shadow(Engine(), Inbox(ManualClock()))
    for victims in ("vw", "vw", "v"):
        shadow.preempt(do.Preempt(world.pod("big"), "n", tuple(map(world.pod, victims))))
    assert shadow.done["preemption"] == 2  # the same again is the same
    for event in (on.PodSeen(world.pod("big", node="m")), on.Tick()):
        shadow.step(event, 0.0, [])
    shadow.preempt(do.Preempt(world.pod("big"), "n", (world.pod("v"),)))
    assert shadow.done["preemption"] == 3
