"""`bayplan what-if`: hypothetical questions to a running scheduler, or to a cluster in files."""

from typing import Any

import click
import msgspec

from bayplan.cli.clusters import STDIN, called, read
from bayplan.cli.server import SERVER, post
from bayplan.cli.shell import BadInput
from bayplan.cli.sources import CLUSTERS, check_one, loaded
from bayplan.cli.tables import some, table
from bayplan.core.engine.bounds import TooMuch
from bayplan.core.engine.what_if import WhatIf
from bayplan.kube.steps import BadQuestion, body_of, read_steps

Json = dict[str, Any]
SHOWN = 3  # names in a cell

HELP = """What would happen? Runs the steps of FILE in thought, and prints the answers.

Each step changes the cluster for the steps after it, and for nothing else. FILE is YAML or JSON,
and - is standard input. Without --cluster a running scheduler is asked. The status is 0 if every
answer is ok, 1 if not, 2 if something cannot be read. docs/what-if.md has all the steps.

\b
Examples:
  bayplan what-if steps.yaml
  bayplan what-if --cluster cluster.json steps.yaml -o text
  bayplan what-if --server http://127.0.0.1:10271 - < steps.yaml

\b
  steps:
  - fits: {pod: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
  - evict: [prod/b]
  - capacity: {pod: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}}
"""


@click.command(name="what-if", help=HELP)
@click.argument("file")
@CLUSTERS
@SERVER
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "text"]),
    default="json",
    show_default=True,
    help="How to print the answers.",
)
@click.pass_context
def what_if(
    ctx: click.Context, file: str, clusters: tuple[str, ...], server: str, output: str
) -> None:
    check_one(ctx, clusters)
    if file == STDIN and STDIN in clusters:
        raise BadInput("only one file can be standard input (see bayplan what-if --help)")
    try:
        body = body_of(read(file))
    except BadQuestion as error:
        raise BadInput(f"{called(file)}: {error}") from None
    try:
        answers = ask_files(body, clusters) if clusters else post(server, "/v1/what-if", body)
        found = msgspec.json.decode(answers, type=Json)
        text = render(msgspec.json.decode(body, type=Json), found)
    except (BadQuestion, TooMuch) as error:
        raise BadInput(f"{called(file)}: {error}") from None
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{server}: this is not the answer of a scheduler: {error}") from None
    click.echo(answers if output == "json" else text)
    if not all(answer["ok"] for answer in found["answers"]):
        raise click.exceptions.Exit(1)


def ask_files(body: bytes, clusters: tuple[str, ...]) -> bytes:
    cluster = loaded(clusters)
    return msgspec.json.encode(WhatIf(cluster.engine).ask(read_steps(body, cluster.pod)))


def render(question: Json, found: Json) -> str:
    """The answers for people, one line a step, and below them why not."""
    rows, notes = [], []
    pairs = zip(question["steps"], found["answers"], strict=True)
    for number, (step, answer) in enumerate(pairs, 1):
        asked = next(iter(step), "") if isinstance(step, dict) else ""
        rows.append([str(number), asked, "yes" if answer["ok"] else "no", told(answer)])
        if why := answer.get("error") or answer.get("message"):
            notes.append(f"{number}: {why}")
    parts = [table(("STEP", "ASKED", "OK", "ANSWER"), rows)] if rows else ["no steps"]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def told(answer: Json) -> str:
    """What an answer says, in a few words."""
    if "count" in answer:
        return f"{answer['count']}{' and more' if answer.get('more') else ''}"
    if "changed" in answer:
        made = some(answer.get("nodes", ()), SHOWN)
        return f"{answer['changed']} changed{f': {made}' if made else ''}"
    if "placed" in answer:
        nodes = dict.fromkeys(each["node"] for each in answer["placements"])
        fit = "placed" if answer["ok"] else "would fit"
        return f"{answer['placed']} {fit}{f' on {some([*nodes], SHOWN)}' if nodes else ''}"
    if not answer.get("node"):
        return "-"
    words = [answer["node"]]
    for held in answer["devices"]:
        ids = some([each["id"] for each in held["devices"]], SHOWN)
        words.append(f"{held['resource']} {ids}")
    if answer["victims"]:
        words.append(f"without {some(answer['victims'], SHOWN)}")
    return "; ".join(words)
