"""Our preemption beside kube-scheduler's own DefaultPreemption: one case to both, and what differs.

The oracle tries every node, and for each candidate gives all *outcomes*: pods of equal priority and
start time have no order among them, so which of them go, and how many budgets that breaks, may
depend on how they happened to stand. Of nodes that are equal in everything it compares, it takes
any. So ours is right if its victims and violations are one of the node's outcomes, and no other
node is better whatever its outcome. Victims are compared as sets; they must stand by importance.
Words for why nothing helps are compared as they are.

    python -m tests.oracle.preemption --seed 7 --index 1234

`--recorded FILE` answers cases that were written beside the oracle's answers, and stops at the
first difference; this is what runs for every planted bug.
"""

import argparse
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from bayplan.core.engine.preemption import Plan, Preemption
from bayplan.core.engine.questions import asking
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.kube.read import Reader
from tests.oracle import parity
from tests.oracle.parity import CRASHED

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "preemption: "


class Case(parity.Case, frozen=True, rename="camel", kw_only=True):
    poddisruptionbudgets: list[Raw] = msgspec.field(default_factory=list)


class Outcome(Struct, frozen=True):
    victims: list[str]
    violations: int = 0


class Preempted(Struct, frozen=True):
    """The oracle's answer where no node is feasible."""

    node: str
    message: str
    candidates: dict[str, list[Outcome]]


class Theirs(Struct, frozen=True):
    feasible: list[str] = []
    preemption: Preempted | None = None
    error: str = ""


class Ours(Struct, frozen=True):
    node: str = ""
    victims: list[str] = []
    violations: int = 0
    message: str = ""
    error: str = ""


class Recorded(Struct, frozen=True):
    """A case and the oracle's answer to it."""

    seed: int
    index: int
    case: Raw
    theirs: Theirs


class Caught(Struct, frozen=True):
    """How a run over recorded cases ended."""

    index: int = -1  # no difference
    difference: str = ""
    source: str = ""  # where the code lies that answered


# Our answer


def answer(raw: Raw) -> Ours:
    """What our engine makes of a case; what it throws is its answer too."""
    try:
        case = msgspec.json.decode(raw, type=Case)
        world = parity.World(case)
        for budget in case.poddisruptionbudgets:
            world.engine.handle(on.BudgetSeen(world.reader.budget(budget)), 0)
        pod = replace(world.pod, scheduler=world.verdicts.profile.name)
        with asking(world.verdicts, pod) as ask:
            plan = Preemption(world.verdicts).plan(ask)
        world.engine.handle(on.PodSeen(pod), 0)
        return _ours(plan, world.engine.handle(on.Tick(), 0))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Ours(error=f"{CRASHED} with {error!r} ({at.filename}:{at.lineno})")


def _ours(plan: Plan | str, effects: Sequence[do.Effect]) -> Ours:
    """The plan, if the engine does what it says; otherwise what the engine says."""
    refusals = [effect for effect in effects if isinstance(effect, do.Refuse)]
    deleted = [pod.key for each in effects if isinstance(each, do.Preempt) for pod in each.victims]
    if any(isinstance(effect, do.Bind) for effect in effects):
        return Ours(message="it fits")
    if len(refusals) != 1:
        return Ours(error=f"one refusal is due, not {effects}")
    (refuse,) = refusals
    if not refuse.nominated:
        more = refuse.refusal.more.removeprefix(PREFIX)
        return Ours(error=f"deleted: {deleted}") if deleted else Ours(message=more)
    does = f"the engine nominates {refuse.nominated} and deletes {deleted}"
    if isinstance(plan, str):
        return Ours(error=f"{does}, but the plan is: {plan}")
    victims = [pod.key for pod in plan.victims]
    due = [pod.key for pod in plan.victims if not pod.terminating]
    if refuse.nominated != plan.node or deleted != due:
        return Ours(error=f"{does}, but the plan is {plan.node} without {victims}")
    return Ours(plan.node, victims, plan.violations)


# Comparing


class Importance(Struct, frozen=True):
    """What kube-scheduler reads of a pod to rank it."""

    priority: int
    started: float  # infinite: not yet, which counts as the latest

    @property
    def rank(self) -> tuple[int, float]:
        return (-self.priority, self.started)


def importances(raw: Raw) -> dict[str, Importance]:
    reader = Reader()
    pods = map(reader.pod, msgspec.json.decode(raw, type=Case).pods)
    return {pod.key: Importance(pod.priority, pod.started_s or math.inf) for pod in pods}


def cost(outcome: Outcome, pods: dict[str, Importance]) -> tuple[float, ...]:
    """What kube-scheduler compares nodes by; the least is the best."""
    victims = [pods[key] for key in outcome.victims]
    highest = max(victim.priority for victim in victims)
    return (
        outcome.violations,
        highest,
        sum(victim.priority + 2**31 for victim in victims),
        len(victims),
        -min(victim.started for victim in victims if victim.priority == highest),
    )


