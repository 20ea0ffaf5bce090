"""An engine as values, and an engine from them that decides the same from then on.

What is counted or derived (free amounts, terms, kept verdicts) is not written down but made again;
only what history left behind is: who stands where, who waits in which group and in which order,
who rests until when. `take` gives it in parts of bounded size and changes nothing. Node rows keep
their numbers, because the reasons of a refusal name the first nodes by row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify
from itertools import islice
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.keeper import GRACE_S
from bayplan.core.engine.profile import Profile
from bayplan.core.model import events as on
from bayplan.core.model.groups import Patience
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Pod
from bayplan.core.model.verdicts import Help, Refusal
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.distrust import Distrust
from bayplan.core.state.waiting import Group, Rests, Waiter
from bayplan.scheduler import estates as of_estates
from bayplan.scheduler import keeping
from bayplan.scheduler.packing import pack, unpack

PART = 500  # values in one part, so that a line of the journal stays below a few MB
EVENTS: dict[str, type[Struct]] = {kind.__name__: kind for kind in get_args(on.Event)}
Sort = tuple[int | float, ...]
T = TypeVar("T")


class Frame(Struct):
    """What there is one of."""

    version: int
    generation: int  # of the terms
    height: int
    vacant: list[int]  # rows, in the order in which they became so
    resources: list[str]  # the names of the columns
    max_in_flight: int
    rests: Rests
    ticket: int
    order: Any  # what the order plugin remembers, packed
    grace_s: float = GRACE_S
    patience: Patience = Patience()
    day_s: float = 0.0  # of the last Tick


class Row(Struct):
    row: int
    node: Node
    free: list[int]  # by column; made again on the way back, and held against this


class Fact(Struct):
    """Something of the cluster that an event can tell again."""

    on: str
    event: Raw


class Place(Struct):
    node: str
    pod: Pod


class Hold(Struct):
    pod: Pod
    why: str


class Expectation(Struct):
    """A pod that another scheduler may bring, with what is held for it."""

    node: str
    pod: Pod
    until: float


class Doubt(Struct):
    """What is remembered of a kubelet that refused a pod."""

    node: str
    resource: str
    distrust: Distrust


class Wait(Struct, omit_defaults=True):
    """A pod that waits in a group, or whose bind is in flight (group -1)."""

    pod: Pod
    sort: Sort
    arrival: int
    group: int = -1
    generation: int = -1
    attempts: int = 0
    rested_at: float = 0.0
    told: list[str] = []


class WaitGroup(Struct, omit_defaults=True):
    """A group of waiting pods, without its members."""

    key: Any  # packed
    told: list[str] = []
    newcomers: list[str] = []
    refusal: Refusal | None = None
    announced: Sort | None = None
    sleeps_until: float = 0.0
    alarm_at: float = -1.0
    since: float = -1.0
    partial: float = -1.0
    refused: float = -1.0
    kept: float = -1.0
    awaits: int = 0
    hopeless: bool = False
    awake: list[tuple[Sort, int, str]] = []
    resting: list[tuple[float, int, str]] = []


class State(Struct, omit_defaults=True, tag="state"):
    """A part of a snapshot; put together, all of it."""

    frame: Frame | None = None
    nodes: list[Row] = []
    facts: list[Fact] = []
    placed: list[Place] = []
    orphans: list[Pod] = []
    unreadable: list[tuple[str, str]] = []  # uid, node
    doubts: list[Doubt] = []
    counted: list[tuple[str, list[str]]] = []  # node, uids that are in what its zones say
    held: list[Hold] = []
    expected: list[Expectation] = []
    kept: list[keeping.Kept] = []
    estates: list[of_estates.Told] = []
    partitions: of_estates.Unsettled | None = None
    promised: keeping.Promised | None = None
    doomed: list[tuple[str, list[str]]] = []  # uid of a victim, whom it goes for
    # An owner of places; whose end they wait for, and whether they were lent to that one.
    awaited: list[tuple[str, dict[str, bool]]] = []
    spared: list[tuple[str, float]] = []  # uid of a pod that is left alone, till when
    assumed: list[Wait] = []
    groups: list[WaitGroup] = []
    waiting: list[Wait] = []
    ready: list[tuple[Sort, int, int]] = []  # sort key, ticket, group
    timers: list[tuple[float, int, int, int]] = []  # when, ticket, group, kind
    listed: list[tuple[Help, int]] = []  # groups by what could help them
    complete: bool = False  # the last part says so

    def add(self, part: "State") -> None:
        self.frame = part.frame or self.frame
        self.partitions = part.partitions or self.partitions
        self.promised = part.promised or self.promised
        self.complete = part.complete
        for name in LISTS:
            getattr(self, name).extend(getattr(part, name))


SINGLE = ("frame", "partitions", "promised", "complete")
LISTS = tuple(name for name in State.__struct_fields__ if name not in SINGLE)


# ---- the way there


def take(engine: Engine) -> Iterator[State]:
    """The engine's state in parts. Nothing may change it meanwhile."""
    cluster, queue = engine.cluster, engine.waiting
    number = {key: i for i, key in enumerate(queue.groups)}
    yield State(frame=_frame(engine))
    yield from _parts("nodes", _rows(cluster))
    yield from _parts("facts", map(_fact, facts(cluster)))
    places = (Place(cluster.name(at.row), at.pod) for at in cluster.pods.values())
    yield from _parts("placed", places)
    orphans = (pod for pods in cluster.orphans.values() for pod in pods.values())
    yield from _parts("orphans", orphans)
    yield from _parts("unreadable", engine.unreadable.items())
    doubts = cluster.distrusted.nodes.items()
    yield from _parts("doubts", (Doubt(n, r, d) for n, kept in doubts for r, d in kept.items()))
    counted = cluster.zones.counted.items()
    yield from _parts("counted", ((node, sorted(uids)) for node, uids in counted))
    yield from _parts("held", (Hold(pod, why) for pod, why in engine.held.values()))
    yield from _parts("expected", _expected(engine))
    yield from _parts("kept", keeping.kept(engine))
    yield from _parts("estates", of_estates.told(engine))
    if cluster.estates.lines:
        yield State(partitions=of_estates.Unsettled.of(engine.keeper))
    if engine.promises.is_kept or engine.promises.count:
        yield State(promised=keeping.Promised.of(engine))
    doomed = engine.nominations.doomed.items()
    yield from _parts("doomed", ((uid, list(owners)) for uid, owners in doomed))
    yield from _parts("awaited", engine.nominations.awaited.items())
    yield from _parts("spared", engine.nominations.spared.items())
    yield from _parts("assumed", (_wait(waiter, -1) for waiter in engine.assumed.values()))
    yield from _parts("groups", map(_wait_group, queue.groups.values()))
    members = (_wait(waiter, number[group.key]) for waiter, group in queue.pods.values())
    yield from _parts("waiting", members)
    # Entries of groups that are gone mean nothing any more.
    ready = ((sort, n, number[each.key]) for sort, n, each in queue._ready if each.members)
    yield from _parts("ready", ready)
    timers = ((at, n, number[key], kind) for at, n, key, kind in queue._timers if key in number)
    yield from _parts("timers", timers)
    listed = ((kind, number[key]) for kind, keys in queue._by_kind.items() for key in keys)
    yield from _parts("listed", listed)
    yield State(complete=True)


