"""Whether the generated cases are worth their name: what they set, and what they are refused for.

`FIELDS` lists every field of pods, nodes and namespaces that kube-scheduler's plugins read, with
the values that matter; each must be set often enough. For every reason there must be enough cases
with a node that is refused for it and by nothing else, as kube-scheduler's own plugins say when
each runs alone. With `--levers`, fields are also taken away, to see that they matter.
`python -m tests.oracle.coverage --count 5000` prints the table, and exits 1 if a bar is missed.

A path leads from the case into its objects: `a.b` is a member, `["a/b"]` one with an odd name, `[]`
every item of a list, `[*]` every value of a map, `[a=b]` the items whose member `a` is `b`, `[a]`
and `[!a]` those that have or lack it, `<terms>` all of a pod's affinity terms about pods. What is
found must be there at all, or with `=` be that JSON value, with `~` match that pattern, with `#`
have at least so many items, with `!` lack that member.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from tests.oracle import cases
from tests.oracle.kube_oracle import KubeOracle

Json = dict[str, Any]

FIELD_BAR = 0.02  # of the cases
ISOLATED_BAR = 0.01
FEASIBLE_BARS = (0.20, 0.80)
LEVER_BAR = 0.0005
BATCH = 1000

POD = "pod.spec"
BOUND = "pods[].spec"
NODE_AFFINITY = "affinity.nodeAffinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
NODE_OPERATORS = (*LABEL_OPERATORS, "Gt", "Lt")


def _selector_fields(selector: str) -> Iterator[str]:
    yield f"{selector}={{}}"
    yield f"{selector}.matchLabels"
    for operator in LABEL_OPERATORS:
        yield f'{selector}.matchExpressions[].operator="{operator}"'


def _node_affinity_fields() -> Iterator[str]:
    yield f"{POD}.nodeSelector[*]"
    yield f"{POD}.nodeSelector={{}}"
    terms = f"{POD}.{NODE_AFFINITY}.{REQUIRED}.nodeSelectorTerms"
    yield f"{terms}#2"
    yield f"{terms}[]={{}}"
    yield f"{terms}[].matchExpressions#2"
    yield f"{terms}[].matchFields#2"
    yield f'{terms}[].matchFields[key="metadata.name"].operator="In"'
    yield f'{terms}[].matchFields[].operator="NotIn"'
    for operator in NODE_OPERATORS:
        yield f'{terms}[].matchExpressions[].operator="{operator}"'
    terms = f"{POD}.{NODE_AFFINITY}.{PREFERRED}"
    yield f"{terms}#2"
    yield f"{terms}[].weight"
    yield f"{terms}[].preference={{}}"
    yield f"{terms}[].preference.matchFields"
    for operator in NODE_OPERATORS:
        yield f'{terms}[].preference.matchExpressions[].operator="{operator}"'


def _taint_fields() -> Iterator[str]:
    yield "nodes[].spec.unschedulable=true"
    yield "pod.spec.nodeName"
    for effect in ("NoSchedule", "NoExecute", "PreferNoSchedule"):
        yield f'nodes[].spec.taints[].effect="{effect}"'
        yield f'{POD}.tolerations[].effect="{effect}"'
    yield f"{POD}.tolerations[]!effect"
    yield f"{POD}.tolerations[]!key"
    yield f"{POD}.tolerations[]!operator"
    for operator in ("Equal", "Exists", "Gt", "Lt"):
        yield f'{POD}.tolerations[].operator="{operator}"'
    yield f"{POD}.tolerations[].value"
    yield f"{POD}.tolerations[].tolerationSeconds"
    yield "nodes[].spec.taints[].value"
    yield "nodes[].spec.taints[]!value"


def _port_fields() -> Iterator[str]:
    for spec in (POD, BOUND):
        for holder in ("containers[]", 'initContainers[restartPolicy="Always"]'):
            yield f"{spec}.{holder}.ports[].hostPort"
        yield f"{spec}.initContainers[!restartPolicy].ports[].hostPort"
        for protocol in ("TCP", "UDP", "SCTP"):
            yield f'{spec}.containers[].ports[hostPort].protocol="{protocol}"'
        yield f"{spec}.containers[].ports[hostPort]!protocol"
        for ip in ("", "0.0.0.0", "127.0.0.1"):
            yield f'{spec}.containers[].ports[hostPort].hostIP="{ip}"'
        yield f"{spec}.containers[].ports[hostPort]!hostIP"


def _resource_fields() -> Iterator[str]:
    for spec in (POD, BOUND):
        for resource in cases.AMOUNTS:
            yield f'{spec}.containers[].resources.requests["{resource}"]'
        for form in (r"^\d+m$", r"^\d*\.\d+$", r"^\d+[eE]-?\d+$", r"^\d+Ki$", r"^\d+\.\d+Gi$"):
            yield f"{spec}.containers[].resources.requests[*]~{form}"
        for form in (r"^\d{4,}$", r"^\d+[ku]$", r"^\d+[MG]i?$", r"^\d+n$", r"^\+", r"^0$"):
            yield f"{spec}.containers[].resources.requests[*]~{form}"
        yield f"{spec}.containers[].resources.requests={{}}"
        yield f"{spec}.containers[]!resources"
        yield f"{spec}.containers#2"
        yield f'{spec}.initContainers[restartPolicy="Always"].resources.requests[*]'
        yield f"{spec}.initContainers[!restartPolicy].resources.requests[*]"
        yield f"{spec}.initContainers#2"
        yield f"{spec}.overhead[*]"
        for resource in ("cpu", "memory", cases.HUGE):
            yield f'{spec}.resources.requests["{resource}"]'
    yield f"{BOUND}.containers[].resources.requests[*]~^0.001E$"
    for resource in (*cases.AMOUNTS, "pods"):
        yield f'nodes[].status.allocatable["{resource}"]'
        yield f'nodes[].status.allocatable["{resource}"]~^0([a-zA-Z].*)?$'
        yield f"nodes[].status.allocatable!{resource}"


def _resize_fields() -> Iterator[str]:
    status = "pods[].status"
    for kind in ("containerStatuses", "initContainerStatuses"):
        yield f"{status}.{kind}[].resources.requests[*]"
        yield f"{status}.{kind}[].resources={{}}"
        yield f"{status}.{kind}[].allocatedResources[*]"
        yield f"{status}.{kind}[!resources].allocatedResources"
    yield f'{status}.conditions[type="PodResizePending"].reason="Infeasible"'
    yield f'{status}.conditions[type="PodResizePending"].reason="Deferred"'
    yield f"{status}.resources.requests[*]"
    yield f"{status}.allocatedResources[*]"


def _spread_fields() -> Iterator[str]:
    constraints = f"{POD}.topologySpreadConstraints"
    yield f"{constraints}#2"
    for action in ("DoNotSchedule", "ScheduleAnyway"):
        some = f'{constraints}[whenUnsatisfiable="{action}"]'
        for key in (cases.HOST, cases.ZONE, cases.RACK):
            yield f'{some}.topologyKey="{key}"'
        yield f"{some}!labelSelector"
        yield from _selector_fields(f"{some}.labelSelector")
        yield f"{some}.matchLabelKeys"
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            for value in ("Honor", "Ignore"):
                yield f'{some}.{policy}="{value}"'
        for skew in (1, 2, 3):
            yield f"{some}.maxSkew={skew}"
    yield f"{constraints}[].minDomains"


def _pod_affinity_fields() -> Iterator[str]:
    for spec in (POD, BOUND):
        for kind in ("podAffinity", "podAntiAffinity"):
            terms = f"{spec}.affinity.{kind}"
            yield f"{terms}.{PREFERRED}[].weight"
            for term in (f"{terms}.{REQUIRED}[]", f"{terms}.{PREFERRED}[].podAffinityTerm"):
                yield from _term_fields(term)


def _term_fields(term: str) -> Iterator[str]:
    for key in (cases.HOST, cases.ZONE, cases.RACK):
        yield f'{term}.topologyKey="{key}"'
    yield f"{term}.labelSelector.matchLabels"
    yield f"{term}.labelSelector.matchExpressions"
    yield f"{term}.namespaces[]"
    yield f"{term}.namespaceSelector={{}}"
    yield f"{term}.namespaceSelector.matchLabels"
    yield f"{term}.namespaceSelector.matchExpressions"


def _rarer_pod_affinity_fields() -> Iterator[str]:
    """What need not be in each kind of term: in any of a pod's terms will do."""
    for who in ("pod", "pods[]"):
        term = f"{who}.spec.affinity.<terms>"
        yield f"{term}!labelSelector"
        yield from _selector_fields(f"{term}.labelSelector")
        yield f"{term}.matchLabelKeys"
        yield f"{term}.mismatchLabelKeys"
        yield f"{term}.namespaces=[]"
        for operator in ("Exists", "DoesNotExist", "NotIn"):
            yield f'{term}.namespaceSelector.matchExpressions[].operator="{operator}"'


