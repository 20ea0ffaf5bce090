"""From watched topologies to events, and what happens where a server has none, or older ones."""

import json
from typing import Any

from msgspec import Raw

from bayplan.core.model import events as on
from bayplan.kube.client import OLD_TOPOLOGIES, TOPOLOGIES
from bayplan.kube.read import Reader
from bayplan.scheduler.feed import NamedSink, Unread
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.kinds import topology_kind
from bayplan.scheduler.requests import event, of_topology
from tests.kube_net.manual_clock import ManualClock
from tests.numa.clusters import topology


class Feed:
    def __init__(self) -> None:
        self.inbox, self.words, self.unread = Inbox(ManualClock()), list[str](), list[Unread]()
        kind = topology_kind(Reader())
        self.sink: NamedSink[Any] = NamedSink(self.inbox, self.words.append, kind)
        self.sink.on_unread = self.unread.append

    def put(self, found: Any) -> list[on.Event]:
        self.sink.put(self.sink.decode(Raw(json.dumps(found).encode())))
        return self.inbox.take(10)


GOOD = topology("n1", [{"cpu": "4"}], "RestrictedPodLevel")
BAD = topology("n1", [{"cpu": "-4"}], "RestrictedPodLevel")
WHY = "noderesourcetopology n1: zones[0].resources[0].available: it is negative"


def test_a_topology_that_cannot_be_read_is_one_of_which_nothing_is_known() -> None:
    feed = Feed()

    (good,) = feed.put(GOOD)
    (bad,) = feed.put(BAD)
    again = feed.put(BAD)
    (better,) = feed.put(GOOD)

    assert isinstance(bad, on.TopologySeen)
    assert (bad.topology.node, bad.topology.unknown) == ("n1", WHY)
    assert (again, better) == ([], good)
    assert feed.words == [f"a noderesourcetopology cannot be read and is left out: {WHY}"]
    assert [each.why for each in feed.unread] == [WHY]


def test_it_is_gone_with_its_object() -> None:
    feed = Feed()
    feed.put(BAD)
    feed.sink.replace([], "1")

    assert feed.inbox.take(10) == [on.TopologyGone("n1")]


def test_the_object_is_told_what_is_wrong_with_it() -> None:
    unread = Unread("uid-1", "n1", "", WHY)

    told = json.loads(event(of_topology(unread, "bayplan"), "host", 1.0))

    assert told["regarding"] == {
        "kind": "NodeResourceTopology",
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "namespace": "",
        "name": "n1",
        "uid": "uid-1",
    }
    assert (told["type"], told["reason"], told["note"]) == ("Warning", "InvalidTopology", WHY)
    assert told["metadata"]["namespace"] == "default"


def test_the_older_version_is_asked_for_where_there_is_no_newer_one() -> None:
    watched = Feed().sink.watched()

    assert (watched.path, watched.older) == (TOPOLOGIES.path(), OLD_TOPOLOGIES.path())


def test_nonsense_in_a_namespace_is_gone_with_its_object() -> None:
    feed = Feed()
    bad = topology("n1", [{"cpu": "-4"}], metadata={"name": "n1", "namespace": "default"})
    feed.put(bad)
    feed.sink.drop(feed.sink.decode(Raw(json.dumps(bad).encode())))

    assert feed.inbox.take(10) == [on.TopologyGone("n1")]
    assert len(feed.put(bad)) == 1  # and news, when it comes again
    assert len(feed.words) == 2