def facts(cluster: Cluster) -> Iterator[on.Event]:
    """What the cluster knows beside nodes and pods, as the events that would tell it again."""
    storage = cluster.storage
    for name, labels in cluster.terms.namespaces.items():
        yield on.NamespaceSeen(name, labels)
    for name, resource in cluster.device_classes.resources.items():
        yield on.DeviceClassSeen(name, resource)
    yield on.StorageClassesHidden(storage.classes_are_hidden)
    yield from map(on.StorageClassSeen, storage.classes.values())
    yield from map(on.VolumeSeen, storage.volumes.values())
    yield from map(on.ClaimSeen, storage.claims.values())
    yield from map(on.BudgetSeen, cluster.budgets.by_key.values())
    yield from map(on.TopologySeen, cluster.zones.topologies.values())
    yield from map(on.GroupSeen, cluster.groups.by_source.values())


def _expected(engine: Engine) -> Iterator[Expectation]:
    cluster, holds = engine.cluster, engine.cluster.holds
    for uid, until in engine.offers.until.items():
        row = holds.rows.get(uid)
        if row is not None:
            yield Expectation(cluster.name(row), holds.pods[row][uid], until)


def _parts(name: str, values: Iterable[Any]) -> Iterator[State]:
    rest = iter(values)
    while some := list(islice(rest, PART)):
        part = State()
        setattr(part, name, some)
        yield part


