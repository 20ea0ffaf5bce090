"""Our engine beside kube-scheduler's own plugins: one case to both, and what differs.

A case is one line of JSON, as the oracle and `bayplan fits --cases` read it, and both answers have
the oracle's form. There are four streams of cases: *filters*, *scores*, *kept*, where a case of
either kind goes on through changes and our answers come from kept verdicts, and *volumes*, which
go on likewise. A stream's name, a seed and an index make a case again:

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
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Raw, Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.kept import SCORE_SHIFT
from bayplan.core.engine.profile import PluginConfig, Profile, ProfileConfig
from bayplan.core.engine.questions import fits, scores
from bayplan.core.engine.verdicts import Verdicts
from bayplan.core.model import events as on
from bayplan.core.model.pods import Pod
from bayplan.core.plugins.hooks import Ask
from bayplan.core.plugins.registry import BUILT_IN
from bayplan.core.state.terms import OwnTerms
from bayplan.core.state.view import View
from bayplan.kube.read import Reader

Json = dict[str, Any]
Stream = Literal["filters", "scores", "kept", "volumes"]
STREAMS: tuple[Stream, ...] = get_args(Stream)
SHOWN = 12  # lines of a difference
STEPS = 6  # of a case that goes on
MANY = 8  # nodes; of fewer, one that changed is so large a part that all are asked again
CRASHED = "it crashed"


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
    persistentvolumeclaims: list[Raw] = []
    persistentvolumes: list[Raw] = []
    storageclasses: list[Raw] = []
    scores: bool = False


class Answer(Struct):
    feasible: list[str] = []
    reasons: dict[str, list[str]] = {}
    unresolvable: list[str] = []  # refused nodes where removing pods cannot help
    scores: dict[str, dict[str, int]] | None = None  # by node and plugin, and "total"
    error: str = ""


Gone = Literal["node gone", "pod gone", "namespace gone", "claim gone", "volume gone", "class gone"]


class Change(Struct, frozen=True):
    """An object that was seen, as it is now; or of one that is gone the name, of a pod the uid."""

    kind: Literal["node", "pod", "namespace", "claim", "volume", "class"] | Gone
    what: Raw


class Step(Struct, frozen=True):
    """What changed, and the oracle's answer after it."""

    changes: list[Change]
    theirs: Answer


class Recorded(Struct, frozen=True):
    """A case and the oracle's answers to it, first without changes."""

    stream: Stream
    seed: int
    index: int
    case: Raw
    steps: list[Step]


class Caught(Struct, frozen=True):
    """How a run over recorded cases ended."""

    stream: str = ""  # empty: no difference
    index: int = -1
    difference: str = ""
    source: str = ""  # where the code lies that answered


# Our answer


