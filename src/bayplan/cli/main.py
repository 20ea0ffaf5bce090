"""The command `bayplan`: its sub-commands, and nothing of what they do."""

from importlib import import_module

import click

from bayplan.cli.shell import Commands

# Each is a function of its name, in a module of its name; what-if's is what_if.
COMMANDS = (
    "agent",
    "bench",
    "check",
    "demo",
    "dump",
    "elastic",
    "explain",
    "extender",
    "fits",
    "manifests",
    "replay",
    "run",
    "up",
    "vipu-fake",
    "what-if",
)

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


class Lazily(Commands):
    """Imports a command when it is named: the agent must carry nothing of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        found = getattr(import_module(f"bayplan.cli.{name}"), name)
        assert isinstance(found, click.Command)
        return found


@click.group(
    name="bayplan",
    cls=Lazily,
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="bayplan", prog_name="bayplan")
@click.pass_context
def main(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
