"""`bayplan bench`: the benchmarks, each with what a peer does in the same run."""

import sys
from typing import Any

import click
import msgspec

from bayplan.cli.shell import OUTPUT, Commands
from bayplan.cli.tables import table

SIZES = (1_000, 10_000, 100_000)
QUICK = (1_000,)
COLUMNS = (  # heading, key, format
    ("NODES", "nodes", "{:,}"),
    ("DECISIONS/S", "decisions_per_s", "{:,.0f}"),
    ("BARE LOOP/S", "bare_loop_per_s", "{:,.0f}"),
    ("RATIO", "ratio", "{:.2f}"),
    ("BYTES/POD", "bytes_per_pod", "{:,.0f}"),
    ("RSS MIB", "rss_mib", "{:,.0f}"),
)
QUESTIONS = (  # what, key, unit
    ("fits on one node", "fits_one_us_p99", "µs"),
    ("fits on all nodes", "fits_all_ms_p99", "ms"),
)

HELP = """Measure Bayplan on this machine.

\b
Example:
  bayplan bench engine --quick
"""
ENGINE_HELP = """Decisions per second of the engine, beside a bare NumPy loop in the same run.

Without --nodes or --quick it takes minutes and some GiB of memory.

\b
Examples:
  bayplan bench engine --quick
  bayplan bench engine --nodes 1000,10000 -o json
"""


def sizes_of(text: str) -> tuple[int, ...]:
    """Numbers of nodes, with commas between."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not of the form 1000,10000") from None
    if any(not 100 <= size <= 1_000_000 for size in sizes):
        raise click.BadParameter("a cluster here has 100 to 1000000 nodes")
    return sizes


@click.group(cls=Commands, help=HELP, invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        names = ", ".join(bench.list_commands(ctx))
        raise click.UsageError(f"Name a benchmark; there are: {names}", ctx)


@bench.command(name="engine", help=ENGINE_HELP)
@click.option("--nodes", type=sizes_of, metavar="N,N…", help="Sizes of the clusters.")
@click.option("--quick", is_flag=True, help="1,000 nodes only.")
@OUTPUT
def bench_engine(nodes: tuple[int, ...] | None, quick: bool, output: str) -> None:
    from bayplan.bench import engine  # here, because it needs a Unix and the rest does not

    def progress(text: str) -> None:
        click.echo(text, file=sys.stderr)

    report = engine.run(nodes or (QUICK if quick else SIZES), progress=progress)
    click.echo(msgspec.json.encode(report) if output == "json" else render(report))


def render(report: dict[str, Any]) -> str:
    """The report as a table, and the questions below."""
    header = [heading for heading, _, _ in COLUMNS]
    rows = [[form.format(row[key]) for _, key, form in COLUMNS] for row in report["results"]]
    lines = [table(header, rows)]
    lines += [
        f"{what}: p99 {report[key]:,.3g} {unit}" for what, key, unit in QUESTIONS if key in report
    ]
    return "\n".join(lines)