def _other_fields() -> Iterator[str]:
    yield "pod.metadata.labels"
    yield "pod.metadata!labels"
    yield "pods[].metadata.labels"
    yield "pods[].metadata.deletionTimestamp"
    for phase in ("Succeeded", "Failed", "Pending", "Running"):
        yield f'pods[].status.phase="{phase}"'
    yield "nodes[].metadata.labels"
    yield f"nodes[].metadata.labels!{cases.ZONE}"
    yield 'nodes[].metadata.labels[*]=""'
    yield "namespaces[].metadata.labels"
    yield "namespaces#2"
    yield "nodes[].status.images[].names[]~:"
    yield "nodes[].status.images[].names[]~@"
    yield "nodes[].status.images[].names[]~/"
    yield "nodes[].status.images[].sizeBytes"
    yield f"{POD}.containers[].image"
    yield rf"{POD}.containers[].image~^[^:]+$"
    yield rf"{POD}.containers[].image~@"
    yield rf"{POD}.containers[].image~:\d+/[a-z]+$"
    yield f"{POD}.initContainers[].image"
    yield f"{POD}.volumes[].image.reference"


FIELDS: tuple[str, ...] = (
    *_node_affinity_fields(),
    *_taint_fields(),
    *_port_fields(),
    *_resource_fields(),
    *_resize_fields(),
    *_spread_fields(),
    *_pod_affinity_fields(),
    *_rarer_pod_affinity_fields(),
    *_other_fields(),
)


