"""What another scheduler is offered: every answer against an oracle that counts by hand, and no
question leaves a trace."""

import os
from collections.abc import Callable, Sequence
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from bayplan.core.engine.engine import Engine
from bayplan.core.engine.offers import LASTS_S, UNKNOWN_NODE
from bayplan.core.engine.profile import Profile
from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.devices import CORE
from bayplan.core.model.nodes import Node
from bayplan.core.model.pods import Holding, Part, Pod
from bayplan.core.plugins.registry import installed
from bayplan.core.state.laws import broken, picture
from bayplan.extender.service import profile
from bayplan.testing import world
from tests.conftest import differences
from tests.devices.side_by_side import Cells, Machine, legal, machine

KINDS = {"a": "inf2.24xlarge", "b": "inf2.24xlarge", "t": "trn1.32xlarge", "u": "inf1.6xlarge"}
MACHINES = {name: machine(kind) for name, kind in KINDS.items()}
few = settings(max_examples=int(os.environ.get("BAYPLAN_EXAMPLES", "40")))
NOBODY = frozenset[tuple[int, int]]()


def node(name: str) -> Node:
    on_it = MACHINES[name]
    devices, cores = len(on_it.indexes), len(on_it.everything)
    return world.node(name, gpus=0, **world.neurons(KINDS[name], devices, cores))


def made(*names: str, policy: str = "binpack") -> Engine:
    engine = Engine([Profile(profile(policy), installed())])
    for name in names:
        engine.handle(on.NodeSeen(node(name)), 0.0)
    return engine


class Guest(Struct, frozen=True):
    """Somebody who has devices on a node."""

    name: str
    node: str
    devices: tuple[int, ...]
    priority: int = 0
    unknown: bool = False  # nobody knows which

    @property
    def pod(self) -> Pod:
        asks = world.asks(neurons=max(len(self.devices), 1))
        parts = tuple(Part("neuron", f"#{i}", whole=True) for i in self.devices)
        held = Holding((), ("neuron",)) if self.unknown else Holding(parts)
        return world.pod(self.name, devices=asks, node=self.node, held=held, priority=self.priority)

    @property
    def cells(self) -> Cells:
        on_it = MACHINES[self.node]
        if self.unknown:
            return on_it.everything
        return frozenset(chain.from_iterable(map(on_it.device, self.devices)))


def wanting(name: str, amount: int, kind: str = "neurons", **facts: int) -> Pod:
    asked = world.asks(cores=amount) if kind == "cores" else world.asks(neurons=amount)
    return world.pod(name, devices=asked, **facts)


def kind_of(pod: Pod) -> tuple[str, int]:
    (ask,) = pod.row.devices
    return ask.kind, ask.amount


def fits(pod: Pod, on_it: Machine, used: Cells) -> bool:
    return any(not way & used for way in legal(on_it, *kind_of(pod)))


def held_cells(engine: Engine, name: str, without: str = "") -> Cells:
    """What is held on a node for pods that are expected."""
    found: set[tuple[int, int]] = set()
    on_it, cluster = MACHINES[name], engine.cluster
    for pod in cluster.holds.on(cluster.rows[name]):
        assert pod.held is not None
        for part in pod.held.parts if pod.uid != without else ():
            if part.id.startswith(CORE):
                found.add(divmod(int(part.id[len(CORE) :]), on_it.cores))
            else:
                found |= on_it.device(int(part.id.removeprefix("#")))
    return frozenset(found)


@st.composite
def guests(draw: st.DrawFn) -> list[Guest]:
    """Nodes that are more or less full, with pods of some devices each."""
    found: list[Guest] = []
    for name, on_it in MACHINES.items():
        left = list(on_it.indexes)
        while left and bool(draw(st.integers(0, 3))):
            size: int = min(draw(st.sampled_from((1, 1, 2, 4))), len(left))
            skip: int = draw(st.integers(0, len(left) - size))
            mine, left = tuple(left[skip : skip + size]), left[skip + size :]
            priority = draw(st.integers(0, 3))
            found.append(Guest(f"g{len(found)}", name, mine, priority))
        if not draw(st.integers(0, 9)):
            found.append(Guest(f"g{len(found)}", name, (), draw(st.integers(0, 3)), unknown=True))
    return found


