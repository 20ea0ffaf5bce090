"""`bayplan vipu-fake`: a pretend V-IPU controller, until interrupted."""

import asyncio
import random
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bayplan.cli.shell import BadInput

if TYPE_CHECKING:
    from bayplan.vipu.controller import Inventory
    from bayplan.vipu.fake import Choice
    from bayplan.vipu.faults import Faulty

HELP = """Serve a pretend V-IPU controller over gRPC, until interrupted.

It has IPU-Machines of 4 IPUs each, and makes partitions of 1, 2, 4, 8, ... of them. Nothing is
stored. With allocations, a partition has to name one.

\b
Examples:
  bayplan vipu-fake
  bayplan vipu-fake --ipus 128 --allocation research=16 --allocation training=16
  bayplan vipu-fake --latency 0.5 --fail-rate 0.1 --choice random --seed 7
"""


@click.command(name="vipu-fake", help=HELP)
@click.option("--ipus", default=64, show_default=True, help="How many; a multiple of 4.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8090,
    show_default=True,
    help="Where it listens; 0 for any.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option(
    "--allocation",
    "allocations",
    metavar="NAME=COUNT",
    multiple=True,
    help="An allocation of the next so many IPU-Machines; once per allocation.",
)
@click.option(
    "--domain-ipus", default=64, show_default=True, help="IPUs of a link domain; a multiple of 4."
)
@click.option(
    "--latency",
    "latency_s",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Of every call.",
)
@click.option(
    "--fail-rate",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="How many of the calls fail.",
)
@click.option(
    "--refuse-rate",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="How many partitions are refused though there is room.",
)
@click.option(
    "--choice",
    type=click.Choice(["first", "last", "random"]),
    default="first",
    show_default=True,
    help="Which of the free IPUs a partition gets.",
)
@click.option("--seed", default=0, show_default=True, help="For all that is random.")
def vipu_fake(
    ipus: int,
    port: int,
    host: str,
    allocations: tuple[str, ...],
    domain_ipus: int,
    latency_s: float,
    fail_rate: float,
    refuse_rate: float,
    choice: "Choice",
    seed: int,
) -> None:
    from bayplan.kube.clock import RealClock
    from bayplan.vipu.controller import VipuError
    from bayplan.vipu.fake import FakeVipu, one_cluster
    from bayplan.vipu.faults import Chances, Faulty

    rng = random.Random(seed)
    chances = Chances(down=fail_rate, refuse=refuse_rate, latency_s=(latency_s, latency_s))
    try:
        inventory = one_cluster(ipus, domain_ipus, _counts(allocations))
        fake = FakeVipu(inventory, choice, rng)
        asyncio.run(_serve(Faulty(fake, RealClock(), chances, rng), host, port))
    except (ValueError, VipuError) as error:
        raise BadInput(str(error)) from None


def _counts(allocations: tuple[str, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in allocations:
        name, _, count = text.rpartition("=")
        if not name or not count.isascii() or not count.isdigit():
            raise BadInput(f"--allocation {text}: not NAME=COUNT, such as research=8")
        if name in counts:
            raise BadInput(f"--allocation {name} is there twice")
        counts[name] = int(count)
    return counts


async def _serve(controller: "Faulty", host: str, port: int) -> None:
    from bayplan.vipu.server import Server

    server, stop = Server(controller), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    found = await server.start(host, port)
    click.echo(f"pretend V-IPU on {host}:{found}: {_capacity(controller.fake.inventory())}")
    await stop.wait()
    await server.stop()


def _capacity(inventory: "Inventory") -> str:
    ipus = sum(agent.ipus for agent in inventory.agents)
    domains = [domain for cluster in inventory.clusters for domain in cluster.link_domains]
    parts = [f"{ipus} IPUs", _counted(inventory.agents, "agent"), _counted(domains, "link domain")]
    for group in inventory.allocations:
        parts += [f"allocation {group.id} of {_counted(group.agents, 'agent')}"]
    return ", ".join(parts)


def _counted(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}" if len(things) == 1 else f"{len(things)} {noun}s"