def _node_names(case: Json) -> set[str]:
    return {node["metadata"]["name"] for node in case["nodes"]}


def _namespace_names(case: Json) -> set[str]:
    return {namespace["metadata"]["name"] for namespace in case["namespaces"]}


def _orders(case: Json) -> set[tuple[bool, ...]]:
    containers = case["pod"]["spec"].get("initContainers", [])
    return {tuple("restartPolicy" in c for c in pair) for pair in pairwise(containers)}


def _conflicts(case: Json) -> bool:
    affinity = case["pod"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get(REQUIRED, {}).get("nodeSelectorTerms", [])
    names = [
        {e["values"][0] for e in term.get("matchFields", []) if e["operator"] == "In"}
        for term in terms
    ]
    return any(len(some) > 1 for some in names)


# What no path can say.
SITUATIONS: dict[str, Callable[[Json], bool]] = {
    "a bound pod's node is not in the list": lambda case: any(
        pod["spec"]["nodeName"] not in _node_names(case) for pod in case["pods"]
    ),
    "a bound pod's namespace has no object": lambda case: any(
        pod["metadata"]["namespace"] not in _namespace_names(case) for pod in case["pods"]
    ),
    "the pod's namespace has no object": lambda case: (
        case["pod"]["metadata"]["namespace"] not in _namespace_names(case)
    ),
    "a sidecar before a plain init container": lambda case: (True, False) in _orders(case),
    "a plain init container before a sidecar": lambda case: (False, True) in _orders(case),
    "a term conflicts on metadata.name": _conflicts,
    "no bound pods": lambda case: not case["pods"],
    "one node": lambda case: len(case["nodes"]) == 1,
    "nodeName is not in the list": lambda case: (
        case["pod"]["spec"].get("nodeName", case["nodes"][0]["metadata"]["name"])
        not in _node_names(case)
    ),
}

# Every reason, and the plugin that gives it.
REASONS: dict[str, str] = {
    "node(s) were unschedulable": "NodeUnschedulable",
    "node(s) didn't match the requested node name": "NodeName",
    "node(s) had untolerated taint(s)": "TaintToleration",
    "node(s) didn't match Pod's node affinity/selector": "NodeAffinity",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]": "NodeAffinity",
    "pod affinity terms conflict": "NodeAffinity",
    "node(s) didn't have free ports for the requested pod ports": "NodePorts",
    "Too many pods": "NodeResourcesFit",
    **{f"Insufficient {resource}": "NodeResourcesFit" for resource in cases.AMOUNTS},
    "node(s) didn't match pod topology spread constraints": "PodTopologySpread",
    "node(s) didn't match pod topology spread constraints (missing required label)": (
        "PodTopologySpread"
    ),
    "node(s) didn't match pod affinity rules": "InterPodAffinity",
    "node(s) didn't match pod anti-affinity rules": "InterPodAffinity",
    "node(s) didn't satisfy existing pods anti-affinity rules": "InterPodAffinity",
}


