"""Our engine beside kube-scheduler's own plugins: one case to both, and what differs.

A case is one line of JSON, as the oracle and `bayplan fits --cases` read it, and both answers have
the oracle's form. Cases come in two streams, with and without scores; a stream's name, a seed and
an index make a case again:

    python -m tests.oracle.parity --stream scores --seed 7 --index 1234

`--recorded FILE` answers cases that were written beside the oracle's answers, and stops at the
first difference; this is what runs for every planted bug. Nothing here decides what is right.
"""

import argparse
import json
import os
import random
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import PluginConfig, Profile, ProfileConfig
from bayplan.core.engine.questions import fits, scores
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model.events import NamespaceSeen, NodeSeen, PodSeen
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.registry import BUILT_IN
from bayplan.kube.read import Reader

Json = dict[str, Any]
Stream = Literal["filters", "scores"]
STREAMS: tuple[Stream, ...] = ("filters", "scores")
SHOWN = 12  # lines of a difference


class Options(Struct, frozen=True, rename="camel"):
    """The plugin arguments that a case may set."""

    strategy: Json | None = None
    balanced: list[Json] | None = None
    hard_pod_affinity_weight: int | None = None
    ignore_preferred_terms_of_existing_pods: bool = False


class Case(Options, frozen=True, rename="camel", kw_only=True):
    pod: Raw
    nodes: list[Raw] = []
    pods: list[Raw] = []
    namespaces: list[Raw] = []
    scores: bool = False


class Answer(Struct):
    feasible: list[str] = []
    reasons: dict[str, list[str]] = {}
    unresolvable: list[str] = []  # refused nodes where removing pods cannot help
    scores: dict[str, dict[str, int]] | None = None  # by node and plugin, and "total"
    error: str = ""


class Recorded(Struct):
    """A case and the oracle's answer to it."""

    stream: Stream
    seed: int
    index: int
    case: Raw
    theirs: Answer


class Caught(Struct, frozen=True):
    """How a run over recorded cases ended."""

    stream: str = ""  # empty: no difference
    index: int = -1
    difference: str = ""
    source: str = ""  # where the code lies that answered


# Our answer


def load(case: Case) -> tuple[Engine, Pod]:
    """An engine that has seen the case's objects, and the pod that wants a place."""
    reader, engine = Reader(), Engine([profile_of(case)])
    for node in case.nodes:
        engine.handle(NodeSeen(reader.node(node)), 0)
    for namespace in case.namespaces:
        engine.handle(NamespaceSeen(*reader.namespace(namespace)), 0)
    for source in case.pods:
        pod = reader.live_pod(source)
        if pod is not None:
            engine.handle(PodSeen(pod), 0)
    return engine, reader.pod(case.pod, newcomer=True)


def verdicts_of(engine: Engine) -> Verdicts:
    return next(iter(engine.verdicts.values()))


def profile_of(case: Case) -> Profile:
    names = Options.__struct_fields__
    return _profile(msgspec.json.encode(Options(**{name: getattr(case, name) for name in names})))


@lru_cache(maxsize=4096)
def _profile(encoded: bytes) -> Profile:
    options = msgspec.json.decode(encoded, type=Options)
    config = []
    if options.strategy is not None:
        strategy = dict(options.strategy)
        if shape := strategy.pop("shape", None):
            strategy["requestedToCapacityRatio"] = {"shape": shape}
        config.append(PluginConfig("NodeResourcesFit", {"scoringStrategy": strategy}))
    if options.balanced is not None:
        arguments: Json = {"resources": options.balanced}
        config.append(PluginConfig("NodeResourcesBalancedAllocation", arguments))
    ignore = options.ignore_preferred_terms_of_existing_pods
    arguments = {"ignorePreferredTermsOfExistingPods": ignore}
    if options.hard_pod_affinity_weight is not None:
        arguments["hardPodAffinityWeight"] = options.hard_pod_affinity_weight
    config.append(PluginConfig("InterPodAffinity", arguments))
    return Profile(ProfileConfig(plugin_config=tuple(config)), BUILT_IN)


def answer(line: bytes | Raw) -> Answer:
    """What our engine makes of a case; what it throws is its answer too."""
    try:
        case = msgspec.json.decode(line, type=Case)
        engine, pod = load(case)
        verdicts = verdicts_of(engine)
        found = fits(verdicts, pod)
        return Answer(
            feasible=found.feasible,
            reasons=found.reasons,
            unresolvable=sorted(found.reasons.keys() - set(found.helped_by_preemption)),
            scores=scores(verdicts, pod) if case.scores else None,
        )
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Answer(error=f"{type(error).__name__}: {error} ({at.filename}:{at.lineno})")


