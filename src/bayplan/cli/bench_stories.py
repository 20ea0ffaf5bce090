"""`bayplan bench gang-stories`: gangs that get in each other's way, and in the way of a crowd."""

from pathlib import Path
from typing import Any

import click
import msgspec

from bayplan.cli.shell import OUTPUT, BadInput, progress
from bayplan.cli.tables import table

RIVALS = {
    "bayplan": "bayplan",
    "coscheduling": "coscheduling",
    "kube-scheduler": "kube_scheduler",
}
STORIES_HELP = """Two stories of gangs, played by Bayplan and by others.

Two gangs that each need more than half of the GPUs: does one of them run, and when? And a gang that
needs three quarters of them, while small pods keep them busy: does it ever run?

It starts etcd and kube-apiserver on this machine, as `bayplan bench throughput` does, and builds
kube-scheduler with the Coscheduling plugin of scheduler-plugins from Go modules, which takes
minutes the first time. Where that cannot be built, the answer says so.

Without --config Bayplan plays with `gangs: {reserveAfter: 30s}`, and with 10s in --quick: after its
default of 5 minutes both stories are over.

\b
Examples:
  bayplan bench gang-stories --quick
  bayplan bench gang-stories --rival bayplan --config bayplan.yaml -o json
"""


@click.command(name="gang-stories", help=STORIES_HELP)
@click.option("--config", type=click.Path(exists=True, path_type=Path), help="For `bayplan run`.")
@click.option(
    "--rival",
    "names",
    type=click.Choice(list(RIVALS)),
    multiple=True,
    help="Who plays; may be given several times.  [default: all]",
)
@click.option("--quick", is_flag=True, help="Two nodes, one round, and less patience.")
@OUTPUT
def bench_gang_stories(
    config: Path | None, names: tuple[str, ...], quick: bool, output: str
) -> None:
    from bayplan.bench import gang_stories, rivals, throughput
    from bayplan.testing.gotool import GoError

    plan = gang_stories.QUICK if quick else gang_stories.Plan()
    players, missing = [], {}
    for name in names or RIVALS:
        if name == "bayplan":
            players.append(rivals.bayplan(config, plan.crowd.reserve_after_s))
        elif name == "kube-scheduler":
            players.append(rivals.kube_scheduler())
        else:
            try:
                players.append(rivals.coscheduling(progress))
            except GoError as error:
                missing[RIVALS[name]] = str(error)
    try:
        results = gang_stories.run(plan, players, progress)
    except throughput.BenchError as error:
        raise BadInput(str(error)) from None
    report = {"plan": msgspec.to_builtins(plan), "results": results, "missing": missing}
    click.echo(msgspec.json.encode(report) if output == "json" else render_stories(report))


def render_stories(report: dict[str, Any]) -> str:
    """A table for each story; who could not play is named below."""
    halves, crowd = report["plan"]["halves"], report["plan"]["crowd"]
    names = {key: name for name, key in RIVALS.items()}
    first = [
        [
            names[played["rival"]],
            seconds(played["halves"]["first_s"], halves["limit_s"]),
            seconds(played["halves"]["both_s"], halves["limit_s"]),
            seconds(played["halves"]["both_max_s"], halves["limit_s"]),
            f"{played['halves']['in_part_max_s']:.2f}",
        ]
        for played in report["results"]
    ]
    second = [
        [
            names[played["rival"]],
            seconds(played["crowd"]["gang_s"], crowd["limit_s"]),
            f"{played['crowd']['gang_in_part_s']:.2f}",
            f"{played['crowd']['small_busy']:.0%}",
            f"{played['crowd']['small_bound']:,}",
            f"{played['crowd']['small_wait_s'] or 0.0:.2f}",
        ]
        for played in report["results"]
    ]
    lines = [
        f"two gangs of {halves['size']} on {8 * halves['nodes']} GPUs; one that runs ends after "
        f"{halves['run_s']:g} s",
        table(["", "ONE RUNS AFTER S", "BOTH RAN AFTER S", "AT WORST", "BOUND IN PART S"], first),
        "",
        f"a gang of {crowd['size']} on {8 * crowd['nodes']} GPUs, of which small pods keep "
        f"{crowd['load']:.0%} busy",
        table(
            ["", "GANG RUNS AFTER S", "BOUND IN PART S", "SMALL PODS HOLD", "BOUND", "WAIT S"],
            second,
        ),
    ]
    lines += [f"{names[key]} did not play: {why}" for key, why in report["missing"].items()]
    return "\n".join(lines)


def seconds(found: float | None, limit_s: float) -> str:
    return f"not in {limit_s:g}" if found is None else f"{found:.2f}"