def equal_nodes(theirs: Preempted, pods: dict[str, Importance]) -> set[str]:
    """Nodes that are equal in everything it compares, as it saw them in its own run."""
    costs = {node: cost(outcomes[0], pods) for node, outcomes in theirs.candidates.items()}
    return {node for node, each in costs.items() if each == min(costs.values())}


def difference(raw: Raw, ours: Ours, theirs: Theirs) -> str:
    """What differs; empty when nothing does, or when the pod needs no preemption."""
    if ours.error or theirs.error:
        return f"ours: {ours.error or 'an answer'}\ntheirs: {theirs.error or 'an answer'}"
    found = theirs.preemption
    if found is None:
        return ""
    if ours.message or found.message:
        mine, other = ours.message, found.message.removeprefix(PREFIX)
        return "" if mine == other else f"ours: {mine or ours}\ntheirs: {other or found}"
    pods = importances(raw)
    assert found.node in equal_nodes(found, pods), f"its own order is misread: {found}"
    return _judge(ours, found, pods)


def _judge(ours: Ours, theirs: Preempted, pods: dict[str, Importance]) -> str:
    if ours.node not in theirs.candidates:
        return f"ours: {ours}\ntheirs: no candidate of {sorted(theirs.candidates)}"
    ranks = [pods[key].rank for key in ours.victims]
    if ranks != sorted(ranks):
        return f"ours: {ours.victims} do not stand by importance"
    own, outcomes = Outcome(ours.victims, ours.violations), theirs.candidates[ours.node]
    if not any(_same(own, outcome) for outcome in outcomes):
        return f"ours: {ours}\ntheirs: on {ours.node} one of {outcomes}"
    mine = cost(own, pods)
    for node, others in theirs.candidates.items():
        if node != ours.node and mine > max(cost(other, pods) for other in others):
            return f"ours: {ours}\ntheirs: {node} is better with {others}; it took {theirs.node}"
    return ""


def _same(one: Outcome, other: Outcome) -> bool:
    return one.violations == other.violations and sorted(one.victims) == sorted(other.victims)


def disagreement(recorded: Recorded) -> str:
    """What differs on a recorded case, with the words that make the case again."""
    found = difference(recorded.case, answer(recorded.case), recorded.theirs)
    name = f"--seed {recorded.seed} --index {recorded.index}"
    return f"python -m tests.oracle.preemption {name}\n{found}" if found else ""


# Cases and the oracle's answers


def record(seed: int, indices: Iterable[int]) -> list[Recorded]:
    """Cases with the oracle's answers."""
    from tests.oracle import preemption_cases  # not needed where recorded cases are read
    from tests.oracle.kube_oracle import KubeOracle

    numbers = list(indices)
    cases = [preemption_cases.made(seed, index) for index in numbers]
    with KubeOracle() as oracle:
        said = oracle.ask(cases)
    return [
        Recorded(seed, index, Raw(msgspec.json.encode(case)), msgspec.convert(one, Theirs))
        for index, case, one in zip(numbers, cases, said, strict=True)
    ]


def write(path: Path, cases: Iterable[Recorded]) -> None:
    """One line each, for `--recorded`; the file appears whole."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(b"\n".join(map(msgspec.json.encode, cases)))
    partial.rename(path)


# From the command line


def apart(cases: Path, source: Path) -> Caught:
    """The first difference between the oracle and the code below `source`, in another process."""
    command = [sys.executable, "-m", "tests.oracle.preemption", "--recorded", str(cases)]
    env = os.environ | {"PYTHONPATH": str(source)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    caught = msgspec.json.decode(ran.stdout, type=Caught)
    assert Path(caught.source).is_relative_to(source.resolve()), caught.source
    return caught


def first_difference(lines: Iterable[bytes]) -> Caught:
    source = str(Path(sys.modules[Preemption.__module__].__file__ or "").resolve())
    for line in lines:
        recorded = msgspec.json.decode(line, type=Recorded)
        if found := disagreement(recorded):
            return Caught(recorded.index, found, source)
    return Caught(source=source)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--recorded", type=Path, help="one JSON line per case; prints JSON")
    options = parser.parse_args(arguments)
    if options.recorded is not None:
        with options.recorded.open("rb") as lines:
            sys.stdout.write(msgspec.json.encode(first_difference(lines)).decode() + "\n")
        return 0
    (recorded,) = record(options.seed, [options.index])
    shown = {"recorded": recorded, "ours": answer(recorded.case)}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown)).decode() + "\n")
    found = disagreement(recorded)
    sys.stdout.write(f"{found or 'no difference'}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
