"""The command `bayplan`: its sub-commands, and nothing of what they do."""

import click

from bayplan.cli.bench import bench
from bayplan.cli.check import check
from bayplan.cli.demo import demo
from bayplan.cli.dump import dump
from bayplan.cli.fits import fits
from bayplan.cli.manifests import manifests
from bayplan.cli.replay import replay
from bayplan.cli.run import run
from bayplan.cli.shell import Commands
from bayplan.cli.up import up

HELP = """Which pod gets which node: ask the engine, and measure it.

\b
Examples:
  bayplan demo
  kubectl get nodes,pods,namespaces -A -o json > cluster.json
  bayplan fits cluster.json pod.yaml
  bayplan bench engine --quick

\b
Completion of commands and options in bash (zsh, fish likewise):
  eval "$(_BAYPLAN_COMPLETE=bash_source bayplan)"
"""


@click.group(
    name="bayplan",
    cls=Commands,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="bayplan", prog_name="bayplan")
@click.pass_context
def main(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


main.add_command(fits)
main.add_command(bench)
main.add_command(run)
main.add_command(check)
main.add_command(replay)
main.add_command(dump)
main.add_command(manifests)
main.add_command(demo)
main.add_command(up)