class World:
    """An engine that has seen a case's objects, and the pod that wants a place."""

    def __init__(self, case: Case) -> None:
        self.reader = Reader()
        self.engine = Engine([_profile(_options(case))])
        self.verdicts: Verdicts = next(iter(self.engine.verdicts.values()))
        for change in (
            *(Change("node", node) for node in case.nodes),
            *(Change("namespace", namespace) for namespace in case.namespaces),
            *(Change("pod", pod) for pod in case.pods),
            *(Change("class", each) for each in case.storageclasses),
            *(Change("volume", volume) for volume in case.persistentvolumes),
            *(Change("claim", claim) for claim in case.persistentvolumeclaims),
        ):
            self.see(change)
        self.pod: Pod = self.reader.pod(case.pod, newcomer=True)
        self.own: OwnTerms | None = None

    def see(self, change: Change) -> None:
        self.engine.handle(self._event(change), 0)

    def _event(self, change: Change) -> on.Event:
        match change.kind:
            case "node":
                return on.NodeSeen(self.reader.node(change.what))
            case "namespace":
                return on.NamespaceSeen(*self.reader.namespace(change.what))
            case "pod":
                pod = self.reader.live_pod(change.what)
                return on.PodSeen(pod) if pod else on.PodGone(self.reader.pod(change.what).uid)
            case "claim":
                return on.ClaimSeen(self.reader.claim(change.what))
            case "volume":
                return on.VolumeSeen(self.reader.volume(change.what))
            case "class":
                return on.StorageClassSeen(self.reader.storage_class(change.what))
        name = msgspec.json.decode(change.what, type=str)
        match change.kind:
            case "node gone":
                return on.NodeGone(name)
            case "namespace gone":
                return on.NamespaceGone(name)
            case "pod gone":
                return on.PodGone(name)
            case "claim gone":
                return on.ClaimGone(name)
            case "volume gone":
                return on.VolumeGone(name)
            case "class gone":
                return on.StorageClassGone(name)

    def answer(self, *, scored: bool) -> Answer:
        """From verdicts that are computed afresh."""
        found = fits(self.verdicts, self.pod)
        return Answer(
            feasible=found.feasible,
            reasons=found.reasons,
            unresolvable=sorted(found.reasons.keys() - set(found.helped_by_preemption)),
            scores=scores(self.verdicts, self.pod) if scored else None,
        )

    def kept_answer(self, *, scored: bool) -> Answer:
        """With feasible nodes and totals from kept verdicts, which must equal fresh ones."""
        cluster, pod = self.engine.cluster, self.pod
        if self.own is None and pod.terms is not None:
            self.own = cluster.acquire_terms(pod.terms)  # as the engine does while a pod waits
        ask = Ask(pod, cluster.demand(pod.row), self.own, cluster.terms.concerning(pod))
        best, *_ = self.verdicts.best(ask)
        fresh = self.verdicts.on(ask, View(cluster))
        kept, rows = self.verdicts.all_rows(ask)
        if rows is not None:
            passed, kept = kept, np.full(len(fresh), -1)
            kept[rows] = passed
        by_node = {name: int(kept[row]) for name, row in cluster.rows.items() if kept[row] >= 0}
        anew = {name: int(fresh[row]) for name, row in cluster.rows.items() if fresh[row] >= 0}
        wrong = sorted(by_node.items() ^ anew.items())
        if wrong:
            apart = {name: (by_node.get(name), anew.get(name)) for name, _ in wrong}
            return Answer(error=f"verdicts differ, kept and fresh: {apart}")
        if max(anew.values(), default=-1) != (-1 if best < 0 else kept[best]):
            return Answer(error=f"the best row is {best}, but the verdicts are {anew}")
        answer = self.answer(scored=scored)
        answer.feasible = sorted(by_node)
        if answer.scores is not None:
            for name, verdict in by_node.items():
                answer.scores.setdefault(name, {})["total"] = int(verdict >> SCORE_SHIFT)
        return answer


def _options(case: Case) -> bytes:
    names = Options.__struct_fields__
    return msgspec.json.encode(Options(**{name: getattr(case, name) for name in names}))


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


def answers(recorded: Recorded) -> Iterator[Answer]:
    """What our engine makes of a case, step by step; what it throws is its answer too."""
    try:
        case = msgspec.json.decode(recorded.case, type=Case)
        world = World(case)
        for step in recorded.steps:
            for change in step.changes:
                world.see(change)
            going_on = recorded.stream in ("kept", "volumes")
            of_kind = world.kept_answer if going_on else world.answer
            yield of_kind(scored=case.scores)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        yield Answer(error=f"{CRASHED} with {error!r} ({at.filename}:{at.lineno})")


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


@lru_cache(maxsize=1)
def run_seed() -> int:
    """The seed of this run of the tests, one for all its processes; BAYPLAN_SEED sets it."""
    if given := os.environ.get("BAYPLAN_SEED"):
        return int(given)
    shared = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # random, and the same for all workers
    return int(shared[:8], 16) if shared else int.from_bytes(os.urandom(4))


def print_seed(folder: Path, uncaptured: AbstractContextManager[None]) -> int:
    """The run's seed; the first process that needs it prints it. The folder is the run's."""
    with suppress(FileExistsError), uncaptured:
        (folder / "seed-was-printed").touch(exist_ok=False)
        sys.stderr.write(f"\nparity with kube-scheduler: BAYPLAN_SEED={run_seed()}\n")
        sys.stderr.flush()
    return run_seed()


def record(stream: Stream, seed: int, indices: Iterable[int]) -> list[Recorded]:
    """Cases with the oracle's answers."""
    from tests.oracle.kube_oracle import KubeOracle  # not needed where recorded cases are read

    numbers = list(indices)
    histories = [history(stream, seed, index) for index in numbers]
    with KubeOracle() as oracle:
        said = iter(oracle.ask([case for steps in histories for _, case in steps]))
    return [
        Recorded(
            stream,
            seed,
            index,
            _raw(steps[0][1]),
            [Step(changes, msgspec.convert(next(said), Answer)) for changes, _ in steps],
        )
        for index, steps in zip(numbers, histories, strict=True)
    ]


