"""From watched objects to events: what is news, what is not, and what cannot be read."""

import json
from typing import Any

import pytest
from msgspec import Raw

from bayplan.core.model import events as on
from bayplan.kube.read import Reader
from bayplan.scheduler.feed import (
    FailedPod,
    FailedSink,
    NamedSink,
    PodSink,
    Unread,
)
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.kinds import kinds, namespace_kind, node_kind
from tests.kube_net.manual_clock import ManualClock

Json = dict[str, Any]


class Feed:
    def __init__(self) -> None:
        self.inbox, self.words = Inbox(ManualClock()), list[str]()
        reader = Reader(remark=self.words.append)
        self.pods = PodSink(self.inbox, self.words.append, reader)
        self.nodes = NamedSink(self.inbox, self.words.append, node_kind(reader))
        self.namespaces = NamedSink(self.inbox, self.words.append, namespace_kind(reader))
        (budgets,) = (kind for kind in kinds(reader) if kind.what == "poddisruptionbudget")
        self.budgets: NamedSink[Any] = NamedSink(self.inbox, self.words.append, budgets)

    def heard(self) -> list[on.Event]:
        return self.inbox.take(100)

    def pod(self, found: Json) -> None:
        self.pods.put(self.pods.decode(raw(found)))

    def node(self, found: Json) -> None:
        self.nodes.put(self.nodes.decode(raw(found)))


@pytest.fixture
def feed() -> Feed:
    return Feed()


def raw(found: Json) -> Raw:
    return Raw(json.dumps(found).encode())


def pod(name: str = "p", node: str = "", **more: Any) -> Json:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", **more.pop("metadata", {})}
    spec = {"containers": [{"name": "c"}], **({"nodeName": node} if node else {})}
    return {"metadata": metadata, "spec": {**spec, **more.pop("spec", {})}, **more}


def test_an_update_that_changes_nothing_we_read_ends_here(feed: Feed) -> None:
    feed.pod(pod())
    assert [type(e) for e in feed.heard()] == [on.PodSeen]
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
    feed.pod(
        pod(
            metadata={"annotations": {"a": "b"}, "resourceVersion": "2", "generation": 4},
            status={"conditions": [waits]},
        )
    )
    assert feed.heard() == []
    assert feed.pods.unchanged == 1
    condition = feed.pods.conditions["uid-p"]
    assert (condition.generation, condition.resource_version) == (4, "2")
    assert (condition.reason, condition.message) == ("Unschedulable", "m")
    feed.pod(pod(metadata={"labels": {"a": "b"}}))
    assert [type(e) for e in feed.heard()] == [on.PodSeen]


def test_a_heartbeat_of_a_node_ends_here(feed: Feed) -> None:
    beat = {"type": "Ready", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    feed.node({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}})
    feed.node(
        {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}, "conditions": [beat]}}
    )
    assert [type(e) for e in feed.heard()] == [on.NodeSeen]


def test_a_bound_pod_has_no_condition_to_write(feed: Feed) -> None:
    feed.pod(pod())
    feed.pod(pod(node="n"))
    assert feed.pods.conditions == {}


def test_a_relist_tells_only_what_changed_meanwhile(feed: Feed) -> None:
    for name in ("a", "b", "c"):
        feed.pod(pod(name))
    feed.heard()
    now = [feed.pods.decode(raw(p)) for p in (pod("a"), pod("c", node="n"), pod("d"))]
    feed.pods.replace(now, "9")
    heard = [(type(e).__name__, getattr(e, "uid", "") or e.pod.uid) for e in feed.heard()]  # type: ignore[union-attr]
    assert heard == [("PodGone", "uid-b"), ("PodSeen", "uid-c"), ("PodSeen", "uid-d")]


