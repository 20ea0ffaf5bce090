"""`bayplan explain`: why a pod waits, and what would help."""

from typing import Any
from urllib.parse import quote

import click
import msgspec
from msgspec.structs import replace

from bayplan.cli.clusters import Loaded
from bayplan.cli.server import SERVER, get
from bayplan.cli.shell import OUTPUT, BadInput
from bayplan.cli.sources import CLUSTERS, check_one, loaded
from bayplan.cli.tables import table
from bayplan.core.engine.advice import Advice
from bayplan.core.model.advice import Explanation, UnknownPod
from bayplan.core.model.events import PodSeen
from bayplan.core.model.pods import Pod

Json = dict[str, Any]

HELP = """Why a pod waits, and what would help.

POD is namespace/name; without a slash, a pod of the namespace default. Suggestions stand by what
they cost, the cheapest first, and each was tried: followed, it gives the pod a place. Without
--cluster a running scheduler is asked. In files every pod is taken for one of the default plugins,
whatever its schedulerName is. The status is 0 if the pod has a place or would get one now, 1 if it
waits, 2 if something cannot be read.

\b
Examples:
  bayplan explain prod/train-0
  kubectl get nodes,pods,namespaces,pvc,pv,sc,pdb -A -o json > cluster.json
  bayplan explain --cluster cluster.json prod/train-0
  bayplan explain --server http://127.0.0.1:10271 prod/train-0 -o json
"""


@click.command(help=HELP)
@click.argument("pod")
@CLUSTERS
@SERVER
@OUTPUT
@click.pass_context
def explain(
    ctx: click.Context, pod: str, clusters: tuple[str, ...], server: str, output: str
) -> None:
    check_one(ctx, clusters)
    key = pod if "/" in pod else f"default/{pod}"
    space, _, name = key.partition("/")
    if not space or not name or "/" in name:
        raise BadInput(f"{pod}: a pod is named namespace/name (see bayplan explain --help)")
    if clusters:
        answer = ask_files(key, clusters)
    else:
        answer = get(server, f"/v1/explain/{quote(space, safe='')}/{quote(name, safe='')}")
    try:
        found = msgspec.json.decode(answer, type=Json)
        ok, text = bool(found["ok"]), render(found)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{server}: this is not the answer of a scheduler: {error}") from None
    click.echo(answer if output == "json" else text)
    if not ok:
        raise click.exceptions.Exit(1)


def ask_files(key: str, clusters: tuple[str, ...]) -> bytes:
    cluster = loaded(clusters)
    pod = cluster.unbound.get(key)
    if pod is not None and pod.terminating:
        version = cluster.engine.cluster.version
        text = f"{key} is about to end, and gets no place any more"
        leaving = Explanation(version=version, pod=key, state="leaving", ok=False, message=text)
        return msgspec.json.encode(leaving)
    if pod is not None:
        let_wait(cluster, pod)
    try:
        return msgspec.json.encode(Advice(cluster.engine).explain(key))
    except UnknownPod:
        raise BadInput(f"the cluster has no pod {key} that has not ended") from None


def let_wait(cluster: Loaded, pod: Pod) -> None:
    """The pod waits, and the rest of its gang with it."""
    engine = cluster.engine
    for each in cluster.unbound.values():
        together = each.gang and pod.gang and each.gang.key == pod.gang.key
        if each is pod or (together and not each.terminating):
            ours = replace(each, scheduler=next(iter(engine.profiles)))
            engine.handle(PodSeen(ours), 0.0)


def render(found: Json) -> str:
    """The explanation for people."""
    parts = [found["message"]]
    if found["state"] == "waits":
        parts[0] = f"{found['pod']} waits\n{parts[0]}"
        helps = found.get("suggestions", [])
        rows = [
            [str(rank), each["kind"], each["text"], each["node"]]
            for rank, each in enumerate(helps, 1)
        ]
        header = ("", "KIND", "WHAT WOULD HELP", "THEN ON")
        if rows:
            parts.append(table(header, rows))
        elif found.get("reasons"):
            parts.append("No change of one kind alone would help.")
    return "\n\n".join(parts)
