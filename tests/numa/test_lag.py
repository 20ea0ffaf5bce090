"""What is published lags behind: whatever we place, the kubelet admits, however late it comes."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.core.model import effects as do
from bayplan.core.model import events as on
from bayplan.core.model.fingerprint import fingerprint
from bayplan.core.model.numa import Topology, Zone
from bayplan.core.model.pods import Pod, ZoneAsk
from bayplan.core.state.laws import broken
from bayplan.scheduler.snapshot import State, restore, take
from bayplan.testing.world import World, pod
from tests.numa.kubelet import Kubelet

EXAMPLES = int(
    os.environ.get("BAYPLAN_EXAMPLES") or (5_000 if os.environ.get("BAYPLAN_PROVE") else 150)
)
GPU = "x.io/gpu"
SMALL = ({"cpu": 4000, GPU: 2}, {"cpu": 8000, GPU: 0})


def amounts(**asked: int) -> tuple[tuple[str, int], ...]:
    named = {"cpu": 1000 * asked.get("cpu", 0), GPU: asked.get("gpus", 0)}
    return tuple(sorted((name, amount) for name, amount in named.items() if amount))


class Place:
    """One node with an exporter, its kubelet, and us. The kubelet admits in the order of binds."""

    def __init__(
        self, zones: Sequence[dict[str, int]], policy: Any, scope: Any, *, signs: bool, dates: bool
    ) -> None:
        self.kubelet = Kubelet(zones, policy, scope)
        self.signs, self.dates = signs, dates
        self.world = World(binds="hold")
        self.world.node("a", gpus=0, allocatable={GPU: 99})
        self.wall = 1000.0
        self.pods: dict[str, Pod] = {}  # that the kubelet has admitted
        self.scanned: list[tuple[Topology, float]] = []
        self.binds = self.made = 0  # binds that the kubelet has seen, pods that were made
        self.refused: list[str] = []
        self.scan()
        self.publish()

    def submit(self, name: str, asks: tuple[ZoneAsk, ...]) -> None:
        self.made += 1
        uid = f"uid-{name}-{self.made}"
        self.world.see(pod(name, uid=uid, aligned=asks, guaranteed=True))

    @property
    def bound(self) -> list[Pod]:
        """The pods that the kubelet has not seen yet, in the order of their binds."""
        binds = [each for each in self.world.effects if isinstance(each, do.Bind)]
        return [each.placement.pod for each in binds[self.binds :]]

    def start(self) -> None:
        """The kubelet sees the next pod, and the API hears of its start, in whole seconds."""
        if not self.bound:
            return
        given = self.bound[0]
        self.binds += 1
        self.world.tell(on.BindDone(given.uid))
        if not self.kubelet.admits(given.name, given.row):
            self.refused.append(given.name)
            self.world.tell(on.PodGone(given.uid))
            return
        self.pods[given.name] = replace(given, node="a", started_s=float(int(self.wall)))
        self.world.see(self.pods[given.name])

    def end(self, name: str) -> None:
        self.kubelet.ends(name)
        self.world.tell(on.PodGone(self.pods.pop(name).uid))

    def scan(self) -> None:
        """The exporter looks; what it saw is written later."""
        zones = tuple(
            Zone(f"z{i}", i, tuple(sorted(there.items())), tuple(sorted(free.items())))
            for i, (there, free) in enumerate(
                zip(self.kubelet.there, self.kubelet.free, strict=True)
            )
        )
        signed = fingerprint((each.namespace, each.name) for each in self.pods.values())
        policy: Any = self.kubelet.policy
        scope: Any = self.kubelet.scope
        seen = Topology("a", policy, scope, zones, signed if self.signs else "")
        self.scanned.append((seen, self.wall))

    def publish(self) -> None:
        """The oldest that was not written yet; an exporter is not slower than 8 seconds."""
        if self.scanned:
            seen, at = self.scanned.pop(0)
            self.wall = max(self.wall, at)
            written = float(int(min(self.wall, at + 8))) if self.dates else 0.0
            self.world.tell(on.TopologySeen(replace(seen, written_s=written)))

    def wait(self, seconds: float) -> None:
        late = [at for _, at in self.scanned if at + 8 < self.wall + seconds]
        for _ in late:
            self.publish()
        self.wall += seconds


@pytest.mark.parametrize("signs", [True, False])
def test_a_burst_against_news_that_never_come_overdraws_no_zone(signs: bool) -> None:
    zones = ({"cpu": 8000}, {"cpu": 8000})
    here = Place(zones, "single-numa-node", "container", signs=signs, dates=True)
    for number in range(10):
        here.submit(f"p{number}", (ZoneAsk(amounts(cpu=3)),))

    assert len(here.world.running()) == 2  # 9 cpus in either zone would be too many
    assert set(here.world.waiting().values()) == {
        "0/1 nodes are available: 1 cannot align container."
    }

    while here.bound:
        here.start()
    here.wait(20)
    here.scan()
    here.publish()

    assert len(here.world.running()) == 4  # both are in the lower zone, and the upper has 8
    while here.bound:
        here.start()
    assert here.refused == []


def test_a_fingerprint_counts_at_once_and_a_date_after_a_while() -> None:
    for signs, counted in ((True, True), (False, False)):
        here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=signs, dates=True)
        here.submit("p", (ZoneAsk(amounts(cpu=4)),))
        here.start()
        here.scan()
        here.publish()
        zones = here.world.engine.cluster.zones
        here.world.tick()

        assert ("a" in zones.counted) is counted
        assert zones.free("a") == ({"cpu": 4000 if counted else 0},)

        here.wait(20)
        here.scan()
        here.publish()

        assert zones.free("a") == ({"cpu": 4000},)


@pytest.mark.parametrize("signed", ["", "of other pods"])
def test_what_stays_as_it_is_for_three_minutes_has_counted_who_started_before(signed: str) -> None:
    """An exporter that sees nothing new changes nothing, and its fingerprint may have pods that
    ended. The clocks of nodes are not all the same."""
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=False, dates=True)
    here.submit("p", (ZoneAsk(amounts(cpu=4)),))
    here.wall += 4
    here.start()
    here.wall -= 4  # the node's clock is ahead
    here.scan()
    here.scanned = [(replace(seen, fingerprint=signed), at) for seen, at in here.scanned]
    here.publish()
    here.submit("q", (ZoneAsk(amounts(cpu=4)),))
    here.world.tick()
    zones = here.world.engine.cluster.zones

    assert (zones.next_s, zones.free("a")) == (1184.0, ({"cpu": 0},))

    state = State()
    for part in take(here.world.engine):
        state.add(part)
    again = restore(state, list(here.world.engine.profiles.values()))
    for engine in (here.world.engine, again):
        engine.handle(on.Tick(day_s=1183.0), 2.0)
        assert not engine.cluster.zones.counted
        assert engine.next_time(2.0) == 3.0
        (bind,) = engine.handle(on.Tick(day_s=1184.0), 3.0)
        assert isinstance(bind, do.Bind)
        assert engine.cluster.zones.counted == {"a": frozenset({"uid-p-1"})}


def test_a_date_alone_wakes_nobody() -> None:
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=False, dates=True)
    zones = here.world.engine.cluster.zones
    seen = zones.topologies["a"]

    assert not zones.publish("a", replace(seen, written_s=2000.0, fingerprint="other"))
    assert zones.publish("a", replace(seen, policy="none"))


def test_pods_that_no_zone_matters_to_are_looked_at_only_where_somebody_is_not_counted() -> None:
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=True, dates=True)
    zones = here.world.engine.cluster.zones
    here.world.submit("plain", node="a", started_s=1.0)

    assert not zones.unsure

    here.submit("p", (ZoneAsk(amounts(cpu=4)),))
    here.start()
    here.world.tick()
    assert zones.free("a") == ({"cpu": 4000},)
    assert not zones.counted  # `plain` is not in the fingerprint

    here.scan()
    here.publish()
    here.world.tell(on.PodGone("uid-plain"))

    assert zones.counted == {"a": frozenset({"uid-p-1"})}


def test_without_a_date_what_comes_after_the_start_counts() -> None:
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=False, dates=False)
    here.submit("p", (ZoneAsk(amounts(cpu=4)),))
    here.scan()
    here.start()
    zones = here.world.engine.cluster.zones

    assert zones.free("a") == ({"cpu": 4000},)  # not counted, so it is taken in every zone
    assert not zones.counted

    here.scanned.clear()
    here.scan()
    here.publish()

    assert zones.counted == {"a": frozenset({"uid-p-1"})}
    assert zones.free("a") == ({"cpu": 4000},)


def test_a_dropped_trial_leaves_zones_as_they_were() -> None:
    """The laws look at the state after every trial; here is one that does everything."""
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=True, dates=True)
    here.submit("p", (ZoneAsk(amounts(cpu=4)),))
    here.start()
    cluster = here.world.engine.cluster
    topology = cluster.zones.topologies["a"]
    before = cluster.zones.free("a")
    with cluster.trial():
        cluster.place(pod("q", aligned=(ZoneAsk(amounts(cpu=2)),)), "a")
        assert cluster.zones.free("a") == ({"cpu": 2000},)
        cluster.zones.publish("a", replace(topology, fingerprint="other"))
        cluster.remove("uid-p-1")
        cluster.zones.publish("a", None)
        cluster.remove_node("a")

    assert cluster.zones.free("a") == before


def test_a_snapshot_knows_who_is_counted() -> None:
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=True, dates=True)
    here.submit("p", (ZoneAsk(amounts(cpu=4)),))
    here.start()
    here.scan()
    here.publish()
    here.submit("q", (ZoneAsk(amounts(cpu=1)),))
    engine, state = here.world.engine, State()
    for part in take(engine):
        state.add(part)

    again = restore(state, list(engine.profiles.values())).cluster.zones

    assert again.counted == {"a": frozenset({"uid-p-1"})} == engine.cluster.zones.counted
    assert again.free("a") == ({"cpu": 3000},) == engine.cluster.zones.free("a")


def test_a_pod_under_an_old_name_is_another() -> None:
    """As of a StatefulSet: what is published has the name already, and the old pod's zone."""
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=True, dates=True)
    here.submit("web-0", (ZoneAsk(amounts(cpu=2)),))
    here.start()
    here.wait(20)
    here.scan()
    here.publish()
    here.wait(20)
    here.end("web-0")
    here.submit("web-0", (ZoneAsk(amounts(cpu=5)),))
    here.start()
    here.world.tick()

    assert here.world.engine.cluster.zones.free("a") == ({"cpu": 1000},)  # 6 published, less 5