# A field that is set may still never matter. These must: without them the answer is another in
# enough cases. First for feasible nodes and reasons, then for scores.
LEVERS: tuple[str, ...] = (
    *(f"{POD}.topologySpreadConstraints[].{f}" for f in ("minDomains", "matchLabelKeys")),
    *(f"{POD}.topologySpreadConstraints[].node{f}Policy" for f in ("Affinity", "Taints")),
    "pods[].metadata.deletionTimestamp",
    "pods[].status.phase",
    *(f"{POD}.tolerations[].{f}" for f in ("effect", "operator", "value")),
    *(f"nodes[].spec.{f}" for f in ("unschedulable", "taints", "taints[].value")),
    *(f"{s}.containers[].ports[].{f}" for s in (POD, BOUND) for f in ("hostIP", "protocol")),
    *(f"{s}.initContainers[].ports" for s in (POD, BOUND)),
    *(f"{s}.initContainers[].restartPolicy" for s in (POD, BOUND)),
    *(f"{s}.{f}" for s in (POD, BOUND) for f in ("overhead", "resources", "initContainers")),
    *(f"pods[].status.{f}" for f in ("conditions", "resources", "allocatedResources")),
    *(f"pods[].status.containerStatuses[].{f}" for f in ("resources", "allocatedResources")),
    *(f"pods[].status.initContainerStatuses[].{f}" for f in ("resources", "allocatedResources")),
    *(
        f"{spec}.affinity.<terms>.{f}"
        for spec in (POD, BOUND)
        for f in ("namespaces", "namespaceSelector", "labelSelector")
    ),
    "namespaces[].metadata.labels",
)
SCORE_LEVERS: tuple[str, ...] = (
    *(f"{POD}.topologySpreadConstraints[].node{f}Policy" for f in ("Affinity", "Taints")),
    f"{POD}.topologySpreadConstraints[].matchLabelKeys",
    "pods[].metadata.deletionTimestamp",
    f"{POD}.{NODE_AFFINITY}.{PREFERRED}",
    *(f"{s}.affinity.podAffinity.{PREFERRED}" for s in (POD, BOUND)),
    *(f"{s}.affinity.podAntiAffinity.{PREFERRED}" for s in (POD, BOUND)),
    f"{BOUND}.affinity.podAffinity.{REQUIRED}",
    *(f"{spec}.affinity.<terms>.namespaceSelector" for spec in (POD, BOUND)),
    *(f"{s}.{f}" for s in (POD, BOUND) for f in ("overhead", "resources")),
    *(f"{s}.initContainers[].restartPolicy" for s in (POD, BOUND)),
    f"{POD}.volumes[].image",
    f"{POD}.initContainers[].image",
    "nodes[].status.images",
    "nodes[].spec.taints",
    f"{POD}.tolerations",
    "strategy",
    "balanced",
    "hardPodAffinityWeight",
    "ignorePreferredTermsOfExistingPods",
)


