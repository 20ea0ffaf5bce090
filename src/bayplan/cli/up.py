"""`bayplan up`: a cluster without a cluster, until interrupted."""

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from bayplan.cli.shell import BadInput, log_to_stderr

if TYPE_CHECKING:
    from bayplan.local.faults import Faults
    from bayplan.scheduler.config import Configuration
    from bayplan.vipu.controller import Inventory
    from bayplan.vipu.fake import FakeVipu

VIPU_LABEL, VIPU_NAME = "vipu-ctrl", "pretend"  # of head nodes
LISTEN = "127.0.0.1:10270"  # a scheduler in a cluster listens for all; here only this machine may
HELP = """Run an embedded Kubernetes API, pretend nodes and the scheduler, until interrupted.

It writes a kubeconfig; kubectl works with it as with any cluster. Nothing is stored, nothing is
really started, and only programs of this machine can reach it. Give your pods schedulerName:
bayplan. A pod runs for as many seconds as its annotation bayplan.dev/run-seconds says, else until
it is deleted. ElasticJobs and ElasticHorovodJobs are run too; with --no-elastic the kinds are
there, and you can run `bayplan elastic` with a configuration of your own.

SPEC names machines and how many of each: a count and a model (8xA100*4), an instance type
(inf1.24xlarge*2), or cpu (cpu*2). With --vipu there is a pretend V-IPU controller too, and two
head nodes that reach it.

\b
Examples:
  bayplan up
  bayplan up --nodes '8xA100*100,inf1.24xlarge*4' --port 8001
  bayplan up --vipu 64
  kubectl --kubeconfig .bayplan/kubeconfig get nodes
"""
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: bayplan
  cluster:
    server: {server}
contexts:
- name: bayplan
  context:
    cluster: bayplan
    user: bayplan
    namespace: default
current-context: bayplan
users:
- name: bayplan
  user: {{}}
"""


@click.command(name="up", help=HELP)
@click.option("--nodes", "spec", metavar="SPEC", help="Which nodes.  [default: 8xA100*4,cpu*2]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of the Kubernetes API.  [default: any]",
)
@click.option("--dir", "folder", default=".bayplan", show_default=True, help="For the kubeconfig.")
@click.option("--config", "config_file", metavar="FILE", help="A BayplanConfiguration.")
@click.option(
    "--listen", metavar="[HOST]:PORT", help=f"For health and metrics.  [default: {LISTEN}]"
)
@click.option("--api", metavar="[HOST]:PORT", help="For questions.  [default: 127.0.0.1:10271]")
@click.option("--faults", metavar="NAME=CHANCE,…", help="Faults that the scheduler meets.")
@click.option("--vipu", "ipus", type=int, metavar="IPUS", help="A V-IPU controller of so many.")
@click.option("--no-elastic", is_flag=True, help="Leave elastic jobs to another controller.")
@click.option("-v", "--verbose", is_flag=True, help="Tell more.")
def up(
    spec: str | None,
    port: int,
    folder: str,
    config_file: str | None,
    listen: str | None,
    api: str | None,
    faults: str | None,
    ipus: int | None,
    no_elastic: bool,
    verbose: bool,
) -> None:
    from msgspec.structs import replace

    from bayplan.core.engine.profile import ProfileError
    from bayplan.kube.http import run as run_loop
    from bayplan.local.faults import BadChances, Faults, chances
    from bayplan.local.server import HOST
    from bayplan.local.spec import DEFAULT, BadSpec, nodes
    from bayplan.scheduler.config import ConfigError, Configuration, LeaderElection, load
    from bayplan.vipu.controller import VipuError
    from bayplan.vipu.fake import FakeVipu
    from bayplan.web.server import BadAddress, split

    log_to_stderr(verbose)
    try:
        config = load(config_file) if config_file else Configuration()
        if config.listen == Configuration().listen:
            config = replace(config, listen=LISTEN)
        given = {key: value for key, value in (("listen", listen), ("api", api)) if value}
        config = replace(config, leader_election=LeaderElection(), **given)  # nobody else is there
        found = nodes(DEFAULT if spec is None else spec)
        met = Faults(chances(faults)) if faults else None
        vipu = None if ipus is None else FakeVipu(_machines(ipus))
        found += [] if vipu is None else head_nodes()
        for option, address in (
            ("--port", f"{HOST}:{port}"),
            ("--listen", config.listen),
            ("--api", config.api),
        ):
            _must_be_free(option, *split(address))
        Path(folder).mkdir(parents=True, exist_ok=True)
        place = Place(port, Path(folder), vipu, runs_elastic=not no_elastic)
        run_loop(_serve(found, config, met, place))
    except (ConfigError, ProfileError, BadAddress, BadSpec, BadChances, VipuError) as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BadInput(f"{where}{error.strerror or error}") from None


def kubeconfig_text(server: str) -> str:
    """A kubeconfig without credentials."""
    return _KUBECONFIG.format(server=server)


def _machines(ipus: int) -> "Inventory":
    from bayplan.vipu.fake import one_cluster

    try:
        return one_cluster(ipus)
    except ValueError as error:
        raise BadInput(f"--vipu: {error}") from None


def head_nodes() -> list[dict[str, Any]]:
    """Two nodes without devices of their own that reach the pretend controller."""
    from bayplan.local.spec import nodes

    found = nodes("cpu*2")
    for i, each in enumerate(found, 1):
        name = f"head-{i}"
        labels = {"kubernetes.io/hostname": name, VIPU_LABEL: VIPU_NAME}
        each["metadata"] |= {"name": name, "labels": each["metadata"]["labels"] | labels}
    return found


def _must_be_free(option: str, host: str | None, port: int) -> None:
    """Somebody else's port is said before anything is started."""
    if port == 0:
        return
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    try:
        socket.create_server((host or "", port), family=family).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        text = f"cannot listen on {host or ''}:{port}: {why}; {option} chooses another address"
        raise BadInput(text) from None