def history(stream: Stream, seed: int, index: int) -> list[tuple[list[Change], Json]]:
    """The case of this name: per step what changes, and the case after it."""
    from tests.oracle import cases

    if stream == "filters":
        return [([], cases.case(random.Random(f"{seed}/{index}")))]
    if stream == "scores":
        return [([], cases.score_case(random.Random(f"{seed}/score/{index}")))]
    rng = random.Random(f"{seed}/{stream}/{index}")
    if stream == "volumes":
        return volume_history(rng)
    one = cases.score_case if index % 2 else cases.case
    case, donor = one(rng), one(rng)
    while index % 4 and len(case["nodes"]) < MANY:
        case = one(rng)
    steps: list[tuple[list[Change], Json]] = [([], case)]
    for step in range(1, STEPS):
        case = {**case, **{kind: list(case[kind]) for kind in ("nodes", "pods", "namespaces")}}
        changing = Changing(rng, case, donor, f"{step}-")
        steps.append(([changing.change() for _ in range(rng.choice((1, 1, 2)))], case))
    return steps


def volume_history(rng: random.Random) -> list[tuple[list[Change], Json]]:
    from tests.oracle import cases
    from tests.oracle.volume_cases import KINDS, Volumes, volume_case

    case, donor = volume_case(rng), cases.plain_case(rng)
    while not donor["pods"]:  # whose pods use no claims
        donor = cases.plain_case(rng)
    called: dict[str, Any] = dict(zip(KINDS, ("claim", "volume", "class"), strict=True))
    steps: list[tuple[list[Change], Json]] = [([], case)]
    for step in range(1, STEPS):
        copied = ("nodes", "pods", "namespaces", *KINDS)
        case = {**case, **{kind: list(case[kind]) for kind in copied}}
        if rng.random() < 0.3:
            steps.append(([Changing(rng, case, donor, f"{step}-").change()], case))
            continue
        volumes = Volumes(rng, case)
        kind, name, new = volumes.alter()
        key = f"{volumes.namespace}/{name}" if kind == KINDS[0] else name
        gone: Any = f"{called[kind]} gone"
        steps.append(([Change(called[kind], _raw(new)) if new else Change(gone, _raw(key))], case))
    return steps