def test_a_start_that_is_heard_late_counts_all_the_same() -> None:
    here = Place(({"cpu": 8000},), "single-numa-node", "pod", signs=True, dates=True)
    here.submit("p", (ZoneAsk(amounts(cpu=4)),))
    given = here.bound[0]
    here.pods["p"] = replace(given, node="a", started_s=here.wall)
    here.kubelet.admits("p", given.row)
    here.scan()
    here.publish()
    here.world.see(replace(given, node="a"))  # bound, as the API says
    zones = here.world.engine.cluster.zones

    assert zones.free("a") == ({"cpu": 0},)

    here.world.see(here.pods["p"])

    assert zones.free("a") == ({"cpu": 4000},)


def test_containers_that_might_go_elsewhere_wait_until_it_is_known() -> None:
    """The pod `q` may be in either zone. Were it in the upper one, the kubelet would put the first
    container into the lower one, and the second would not get its device there any more."""
    zones = ({"cpu": 8000, GPU: 1}, {"cpu": 12000})
    here = Place(zones, "single-numa-node", "container", signs=True, dates=True)
    here.submit("q", (ZoneAsk(amounts(cpu=4)),))
    here.submit("p", (ZoneAsk(amounts(cpu=5)), ZoneAsk(amounts(cpu=4, gpus=1))))

    assert set(here.world.waiting()) == {"p"}

    here.start()
    here.scan()
    here.publish()

    here.world.wait(2)  # the pod rests after it was refused

    assert here.world.waiting() == {}  # it is in the lower zone: the first goes to the upper one
    here.start()
    assert here.refused == []


