"""`bayplan check`: the laws on a journal, or a running scheduler's memory against a fresh list."""

import click
import msgspec

from bayplan.cli.server import SERVER, get
from bayplan.cli.shell import OUTPUT, BadInput
from bayplan.cli.tables import table
from bayplan.core.engine.profile import ProfileError
from bayplan.scheduler import replay as again
from bayplan.scheduler.audit import Audit
from bayplan.scheduler.recording import JournalError, Recording

SEE = "(see bayplan check --help)"
SHOWN = 50
WIDEST = 100  # characters of an event

HELP = """Does everything add up?

With a JOURNAL: the events are run again, and the laws of docs/architecture.md must hold after each
of them. The first that does not is shown, with the event that broke it.

With --live: a running scheduler compares what it believes with a fresh list of the cluster.

The status is 0 if all is well, 1 if not, 2 if the journal cannot be read or nobody answers.

\b
Examples:
  bayplan check /var/lib/bayplan/journal
  bayplan check /var/lib/bayplan/journal.1 --every 100
  bayplan check --live --server http://127.0.0.1:10271 -o json
"""


@click.command(help=HELP)
@click.argument("journal", required=False)
@click.option("--live", is_flag=True, help="Ask a running scheduler.")
@click.option(
    "--every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Look after every so many events only; large clusters take long.",
)
@SERVER
@OUTPUT
def check(journal: str | None, live: bool, every: int, server: str, output: str) -> None:
    if live == (journal is not None):
        raise BadInput(f"either a JOURNAL or --live is needed {SEE}")
    if journal is None:
        audit = ask(server)
        click.echo(msgspec.json.encode(audit) if output == "json" else render_audit(audit))
        ok = not audit.counts
    else:
        checked = run(journal, every)
        click.echo(msgspec.json.encode(checked) if output == "json" else render(checked))
        ok = checked.ok
    if not ok:
        raise click.exceptions.Exit(1)


def run(journal: str, every: int) -> again.Checked:
    try:
        return again.check(Recording(journal), every)
    except JournalError as error:
        raise BadInput(str(error)) from None
    except ProfileError as error:
        raise BadInput(f"{journal}: {error}") from None


def ask(server: str) -> Audit:
    body = get(server, "/v1/check")
    try:
        return msgspec.json.decode(body, type=Audit)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{server}: this is not the answer of a scheduler: {error}") from None


def render(checked: again.Checked) -> str:
    tail = ["the last line is cut off and was left out"] if checked.cut_off else []
    if checked.ok:
        return "\n".join([f"the laws hold: {checked.events:,} events", *tail])
    what = msgspec.json.encode(checked.what).decode() if checked.what is not None else ""
    shown = what if len(what) <= WIDEST else f"{what[:WIDEST]}…"
    where = f"event {checked.event} {checked.on} {shown}".rstrip()
    return "\n".join([f"broken after {where}", *(f"  {law}" for law in checked.broken)])


def render_audit(audit: Audit) -> str:
    seen = f"{audit.pods:,} pods, {audit.nodes:,} nodes, {audit.namespaces:,} namespaces"
    if not audit.counts:
        return f"no differences: {seen}"
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(audit.counts.items()))
    rows = [
        (one.kind, one.name, one.memory or "-", one.listed or "-")
        for one in audit.differences[:SHOWN]
    ]
    parts = [f"{audit.total:,} differences ({counts}) in {seen}"]
    parts.append(table(("KIND", "NAME", "MEMORY", "LISTED"), rows))
    if audit.total > len(rows):
        parts[-1] += f"\n… and {audit.total - len(rows):,} more"
    return "\n\n".join(parts)