class Changing:
    """Makes random changes to a case; new objects are those of a donor under other names."""

    def __init__(self, rng: random.Random, case: Json, donor: Json, prefix: str) -> None:
        self.rng, self.case, self.donor, self.prefix = rng, case, donor, prefix
        self.made = 0

    def change(self) -> Change:
        ways = (self.place, self.remove, self.alter_pod, self.alter_node, self.add_node)
        more = (self.remove_node, self.alter_namespace)
        weights = (3, 3, 2, 4, 2, 2, 2)
        return self.rng.choices((*ways, *more), weights)[0]()

    def _new(self) -> str:
        self.made += 1
        return f"{self.prefix}{self.made}"

    def _put(self, kind: str, value: Json, old: Json | None = None) -> Raw:
        """Adds the object, or puts it in the place of another."""
        objects = self.case[kind]
        if old is None:
            objects.append(value)
        else:
            objects[next(i for i, each in enumerate(objects) if each is old)] = value
        return _raw(value)

    def _like_newcomer(self, pod: Json) -> None:
        mine = self.case["pod"]["metadata"]
        pod["metadata"]["namespace"] = mine["namespace"]
        pod["metadata"]["labels"] = dict(mine.get("labels", {}))

    def place(self) -> Change:
        rng, nodes = self.rng, self.case["nodes"]
        pod = _copy(rng.choice(self.donor["pods"] or self.case["pods"] or [self.case["pod"]]))
        name = f"p{self._new()}"
        pod["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        pod["spec"]["nodeName"] = rng.choice(nodes)["metadata"]["name"]
        if rng.random() < 0.5:
            self._like_newcomer(pod)
        return Change("pod", self._put("pods", pod))

    def remove(self) -> Change:
        if not self.case["pods"]:
            return self.place()
        asking = [p for p in self.case["pods"] if "affinity" in p["spec"] or "hostPort" in str(p)]
        pods = asking if asking and self.rng.random() < 0.5 else self.case["pods"]
        pod = self.rng.choice(pods)
        self.case["pods"] = [each for each in self.case["pods"] if each is not pod]
        return Change("pod gone", _raw(pod["metadata"]["uid"]))

    def alter_pod(self) -> Change:
        if not self.case["pods"]:
            return self.place()
        old = self.rng.choice(self.case["pods"])
        pod = _copy(old)
        match self.rng.choice(("like", "labels", "terminating", "terminal", "bigger")):
            case "like":
                pod["metadata"]["labels"] = dict(self.case["pod"]["metadata"].get("labels", {}))
            case "labels":
                pod["metadata"]["labels"] = {"app": self.rng.choice(("a", "b", "c"))}
            case "terminating":
                pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
            case "terminal":
                pod["status"]["phase"] = "Succeeded"
            case _:
                asked = {"cpu": "1500m", "memory": "1Gi"}
                pod["spec"]["containers"][0]["resources"] = {"requests": asked}
        return Change("pod", self._put("pods", pod, old))

    def alter_node(self) -> Change:
        rng = self.rng
        old = rng.choice(self.case["nodes"])
        node, other = _copy(old), _copy(rng.choice((*self.donor["nodes"], *self.case["nodes"])))
        match rng.choice(("labels", "labels", "taints", "cordon", "images", "amounts", "more")):
            case "labels":
                labels = other["metadata"].get("labels", {})
                host = node["metadata"].get("labels", {}).get("kubernetes.io/hostname")
                node["metadata"]["labels"] = labels | (
                    {"kubernetes.io/hostname": host} if host else {}
                )
            case "taints":
                node["spec"]["taints"] = other["spec"].get("taints", [])
            case "cordon":
                node["spec"]["unschedulable"] = not node["spec"].get("unschedulable", False)
            case "images":
                node["status"]["images"] = other["status"].get("images", [])
            case "amounts":
                node["status"]["allocatable"] = other["status"]["allocatable"]
            case _:
                roomy = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
                node["status"]["allocatable"] |= roomy
        return Change("node", self._put("nodes", node, old))

    def add_node(self) -> Change:
        names = {node["metadata"]["name"] for node in self.case["nodes"]}
        bound_to = {pod["spec"]["nodeName"] for pod in self.case["pods"]}
        name = self.rng.choice([f"n{self._new()}", *sorted(bound_to - names)])
        node = _copy(self.rng.choice(self.donor["nodes"]))
        node["metadata"]["name"] = name
        node["metadata"].setdefault("labels", {})["kubernetes.io/hostname"] = name
        return Change("node", self._put("nodes", node))

    def remove_node(self) -> Change:
        if len(self.case["nodes"]) == 1:
            return self.add_node()
        node = self.rng.choice(self.case["nodes"])
        self.case["nodes"] = [each for each in self.case["nodes"] if each is not node]
        return Change("node gone", _raw(node["metadata"]["name"]))

    def alter_namespace(self) -> Change:
        old = self.rng.choice(self.case["namespaces"])
        name = old["metadata"]["name"]
        if len(self.case["namespaces"]) > 1 and self.rng.random() < 0.2:
            self.case["namespaces"] = [n for n in self.case["namespaces"] if n is not old]
            return Change("namespace gone", _raw(name))
        namespace = _copy(old)
        team, env = self.rng.choice(("r", "b")), self.rng.choice(("prod", "dev"))
        namespace["metadata"]["labels"] = {"kubernetes.io/metadata.name": name, "team": team}
        if self.rng.random() < 0.5:
            namespace["metadata"]["labels"]["env"] = env
        return Change("namespace", self._put("namespaces", namespace, old))


def _copy(value: Json) -> Json:
    copied: Json = json.loads(json.dumps(value))
    return copied


def _raw(value: Json | str) -> Raw:
    return Raw(json.dumps(value).encode())


def disagreement(recorded: Recorded) -> str:
    """What differs on a recorded case, with the words that make the case again."""
    for number, (ours, step) in enumerate(zip(answers(recorded), recorded.steps, strict=False)):
        found = difference(ours, step.theirs)
        if found:
            name = f"--stream {recorded.stream} --seed {recorded.seed} --index {recorded.index}"
            after = f", after {number} steps" if number else ""
            return f"python -m tests.oracle.parity {name}{after}\n{found}"
    return ""


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
    shown = {"recorded": recorded, "ours": list(answers(recorded))}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown)).decode() + "\n")
    found = disagreement(recorded)
    sys.stdout.write(f"{found or 'no difference'}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
