"""`bayplan demo`: every supported system's story, on the embedded API, in virtual time."""

from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from bayplan.cli.shell import OUTPUT
from bayplan.cli.tables import table

if TYPE_CHECKING:
    from bayplan.cli.embedded import Cluster
    from bayplan.cli.stories import Arrival, Story

HELP = """Play the story of every system that Bayplan replaces, without a cluster.

The embedded API, pretend nodes and the real scheduler run in this process. It ends with status 0
only if every pod went where it should.

\b
Example:
  bayplan demo
"""
PATIENCE_S = 60.0  # of virtual time, for one pod


class Outcome(Struct, frozen=True, rename="camel"):
    """What became of a pod."""

    story: str
    pod: str
    node: str | None
    devices: str
    expected: str | None
    says: str  # why it waits, or why it should be there

    @property
    def ok(self) -> bool:
        return self.node == self.expected


@click.command(name="demo", help=HELP)
@OUTPUT
def demo(output: str) -> None:
    import logging

    from bayplan.cli.stories import STORIES

    logging.getLogger("bayplan").setLevel(logging.ERROR)
    outcomes = []
    for story in STORIES:
        played = play(story)
        outcomes += played
        if output == "text":
            click.echo(f"{story.name}: {story.says}\n")
            click.echo(f"{shown(played)}\n")
    wrong = [outcome.pod for outcome in outcomes if not outcome.ok]
    if output == "json":
        whole = {"ok": not wrong, "placements": [msgspec.to_builtins(o) for o in outcomes]}
        click.echo(msgspec.json.encode(whole))
    elif wrong:
        click.echo(f"not where they should be: {', '.join(wrong)}")
    else:
        click.echo(f"{len(outcomes)} pods, each where it should be.")
    raise SystemExit(1 if wrong else 0)


def shown(outcomes: list[Outcome]) -> str:
    rows = [
        (o.pod, o.node or "(waits)", o.devices, o.says if o.ok else f"should be on {o.expected}")
        for o in outcomes
    ]
    return table(("POD", "NODE", "DEVICES", "WHY"), rows)


def play(story: "Story") -> list[Outcome]:
    from bayplan.cli.embedded import running
    from bayplan.local.virtual import VirtualClock, run
    from bayplan.scheduler.config import Configuration

    async def scene() -> list[Outcome]:
        clock = VirtualClock()
        async with running(story.nodes, Configuration(), clock, seed=0) as cluster:
            return [await _one(cluster, story.name, arrival) for arrival in story.arrivals]

    return run(scene())


async def _one(cluster: "Cluster", story: str, arrival: "Arrival") -> Outcome:
    from bayplan.kube.client import PODS

    body, clock = msgspec.json.encode(arrival.pod), cluster.client.clock
    name = arrival.pod["metadata"]["name"]
    await cluster.client.request("POST", PODS.path("default"), body=body)
    until = clock.time() + PATIENCE_S
    while True:
        found = msgspec.json.decode(await cluster.client.request("GET", PODS.path("default", name)))
        node, why = found["spec"].get("nodeName"), _why_not(found)
        if node or why or clock.time() > until:
            says = why if why and node is None else arrival.because
            return Outcome(story, name, node, _devices(found), arrival.node, says)
        await clock.sleep(0.1)


def _why_not(pod: dict[str, Any]) -> str:
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason"))
    return ""


def _devices(pod: dict[str, Any]) -> str:
    """How many of what; which ones, where they are assigned by id."""
    counts: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in (container["resources"].get("limits") or {}).items():
            if "/" in name:
                counts[name] = counts.get(name, 0) + int(amount)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"
