"""What the agent's profiler writes is what UtilSched reads: the same texts, devices and times."""

from typing import Any

from bayplan.agent.profile import TIMESTAMP, Seen, Usage, node_annotations, pod_annotations, stamp
from bayplan.agent.samples import Card, OnCard
from bayplan.core.model import events as on
from bayplan.core.model.utilisation import AGE_S, DeviceUse, NodeUse, PodUse
from bayplan.kube.profiles import pod_use
from bayplan.testing.world import pod
from tests.utilsched.clusters import carded, scores, world
from tests.utilsched.test_nodefeed import Feed

MIB, GIB = 1 << 20, 1 << 30
NOW_S = 1_767_268_800.0


def card(index: int, used: int = 0, pcie: str = "1x16", pids: tuple[int, ...] = ()) -> Card:
    processes = tuple(OnCard(pid, 11_094 * MIB) for pid in pids)
    return Card(f"GPU-{index}", index, "Tesla K80", 12 * GIB, used, pcie, processes=processes)


def read(found: dict[int, Seen], at_s: float, **others: Any) -> tuple[NodeUse | None, list[str]]:
    """As the scheduler has it, and what it found wrong."""
    feed = Feed()
    feed.clock.now += NOW_S - feed.clock.wall()
    notes = {**node_annotations(found), TIMESTAMP: stamp(at_s), **others}
    (event,) = feed.node(**{key.partition("/")[2]: text for key, text in notes.items()})
    assert isinstance(event, on.NodeSeen)
    return event.node.use, feed.words


def test_a_node_is_read_as_it_was_written() -> None:
    found = {
        0: Seen(card(0, 11_200 * MIB, pids=(18_477,)), 88, 66, 10.0),
        3: Seen(card(3), 0, 0, None),
        10: Seen(card(10), None, None, None),  # cut into slices
    }
    assert read(found, NOW_S - 60) == (
        NodeUse(
            3,
            "Tesla K80",
            12,
            1,
            16,
            (
                DeviceUse(0, 88, 66, 11 * 1024, 1024, NOW_S - 60),
                DeviceUse(3, 0, 0, 0, 12 * 1024, NOW_S - 60),
                DeviceUse(10, -1, -1, 0, 12 * 1024, NOW_S - 60),
            ),
        ),
        [],
    )


def test_what_a_card_does_not_say_is_no_trouble() -> None:
    bare = Card("GPU-0", 0, "", 12 * GIB, 0)
    use, words = read({0: Seen(bare, None, None, None)}, NOW_S)
    assert words == []
    assert use is not None
    assert (use.count, use.pcie_gen) == (1, 0)


def test_a_pod_is_read_as_it_was_written() -> None:
    seen = {2: Seen(card(2, 11_200 * MIB, pids=(7, 8)), 88, 66, None)}
    texts = pod_annotations("gpu-1.example", seen, frozenset({7}), Usage(150.25, 2048.5, 1.0, 2.0))
    words: list[str] = []
    use = pod_use(
        texts | {TIMESTAMP: stamp(NOW_S)}, lambda field, why: words.append(f"{field}: {why}")
    )
    assert use == PodUse(88, 66, 11_094, 150, 2048)
    assert words == []


def score(used: int, gpu: int, at_s: float) -> int:
    use, _ = read({0: Seen(card(0, used), gpu, 0, None)}, at_s)
    made = world(carded("n", use, 1))
    made.engine.handle(on.Tick(day_s=NOW_S), 0.0)
    return scores(made, pod("p", gpus=1))["n"]


def test_what_is_written_counts_until_it_is_too_old() -> None:
    idle, busy = score(0, 0, NOW_S), score(0, 100, NOW_S)
    unknown = score(0, 0, NOW_S - AGE_S - 1)
    assert busy < unknown < idle
    assert score(0, 100, NOW_S - AGE_S - 1) == unknown
    assert score(0, 100, NOW_S - AGE_S) == busy


def test_a_rounded_gigabyte_is_no_use_out_of_band() -> None:
    """A megabyte of a driver's is written as 1GB. Two are more than one."""
    assert score(1 * MIB, 0, NOW_S) > score(1 * MIB, 100, NOW_S) > score(1025 * MIB, 0, NOW_S)