sizes = st.tuples(
    st.sampled_from(("neurons", "neurons", "cores")), st.sampled_from((1, 1, 2, 3, 4, 5, 6, 8, 16))
)


def filled(found: Sequence[Guest], expected: Sequence[tuple[str, int]] = ()) -> Engine:
    """The guests in their places; others that passed filter just now."""
    engine = made(*MACHINES)
    for guest in found:
        engine.handle(on.PodSeen(guest.pod), 0.0)
    for i, (kind, amount) in enumerate(expected):
        pod = wanting(f"e{i}", amount, kind)
        best = engine.offers.filter(pod, list(MACHINES)).best
        if best:
            engine.handle(on.PodExpected(pod, best), 0.0)
    assert broken(engine.cluster) == []
    return engine


def used_on(name: str, found: Sequence[Guest], but: Sequence[str] = ()) -> Cells:
    return NOBODY.union(*(g.cells for g in found if g.node == name and g.name not in but))


def unchanged(engine: Engine, ask: Callable[[], object]) -> None:
    before, until = picture(engine.cluster), dict(engine.offers.until)
    ask()
    assert "; ".join(differences(before, picture(engine.cluster))) == ""
    assert engine.offers.until == until
    assert not engine.assumed


# ---- filter


@few
@given(guests(), st.lists(sizes, max_size=5), sizes)
def test_a_filter_is_what_is_left_beside_pods_and_those_expected(
    found: list[Guest], expected: list[tuple[str, int]], size: tuple[str, int]
) -> None:
    engine, pod = filled(found, expected), wanting("p", size[1], size[0])
    names = ["?", *MACHINES, "!"]
    answer = engine.offers.filter(pod, names)
    room = {name: held_cells(engine, name) | used_on(name, found) for name in MACHINES}
    wanted = [name for name in MACHINES if fits(pod, MACHINES[name], room[name])]
    can = {name: bool(legal(MACHINES[name], *kind_of(pod))) for name in MACHINES}
    closed = {guest.node for guest in found if guest.unknown}

    assert answer.passed == wanted
    assert answer.refused.keys() | answer.hopeless.keys() == set(names) - set(wanted)
    assert not answer.refused.keys() & answer.hopeless.keys()
    assert {answer.refused[name] for name in "?!"} == {UNKNOWN_NODE}
    for name in set(MACHINES) - set(wanted):
        if name in closed:  # who is there must go first, whatever it wants
            assert "devices that are not known" in answer.refused[name]
        elif can[name]:
            assert "no free devices side by side" in answer.refused[name]
        else:
            what, unit = size[1], "device" if size[0] == "neurons" else "core"
            assert answer.hopeless[name] == (
                f"Instance type {KINDS[name]} does not support requests for {unit}: {what}. "
                f"Please request a different number of {unit}s."
            )
    soon = any(fits(pod, MACHINES[name], used_on(name, found)) for name in MACHINES)
    assert answer.soon == (not wanted and soon)
    scores = engine.offers.scores(pod, names).tolist()
    assert answer.scores().tolist() == [
        s for name, s in zip(names, scores, strict=True) if name in wanted
    ]
    assert answer.best == (max(wanted, key=lambda name: order(engine, pod, name)) if wanted else "")
    assert all(0 <= score <= 100 for score in scores)
    assert not any(s for name, s in zip(names, scores, strict=True) if name not in wanted)
    unchanged(engine, lambda: engine.offers.filter(pod, names))
    unchanged(engine, lambda: engine.offers.scores(pod, names))


def order(engine: Engine, pod: Pod, name: str) -> tuple[int, bool]:
    """The score; of equal ones, the one that the answer names."""
    (score,) = engine.offers.scores(pod, [name]).tolist()
    return score, name == engine.offers.filter(pod, list(MACHINES)).best


