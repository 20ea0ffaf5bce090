"""`bayplan bench`: the benchmarks, each with what a peer does in the same run."""

from typing import Any

import click
import msgspec

from bayplan.cli.bench_questions import bench_gangs, bench_what_if
from bayplan.cli.bench_stories import bench_gang_stories
from bayplan.cli.shell import OUTPUT, BadInput, Commands, progress
from bayplan.cli.tables import table

SIZES = (1_000, 10_000, 100_000)
QUICK = (1_000,)
COLUMNS = (  # heading, key, format
    ("NODES", "nodes", "{:,}"),
    ("DECISIONS/S", "decisions_per_s", "{:,.0f}"),
    ("BARE LOOP/S", "bare_loop_per_s", "{:,.0f}"),
    ("RATIO", "ratio", "{:.2f}"),
    ("SAME SCORES/S", "same_scores_loop_per_s", "{:,.0f}"),
    ("RATIO", "same_scores_ratio", "{:.2f}"),
    ("BYTES/POD", "bytes_per_pod", "{:,.0f}"),
    ("RSS MIB", "rss_mib", "{:,.0f}"),
)
QUESTIONS = (  # what, key, unit
    ("fits on one node", "fits_one_us_p99", "µs"),
    ("fits on all nodes", "fits_all_ms_p99", "ms"),
)

CONTENDERS = (  # name, prefix of its keys
    ("kube-scheduler", "kube_scheduler"),
    ("bayplan", "bayplan"),
    ("bare loop", "bare_loop"),
)
EXTENDERS = (("no extender", "none"), ("accept-all", "accept_all"), ("bayplan", "bayplan"))
FIGURES = (  # heading, key without the prefix, format
    ("PODS/S", "pods_per_s", "{:,.0f}"),
    ("WITH EVENTS/S", "events_pods_per_s", "{:,.0f}"),
    ("CPU MS/POD", "cpu_ms_per_pod", "{:.2f}"),
    ("REQUESTS/POD", "requests_per_pod", "{:.2f}"),
    ("RSS MIB", "rss_mib", "{:,.0f}"),
)

