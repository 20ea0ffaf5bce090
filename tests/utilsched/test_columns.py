"""The columns that are kept say what columns made afresh would say, inside trials and after."""

from collections import OrderedDict

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from bayplan.core.devices.usecolumns import Columns, columns_of
from bayplan.core.model import events as on
from bayplan.core.model.utilisation import NodeUse, PodUse
from bayplan.core.plugins.hooks import Ask
from bayplan.core.plugins.utilsched import UtilSched, UtilSchedArgs
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.laws import broken, picture
from bayplan.core.state.view import View
from bayplan.testing import World
from bayplan.testing.world import node, pod
from tests.utilsched.clusters import GIB, carded, device, used, world

DAY_S = 1_767_225_600.0

NAMES = st.sampled_from([f"n{i}" for i in range(5)])
USES = st.none() | st.lists(st.tuples(st.integers(0, 11), st.integers(0, 100)), max_size=3).map(
    lambda found: used(*(device(i, percent) for i, percent in dict(found).items()))
)


def shown(columns: Columns, cluster: Cluster) -> dict[str, object]:
    found = {}
    for name, value in vars(columns).items():
        if isinstance(value, np.ndarray):
            column = value[: cluster.height]
            width = max(int(columns.there[: cluster.height].max(initial=0)), 1)
            found[name] = (column[:, :width] if column.ndim > 1 else column).tolist()
    return found


def agrees(cluster: Cluster) -> bool:
    """What is kept, of columns and of answers, against the same made afresh."""
    uses = cluster.uses
    kept = (shown(columns_of(cluster), cluster), said(cluster))
    before, uses.columns, uses.answers = (uses.columns, uses.answers), None, OrderedDict()
    afresh = (shown(columns_of(cluster), cluster), said(cluster))
    uses.columns, uses.answers = before
    return kept == afresh


def said(cluster: Cluster) -> list[object]:
    """What every row says to some pods."""
    found: list[object] = []
    for mode in ("corrected", "faithful"):
        plugin = UtilSched(UtilSchedArgs(mode, close_above=1024))
        for newcomer in (pod("p", gpus=1), pod("q", gpus=2, use=PodUse(40))):
            ask, view = Ask(newcomer, cluster.demand(newcomer.row)), View(cluster)
            answers = (plugin.refuse(ask, view), plugin.score(ask, view))
            found += [None if each is None else each.tolist() for each in answers]
    return found


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world: World = world(carded("n0", NodeUse(2, "Tesla K80", 12)), closeAbove=0.5)
        self.world.now = DAY_S
        self.count = 0

    @rule(seconds=st.sampled_from((1, 31, 60, 91)))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(name=NAMES, use=USES, count=st.integers(0, 12), publishes=st.booleans())
    def see_node(self, name: str, use: NodeUse | None, count: int, publishes: bool) -> None:
        made = carded(name, use, count) if publishes else node(name, count, use=use)
        self.world.tell(on.NodeSeen(made))

    @rule(name=NAMES, use=USES)
    def measure(self, name: str, use: NodeUse | None) -> None:
        self.world.tell(on.UseSeen(name, use))

    @rule(name=NAMES, gib=st.integers(0, 12))
    def measure_now(self, name: str, gib: int) -> None:
        timed = device(0, 50, used=gib * GIB, at=self.world.now)
        self.world.tell(on.UseSeen(name, used(timed, device(1))))

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.world.tell(on.NodeGone(name))

    @rule(gpus=st.integers(0, 3), percent=st.none() | st.integers(0, 100))
    def submit(self, gpus: int, percent: int | None) -> None:
        self.count += 1
        use = None if percent is None else PodUse(percent, cpu_percent=percent)
        self.world.submit(f"p{self.count}", gpus=gpus, use=use)

    @rule(at=st.integers(0, 20), percent=st.integers(0, 100))
    def profile(self, at: int, percent: int) -> None:
        placed = sorted(self.world.engine.cluster.pods)
        if placed:
            uid = placed[at % len(placed)]
            found = self.world.engine.cluster.pods[uid]
            name = self.world.engine.cluster.name(found.row)
            self.world.see(replace(found.pod, node=name, use=PodUse(percent)))

    @rule(at=st.integers(0, 20))
    def finish(self, at: int) -> None:
        if self.count:
            self.world.finish(f"p{at % self.count + 1}")

    @rule(name=NAMES, use=USES, gpus=st.integers(0, 2))
    def try_and_drop(self, name: str, use: NodeUse | None, gpus: int) -> None:
        cluster = self.world.engine.cluster
        before = picture(cluster)
        with cluster.trial():
            cluster.place(pod("tried", gpus=gpus, use=PodUse(7)), name)
            assert agrees(cluster)
            if name in cluster.rows:
                cluster.note_use(cluster.rows[name], use)
                assert agrees(cluster)
                cluster.holds.hold(pod("kept", gpus=1), cluster.rows[name])
                assert agrees(cluster)
        assert picture(cluster) == before

    @invariant()
    def kept_is_as_afresh(self) -> None:
        assert agrees(self.world.engine.cluster)
        assert broken(self.world.engine.cluster) == []