class Place(Struct, frozen=True):
    port: int
    folder: Path
    vipu: "FakeVipu | None" = None
    runs_elastic: bool = True


async def _serve(
    nodes: list[dict[str, Any]], config: "Configuration", faults: "Faults | None", place: Place
) -> None:
    from bayplan.cli.embedded import Elastic, running
    from bayplan.elastic.planner import Settings
    from bayplan.kube.clock import RealClock
    from bayplan.local.server import HOST, Server
    from bayplan.web.server import split

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    clock = RealClock()
    async with AsyncExitStack() as stack:
        if place.vipu is not None:
            config = await _with_controller(config, place.vipu, stack)
        elastic = Elastic(Settings() if place.runs_elastic else None)
        cluster = await stack.enter_async_context(
            running(nodes, config, clock, faults, elastic=elastic)
        )
        service = cluster.service
        sidecar = service.sidecar(lambda: cluster.client)
        sidecar.start()
        stack.callback(sidecar.stop)
        asked = await stack.enter_async_context(service.api())
        port = await stack.enter_async_context(Server(cluster.api, clock).serving(place.port))
        address = f"http://{HOST}:{port}"
        kubeconfig = place.folder / "kubeconfig"
        kubeconfig.write_text(kubeconfig_text(address))
        click.echo(f"kubeconfig: {kubeconfig}")
        click.echo(f"API:        {address}  ({len(nodes)} pretend nodes)")
        click.echo(f"metrics:    http://{split(config.listen)[0] or HOST}:{sidecar.port}/metrics")
        click.echo(f"questions:  http://{split(config.api)[0] or HOST}:{asked}")
        for pool in config.pools:
            host, reached, label = pool.parts
            click.echo(f"V-IPU:      {host}:{reached}  (nodes with the label {'='.join(label)})")
        click.echo(f"try:        kubectl --kubeconfig {kubeconfig} get nodes")
        click.echo("end:        Ctrl-C")
        waiting = asyncio.create_task(stopped.wait(), name="signal")
        await asyncio.wait((waiting, *cluster.tasks), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()


async def _with_controller(
    config: "Configuration", fake: "FakeVipu", stack: AsyncExitStack
) -> "Configuration":
    """The configuration with a controller that runs until the end."""
    from msgspec.structs import replace

    from bayplan.kube.clock import RealClock
    from bayplan.local.server import HOST
    from bayplan.scheduler.config import Pool
    from bayplan.vipu.faults import Faulty
    from bayplan.vipu.server import Server

    server = Server(Faulty(fake, RealClock()))
    port = await server.start(HOST, 0)
    stack.push_async_callback(server.stop)
    pool = Pool(f"{HOST}:{port}:{VIPU_LABEL}={VIPU_NAME}")
    return replace(config, pools=(*config.pools, pool))
