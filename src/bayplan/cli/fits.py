"""`bayplan fits`: which nodes would take a pod, and why the others would not."""

import sys

import click
import msgspec
from msgspec import Struct

from bayplan.cli.cases import answers
from bayplan.cli.clusters import STDIN, load_pod
from bayplan.cli.shell import OUTPUT, BadInput, nearest
from bayplan.cli.sources import loaded
from bayplan.cli.tables import amount, some, table
from bayplan.core.engine import explain, questions
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Tally

SHOWN_NODES = 20
SHOWN_REFUSED = 3
SEE = "(see bayplan fits --help)"
NO_CLAIMS = (
    "the pod uses persistent volume claims, and the cluster's files have none (add pvc,pv,sc)"
)

HELP = """Which nodes would take the pod, and why the others would not.

CLUSTER is what kubectl prints of a cluster, in one file or several; POD is a manifest of a pod or
of anything with a pod template. Either is JSON or YAML, and - is standard input. Nothing is changed
anywhere. The status is 0 if the pod fits somewhere, 1 if nowhere, 2 if something cannot be read.

\b
Examples:
  kubectl get nodes,pods,namespaces,pvc,pv,sc -A -o json > cluster.json
  bayplan fits cluster.json pod.yaml
  bayplan fits cluster.json deployment.yaml --node gpu-3
  kubectl get nodes,pods -A -o json | bayplan fits - pod.yaml -o json
  bayplan fits --cases < cases.jsonl

With --cases every line of standard input is a case of its own, {"nodes":[…], "pods":[…],
"namespaces":[…], "pod":{…}}, and every line of the output its answer.
"""


class Answer(Struct, omit_defaults=True):
    """What is printed; `message` only where the pod fits nowhere."""

    feasible: list[str]  # sorted
    reasons: dict[str, list[str]]  # by node
    message: str | None = None


@click.command(help=HELP)
@click.argument("files", nargs=-1, metavar="CLUSTER... POD")
@click.option("--cases", is_flag=True, help="Answer cases, one a line, from standard input.")
@click.option("--node", metavar="NAME", help="Ask about this node only.")
@click.option("--all", "everything", is_flag=True, help="List every node that fits.")
@OUTPUT
def fits(
    files: tuple[str, ...], cases: bool, node: str | None, everything: bool, output: str
) -> None:
    if cases:
        if files or node:
            raise BadInput(f"--cases takes no files and no --node {SEE}")
        answer_cases()
        return
    if len(files) < 2:
        raise BadInput(f"a CLUSTER and a POD are needed {SEE}")
    if files.count(STDIN) > 1:
        raise BadInput(f"only one file can be standard input {SEE}")
    cluster = loaded(files[:-1])
    pod = load_pod(files[-1], cluster)
    if pod.row.claims and not cluster.engine.cluster.storage.claims:
        click.echo(f"warning: {NO_CLAIMS}", err=True)
    found = ask(cluster.verdicts, pod, node)
    if output == "json":
        click.echo(msgspec.json.encode(found))
    else:
        click.echo(render(found, cluster.verdicts, pod, None if everything else SHOWN_NODES))
    if not found.feasible:
        raise click.exceptions.Exit(1)


def answer_cases() -> None:
    out = sys.stdout.buffer
    for line in answers(sys.stdin.buffer):
        out.write(line)
        out.flush()


def ask(verdicts: Verdicts, pod: Pod, node: str | None) -> Answer:
    """The answer for the whole cluster, or for one node of it."""
    names = list(verdicts.cluster.rows)
    if node is not None and node not in names:
        raise BadInput(f"the cluster has no node {node}{nearest(node, names[:1000])}")
    found = questions.fits(verdicts, pod)
    feasible, reasons = found.feasible, found.reasons
    if node is not None:
        feasible = [name for name in feasible if name == node]
        reasons = {name: why for name, why in reasons.items() if name == node}
    if feasible:
        return Answer(feasible, reasons)
    message = explain.message(len(reasons), tallies(reasons), rejected=found.rejected)
    return Answer(feasible, reasons, message)


def tallies(reasons: dict[str, list[str]]) -> dict[str, Tally]:
    """How many nodes gave each reason, and the first of them."""
    nodes: dict[str, list[str]] = {}
    for name in sorted(reasons):
        for reason in reasons[name]:
            nodes.setdefault(reason, []).append(name)
    return {text: Tally(len(names), tuple(names[:10])) for text, names in nodes.items()}


def render(found: Answer, verdicts: Verdicts, pod: Pod, most: int | None) -> str:
    """The answer for people: at most `most` of the nodes that fit."""
    total = len(found.feasible) + len(found.reasons)
    parts = [f"fits on {len(found.feasible)} of {total} node{'s' if total != 1 else ''}"]
    if found.message:
        parts[0] += f"\n{found.message}"
    if found.feasible:
        shown = found.feasible[:most]
        parts.append(free_table(shown, verdicts, pod))
        if len(shown) < len(found.feasible):
            parts[-1] += f"\n… and {len(found.feasible) - len(shown)} more (--all)"
    if found.reasons:
        counted = sorted(tallies(found.reasons).items(), key=lambda t: (-t[1].count, t[0]))
        rows = [[str(t.count), text, some(t.nodes, SHOWN_REFUSED)] for text, t in counted]
        parts.append(table(("REFUSED BY", "REASON", "NODES"), rows))
    return "\n\n".join(parts)


def free_table(nodes: list[str], verdicts: Verdicts, pod: Pod) -> str:
    """What these nodes have free of what the pod asks for, before it is placed."""
    cluster = verdicts.cluster
    asked = [name for name, _ in pod.row.requests if name in cluster.resource_columns]
    rows = []
    for node in nodes:
        free = cluster.free[cluster.rows[node]]
        amounts = [amount(name, int(free[cluster.resource_columns[name]])) for name in asked]
        rows.append([node, *amounts])
    return table(("NODE", *(f"FREE {name}" for name in asked)), rows)