def _frame(engine: Engine) -> Frame:
    cluster = engine.cluster
    return Frame(
        version=cluster.version,
        generation=cluster.terms.generation,
        height=cluster.height,
        vacant=cluster.vacant,
        resources=cluster.resources,
        max_in_flight=engine.max_in_flight,
        rests=engine.waiting.rests,
        ticket=engine.waiting._ticket,
        grace_s=engine.keeper.grace_s,
        patience=engine.patience,
        day_s=cluster.uses.day_s,
        order=_packable(vars(engine.order)) if hasattr(engine.order, "__dict__") else None,
    )


def _packable(attributes: dict[str, Any]) -> dict[str, Any]:
    """Those that can be written down; the others stay as the plugin makes them."""
    found = {}
    for name, value in attributes.items():
        try:
            found[name] = pack(value)
        except TypeError:
            continue
    return found


def _rows(cluster: Cluster) -> Iterator[Row]:
    width = len(cluster.resources)
    for row in sorted(cluster.rows.values()):
        node = cluster.nodes[row]
        assert node is not None
        yield Row(row, node, cluster.free[row, :width].tolist())


def _fact(event: on.Event) -> Fact:
    return Fact(type(event).__name__, Raw(msgspec.json.encode(event)))


def _wait(waiter: Waiter, group: int) -> Wait:
    return Wait(
        pod=waiter.pod,
        sort=waiter.sort,
        arrival=waiter.arrival,
        group=group,
        generation=waiter.generation,
        attempts=waiter.attempts,
        rested_at=waiter.rested_at,
        told=sorted(waiter.told),
    )


def _wait_group(group: Group) -> WaitGroup:
    return WaitGroup(
        key=pack(group.key),
        told=sorted(group.told),
        newcomers=list(group.newcomers),
        refusal=group.refusal,
        announced=group.announced,
        sleeps_until=group.sleeps_until,
        alarm_at=group.alarm_at,
        since=group.since,
        partial=group.partial,
        refused=group.refused,
        kept=group.kept,
        awaits=group.awaits,
        hopeless=group.hopeless,
        awake=group.awake,
        resting=group.resting,
    )


# ---- the way back


def restore(state: State, profiles: Sequence[Profile]) -> Engine:
    """An engine that decides as the one did that the state was taken of."""
    engine, frame = _with_facts(state, profiles)
    for hold in state.held:
        engine.held[hold.pod.uid] = (hold.pod, hold.why)
    _restore_queue(engine, state)
    keeping.restore_nominations(engine, state)
    for name, value in (frame.order or {}).items():
        setattr(engine.order, name, unpack(value))
    terms = engine.cluster.terms
    terms.generation, engine.cluster.version = frame.generation, frame.version
    for waiter, _ in engine.waiting.pods.values():
        if waiter.generation == terms.generation:
            waiter.concerning = terms.concerning(waiter.pod)
    return engine


def restore_under(state: State, profiles: Sequence[Profile], now: float) -> Engine:
    """The same cluster under other profiles: whoever waits joins their queue anew, in order."""
    engine, _ = _with_facts(state, profiles)
    for wait in sorted(state.waiting, key=lambda wait: wait.arrival):
        engine.handle(on.PodSeen(wait.pod), now)
    for hold in state.held:
        engine.handle(on.PodSeen(hold.pod), now)
    return engine


def _with_facts(state: State, profiles: Sequence[Profile]) -> tuple[Engine, Frame]:
    """An engine that knows the cluster, and where nobody waits yet."""
    frame = state.frame
    assert frame is not None
    keep = keeper()
    engine = Engine(
        profiles,
        max_in_flight=frame.max_in_flight,
        rests=frame.rests,
        grace_s=frame.grace_s,
        patience=frame.patience,
    )
    engine.cluster.uses.day_s = frame.day_s
    _restore_rows(engine.cluster, frame, state.nodes)
    of_estates.restore(engine, state.estates, state.partitions)
    for fact in state.facts:
        engine.handle(event_of(fact.on, fact.event), 0.0)
    for place in state.placed:
        engine.cluster.place(keep(place.pod), place.node)
    for orphan in state.orphans:
        engine.cluster.place(keep(orphan), orphan.node)
    for uid, node in state.unreadable:
        engine._close(uid, node)
    for each in state.expected:
        engine.cluster.holds.hold(keep(each.pod), engine.cluster.rows[each.node])
        engine.offers.until[each.pod.uid] = each.until
    for doubt in state.doubts:
        engine.cluster.distrusted.put(doubt.node, doubt.resource, doubt.distrust)
    for name, uids in state.counted:
        engine.cluster.zones.count(name, frozenset(uids))
    for wait in state.assumed:
        keep(wait.pod)
        engine.assume(_waiter(wait))
    for wait in state.waiting:
        keep(wait.pod)
    keeping.restore_promises(engine, state.promised)
    return engine, frame


