"""The decisions of a journal again, and the laws after every step of it.

Under other profiles the events stay what they were, so each decision is made in the cluster as it
really came to be.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, zip_longest
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.profile import ProfileConfig
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.holdings import holding_of
from bayplan.core.model.pods import Pod
from bayplan.core.state.laws import broken
from bayplan.scheduler.journal import Outcome, outcomes
from bayplan.scheduler.recording import Player, Recording, Told
from bayplan.scheduler.snapshot import State

NOTHING = "nothing"
FIT = "NodeResourcesFit"


# ---- the decisions again


class Difference(Struct, frozen=True):
    """A pod for which the replay decided something else."""

    event: int
    pod: str
    then: str
    now: str


class Replayed(Struct, rename="camel"):
    events: int = 0
    binds: int = 0
    refusals: int = 0
    binds_now: int = 0
    refusals_now: int = 0
    differences: list[Difference] = []
    cut_off: bool = False

    def count(self, then: Sequence[Outcome], now: Sequence[Outcome]) -> None:
        self.events += 1
        self.binds += sum(outcome.do == "Bind" for outcome in then)
        self.refusals += sum(outcome.do == "Refuse" for outcome in then)
        self.binds_now += sum(outcome.do == "Bind" for outcome in now)
        self.refusals_now += sum(outcome.do == "Refuse" for outcome in now)


class Span(Struct, frozen=True):
    """The steps that are looked at; those before them are run all the same."""

    first: int = 0
    last: int | None = None


def replay(
    recording: Recording,
    span: Span = Span(),  # noqa: B008
    under: Sequence[ProfileConfig] | None = None,
    known: Mapping[str, type] | None = None,
) -> Replayed:
    """Every decision again; under other profiles, what they would have decided."""
    player = Player(recording, under, known)
    report, names = Replayed(), Names(player.engine)
    pairs = Pairs(names)
    for told in recording.steps():
        if span.last is not None and told.n > span.last:
            break
        names.hear(told.event)
        try:
            effects = player.hear(told)
        except Exception as error:
            failed = f"failed: {type(error).__name__}: {error}"
            report.differences.append(Difference(told.n, "all", "applied", failed))
            break
        then, now = each(told.outcomes), each(outcomes(effects))
        if under is not None:
            settle(player.engine, told, then, now)
        if told.n < span.first:
            continue
        report.count(then, now)
        if under is not None:
            pairs.add(told.n, then, now)
        elif then != now:
            report.differences += differing(told.n, then, now, names)
    if under is not None:
        report.differences += pairs.differing()
    report.cut_off = recording.cut_off
    return report


def settle(engine: Engine, told: Told, then: Sequence[Outcome], now: Sequence[Outcome]) -> None:
    """Nobody will answer the binds that were not made then: they count as done. Nor will pods go
    that did not go then."""
    bound = {outcome.pods[0] for outcome in then if outcome.do == "Bind"}
    gone = {uid for outcome in then for uid in outcome.victims}
    for outcome in now:
        if outcome.do == "Bind" and outcome.pods[0] not in bound:
            engine.handle(on.BindDone(outcome.pods[0]), told.now)
        for uid in outcome.victims:
            if uid not in gone:
                engine.handle(on.VictimSpared(uid, "it was not deleted"), told.now)


def each(found: Sequence[Outcome]) -> list[Outcome]:
    """One outcome per pod."""
    return [replace(o, pods=(uid,)) for o in found for uid in o.pods or ("",)]


def differing(
    n: int, then: Sequence[Outcome], now: Sequence[Outcome], names: "Names"
) -> list[Difference]:
    """What one step decided otherwise, by pod."""
    before, after = by_pod(then), by_pod(now)
    found = [
        Difference(
            n, names.of(uid), names.words(before.get(uid, ())), names.words(after.get(uid, ()))
        )
        for uid in dict.fromkeys((*before, *after))
        if before.get(uid) != after.get(uid)
    ]
    order = Difference(n, "all", "the same decisions", "in another order")
    return found or [order]


def by_pod(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    pods: dict[str, list[Outcome]] = {}
    for outcome in found:
        pods.setdefault(outcome.pods[0], []).append(outcome)
    return pods


class Pairs:
    """Binds then and now, pod by pod: under other profiles they need not share a step."""

    def __init__(self, names: "Names") -> None:
        self._names = names
        self._then: dict[str, list[tuple[int, str]]] = {}
        self._now: dict[str, list[tuple[int, str]]] = {}
        self._last_then: dict[str, str] = {}  # by uid: the last refusal
        self._last_now: dict[str, str] = {}

    def add(self, n: int, then: Sequence[Outcome], now: Sequence[Outcome]) -> None:
        for found, binds, last in (
            (then, self._then, self._last_then),
            (now, self._now, self._last_now),
        ):
            for outcome in found:
                uid = outcome.pods[0]
                if outcome.do == "Bind":
                    binds.setdefault(uid, []).append((n, outcome.node))
                elif outcome.do != "Report":
                    last[uid] = self._names.word(outcome)

    def differing(self) -> list[Difference]:
        found, names = [], self._names
        for uid in dict.fromkeys((*self._then, *self._now)):
            before, after = self._then.get(uid, ()), self._now.get(uid, ())
            for then, now in zip_longest(before, after):
                if then is None:
                    words = (self._last_then.get(uid, NOTHING), now[1])
                    found.append(Difference(now[0], names.of(uid), *words))
                elif now is None:
                    words = (then[1], self._last_now.get(uid, NOTHING))
                    found.append(Difference(then[0], names.of(uid), *words))
                elif then[1] != now[1]:
                    found.append(Difference(then[0], names.of(uid), then[1], now[1]))
        return sorted(found, key=lambda difference: difference.event)


class Names:
    """What was decided, for people: with pods by their names."""

    def __init__(self, engine: Engine) -> None:
        pods = [waiter.pod for waiter, _ in engine.waiting.pods.values()]
        pods += [pod for pod, _ in engine.held.values()]
        pods += [waiter.pod for waiter in engine.assumed.values()]
        pods += [resident.pod for resident in engine.cluster.pods.values()]
        self._names = {pod.uid: pod.key for pod in pods}

    def hear(self, event: on.Event) -> None:
        if isinstance(event, on.PodSeen | on.PodExpected | on.PlaceWanted | on.BindAsked):
            self._names[event.pod.uid] = event.pod.key

    def of(self, uid: str) -> str:
        return self._names.get(uid, uid)

    def words(self, found: Sequence[Outcome]) -> str:
        """What was decided about a pod."""
        return "; ".join(map(self.word, found)) or NOTHING

    def word(self, outcome: Outcome) -> str:
        match outcome.do:
            case "Bind":
                picked = "" if outcome.picked is None else f" (picked {outcome.picked})"
                held = {device.id: None for held in outcome.held for device in held.devices}
                devices = f" with {', '.join(held)}" if held else ""
                return f"{outcome.node}{devices}{picked}"
            case "Refuse":
                reasons = [f"{count} {text}" for text, count in sorted(outcome.reasons.items())]
                node = f", nominated {outcome.nominated}" if outcome.nominated else ""
                return f"waits: {', '.join(reasons) or outcome.text}{node}"
            case "Preempt":
                return f"preempts {', '.join(map(self.of, outcome.victims))} on {outcome.node}"
            case "Park":
                return f"failed: {outcome.text}"
        return f"{outcome.do}: {outcome.text}"


# ---- the laws


class Checked(Struct, omit_defaults=True, rename="camel"):
    """The first step after which a law is broken; without one, all hold."""

    events: int
    ok: bool = True
    event: int | None = None  # its number; that of the snapshot is the step before the file
    on: str = ""
    what: Any = None  # the event itself
    broken: list[str] = []
    cut_off: bool = False


def check(recording: Recording, every: int = 1, known: Mapping[str, type] | None = None) -> Checked:
    """The laws on the snapshot, after every `every` steps, and at the end."""
    player, events = Player(recording, known=known), 0
    engine = player.engine
    laws = [*miscounted(recording.state, engine), *broken_laws(engine)]
    if laws:
        return Checked(0, False, recording.header.step, "snapshot", broken=laws)
    told: Told | None = None
    for told in recording.steps():
        events += 1
        try:
            laws = overfull(engine, player.hear(told))
        except Exception as error:
            laws = [f"the event could not be applied: {type(error).__name__}: {error}"]
        if not laws and events % every == 0:
            laws = broken_laws(engine)
        if laws:
            return _broken(events, told, laws)
    if told is not None and (laws := broken_laws(engine)):
        return _broken(events, told, laws)
    return Checked(events, cut_off=recording.cut_off)


def _broken(events: int, told: Told, laws: list[str]) -> Checked:
    what = msgspec.to_builtins(told.event)
    return Checked(events, False, told.n, type(told.event).__name__, what, laws)


def broken_laws(engine: Engine) -> list[str]:
    """The laws of the state, and that every pod is in one place."""
    found = broken(engine.cluster)
    cluster = engine.cluster
    places = Counter((*cluster.pods, *cluster.orphan_nodes, *engine.waiting.pods, *engine.held))
    found += [f"pod {uid} is in two places" for uid, count in places.items() if count > 1]
    homeless = [
        u for u in engine.assumed if u not in cluster.pods and u not in cluster.orphan_nodes
    ]
    found += [f"pod {uid} is assumed, but nowhere" for uid in homeless]
    return found


def overfull(engine: Engine, effects: Sequence[do.Effect]) -> list[str]:
    """Nothing is placed where less is free than it asks for, if the profile looks at that."""
    cluster, lacking = engine.cluster, dict[tuple[str, str], list[str]]()
    for effect in effects:
        if not isinstance(effect, do.Bind):
            continue
        pod, node = effect.placement.pod, effect.placement.node
        kept = cluster.holds.on(cluster.rows[node])  # since then; it may still be others'
        with cluster.trial() if kept else nullcontext():
            for held in kept:
                cluster.holds.release(held.uid)
            for name in chain(short(engine, pod, node), given(engine, effect.placement)):
                lacking.setdefault((node, name), []).append(pod.key)
    return [f"{node} lacks {name} for {', '.join(pods)}" for (node, name), pods in lacking.items()]


def short(engine: Engine, pod: Pod, node: str) -> Iterator[str]:
    """The resources of which the pod's node has less than nothing left."""
    cluster, profile = engine.cluster, engine.profiles.get(pod.scheduler)
    filters = () if profile is None else profile.filters  # none: another scheduler has decided
    fit = next((plugin for _, plugin in filters if plugin.name == FIT), None)
    if fit is not None and not getattr(fit, "_ignoring", False):
        free = cluster.free[cluster.rows[node]]
        for name, column in cluster.demand(pod.row).columns.items():
            if free[column] < 0:
                yield name


def given(engine: Engine, placement: do.Placement) -> Iterator[str]:
    """The devices of a placement of which more is held than there is."""
    cluster = engine.cluster
    row = cluster.rows[placement.node]
    holding = holding_of(placement.pod.row.devices, placement.held)
    for part in () if holding is None else holding.parts:
        table = cluster.pools.every().get(part.device_class)
        amiss = cluster.estates.is_amiss(part.id) if table is None else table.is_amiss(row, part.id)
        if amiss:
            yield f"{part.device_class} {part.id}"


def miscounted(state: State, engine: Engine) -> list[str]:
    """Where the free amounts of the snapshot are not what its nodes and pods leave."""
    found = []
    assert state.frame is not None
    for row in state.nodes:
        fresh = engine.cluster.free[row.row, : len(row.free)].tolist()
        for name, then, now in zip(state.frame.resources, row.free, fresh, strict=True):
            if then != now:
                found.append(f"free {name or 'score'} of {row.node.name} was {then}, not {now}")
    return found
