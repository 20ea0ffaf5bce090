"""Numbers for Prometheus, by kube-scheduler's names where it has them."""

import random

from bayplan.core.engine.engine import Engine
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.client import Client
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.metrics import Metrics
from bayplan.scheduler.shadow import Shadow
from bayplan.scheduler.watches import Watches
from bayplan.testing import world
from tests.kube_net.manual_clock import ManualClock
from tests.scheduler.scripted import Scripted


def test_preemptions_and_their_victims_are_counted() -> None:
    clock = ManualClock()
    engine, inbox = Engine(), Inbox(clock)
    client = Client(Scripted(), clock, random.Random(1))
    watches = Watches(client, inbox, lambda words: None, lambda failed: None)
    metrics = Metrics(engine, watches, Shadow(engine, inbox))
    assert "scheduler_preemption_attempts_total 0.0" in metrics.expose().decode()
    engine.handle(on.NodeSeen(world.node("n", 1)), 0.0)
    engine.handle(on.PodSeen(world.pod("p", 2)), 0.0)
    engine.handle(on.Tick(), 0.0)  # nobody can go for it
    victims = tuple(world.pod(name) for name in "abc")
    metrics.step(
        on.Tick(), 0.0, [do.Preempt(world.pod("p"), "n", victims[:some]) for some in (1, 3)]
    )
    lines = metrics.expose().decode().splitlines()
    assert "scheduler_preemption_attempts_total 1.0" in lines
    assert 'scheduler_preemption_victims_bucket{le="1.0"} 1.0' in lines
    assert "scheduler_preemption_victims_sum 4.0" in lines
