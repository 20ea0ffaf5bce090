"""`bayplan fits --cases`: one case a line in, one answer a line out, each on a cluster of its own.

Pods are taken as they are stored; the API server's defaults are not filled in here.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import Enabled, PluginSet, Profile, ProfileConfig
from bayplan.core.engine.questions import fits
from bayplan.core.model.events import NamespaceSeen, NodeSeen, PodSeen
from bayplan.kube.read import Reader, Unreadable

# A case has nodes, pods and namespaces; what else there may be in a cluster does not decide it.
FILTERS = (
    *("NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts"),
    *("NodeResourcesFit", "PodTopologySpread", "InterPodAffinity"),
)
PROFILE = ProfileConfig(
    plugins={"filter": PluginSet(tuple(map(Enabled, FILTERS)), disabled=(Enabled("*"),))}
)


class Case(Struct):
    """Objects stay raw, so that what is wrong with one of them is told by its name."""

    pod: Raw
    nodes: list[Raw] | None = None
    pods: list[Raw] | None = None  # those that are not bound do not count
    namespaces: list[Raw] | None = None


class Answer(Struct):
    feasible: list[str]
    reasons: dict[str, list[str]]


class Failure(Struct):
    error: str


def answers(lines: Iterable[bytes]) -> Iterator[bytes]:
    """An answer for each line that is not blank, in their order, each with its newline."""
    profile, reader = Profile(PROFILE), Reader()  # neither keeps anything of a case
    decoder, encoder = msgspec.json.Decoder(Case), msgspec.json.Encoder()
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        found: Answer | Failure
        try:
            found = answer(decoder.decode(line), profile, reader)
        except Unreadable as error:
            found = Failure(str(error))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            found = Failure(f"line {number}: not a case: {error}")
        except Exception as error:  # ours: it must not take the next cases with it
            found = Failure(f"line {number}: Bayplan failed: {type(error).__name__}: {error}")
        yield encoder.encode(found) + b"\n"


def answer(case: Case, profile: Profile, reader: Reader) -> Answer:
    engine = Engine([profile])
    for raw in case.nodes or ():
        node = reader.node(raw)
        if node.name in engine.cluster.rows:
            raise Unreadable(f"node {node.name}", "metadata.name", "the case has it twice")
        engine.handle(NodeSeen(node), 0.0)
    for raw in case.namespaces or ():
        engine.handle(NamespaceSeen(*reader.namespace(raw)), 0.0)
    seen: set[str] = set()
    for raw in case.pods or ():
        pod = reader.live_pod(raw)
        if pod is None or pod.node not in engine.cluster.rows:
            continue
        if pod.uid in seen:
            raise Unreadable(f"pod {pod.key}", "metadata.uid", "the case has it twice")
        seen.add(pod.uid)
        engine.handle(PodSeen(pod), 0.0)
    found = fits(engine.verdicts[profile.name], reader.pod(case.pod, newcomer=True))
    return Answer(found.feasible, found.reasons)