def _restore_rows(cluster: Cluster, frame: Frame, rows: list[Row]) -> None:
    """The nodes on the rows that they had. Who holds a row open goes again."""
    columns = Node("\0columns", "", allocatable=dict.fromkeys(filter(None, frame.resources), 0))
    cluster.add_node(columns)  # resources get their columns in the order of first sight
    cluster.remove_node(columns.name)
    nodes = {row.row: row.node for row in rows}
    for row in range(frame.height):
        cluster.add_node(nodes.get(row) or Node(f"\0{row}", ""))
    cluster.add_node(Node("\0last", ""))  # so that no vacant row is the last one when it goes
    for row in frame.vacant:
        cluster.remove_node(f"\0{row}")
    cluster.remove_node("\0last")


def _restore_queue(engine: Engine, state: State) -> None:
    assert state.frame is not None
    queue = engine.waiting  # others hold it too
    groups = [_group(each) for each in state.groups]
    queue.groups = {group.key: group for group in groups}
    for wait in state.waiting:
        waiter, group = _waiter(wait), groups[wait.group]
        if wait.pod.terms is not None:
            waiter.own = engine.cluster.acquire_terms(wait.pod.terms)
        group.members[wait.pod.uid] = waiter
        queue.pods[wait.pod.uid] = (waiter, group)
    queue._ready = [(sort, n, groups[i]) for sort, n, i in state.ready]
    queue._timers = [(at, n, groups[i].key, kind) for at, n, i, kind in state.timers]
    heapify(queue._ready)
    heapify(queue._timers)
    for kind, i in state.listed:
        queue._by_kind[kind][groups[i].key] = None
    queue.asleep = sum(group.refusal is not None for group in groups)
    queue._ticket = state.frame.ticket


def _group(saved: WaitGroup) -> Group:
    group = Group(unpack(saved.key))
    group.told = frozenset(saved.told)
    group.newcomers = dict.fromkeys(saved.newcomers)
    group.refusal = saved.refusal
    group.announced = saved.announced
    group.sleeps_until = saved.sleeps_until
    group.alarm_at = saved.alarm_at
    group.since, group.partial, group.refused = saved.since, saved.partial, saved.refused
    group.kept, group.awaits, group.hopeless = saved.kept, saved.awaits, saved.hopeless
    group.awake = list(saved.awake)
    group.resting = list(saved.resting)
    return group


def _waiter(wait: Wait) -> Waiter:
    return Waiter(
        pod=wait.pod,
        sort=wait.sort,
        arrival=wait.arrival,
        generation=wait.generation,
        attempts=wait.attempts,
        rested_at=wait.rested_at,
        told=frozenset(wait.told),
    )


def keeper() -> Callable[[Pod], Pod]:
    """Gives pods with equal row keys, terms, gangs and so on the same one, as the reader does."""
    kept: dict[Any, Any] = {}

    def keep(pod: Pod) -> Pod:
        force_setattr(pod, "row", kept.setdefault(pod.row, pod.row))
        if pod.terms is not None:
            force_setattr(pod, "terms", kept.setdefault(pod.terms, pod.terms))
        if pod.gang is not None:
            force_setattr(pod, "gang", kept.setdefault(pod.gang, pod.gang))
        if pod.worker is not None:
            force_setattr(pod, "worker", kept.setdefault(pod.worker, pod.worker))
        if not pod.lifecycle.checkpoint_s:  # a pod's own
            force_setattr(pod, "lifecycle", kept.setdefault(pod.lifecycle, pod.lifecycle))
        return pod

    return keep


def event_of(name: str, raw: Raw) -> on.Event:
    """The event with this name; a KeyError where no event is called so."""
    found: on.Event = _DECODERS[name].decode(raw)
    return found


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in EVENTS.items()
}