# Comparing


def difference(ours: Answer, theirs: Answer) -> str:
    """What differs, one line per node and fact; empty when nothing does."""
    if ours.error or theirs.error:
        said = {"ours": ours.error, "theirs": theirs.error}
        return "\n".join(f"{who}: {text or 'an answer'}" for who, text in said.items())
    lines = []
    for node in sorted({*ours.feasible, *ours.reasons, *theirs.feasible, *theirs.reasons}):
        pairs = (
            (_said(ours, node), _said(theirs, node)),
            *_scores(ours, theirs, node),
        )
        lines += [f"{node}: ours {mine}, theirs {other}" for mine, other in pairs if mine != other]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"and {len(lines) - SHOWN} more"]
    return "\n".join(lines)


def _said(answer: Answer, node: str) -> str:
    if node in answer.feasible:
        return "feasible"
    reasons = "; ".join(sorted(answer.reasons.get(node, ["nothing"])))
    return reasons + (" [unresolvable]" if node in answer.unresolvable else "")


def _scores(ours: Answer, theirs: Answer, node: str) -> Iterator[tuple[str, str]]:
    """A plugin that has nothing to say scores 0."""
    if ours.scores is None and theirs.scores is None:
        return
    mine, other = ((a.scores or {}).get(node, {}) for a in (ours, theirs))
    for plugin in sorted({*mine, *other}):
        yield f"{plugin} {mine.get(plugin, 0)}", f"{plugin} {other.get(plugin, 0)}"


# Cases and the oracle's answers


def run_seed() -> int:
    """The seed of this run of the tests, one for all its processes; BAYPLAN_SEED sets it."""
    if given := os.environ.get("BAYPLAN_SEED"):
        return int(given)
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # random, and the same for all workers
    return int(shared[:8], 16) if shared else int.from_bytes(os.urandom(4))


def make(stream: Stream, seed: int, index: int) -> Json:
    """The case of this name."""
    from tests.oracle import cases  # planted bugs are caught on recorded cases, without it

    if stream == "filters":
        return cases.case(random.Random(f"{seed}/{index}"))
    return cases.score_case(random.Random(f"{seed}/score/{index}"))


def record(stream: Stream, seed: int, indices: Iterable[int]) -> list[Recorded]:
    """Cases with the oracle's answers."""
    from tests.oracle.kube_oracle import KubeOracle

    numbers = list(indices)
    made = [make(stream, seed, index) for index in numbers]
    with KubeOracle() as oracle:
        answers = msgspec.convert(oracle.ask(made), list[Answer])
    return [
        Recorded(stream, seed, index, Raw(json.dumps(case).encode()), theirs)
        for index, case, theirs in zip(numbers, made, answers, strict=True)
    ]


def disagreement(recorded: Recorded) -> str:
    """What differs on a recorded case, with the words that make the case again."""
    found = difference(answer(recorded.case), recorded.theirs)
    if not found:
        return ""
    name = f"--stream {recorded.stream} --seed {recorded.seed} --index {recorded.index}"
    return f"python -m tests.oracle.parity {name}\n{found}"


def disagreements(stream: Stream, seed: int, indices: Iterable[int]) -> list[str]:
    """All the differences on these cases."""
    return [found for case in record(stream, seed, indices) if (found := disagreement(case))]


# From the command line


def first_difference(lines: Iterable[bytes]) -> Caught:
    source = str(Path(sys.modules[Engine.__module__].__file__ or "").resolve())
    for line in lines:
        recorded = msgspec.json.decode(line, type=Recorded)
        if found := disagreement(recorded):
            return Caught(recorded.stream, recorded.index, found, source)
    return Caught(source=source)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stream", choices=STREAMS, default="filters")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--recorded", type=Path, help="one JSON line per case; prints JSON")
    options = parser.parse_args(arguments)
    if options.recorded is not None:
        with options.recorded.open("rb") as lines:
            sys.stdout.write(msgspec.json.encode(first_difference(lines)).decode() + "\n")
        return 0
    (recorded,) = record(options.stream, options.seed, [options.index])
    answers = {"case": recorded.case, "ours": answer(recorded.case), "theirs": recorded.theirs}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(answers)).decode() + "\n")
    found = difference(answer(recorded.case), recorded.theirs)
    sys.stdout.write(f"{found or 'no difference'}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