HELP = """Measure Bayplan on this machine.

\b
Examples:
  bayplan bench engine --quick
  bayplan bench throughput --quick
  bayplan bench extender --quick
"""
ENGINE_HELP = """Decisions per second of the engine, beside a bare NumPy loop in the same run.

Without --nodes or --quick it takes minutes and some GiB of memory.

\b
Examples:
  bayplan bench engine --quick
  bayplan bench engine --nodes 1000,10000 -o json
"""
THROUGHPUT_HELP = """Pods per second on a real control plane, beside kube-scheduler and a bare loop.

It starts etcd and kube-apiserver on this machine; where they are missing, they are built first,
which takes minutes (docs/control-plane.md). Whatever else runs here takes part in the figures.

\b
Examples:
  bayplan bench throughput --quick
  bayplan bench throughput --sizes 1000x3000 --rounds 3 -o json
"""
MEMORY_HELP = """Memory of the scheduler while 20,000 pods come at once, three times.

It starts etcd and kube-apiserver on this machine, as `bayplan bench throughput` does.

\b
Example:
  bayplan bench memory --quick
"""
EXTENDER_HELP = """The extender: how fast it filters, and kube-scheduler's pods per second with it.

It starts etcd and kube-apiserver on this machine, as `bayplan bench throughput` does.

\b
Examples:
  bayplan bench extender --quick
  bayplan bench extender --rounds 3 -o json
"""
CONTIGUOUS_HELP = """Neuron requests of 8 and 16 devices that are refused though a node has as many
free, beside Neuron's own extension in the same streams of pods. Virtual time; no cluster.

\b
Examples:
  bayplan bench contiguous --quick
  bayplan bench contiguous -o json
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


def nodes_and_pods(text: str) -> tuple[tuple[int, int], ...]:
    """Pairs such as 1000x3000, with commas between."""
    sizes = []
    for part in text.split(","):
        nodes, _, pods = part.partition("x")
        if not (nodes.isdecimal() and pods.isdecimal()):
            raise click.BadParameter(f"{text!r} is not of the form 1000x3000,5000x10000")
        sizes.append((int(nodes), int(pods)))
    if any(not 1 < pods <= 8 * nodes for nodes, pods in sizes):
        raise click.BadParameter("a node has 8 GPUs and a pod wants one: at most 8 pods a node")
    return tuple(sizes)


@click.group(cls=Commands, help=HELP, invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        names = ", ".join(bench.list_commands(ctx))
        raise click.UsageError(f"Name a benchmark; there are: {names}", ctx)


bench.add_command(bench_what_if)
bench.add_command(bench_gangs)
bench.add_command(bench_gang_stories)


@bench.command(name="engine", help=ENGINE_HELP)
@click.option("--nodes", type=sizes_of, metavar="N,N…", help="Sizes of the clusters.")
@click.option("--quick", is_flag=True, help="1,000 nodes only.")
@OUTPUT
def bench_engine(nodes: tuple[int, ...] | None, quick: bool, output: str) -> None:
    from bayplan.bench import engine  # here, because it needs a Unix and the rest does not

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
    if devices := report.get("devices"):
        lines.append(
            f"GPU memory on {devices['nodes']:,} nodes with 8 cards each: "
            f"{devices['decisions_per_s']:,.0f} decisions/s, {devices['ratio']:.2f} of the figure "
            "without devices"
        )
    return "\n".join(lines)


@bench.command(name="throughput", help=THROUGHPUT_HELP)
@click.option("--rounds", type=click.IntRange(1, 100), help="Of each size.  [default: 5]")
@click.option(
    "--sizes", type=nodes_and_pods, metavar="NODESxPODS,…", help="[default: 1000x3000,5000x10000]"
)
@click.option("--quick", is_flag=True, help="One round of 200 nodes and 600 pods.")
@OUTPUT
def bench_throughput(
    rounds: int | None, sizes: tuple[tuple[int, int], ...] | None, quick: bool, output: str
) -> None:
    from msgspec.structs import replace

    from bayplan.bench import throughput

    plan = throughput.QUICK if quick else throughput.Plan()
    if sizes is not None:
        plan = replace(plan, sizes=tuple(throughput.Size(*size) for size in sizes))
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    try:
        report = throughput.run(plan, progress)
    except throughput.BenchError as error:
        raise BadInput(str(error)) from None
    click.echo(msgspec.json.encode(report) if output == "json" else render_throughput(report))


@bench.command(name="memory", help=MEMORY_HELP)
@click.option("--quick", is_flag=True, help="2,000 pods at once.")
@OUTPUT
def bench_memory(quick: bool, output: str) -> None:
    from bayplan.bench import memory, throughput

    try:
        report = memory.run(memory.QUICK if quick else memory.Plan(), progress)
    except throughput.BenchError as error:
        raise BadInput(str(error)) from None
    click.echo(msgspec.json.encode(report) if output == "json" else render_memory(report))


@bench.command(name="extender", help=EXTENDER_HELP)
@click.option("--rounds", type=click.IntRange(1, 100), help="Of each contender.  [default: 5]")
@click.option("--quick", is_flag=True, help="One round, 300 nodes, 600 pods; fewer filters.")
@OUTPUT
def bench_extender(rounds: int | None, quick: bool, output: str) -> None:
    from msgspec.structs import replace

    from bayplan.bench import extender, throughput

    plan = extender.QUICK if quick else extender.Plan()
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    try:
        report = extender.run(plan, progress)
    except throughput.BenchError as error:
        raise BadInput(str(error)) from None
    click.echo(msgspec.json.encode(report) if output == "json" else render_extender(report))


def render_extender(report: dict[str, Any]) -> str:
    """Times of filters, then a line per contender, then what follows from them."""
    rows = [
        [
            name,
            f"{report[f'{key}_pods_per_s']:,.1f}",
            f"{report[f'{key}_cpu_ms_per_pod']:.2f}",
        ]
        for name, key in EXTENDERS
    ]
    return "\n".join(
        [
            "a filter over {filter_nodes:,} names beside 16 binds in flight: "
            "p50 {filter_ms_p50:.2f} ms, p99 {filter_ms_p99:.2f} ms; "
            "accept-all p99 {accept_all_filter_ms_p99:.2f} ms".format(**report),
            "each of 16 filters at once: p50 {filter16_ms_p50:.2f} ms, "
            "p99 {filter16_ms_p99:.2f} ms; "
            "accept-all p99 {accept_all_filter16_ms_p99:.2f} ms".format(**report),
            table(["KUBE-SCHEDULER WITH", "PODS/S", "EXTENDER CPU MS/POD"], rows),
            "{nodes:,} nodes, {pods:,} pods: with bayplan {throughput_ratio:.2f} times as fast as "
            "with accept-all, {bayplan_over_none:.2f} times as fast as with none; "
            "{conflict_rate:.2%} of {binds:,.0f} binds were refused".format(**report),
        ]
    )


@bench.command(name="contiguous", help=CONTIGUOUS_HELP)
@click.option("--quick", is_flag=True, help="Two streams of 2,000 pods to 32 nodes.")
@OUTPUT
def bench_contiguous(quick: bool, output: str) -> None:
    from bayplan.bench import contiguous

    report = contiguous.run(contiguous.QUICK if quick else contiguous.Plan(), progress)
    click.echo(msgspec.json.encode(report) if output == "json" else render_contiguous(report))


def render_contiguous(report: dict[str, Any]) -> str:
    """A line per stream, then the sums. Each figure: refused though free, in all, devices busy."""
    names = [name for name in report["per_seed"][0] if name not in ("seed", "equal_load")]
    rows = [
        [str(found["seed"])]
        + ["{refused} of {refused_in_all}, {busy:.0%}".format(**found[name]) for name in names]
        for found in report["per_seed"]
    ]
    lines = [table(["SEED", *(name.upper().replace("_", " ") for name in names)], rows)]
    for when, sums in (("", report), (", at equal load", report["equal_load"])):
        words = f"large requests refused though a node had as many devices free{when}"
        lines.append(
            "{}: bayplan {refused_ours}, original {refused_original}".format(words, **sums)
        )
    return "\n".join(lines)


def render_throughput(report: dict[str, Any]) -> str:
    """A line per size and contender, then the ratios and the steady pace."""
    header = ["NODES", "PODS", "CONTENDER", *(heading for heading, _, _ in FIGURES)]
    rows, ratios = [], []
    for result in report["results"]:
        for name, prefix in CONTENDERS:
            figures = [form.format(result[f"{prefix}_{key}"]) for _, key, form in FIGURES]
            rows.append([f"{result['nodes']:,}", f"{result['pods']:,}", name, *figures])
        ratios.append(
            "{nodes:,} nodes: bayplan is {bayplan_over_kube:.2f} times kube-scheduler and "
            "{bayplan_over_bare:.2f} times the bare loop; with events "
            "{bayplan_events_over_kube:.2f} and {bayplan_events_over_bare:.2f}; "
            "CPU {bayplan_cpu_over_bare:.2f} times the bare loop's".format(**result)
        )
    steady = [
        f"from creation to bind at a steady pace, {name}: "
        f"p50 {report[f'steady_{prefix}_ms_p50']:.1f} ms, "
        f"p99 {report[f'steady_{prefix}_ms_p99']:.1f} ms"
        for name, prefix in CONTENDERS
        if f"steady_{prefix}_ms_p50" in report
    ]
    return "\n".join([table(header, rows), *ratios, *steady])


def render_memory(report: dict[str, Any]) -> str:
    """A line per batch, then the two ratios."""
    found = report["memory"]
    columns = zip(found["peak_mib"], found["bound_mib"], found["deleted_mib"], strict=True)
    rows = [
        [str(number), *(f"{mib:,.1f}" for mib in batch)]
        for number, batch in enumerate(columns, start=1)
    ]
    growth = max(found["peak_growth"], default=0.0)
    return "\n".join(
        [
            table(["BATCH", "PEAK MIB", "ALL BOUND MIB", "DELETED MIB"], rows),
            f"{found['pods']:,} pods at once on {found['nodes']:,} nodes; without pods "
            f"{found['idle_mib']:,.1f} MiB",
            f"the first peak is {found['peak_over_bound']:.2f} times what all of them bound take; "
            f"later batches raise it by {100 * growth:.1f} %",
        ]
    )
