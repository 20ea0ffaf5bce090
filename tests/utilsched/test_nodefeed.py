"""Nodes on their way in: news of use apart from other news, and when it was true."""

from typing import Any

import pytest

from bayplan.core.model import events as on
from bayplan.core.model.utilisation import AGE_S, DeviceUse, NodeUse
from bayplan.kube.profiles import OLD
from bayplan.kube.read import Reader
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.kinds import node_kind
from bayplan.scheduler.nodefeed import NodeSink
from tests.kube_net.manual_clock import ManualClock
from tests.scheduler.test_feed import raw

Json = dict[str, Any]
NOON, NOON_S = "2026-01-01 12:00:00", 1_767_268_800.0


class Feed:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.inbox, self.words = Inbox(self.clock), list[str]()
        reader = Reader(remark=self.words.append)
        self.nodes = NodeSink(self.inbox, self.words.append, node_kind(reader), self.clock)

    def node(self, labels: Json | None = None, /, **notes: str) -> list[on.Event]:
        annotations = {OLD + name.replace("_", "-"): text for name, text in notes.items()}
        metadata = {"name": "n", "labels": labels or {}, "annotations": annotations}
        self.nodes.put(self.nodes.decode(raw({"metadata": metadata})))
        return self.inbox.take(10)

    def measure(self, **found: tuple[DeviceUse, ...]) -> list[on.Event]:
        self.nodes.measure(found)
        return self.inbox.take(10)


@pytest.fixture
def feed() -> Feed:
    return Feed()


def use_of(events: list[on.Event]) -> NodeUse:
    (event,) = events
    assert isinstance(event, on.UseSeen)
    assert event.use is not None
    return event.use


def gpu(percent: int) -> str:
    return f"{{'max_gpu_util': {percent}}}"


def test_news_of_use_alone_is_told_as_such(feed: Feed) -> None:
    (first,) = feed.node(gpu_0=gpu(1), timestamp=NOON)
    assert isinstance(first, on.NodeSeen)
    assert feed.node(gpu_0=gpu(1), timestamp=NOON) == []
    assert feed.nodes.unchanged == 1
    assert use_of(feed.node(gpu_0=gpu(2), timestamp=NOON)).devices[0].gpu_percent == 2
    (both,) = feed.node({"a": "b"}, gpu_0=gpu(3), timestamp=NOON)
    assert isinstance(both, on.NodeSeen)
    assert feed.node({"a": "b"}) == [on.UseSeen("n", None)]


def test_what_says_no_time_is_as_old_as_its_last_change(feed: Feed) -> None:
    began = feed.clock.wall()
    feed.node(gpu_0=gpu(1), gpu_1=gpu(1))
    feed.clock.now += 60
    assert feed.node(gpu_0=gpu(1), gpu_1=gpu(1)) == []
    found = use_of(feed.node(gpu_0=gpu(1), gpu_1=gpu(2)))
    assert [device.at_s for device in found.devices] == [began, began + 60]


def test_a_time_that_is_still_to_come_is_none(feed: Feed) -> None:
    now = feed.clock.wall()
    feed.node(gpu_0=gpu(1), timestamp="2099-01-01 00:00:00")
    (known,) = feed.nodes.known.values()
    assert known.use is not None
    assert known.use.devices[0].at_s == now
    feed.clock.now += AGE_S
    assert feed.node(gpu_0=gpu(1), timestamp="2099-01-01 00:00:00") == []


def test_a_server_counts_more_than_annotations(feed: Feed) -> None:
    static = "{'count': '2', 'model': 'Tesla K80'}"
    feed.node(gpu_0=gpu(1), gpu_static=static)
    measured = (DeviceUse(0, 77, at_s=feed.clock.wall()),)
    assert use_of(feed.measure(n=measured, other=measured)) == NodeUse(
        2, "Tesla K80", devices=measured
    )
    assert feed.measure(n=measured) == []
    assert feed.node(gpu_0=gpu(2), gpu_static=static) == []
    assert use_of(feed.measure()).devices[0].gpu_percent == 2


def test_a_node_that_the_server_knew_first_has_its_measures(feed: Feed) -> None:
    measured = (DeviceUse(0, 77, at_s=feed.clock.wall()),)
    assert feed.measure(n=measured) == []
    (first,) = feed.node()
    assert isinstance(first, on.NodeSeen)
    assert first.node.use == NodeUse(devices=measured)
    assert feed.measure() == [on.UseSeen("n", None)]


def test_a_node_that_is_gone_leaves_nothing(feed: Feed) -> None:
    feed.node(gpu_0=gpu(1))
    feed.nodes.replace([], "2")
    assert feed.inbox.take(10) == [on.NodeGone("n")]
    assert (feed.nodes._noted, feed.nodes._heard) == ({}, {})


def test_a_server_that_is_gone_does_not_hide_what_a_profiler_says(feed: Feed) -> None:
    began = feed.clock.wall()
    feed.node(gpu_0=gpu(1))
    assert use_of(feed.measure(n=(DeviceUse(0, 50, at_s=began),))).devices[0].gpu_percent == 50
    feed.clock.now += AGE_S
    assert feed.node(gpu_0=gpu(2)) == []  # what the server says is just young enough
    feed.clock.now += 1
    assert use_of(feed.node(gpu_0=gpu(3))).devices == (DeviceUse(0, 3, at_s=began + AGE_S + 1),)


def test_a_server_that_knows_one_device_does_not_hide_the_others(feed: Feed) -> None:
    began = feed.clock.wall()
    feed.node(gpu_0=gpu(1), gpu_2=gpu(2))
    found = use_of(feed.measure(n=(DeviceUse(1, 50, at_s=began), DeviceUse(2, 60, at_s=began))))
    assert [(each.index, each.gpu_percent) for each in found.devices] == [(0, 1), (1, 50), (2, 60)]


def test_a_node_with_thousands_of_bad_annotations_is_said_in_a_few_lines(feed: Feed) -> None:
    bad = {f"gpu_{i}": "{'max_gpu_util': -1}" for i in range(10_000)}
    feed.node(**bad)
    assert len(feed.words) == 17
    assert feed.words[-1] == (
        "node n: metadata.annotations: more of them cannot be read; it is left out"
    )
    feed.node(**bad, timestamp=NOON)
    assert len(feed.words) == 17


def test_the_distant_past_is_too_old(feed: Feed) -> None:
    for stamp in ("0001-01-01 00:00:00", "1969-12-31 23:59:59", "1970-01-01 00:00:00"):
        feed.node(gpu_0=gpu(1), timestamp=stamp)
        (known,) = feed.nodes.known.values()
        assert known.use is not None
        assert known.use.devices[0].at_s == 1.0


def test_a_device_has_one_name(feed: Feed) -> None:
    feed.node(gpu_1=gpu(9), gpu_01=gpu(1), **{"gpu_\u0661": gpu(2)})
    (known,) = feed.nodes.known.values()
    assert known.use is not None
    assert [(each.index, each.gpu_percent) for each in known.use.devices] == [(1, 9)]