def test_a_read_beside_the_watch_undoes_nothing_that_the_watch_told_meanwhile(feed: Feed) -> None:
    for name in ("stays", "ends", "bound"):
        feed.pod(pod(name))
    feed.heard()
    feed.pods.begin_read()
    feed.pod(pod("new"))
    feed.pods.drop(feed.pods.decode(raw(pod("ends"))))
    feed.pod(pod("bound", metadata={"labels": {"late": "news"}}))
    feed.heard()
    listed = [pod("stays"), pod("ends"), pod("bound", node="n"), pod("unseen")]
    feed.pods.end_read([feed.pods.decode(raw(p)) for p in listed])
    heard = [(e.pod.name, e.pod.node) for e in feed.heard() if isinstance(e, on.PodSeen)]
    assert heard == [("bound", "n"), ("unseen", "")]
    assert set(feed.pods.known) == {"uid-stays", "uid-bound", "uid-new", "uid-unseen"}


def test_a_pod_that_cannot_be_read_closes_its_node_until_it_can(feed: Feed) -> None:
    broken = pod(
        node="n", spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "x"}}}]}
    )
    feed.pod(broken)
    assert feed.heard() == [on.PodUnreadable("uid-p", "n")]
    (said,) = feed.words
    assert "node n" in said
    assert "team/p" in said
    assert "cpu" in said
    feed.pod(broken)  # the same again is no news
    assert feed.heard() == []
    assert len(feed.words) == 1
    feed.pod(pod(node="n"))
    assert [type(e) for e in feed.heard()] == [on.PodSeen]


def test_a_field_of_the_wrong_type_is_reported_and_the_rest_goes_on(feed: Feed) -> None:
    odd = pod("odd", spec={"priority": "high"})
    assert isinstance(feed.pods.decode(raw(odd)), Unread)
    feed.pod(odd)
    feed.pod(pod("fine"))
    assert [type(e) for e in feed.heard()] == [on.PodUnreadable, on.PodSeen]


def test_a_node_that_cannot_be_read_any_more_is_left_out(feed: Feed) -> None:
    feed.node({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}})
    feed.node({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "four"}}})
    assert [type(e) for e in feed.heard()] == [on.NodeSeen, on.NodeGone]
    assert "node n" in feed.words[0]


def test_namespaces_come_and_go(feed: Feed) -> None:
    sink = feed.namespaces
    item = sink.decode(raw({"metadata": {"name": "team", "labels": {"a": "b"}}}))
    sink.put(item)
    sink.drop(item)
    assert feed.heard() == [on.NamespaceSeen("team", {"a": "b"}), on.NamespaceGone("team")]


def test_budgets_come_change_and_go(feed: Feed) -> None:
    found: Json = {"metadata": {"name": "b", "namespace": "team"}, "spec": {"selector": {}}}
    for allowed in (0, 0, 2):
        status = {"disruptionsAllowed": allowed, "currentHealthy": allowed}
        feed.budgets.put(feed.budgets.decode(raw({**found, "status": status})))
    feed.budgets.drop(feed.budgets.decode(raw(found)))
    first, second, gone = feed.heard()
    assert isinstance(first, on.BudgetSeen)
    assert isinstance(second, on.BudgetSeen)
    assert (first.budget.allowed, second.budget.allowed) == (0, 2)
    assert gone == on.BudgetGone("team/b")


def test_a_waiting_pod_whose_gang_cannot_be_read_is_left_out_and_spoken_of(feed: Feed) -> None:
    told: list[Unread] = []
    feed.pods.on_waiting_unread = told.append
    spec = {"schedulerName": "bayplan"}
    notes = {"bayplan.dev/gang": "train", "bayplan.dev/gang-min": "two"}
    for _ in range(2):
        feed.pod(pod(metadata={"annotations": notes}, spec=spec))
    assert feed.heard() == [on.PodUnreadable("uid-p", "")]
    why = (
        "pod team/p: metadata.annotations[bayplan.dev/gang-min]: "
        "'two' is not a whole number from 1 on"
    )
    assert feed.words == [f"a pod cannot be read: {why}"]
    (item,) = told
    assert (item.scheduler, item.why) == ("bayplan", why)
    stand_in = item.stand_in
    assert (stand_in.key, stand_in.uid, stand_in.scheduler) == ("team/p", "uid-p", "bayplan")
    feed.pod(pod(metadata={"annotations": {**notes, "bayplan.dev/gang-min": "2"}}, spec=spec))
    (seen,) = feed.heard()
    assert isinstance(seen, on.PodSeen)
    assert seen.pod.gang is not None