# Paths

STEP = re.compile(r'\.?([A-Za-z]+|<terms>)|\["([^"]+)"\]|\[([^\]]*)\]')
END = re.compile(r"[=~#!]")


@cache
def _parse(path: str) -> tuple[tuple[tuple[str, str], ...], str, str]:
    """Steps as (kind, what), the final check, and what it is about."""
    steps, at = [], 0
    while at < len(path) and not END.match(path, at):
        found = STEP.match(path, at)
        if not found:
            raise ValueError(f"cannot read {path!r} at {at}")
        name, odd_name, items = found.groups()
        steps.append(("items", items) if items is not None else ("name", name or odd_name))
        at = found.end()
    return tuple(steps), path[at : at + 1], path[at + 1 :]


def _items(value: Any, which: str) -> Iterator[Any]:
    if which == "*":
        yield from value.values() if isinstance(value, dict) else ()
        return
    key, equals, wanted = which.partition("=")
    for item in value if isinstance(value, list) else ():
        if not which:
            yield item
        elif which.startswith("!"):
            if which[1:] not in item:
                yield item
        elif key in item and (not equals or item[key] == json.loads(wanted)):
            yield item


def _terms(affinity: Any) -> Iterator[Any]:
    """All the pod affinity terms of a pod, required and preferred."""
    for kind in ("podAffinity", "podAntiAffinity"):
        group = affinity.get(kind, {}) if isinstance(affinity, dict) else {}
        yield from group.get(REQUIRED, [])
        yield from (weighted["podAffinityTerm"] for weighted in group.get(PREFERRED, []))