TestChanges = Changes.TestCase
TestChanges.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_measures_touch_nothing_but_what_reads_them() -> None:
    made = World(a=8, b=8)  # the default profile
    made.submit("p", gpus=1)
    cluster = made.engine.cluster
    logs = (cluster.static_log.head, cluster.load_log.head, cluster.victim_log.head)
    for percent in range(20):
        made.tell(on.UseSeen("a", used(device(0, percent))))
        made.tell(on.NodeSeen(node("a", 8, use=used(device(0, percent + 50)))))
    assert (cluster.static_log.head, cluster.load_log.head, cluster.victim_log.head) == logs
    assert cluster.uses.columns is None


def test_a_node_that_is_not_known_has_no_use() -> None:
    made = World(a=8)
    made.tell(on.UseSeen("nowhere", used(device(0, 1))))
    assert made.engine.cluster.rows == {"a": 0}


def test_pods_of_a_kind_are_counted_by_what_they_use() -> None:
    """Not one by one: there may be thousands, and each decision asks for the most."""
    made = World(a=64)
    uses = made.engine.cluster.uses
    for i in range(20):
        made.see(pod(f"p{i}", gpus=1, node="a", use=PodUse(10 + i % 2, cpu_percent=i)))
    assert [len(counts) for counts in next(iter(uses.by_kind.values())).values()] == [2, 1, 1]
    assert uses.most(pod("q", gpus=1)) == PodUse(11)
    for i in range(1, 20, 2):
        made.finish(f"p{i}")
    assert uses.most(pod("q", gpus=1)) == PodUse(10)
    assert uses.most(pod("q", gpus=2)) is None
    for i in range(0, 20, 2):
        made.finish(f"p{i}")
    assert uses.by_kind == {}


def test_profiled_pods_touch_nothing_but_what_reads_them() -> None:
    """Every half minute each pod on a card is annotated: nobody waiting is looked at again, and no
    row of the default profile."""
    made = World(a=8)
    for i in range(8):
        made.submit(f"p{i}", gpus=1)
    made.submit("waits", gpus=8)
    engine, cluster = made.engine, made.engine.cluster
    logs = (cluster.static_log.head, cluster.load_log.head, cluster.victim_log.head)
    residents = [each.pod for each in cluster.pods.values()]
    asleep = engine.waiting.asleep
    for percent in range(20):
        for resident in residents:
            profiled = replace(resident, node="a", use=PodUse(percent, percent, 100, 5, 5))
            assert engine.handle(on.PodSeen(profiled), made.now) == []
        assert engine.handle(on.UseSeen("a", used(device(0, percent))), made.now) == []
        assert engine.waiting.next(made.now) is None
    assert engine.waiting.asleep == asleep
    assert (cluster.static_log.head, cluster.load_log.head, cluster.victim_log.head) == logs
    assert cluster.uses.columns is None


def test_answers_of_columns_that_are_gone_count_no_more() -> None:
    """The cluster has more rows than when they were asked."""
    made = world(carded("n0", used(device(0))))
    before = said(made.engine.cluster)
    rows = len(made.engine.cluster.nodes)
    for i in range(1, rows + 2):
        made.tell(on.NodeSeen(carded(f"n{i}", used(device(0, 90)))))
    assert len(made.engine.cluster.nodes) > rows
    assert said(made.engine.cluster) != before
    assert agrees(made.engine.cluster)