def test_an_init_container_that_might_go_elsewhere_waits_until_it_is_known() -> None:
    """The pod `q` may be in either zone. Were it in the upper one, the init container would go to
    the lower one, where the other would not find the device that it asks for beside cpus."""
    zones = ({"cpu": 8000}, {"cpu": 12000, GPU: 1})
    here = Place(zones, "single-numa-node", "container", signs=True, dates=True)
    here.submit("q", (ZoneAsk(amounts(cpu=4)),))
    here.submit("p", (ZoneAsk(amounts(cpu=5), "init"), ZoneAsk(amounts(cpu=4, gpus=1))))

    assert set(here.world.waiting()) == {"p"}

    here.start()
    here.scan()
    here.publish()
    here.world.wait(2)

    assert here.world.waiting() == {}  # `q` is in the lower one, and five cpus are not left there
    here.start()
    assert here.refused == []


@st.composite
def asked(draw: st.DrawFn) -> tuple[ZoneAsk, ...]:
    count = draw(st.sampled_from((1, 1, 1, 2)))
    found = [
        amounts(cpu=draw(st.integers(1, 5)), gpus=draw(st.integers(0, 2))) for _ in range(count)
    ]
    first = draw(st.sampled_from(("main", "init"))) if count > 1 else "main"
    phases: list[Any] = [first, "main"][-count:] if count > 1 else [first]
    return tuple(ZoneAsk(each, phase) for each, phase in zip(found, phases, strict=True))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), asked()),
        st.tuples(st.sampled_from(("start", "scan", "publish", "end", "again")), st.none()),
        st.tuples(st.just("wait"), st.sampled_from((0.3, 2.0, 20.0))),
    ),
    max_size=40,
)


@settings(max_examples=EXAMPLES)
@given(
    STEPS,
    st.sampled_from(("single-numa-node", "restricted")),
    st.sampled_from(("container", "pod")),
    st.booleans(),
)
def test_the_kubelet_admits_whatever_we_place(
    steps: list[tuple[str, Any]], policy: str, scope: str, signs: bool
) -> None:
    asks = [detail for step, detail in steps if step == "submit"]
    if policy == "restricted":  # how wider sets are shared out is a guess
        steps = [each for each in steps if each[0] != "submit" or len(each[1]) == 1]
    here = Place(SMALL, policy, scope, signs=signs, dates=True)
    for number, (step, detail) in enumerate(steps):
        match step:
            case "submit":
                here.submit(f"p{number}", detail)
            case "end" | "again" if here.pods:
                name = next(iter(here.pods))
                here.end(name)
                if step == "again" and asks:  # under the same name, perhaps of another size
                    here.submit(name, asks[number % len(asks)][:1])
            case "wait":
                here.wait(detail)
            case "start" | "scan" | "publish":
                getattr(here, step)()
    while here.bound:
        here.start()

    assert here.refused == []
    assert broken(here.world.engine.cluster) == []
