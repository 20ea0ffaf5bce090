"""Were gangs kept together? Judged from nothing but what the API server showed, and when.

Beside the checks of `apicheck`: how long gangs were bound in part, whether those that need one rack
were in one, and whether PodGroups say what their pods say.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from tests.real.apicheck import Change, Json, Pod, read_pod

LABEL, RACK = "scheduling.x-k8s.io/pod-group", "example.com/rack"
WITHIN = "bayplan.dev/gang-within"


@dataclass(frozen=True)
class Member(Pod):
    """One version of a pod, of which gang it is, and when we heard of that version."""

    group: str  # empty: of none
    at: float

    @property
    def runs(self) -> bool:
        return self.holds and not self.terminating


class Said(NamedTuple):
    """A PodGroup was made, changed or, where the minimum is 0, deleted."""

    at: float
    group: str
    minimum: int


class Span(NamedTuple):
    start: float
    end: float


class Spell(NamedTuple):
    """So long a gang was bound in part, while a scheduler ran and members waited."""

    seconds: float
    group: str


def read_member(raw: Json) -> Member:
    labels = raw["metadata"].get("labels", {})
    return Member(**vars(read_pod(raw)), group=labels.get(LABEL, ""), at=time.monotonic())


def group_of(change: Change) -> str:
    return cast(Member, change.pod).group


def changes(history: Iterable[Change]) -> Iterator[tuple[Member, bool]]:
    for pod, gone in history:
        yield cast(Member, pod), gone


def in_part(
    history: Iterable[Change], said: Iterable[Said], running: Sequence[Span]
) -> Iterator[Spell]:
    """`running`: when a scheduler ran. A new one cannot know how long it was so before."""
    for group, span in _spans_in_part(history, said):
        for run in running:
            seconds = min(span.end, run.end) - max(span.start, run.start)
            if seconds > 0:
                yield Spell(seconds, group)


def _spans_in_part(history: Iterable[Change], said: Iterable[Said]) -> Iterator[tuple[str, Span]]:
    news: list[tuple[float, Member | Said, bool]] = [(each.at, each, False) for each in said]
    news += [(member.at, member, gone) for member, gone in changes(history) if member.group]
    minimum: dict[str, int] = {}
    alive: dict[str, dict[str, Member]] = defaultdict(dict)  # by group and uid
    since: dict[str, float] = {}  # by group that is in part
    at = 0.0
    for at, new, gone in sorted(news, key=lambda each: each[0]):
        if isinstance(new, Said):
            minimum[new.group] = new.minimum
        elif gone:
            alive[new.group].pop(new.uid, None)
        else:
            alive[new.group][new.uid] = new
        members = alive[new.group].values()
        runs = sum(member.runs for member in members)
        partial = 0 < runs < minimum.get(new.group, 0) and any(each.waits for each in members)
        if partial:
            since.setdefault(new.group, at)
        elif new.group in since:
            yield new.group, Span(since.pop(new.group), at)
    for group, start in since.items():
        yield group, Span(start, at)


def torn(
    history: Iterable[Change], racks: Mapping[str, str], lost: Mapping[str, float]
) -> Iterator[str]:
    """Gangs in more racks than one, at any point. `racks` by node; `lost` by uid: when the node of
    a pod was deleted. Nobody knows from then on in which rack it is."""
    alive: dict[str, dict[str, Member]] = defaultdict(dict)  # by group and uid
    for member, gone in changes(history):
        before = alive[member.group].pop(member.uid, None)
        if gone or not member.runs:
            continue
        alive[member.group][member.uid] = member
        if before is None:
            known = [
                each
                for uid, each in alive[member.group].items()
                if lost.get(uid, member.at) >= member.at
            ]
            places = {each.name: racks[each.node] for each in known}
            if len(set(places.values())) > 1:
                yield f"{member.group} needs one rack, and is in {places}"


def untrue(groups: Iterable[Json], pods: Iterable[Json]) -> Iterator[str]:
    """PodGroups that are in part, or whose status is not what their pods say."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        count = counts[pod["metadata"].get("labels", {}).get(LABEL, "")]
        if "deletionTimestamp" not in pod["metadata"]:
            count["here"] += 1
            count["scheduled"] += "nodeName" in pod["spec"]
            count["running"] += pod["status"].get("phase") == "Running"
    for group in groups:
        name, minimum = group["metadata"]["name"], group["spec"]["minMember"]
        count, status = counts[name], group.get("status", {})
        phase = "Pending"
        if count["here"] >= minimum:
            phase = "Running" if count["running"] >= minimum else "Scheduling"
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        should = (phase, count["scheduled"], count["running"], str(count["scheduled"] >= minimum))
        is_ = (
            *(status.get(key) for key in ("phase", "scheduled", "running")),
            conditions.get("PodGroupScheduled"),
        )
        if 0 < count["scheduled"] < minimum and count["here"] > count["scheduled"]:
            yield f"PodGroup {name} is in part: {dict(count)}"
        if is_ != should:
            yield f"PodGroup {name} says {is_}, and its pods {should}"