def test_no_names_and_no_nodes() -> None:
    engine, pod = made("a"), wanting("p", 1)
    assert engine.offers.filter(pod, []).passed == []
    assert engine.offers.scores(pod, []).tolist() == []
    answer = made().offers.filter(pod, ["a"])
    assert (answer.passed, answer.refused, answer.soon) == ([], {"a": UNKNOWN_NODE}, False)
    assert made().offers.scores(pod, ["a"]).tolist() == [0]


@few
@given(guests(), sizes)
def test_its_own_hold_is_not_in_its_way(found: list[Guest], size: tuple[str, int]) -> None:
    engine, pod, names = filled(found), wanting("p", size[1], size[0]), list(MACHINES)
    before = engine.offers.scores(pod, names).tolist()
    best = engine.offers.filter(pod, names).best
    if best:
        engine.handle(on.PodExpected(pod, best), 0.0)
        assert held_cells(engine, best)
    assert engine.offers.scores(pod, names).tolist() == before


def test_the_fuller_node_is_better_and_a_row_is_kept_whole() -> None:
    engine = made("a", "b")
    engine.handle(on.PodSeen(Guest("g", "b", (0, 1, 2)).pod), 0.0)
    a, b = engine.offers.scores(wanting("p", 1), ["a", "b"])
    assert a < b
    a, b = engine.offers.scores(wanting("p", 3), ["a", "b"])
    assert a < b >= 95  # nothing is left over
    rows = made("t")
    rows.handle(on.PodSeen(Guest("g", "t", (4,)).pod), 0.0)
    assert bound(rows, wanting("p", 1), "t") == {5}
    spread = made("a", "b", policy="spread")
    spread.handle(on.PodSeen(Guest("g", "b", (0, 1, 2)).pod), 0.0)
    a, b = spread.offers.scores(wanting("p", 1), ["a", "b"])
    assert a > b


# ---- how long something is held


def ends() -> dict[str, Callable[[Engine, Pod], None]]:
    def after(engine: Engine, pod: Pod) -> None:
        engine.handle(on.Tick(), LASTS_S)

    def bound_here(engine: Engine, pod: Pod) -> None:
        engine.handle(on.BindAsked(pod, "u"), 1.0)

    def bound_by_another(engine: Engine, pod: Pod) -> None:
        engine.handle(on.PodSeen(world.pod(pod.name, uid=pod.uid, node="u")), 1.0)

    return {
        "after 2 s": after,
        "after 2 s, at the next question": lambda e, p: e.handle(on.PodNotExpected("x"), LASTS_S),
        "bound": bound_here,
        "bound by another": bound_by_another,
        "bound where nobody knows": lambda e, p: e.handle(
            on.PodSeen(world.pod(p.name, uid=p.uid, node="?")), 1.0
        ),
        "refused a bind": lambda e, p: e.handle(on.BindAsked(p, "?"), 1.0),
        "filtered again": lambda e, p: e.handle(on.PodNotExpected(p.uid), 1.0),
        "expected elsewhere": lambda e, p: e.handle(on.PodExpected(p, "u"), 1.0),
        "deleted": lambda e, p: e.handle(on.PodGone(p.uid), 1.0),
        "not to be read": lambda e, p: e.handle(on.PodUnreadable(p.uid, ""), 1.0),
        "its node goes": lambda e, p: e.handle(on.NodeGone("a"), 1.0),
        "its node is another": lambda e, p: e.handle(
            on.NodeSeen(Node("a", "new", {}, {}, pools=node("a").pools)), 1.0
        ),
    }


