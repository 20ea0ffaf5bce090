"""The corrected mode, worked out by hand from its formula; devices in use out of band."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.core.engine.profile import Profile, ProfileError
from bayplan.core.model import events as on
from bayplan.core.model.pods import Holding, Part
from bayplan.core.model.utilisation import AGE_S, DeviceUse, NodeUse, PodUse
from bayplan.core.plugins.utilsched import CLOSED, Weights
from bayplan.testing.world import asks, node, pod
from tests.utilsched.clusters import GIB, K80, carded, device, profile, scores, used, world

DAY_S = 1_767_225_600.0
IDLE = used(device(0), device(1))
ALL = {"out_of_band": 1 << 20}  # no use is too much to be a pod's
BUSY = used(device(0, 88, 66, 11 * GIB), device(1, 88, 66, 11 * GIB))


def test_an_idle_node_scores_100_and_a_busy_one_57() -> None:
    """Busy: idle (2·88 + 66 + 91)/4 = 83 used, 17 left; with the pod 91 %, so 100 − 45 = 55.
    1/5 · 100 basic + 2/5 · (3·17 + 100)/4 + 2/5 · 55 = 57."""
    made = world(carded("idle", IDLE), carded("busy", BUSY))
    assert scores(made, pod("p", gpus=1), **ALL) == {"idle": 100, "busy": 57}


def test_what_the_pod_is_known_to_use_comes_on_top() -> None:
    """With 50 % more: 50 % on the idle node, so 75; 138 % on the busy one, so 150 − 138 = 12."""
    made = world(carded("idle", IDLE), carded("busy", BUSY))
    known = pod("p", gpus=1, use=PodUse(gpu_percent=50))
    assert scores(made, known, **ALL) == {"idle": 90, "busy": 39}


def test_memory_that_would_not_be_there_counts_like_compute() -> None:
    """9 of 12 GiB are 75 %: on a node with 3 GiB in use 100 %, with 6 GiB 125 %."""
    made = world(
        carded("fits", used(device(0, used=3 * GIB), device(1, used=3 * GIB))),
        carded("short", used(device(0, used=6 * GIB), device(1, used=6 * GIB))),
    )
    found = scores(made, pod("p", gpus=1, use=PodUse(gpu_memory_mib=9 * GIB)), out_of_band=9 * GIB)
    fits, short = 6 * 94 + 8 * 50, 6 * 88 + 8 * 25
    assert found == {"fits": (400 + fits + 200) // 20, "short": (400 + short + 200) // 20}


def test_pods_of_its_kind_say_what_a_pod_will_use() -> None:
    made = world(carded("a", IDLE), carded("b", BUSY))

    def on_b(**facts: Any) -> int:
        return scores(made, pod("next", gpus=1, **facts), **ALL)["b"]

    before = on_b()
    made.see(pod("first", gpus=1, node="a", use=PodUse(50)))
    known = on_b()
    assert known < before
    assert on_b(namespace="red") == on_b(cpu=1000) == before

    made.see(pod("first", gpus=1, node="a", use=PodUse(20)))
    assert known < on_b() < before
    made.finish("first")
    assert on_b() == before


def test_a_share_is_known_to_use_what_it_asks_for() -> None:
    half = used(device(0, 60), device(1, 60))
    made = world(carded("half", half))
    little = scores(made, pod("p", devices=asks(mib=GIB, percent=30)))
    much = scores(made, pod("p", devices=asks(mib=GIB, percent=60)))
    assert much["half"] < little["half"]


def test_as_many_of_the_best_devices_count_as_the_pod_asks_for() -> None:
    made = world(carded("mixed", used(device(0), device(1, 88, 66, 11 * GIB))))
    one = scores(made, pod("p", gpus=1), **ALL)
    two = scores(made, pod("p", gpus=2), **ALL)
    assert one == {"mixed": 100}
    assert two == {"mixed": (400 + (1400 + 542) // 2 + 200) // 20}


def test_a_device_that_a_pod_holds_is_not_counted_for_another() -> None:
    made = world(carded("a", used(device(0), device(1, 88, 66))))
    made.submit("holds", gpus=1)
    assert made.devices["holds"] == ["GPU-a0"]
    assert scores(made, pod("p", gpus=1))["a"] < 90


def test_what_pods_use_of_cpus_and_memory_counts() -> None:
    made = world(carded("a", IDLE), carded("b", IDLE))
    made.see(pod("hungry", node="b", use=PodUse(cpu_percent=3200, memory_mib=256 * GIB)))
    # half of 64 cores and of 512 GiB: an eighth of the utilisation's two parts of five
    assert scores(made, pod("p", gpus=1)) == {"a": 100, "b": 95}


def test_better_machines_score_higher() -> None:
    h100 = NodeUse(2, "NVIDIA H100 80GB HBM3", 80, 5, 16, IDLE.devices)
    made = world(carded("old", IDLE), carded("new", h100), carded("unknown", None))
    found = scores(made, pod("p", gpus=1), weights=Weights(1, 0, 0))
    assert found == {"old": (100 + 6 + 41) // 3, "new": 100, "unknown": (100 + 50 + 50) // 3}


def test_what_nobody_has_measured_is_half_used() -> None:
    made = world(carded("idle", IDLE), carded("unknown", None), carded("busy", BUSY))
    found = scores(made, pod("p", gpus=1))
    assert found["busy"] < found["unknown"] < found["idle"]


def test_pods_that_ask_for_no_device_are_left_to_the_other_scores() -> None:
    assert scores(world(carded("a", IDLE)), pod("p")) == {}


PERCENT = st.integers(0, 100)
DEVICE = st.builds(
    DeviceUse,
    st.just(0),
    st.integers(-1, 100),
    st.integers(-1, 100),
    st.integers(-1, 12 * GIB),
    st.integers(-1, 12 * GIB),
    st.sampled_from((0.0, DAY_S, DAY_S - 89, DAY_S - 91)),
)
USES = st.lists(DEVICE, max_size=4).map(
    lambda found: used(*(replace(each, index=i) for i, each in enumerate(found)))
)
POD_USES = st.builds(
    PodUse, *(st.integers(-1, most) for most in (100, 100, 1 << 30, 10**5, 1 << 30))
)


@given(
    st.lists(st.none() | USES, min_size=1, max_size=4),
    st.none() | POD_USES,
    st.integers(0, 4),
    st.sampled_from(("corrected", "faithful")),
)
def test_scores_are_within_bounds_whatever_is_said(
    uses: list[NodeUse | None], of_pod: PodUse | None, gpus: int, mode: Any
) -> None:
    made = world(*(carded(f"n{i}", use, 4) for i, use in enumerate(uses)))
    made.engine.cluster.uses.day_s = DAY_S
    found = scores(made, pod("p", gpus=gpus, use=of_pod), mode=mode)
    assert all(0 <= score <= 100 for score in found.values())


@given(
    st.lists(st.tuples(PERCENT, PERCENT, PERCENT), min_size=1, max_size=4),
    st.integers(0, 3),
    st.tuples(PERCENT, PERCENT, PERCENT),
    st.none() | POD_USES,
    st.integers(1, 4),
)
def test_more_use_never_scores_higher(
    devices: list[tuple[int, int, int]],
    at: int,
    more: tuple[int, int, int],
    of_pod: PodUse | None,
    gpus: int,
) -> None:
    at %= len(devices)
    higher = list(devices)
    higher[at] = tuple(map(max, devices[at], more))  # type: ignore[assignment]
    newcomer = pod("p", gpus=gpus, use=of_pod)
    found = []
    for each in (devices, higher):
        use = used(*(device(i, g, c, 100 * m, of=100 * 100) for i, (g, c, m) in enumerate(each)))
        made = world(carded("a", use, len(devices)), carded("b", IDLE))
        found.append(scores(made, newcomer)["a"])
    assert found[1] <= found[0]


# ---- age


def test_what_is_older_than_three_periods_counts_for_nothing() -> None:
    def at(seconds: float) -> NodeUse:
        return used(*(replace(each, at_s=seconds) for each in BUSY.devices))

    made = world(
        carded("fresh", at(DAY_S - AGE_S)),
        carded("stale", at(DAY_S - AGE_S - 1)),
        carded("untimed", at(0.0)),
        carded("unknown", used(DeviceUse(0), DeviceUse(1))),
    )
    made.now = DAY_S
    made.tick()
    found = scores(made, pod("p", gpus=1), **ALL)
    assert found["fresh"] == found["untimed"] == 57
    assert found["stale"] == found["unknown"] > 57


# ---- devices that nobody known uses

STRANGE = used(device(0, used=4 * GIB), device(1))


def test_a_device_that_nobody_known_uses_scores_nothing() -> None:
    idle, strange = scores(
        world(carded("a", IDLE), carded("b", STRANGE)), pod("p", gpus=2)
    ).values()
    assert strange == (400 + 1400 // 2 + 200) // 20 < idle


def test_little_memory_is_the_drivers() -> None:
    made = world(carded("a", used(device(0, used=512), device(1, used=512))))
    assert scores(made, pod("p", gpus=2))["a"] > 95


def test_a_device_that_a_pod_holds_is_used_by_it() -> None:
    made = world(carded("a", used(device(0, used=4 * GIB), device(1)), 2), closeAbove=1024)
    made.submit("p", gpus=1)
    assert made.waiting()["p"] == f"0/1 nodes are available: 1 {CLOSED}."
    made.see(pod("q", gpus=1, node="a", priority=1, **held("GPU-a0")))
    made.wait(10)
    assert made.running() == {"p": "a"}


def held(*ids: str) -> dict[str, Any]:
    return {"held": Holding(tuple(Part("nvidia", each, whole=True) for each in ids))}


@pytest.mark.parametrize(
    ("limit", "closed"), [(3072, True), (3073, False), (0.25, True), (0.26, False)]
)
def test_a_node_can_be_closed_above_so_much(limit: float, closed: bool) -> None:
    """4GB are 3073 MiB at the least."""
    made = world(carded("a", STRANGE), closeAbove=limit)
    made.submit("p", gpus=1)
    made.submit("plain")
    assert ("p" in made.waiting()) == closed
    assert "plain" in made.running()


def test_a_closed_node_opens_when_other_use_is_measured() -> None:
    made = world(carded("a", STRANGE), closeAbove=1024)
    made.submit("p", gpus=1)
    assert "p" in made.waiting()
    made.wait(30)
    made.tell(on.UseSeen("a", IDLE))
    made.wait(10)
    assert made.running() == {"p": "a"}


def test_a_closed_node_opens_when_the_measure_is_too_old() -> None:
    late = used(device(0, used=4 * GIB, at=DAY_S), device(1, at=DAY_S))
    made = world(carded("a", late), closeAbove=1024)
    made.now = DAY_S
    made.submit("p", gpus=1)
    assert "p" in made.waiting()
    made.wait(60)
    opens = made.engine.next_time(made.now)
    made.wait(30)
    assert "p" in made.waiting()
    made.wait(0.001)
    assert made.running() == {"p": "a"}
    assert opens == pytest.approx(DAY_S + AGE_S, abs=0.001)


def test_without_an_inventory_a_node_is_only_known_as_a_whole() -> None:
    """Nobody can say which device a pod has there, so any pod with devices may be the one."""
    made = world(node("a", 2, use=STRANGE), closeAbove=1024)
    made.submit("p", gpus=1)
    assert "p" in made.waiting()
    made.see(pod("q", gpus=1, node="a"))
    made.wait(10)
    assert made.running() == {"p": "a"}


def test_nothing_is_preempted_for_a_closed_node() -> None:
    made = world(carded("a", STRANGE), closeAbove=1024)
    made.see(pod("low", gpus=1, node="a", **held("GPU-a1")))
    made.submit("high", gpus=2, priority=100)
    assert "high" in made.waiting()
    assert not [each for each in made.effects if type(each).__name__ == "Preempt"]


def test_preemption_works_beside_it() -> None:
    made = world(carded("a", used(device(0, 90, 90, GIB), device(1))), closeAbove=8 * GIB)
    for i in range(2):
        made.see(pod(f"low-{i}", gpus=1, node="a", **held(f"GPU-a{i}")))
    made.submit("high", gpus=1, priority=100)
    assert [each for each in made.effects if type(each).__name__ == "Preempt"]


@pytest.mark.parametrize(
    "args",
    [
        {"mode": "other"},
        {"closeAbove": 0},
        {"closeAbove": -1},
        {"outOfBand": -1},
        {"weights": {"basic": 0, "utilisation": 0, "allocated": 0}},
        {"weights": {"basic": 101}},
        {"unknown": 1},
    ],
    ids=str,
)
def test_arguments_are_checked(args: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        Profile(profile(**args))


def test_pods_with_other_labels_wait_as_one() -> None:
    made = world(carded("a", K80))
    for i in range(3):
        made.submit(f"p{i}", gpus=8, labels={"index": str(i)})
    assert len(made.engine.waiting.groups) == 1