def test_a_bound_pod_whose_gang_cannot_be_read_keeps_its_node_open(feed: Feed) -> None:
    notes = {"bayplan.dev/gang": "train", "bayplan.dev/gang-min": "two"}
    notes["bayplan.dev/checkpoint"] = "noon"
    for _ in range(2):
        feed.pod(pod(node="n", metadata={"annotations": notes}))
    (seen,) = feed.heard()
    assert isinstance(seen, on.PodSeen)
    assert (seen.pod.node, seen.pod.checkpoint_s) == ("n", 0.0)
    assert [word.split(": ")[:2] for word in feed.words] == [
        ["pod team/p", "metadata.annotations[bayplan.dev/gang-min]"],
        ["pod team/p", "metadata.annotations[bayplan.dev/checkpoint]"],
    ]


def test_the_nomination_that_stands_in_the_api_is_known(feed: Feed) -> None:
    feed.pod(pod(status={"nominatedNodeName": "n7"}))
    assert feed.pods.conditions["uid-p"].nominated == "n7"


def test_what_had_failed_before_is_no_news() -> None:
    told: list[FailedPod] = []
    sink = FailedSink(Reader(), told.append)
    failed = pod(node="n", status={"phase": "Failed", "reason": "OutOfcpu", "message": "m"})
    item = sink.decode(raw(failed))
    sink.replace([item], "1")
    assert told == []
    sink.put(item)
    assert [(f.pod.name, f.reason, f.message) for f in told] == [("p", "OutOfcpu", "m")]


# ---- pods that were bound though no watch has told of them


def test_a_list_without_a_pod_that_was_bound_before_it_began_says_that_it_is_gone(
    feed: Feed,
) -> None:
    for uid in ("uid-gone", "uid-there", "uid-seen"):
        feed.pods.bound(uid)
    feed.pod(pod("seen", node="n"))
    feed.heard()
    feed.pods.begin_list()
    feed.pods.bound("uid-later")  # perhaps younger than the list
    feed.pods.replace([feed.pods.decode(raw(pod("there", node="n")))], "9")
    gone = [event.uid for event in feed.heard() if isinstance(event, on.PodGone)]
    assert gone == ["uid-seen", "uid-gone"]
    feed.pods.begin_list()
    feed.pods.replace([feed.pods.decode(raw(pod("there", node="n")))], "10")
    assert feed.heard() == [on.PodGone("uid-later")]


def test_a_list_that_is_begun_again_has_what_was_bound_by_then(feed: Feed) -> None:
    feed.pods.begin_list()
    feed.pods.bound("uid-p")
    feed.pods.replace([], "8")
    assert feed.heard() == []
    feed.pods.begin_list()
    feed.pods.begin_list()
    feed.pods.replace([], "9")
    assert feed.heard() == [on.PodGone("uid-p")]


def test_a_read_beside_the_watch_finds_them_too(feed: Feed) -> None:
    for uid in ("uid-gone", "uid-told"):
        feed.pods.bound(uid)
    feed.pods.begin_list()
    feed.pods.begin_read()
    feed.pod(pod("told", node="n"))
    feed.pods.bound("uid-later")
    feed.heard()
    feed.pods.end_read([])
    assert feed.heard() == [on.PodGone("uid-gone")]
    feed.pods.replace([feed.pods.decode(raw(pod("told", node="n")))], "9")  # begun long ago
    assert feed.heard() == []