@pytest.mark.parametrize("end", list(ends()))
def test_a_hold_ends(end: str) -> None:
    engine, pod = made("a", "u"), wanting("p", 4)
    engine.handle(on.PodExpected(pod, "a"), 0.0)
    other = wanting("other", 6)
    engine.handle(on.Tick(), LASTS_S - 0.01)
    engine.handle(on.NodeSeen(node("a")), 0.0)
    assert len(held_cells(engine, "a")) == 8
    answer = engine.offers.filter(other, ["a"])
    assert (answer.passed, answer.soon) == ([], True)

    ends()[end](engine, pod)

    if "a" in engine.cluster.rows:
        assert held_cells(engine, "a") == NOBODY
        assert engine.offers.filter(other, ["a"]).passed == ["a"]
    if "node" in end:
        engine.handle(on.Tick(), LASTS_S)
    assert list(engine.offers.until) == (["uid-p"] if end == "expected elsewhere" else [])
    assert broken(engine.cluster) == []


def test_nothing_is_held_for_a_pod_that_is_there_or_does_not_fit() -> None:
    engine, pod = made("a", "b"), wanting("p", 4)
    engine.handle(on.BindAsked(pod, "a"), 0.0)
    engine.handle(on.PodExpected(pod, "b"), 0.0)
    engine.handle(on.PodExpected(wanting("large", 3), "a"), 0.0)
    engine.handle(on.PodExpected(wanting("lost", 1), "?"), 0.0)
    assert engine.offers.until == {}
    engine.handle(on.NodeGone("a"), 0.0)  # it waits for its node to come back
    engine.handle(on.PodExpected(pod, "b"), 0.0)
    assert engine.offers.until == {}
    engine.handle(on.NodeSeen(node("a")), 0.0)
    assert broken(engine.cluster) == []


# ---- bind


def bound(engine: Engine, pod: Pod, name: str) -> set[int] | str:
    """The devices that it is given, or why not."""
    (effect,) = engine.handle(on.BindAsked(pod, name), 1.0)
    if isinstance(effect, do.Refuse):
        return effect.refusal.message
    assert isinstance(effect, do.Bind)
    return {device.index for held in effect.placement.held for device in held.devices}


@few
@given(guests(), st.lists(sizes, max_size=5), sizes, st.sampled_from(list(MACHINES)))
def test_a_bind_fails_only_if_nothing_fits_there(
    found: list[Guest], expected: list[tuple[str, int]], size: tuple[str, int], name: str
) -> None:
    engine, pod = filled(found, expected), wanting("p", size[1], size[0])
    used, held = used_on(name, found), held_cells(engine, name)
    before = set(engine.cluster.holds.rows)
    here = {each.uid for each in engine.cluster.holds.on(engine.cluster.rows[name])}
    given_ = bound(engine, pod, name)
    after = set(engine.cluster.holds.rows)

    assert isinstance(given_, set) == fits(pod, MACHINES[name], used)
    assert engine.offers.until.keys() == after
    assert broken(engine.cluster) == []
    if isinstance(given_, str):
        assert given_
        assert after == before
        return
    on_it, by_core = MACHINES[name], size[0] == "cores"
    cells = (
        frozenset(divmod(i, on_it.cores) for i in given_)
        if by_core
        else NOBODY.union(*map(on_it.device, given_))
    )
    assert cells in legal(on_it, *kind_of(pod))
    assert not cells & used
    if fits(pod, on_it, used | held):  # then nobody else need give way
        assert not cells & held
        assert after == before
    else:
        assert after == before - here
    engine.handle(on.BindFailed(pod.uid, "conflict"), 1.5)
    assert pod.uid not in engine.cluster.pods
    assert engine.offers.filter(pod, [name]).passed == [name]


# ---- preempt


