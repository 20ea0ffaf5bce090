"""`bayplan bench what-if` and `gangs`: how long the engine thinks, and a scheduler takes."""

from typing import Any

import click
import msgspec

from bayplan.cli.shell import OUTPUT, BadInput, progress
from bayplan.cli.tables import table

WHAT_IF_HELP = """How long hypothetical questions take, and what they cost a running scheduler.

It starts etcd and kube-apiserver on this machine, as `bayplan bench throughput` does; not with
--engine.

\b
Examples:
  bayplan bench what-if --quick
  bayplan bench what-if --engine -o json
"""
GANGS_HELP = """How long gangs take to be placed, and to be refused by a full cluster.

It starts etcd and kube-apiserver on this machine, as `bayplan bench throughput` does; not with
--engine.

\b
Examples:
  bayplan bench gangs --quick
  bayplan bench gangs --engine -o json
"""


@click.command(name="what-if", help=WHAT_IF_HELP)
@click.option("--engine", is_flag=True, help="Only the engine, without a control plane.")
@click.option("--quick", is_flag=True, help="500 nodes, fewer questions, one round.")
@OUTPUT
def bench_what_if(engine: bool, quick: bool, output: str) -> None:
    from msgspec.structs import replace

    from bayplan.bench import throughput, what_if

    plan = what_if.QUICK if quick else what_if.Plan()
    if engine:
        plan = replace(plan, live=None)
    try:
        report = what_if.run(plan, progress)
    except throughput.BenchError as error:
        raise BadInput(str(error)) from None
    click.echo(msgspec.json.encode(report) if output == "json" else render_what_if(report))


def render_what_if(report: dict[str, Any]) -> str:
    lines = [
        "{nodes:,} nodes with 8 devices each, all held".format(**report),
        *(
            f"{what}: p50 {report[f'{key}_ms_p50']:.3f} ms, p99 {report[f'{key}_ms_p99']:.3f} ms"
            for what, key in (
                ("fits on a node", "fits_node"),
                ("fits there without a pod", "fits_without"),
                ("preempt, over all nodes", "preempt_all"),
            )
        ),
        "beside it, a decision of the bare NumPy loop: {bare_loop_us:.0f} µs".format(**report),
        "a gang is refused by the engine in {gang_no_engine_ms:.2f} ms".format(**report),
    ]
    if "gang_no_ms" in report:
        lines += [
            "… and all members have their condition on the API server after "
            "{gang_no_ms:.0f} ms (median)".format(**report),
            "{pods_per_s_beside_fits:,.0f} pods/s beside 200 questions a second over HTTP, "
            "{pods_per_s_beside_livez:,.0f} beside as many requests to /livez: "
            "a drop of {throughput_drop:.1%}".format(**report),
            "a round of its loop takes {cycle_ms_p99_beside_fits:.1f} and "
            "{cycle_ms_p99_beside_livez:.1f} ms (p99)".format(**report),
        ]
    return "\n".join(lines)


@click.command(name="gangs", help=GANGS_HELP)
@click.option("--engine", is_flag=True, help="Only the engine, without a control plane.")
@click.option("--rounds", type=click.IntRange(1, 100), help="On the control plane.  [default: 3]")
@click.option("--quick", is_flag=True, help="Small clusters, one round.")
@OUTPUT
def bench_gangs(engine: bool, rounds: int | None, quick: bool, output: str) -> None:
    from msgspec.structs import replace

    from bayplan.bench import gangs, throughput

    plan = gangs.QUICK if quick else gangs.Plan()
    if engine:
        plan = replace(plan, live=None)
    elif rounds is not None and plan.live is not None:
        plan = replace(plan, live=replace(plan.live, rounds=rounds))
    try:
        report = gangs.run(plan, progress)
    except throughput.BenchError as error:
        raise BadInput(str(error)) from None
    click.echo(msgspec.json.encode(report) if output == "json" else render_gangs(report))


def render_gangs(report: dict[str, Any]) -> str:
    """A line per size, then the control plane."""
    rows = [
        [
            f"{each['nodes']:,}",
            f"{each['gangs']:,}",
            f"{each['size']:,}",
            f"{each['place_s']:.3f}",
            f"{each['refuse_s']:.3f}",
        ]
        for each in report["results"]
    ]
    lines = [table(["NODES", "GANGS", "SIZE", "PLACED AFTER S", "REFUSED AFTER S"], rows)]
    if live := report.get("live"):
        lines.append(
            "on a control plane, {gangs:,} gangs of {size} on {nodes:,} nodes: {bind_s:.2f} s from "
            "the first bind to the last; a bare loop of binds takes {bare_bind_s:.2f} s, "
            "so {bind_over_bare:.2f} times as long".format(**live)
        )
    return "\n".join(lines)
