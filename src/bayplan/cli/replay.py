"""`bayplan replay`: the decisions of a journal again, as they were or under other profiles."""

import click
import msgspec

from bayplan.cli.shell import OUTPUT, BadInput
from bayplan.cli.tables import table
from bayplan.core.engine.profile import ProfileConfig, ProfileError
from bayplan.scheduler import config as configuration
from bayplan.scheduler import replay as again
from bayplan.scheduler.recording import JournalError, Recording

SHOWN = 100

HELP = """Decide again what a JOURNAL tells, and show what comes out otherwise.

The same events must give the same decisions: the status is 1 if any differs. With --config the
events are run under the profiles of another configuration, to see what they would have decided;
the differences are then the answer, and the status is 0.

\b
Examples:
  bayplan replay /var/lib/bayplan/journal
  bayplan replay /var/lib/bayplan/journal --from 1200 --until 1300 -o json
  bayplan replay /var/lib/bayplan/journal --config packed.yaml
"""


@click.command(help=HELP)
@click.argument("journal")
@click.option("--from", "first", type=click.IntRange(0), default=0, metavar="N", help="Event.")
@click.option("--until", "last", type=click.IntRange(0), metavar="N", help="Event, included.")
@click.option("--config", "config_file", metavar="FILE", help="Decide under its profiles.")
@OUTPUT
def replay(
    journal: str, first: int, last: int | None, config_file: str | None, output: str
) -> None:
    if last is not None and last < first:
        raise BadInput(f"--until {last} is before --from {first}")
    under = None if config_file is None else profiles(config_file)
    try:
        found = again.replay(Recording(journal), again.Span(first, last), under)
    except JournalError as error:
        raise BadInput(str(error)) from None
    except ProfileError as error:
        raise BadInput(f"{config_file or journal}: {error}") from None
    click.echo(msgspec.json.encode(found) if output == "json" else render(found, under is not None))
    if found.differences and under is None:
        raise click.exceptions.Exit(1)


def profiles(path: str) -> tuple[ProfileConfig, ...]:
    try:
        return configuration.load(path).profiles
    except configuration.ConfigError as error:
        raise BadInput(str(error)) from None


def render(found: again.Replayed, other: bool) -> str:
    """For people; `other`: under other profiles."""
    counts = f"{found.events:,} events, {found.binds:,} binds, {found.refusals:,} refusals"
    parts = [counts]
    if other:
        parts[0] += f"; now {found.binds_now:,} binds, {found.refusals_now:,} refusals"
    if found.cut_off:
        parts[0] += "\nthe last line is cut off and was left out"
    differences = found.differences
    if not differences:
        parts[0] += "\nno decision differs"
        return parts[0]
    parts[0] += f"\n{len(differences):,} decision{'s' * (len(differences) > 1)} differ"
    parts[0] += "s" * (len(differences) == 1)
    rows = [(str(d.event), d.pod, d.then, d.now) for d in differences[:SHOWN]]
    parts.append(table(("EVENT", "POD", "THEN", "NOW"), rows))
    if len(differences) > SHOWN:
        parts[-1] += f"\n… and {len(differences) - SHOWN:,} more (-o json)"
    return "\n\n".join(parts)