def _walk(value: Any, steps: tuple[tuple[str, str], ...]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    (kind, what), rest = steps[0], steps[1:]
    if kind == "items":
        for item in _items(value, what):
            yield from _walk(item, rest)
    elif what == "<terms>":
        for item in _terms(value):
            yield from _walk(item, rest)
    elif isinstance(value, dict) and what in value:
        yield from _walk(value[what], rest)


def is_set(case: Json, path: str) -> bool:
    """Whether the case has what the path describes."""
    steps, check, what = _parse(path)
    match check:
        case "=":
            wanted = json.loads(what)
            return any(found == wanted for found in _walk(case, steps))
        case "~":
            return any(re.search(what, str(found)) for found in _walk(case, steps))
        case "#":
            return any(len(found) >= int(what) for found in _walk(case, steps))
        case "!":
            return any(found.get(what) is None for found in _walk(case, steps))
        case _:
            return any(True for _ in _walk(case, steps))


def without(case: Json, path: str) -> Json:
    """The case less what the path leads to; the case itself if there is nothing."""
    if not is_set(case, path):
        return case
    changed: Json = json.loads(json.dumps(case))
    steps, _, _ = _parse(path)
    for holder in list(_walk(changed, steps[:-1])):
        if isinstance(holder, dict):
            holder.pop(steps[-1][1], None)
    return changed


# Measuring


@dataclass(frozen=True)
class Report:
    """Shares of the cases, each beside the bar that it must reach."""

    count: int
    fields: dict[str, float]
    isolated: dict[str, float]
    levers: dict[str, float]
    feasible: float
    errors: tuple[str, ...]

    def missed(self) -> list[str]:
        """The bars that are not reached."""
        low = [f for f, share in self.fields.items() if share < FIELD_BAR]
        low += [r for r, share in self.isolated.items() if share < ISOLATED_BAR]
        low += [path for path, share in self.levers.items() if share < LEVER_BAR]
        if not FEASIBLE_BARS[0] <= self.feasible <= FEASIBLE_BARS[1]:
            low.append("feasible")
        return low + list(self.errors)

    def table(self) -> str:
        """The report as text, one line per bar."""
        lines = [f"{self.count} cases", "", "set in % of cases"]
        lines += [_line(share, FIELD_BAR, name) for name, share in self.fields.items()]
        lines += ["", "some node refused for this alone, in % of cases"]
        lines += [_line(share, ISOLATED_BAR, name) for name, share in self.isolated.items()]
        if self.levers:
            lines += ["", "the answer is another without this, in % of cases"]
        lines += [_line(share, LEVER_BAR, path) for path, share in self.levers.items()]
        lines += ["", _line(self.feasible, FEASIBLE_BARS[0], "a node is feasible")]
        lines += [f"error: {error}" for error in self.errors]
        return "\n".join([*lines, "", f"{len(self.missed())} bars missed"])


def _line(share: float, bar: float, name: str) -> str:
    return f"{100 * share:6.2f} {' ' if share >= bar else '<'} {name}"


def isolated_reasons(answer: Json) -> set[str]:
    """The reasons for which some node is refused by one plugin and for nothing else."""
    return {
        reasons[0]
        for node, reasons in answer["reasons"].items()
        if len(reasons) == 1 and answer["refusers"].get(node) == [REASONS.get(reasons[0])]
    }


def _levers(oracle: KubeOracle, batch: list[Json], paths: Sequence[str]) -> Counter[str]:
    """For how many of the cases each path matters."""
    answers = oracle.ask(batch)
    matters: Counter[str] = Counter()
    for path in paths:
        changed = [without(case, path) for case in batch]
        where = [i for i, case in enumerate(batch) if changed[i] is not case]
        again = oracle.ask([changed[i] for i in where])
        matters[path] = sum(answers[i] != new for i, new in zip(where, again, strict=True))
    return matters


def measure(seed: int, count: int, *, pull_levers: bool = False) -> Report:
    """Asks kube-scheduler's plugins about this many cases, and counts; levers are slow."""
    fields: Counter[str] = Counter()
    isolated: Counter[str] = Counter()
    levers: Counter[str] = Counter()
    feasible = 0
    errors: list[str] = []
    generated = cases.cases(seed, count)
    with KubeOracle() as oracle:
        for start in range(0, count, BATCH):
            batch = [next(generated) for _ in range(min(BATCH, count - start))]
            answers = oracle.ask([{**case, "refusers": True} for case in batch])
            for case, answer in zip(batch, answers, strict=True):
                fields.update(path for path in FIELDS if is_set(case, path))
                fields.update(name for name, holds in SITUATIONS.items() if holds(case))
                if "error" in answer:
                    errors.append(answer["error"])
                    continue
                feasible += bool(answer["feasible"])
                isolated.update(isolated_reasons(answer))
            if not pull_levers:
                continue
            levers += _levers(oracle, batch, LEVERS)
            rngs = (random.Random(f"{seed}/score/{start + i}") for i in range(len(batch)))
            scored = _levers(oracle, [cases.score_case(rng) for rng in rngs], SCORE_LEVERS)
            levers += Counter({f"scores: {path}": n for path, n in scored.items()})
    return Report(
        count,
        {name: fields[name] / count for name in (*FIELDS, *SITUATIONS)},
        {reason: isolated[reason] / count for reason in REASONS},
        {
            path: levers[path] / count
            for path in (*LEVERS, *(f"scores: {path}" for path in SCORE_LEVERS))
            if pull_levers
        },
        feasible / count,
        tuple(errors),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--levers", action="store_true", help="also what each field changes")
    options = parser.parse_args(arguments)
    report = measure(options.seed, options.count, pull_levers=options.levers)
    sys.stdout.write(report.table() + "\n")
    return 1 if report.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