@few
@given(
    guests(),
    st.lists(sizes, max_size=4),
    sizes,
    st.sampled_from((4, 4, 4, 2, 0)),
    st.sampled_from(list(MACHINES)),
    st.data(),
)
def test_victims_are_enough_and_none_of_those_added_can_be_spared(
    found: list[Guest],
    expected: list[tuple[str, int]],
    size: tuple[str, int],
    priority: int,
    name: str,
    data: st.DataObject,
) -> None:
    engine = filled(found, expected)
    pod, on_it = wanting("p", size[1], size[0], priority=priority), MACHINES[name]
    here = [guest for guest in found if guest.node == name]
    lower = [guest for guest in here if guest.priority < priority]
    given_ = data.draw(st.lists(st.sampled_from(lower), unique=True, max_size=1)) if lower else []
    uids = [f"uid-{guest.name}" for guest in given_] + ["elsewhere"]
    engine.handle(on.PodExpected(pod, name), 0.0)
    victims = engine.offers.victims(pod, name, uids)
    unchanged(engine, lambda: engine.offers.victims(pod, name, uids))

    def fits_without(gone: list[str]) -> bool:
        return fits(pod, on_it, used_on(name, found, gone))

    if victims is None:
        assert not fits_without([guest.name for guest in lower])
        return
    names = [uid.removeprefix("uid-") for uid in victims]
    assert victims[: len(uids)] == uids
    added = names[len(uids) :]
    assert len(set(names)) == len(names)
    assert set(added) <= {guest.name for guest in lower}
    assert fits_without(names)
    for one in added:
        assert not fits_without([each for each in names if each != one])


def test_the_least_important_go_first() -> None:
    engine = made("a")
    for i, priority in enumerate((3, 1, 2)):
        engine.handle(on.PodSeen(Guest(f"g{i}", "a", (2 * i, 2 * i + 1), priority).pod), 0.0)
    assert engine.offers.victims(wanting("p", 2, priority=9), "a", []) == ["uid-g1"]
    more = engine.offers.victims(wanting("p", 3, priority=9), "a", [])
    assert more is not None
    assert sorted(more) == ["uid-g1", "uid-g2"]
    assert engine.offers.victims(wanting("p", 2, priority=1), "a", []) is None
    assert engine.offers.victims(wanting("p", 2, priority=9), "?", []) is None


def test_who_has_no_such_devices_is_no_victim() -> None:
    engine = made("a")
    engine.handle(on.PodSeen(Guest("g", "a", tuple(range(6)), 5).pod), 0.0)
    engine.handle(on.PodSeen(world.pod("web", node="a")), 0.0)
    engine.handle(on.PodSeen(world.pod("gpu", gpus=1, node="a")), 0.0)
    assert engine.offers.victims(wanting("p", 1, priority=5), "a", ["uid-web"]) is None
    assert engine.offers.victims(wanting("p", 1, priority=6), "a", ["uid-web"]) == [
        "uid-web",
        "uid-g",
    ]


def test_nobody_is_evicted_for_a_pod_that_is_only_expected() -> None:
    """What is held is over in 2 s; an eviction is not."""
    engine = made("a")
    engine.handle(on.PodSeen(Guest("g", "a", (0, 1), 0).pod), 0.0)
    engine.handle(on.PodSeen(Guest("h", "a", (2, 3), 0).pod), 0.0)
    engine.handle(on.PodExpected(wanting("e", 2), "a"), 0.0)
    assert engine.offers.victims(wanting("p", 4, priority=1), "a", ["uid-h"]) == ["uid-h"]


def test_where_a_pod_cannot_be_read_nothing_more_is_given() -> None:
    """What it holds is not known any more, and it still holds it."""
    engine = made("a")
    guest = Guest("g", "a", (0, 1, 2, 3, 4, 5)).pod
    engine.handle(on.PodSeen(guest), 0.0)
    engine.handle(on.PodUnreadable(guest.uid, "a"), 0.0)
    found = engine.offers.filter(wanting("p", 1), ["a"])
    refused = engine.handle(on.BindAsked(wanting("p", 1), "a"), 0.0)

    assert found.passed == []
    assert isinstance(refused[0], do.Refuse)
    assert isinstance(engine.handle(on.BindAsked(world.pod("plain"), "a"), 0.0)[0], do.Bind)
    engine.handle(on.PodGone(guest.uid), 1.0)
    assert engine.offers.filter(wanting("p", 1), ["a"]).passed == ["a"]
