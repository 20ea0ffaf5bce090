"""Where a command has its cluster from: files, or a running scheduler."""

from collections.abc import Sequence

import click

from bayplan.cli.clusters import Loaded, load_cluster
from bayplan.cli.shell import BadInput

SHOWN_PROBLEMS = 10

CLUSTERS = click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="DUMP",
    help="Ask about this cluster, as kubectl prints it; may be given several times.",
)


def check_one(ctx: click.Context, clusters: Sequence[str]) -> None:
    """Files or a server, not both."""
    given = ctx.get_parameter_source("server") is click.core.ParameterSource.COMMANDLINE
    if clusters and given:
        see = f"(see {ctx.command_path} --help)"
        raise BadInput(f"--server and --cluster do not go together {see}")


def loaded(paths: Sequence[str]) -> Loaded:
    """The cluster in files, with a word on what could not be read."""
    found = load_cluster(paths)
    for line in warnings(found.problems):
        click.echo(f"warning: {line}", err=True)
    return found


def warnings(problems: list[str]) -> list[str]:
    """The first of what could not be read, and how many more there are."""
    shown = [" ".join(problem.split()) for problem in problems[:SHOWN_PROBLEMS]]
    more = len(problems) - len(shown)
    return [*shown, f"{more} more objects cannot be read"] if more else shown
