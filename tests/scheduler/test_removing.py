"""Pods that have to go: what is sent, in which order, and what becomes of it when it goes wrong."""

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.model import events as on
from bayplan.core.model.effects import Evict, Preempt
from bayplan.kube.transport import TransportError
from bayplan.scheduler.removing import EVICTION_TRIES, GIVE_UP_S
from tests.scheduler.scripted import Answer, Sent, ok, refused
from tests.scheduler.test_writer import Rig, bind, pod, refuse, run

MARK, DELETE, EVICTION = "PATCH status", "DELETE", "POST eviction"
WHY = "its place is better used by others"


def preempt(*victims: str) -> Preempt:
    return Preempt(pod("big"), "n1", tuple(pod(name) for name in victims))


def evict(name: str) -> Evict:
    return Evict(pod(name), WHY)


def kinds(rig: Rig) -> list[str]:
    """What was sent, without the names of what is deleted."""
    return [DELETE if sent.method == "DELETE" else sent.what for sent in rig.api.sent]


def spared(rig: Rig) -> list[str]:
    return [event.uid for event in rig.answers() if isinstance(event, on.VictimSpared)]


async def later(rig: Rig, seconds: float) -> None:
    rig.clock.advance(seconds)
    rig.writer.tick(rig.clock.time())
    await rig.settle()


def test_a_victim_is_marked_and_then_deleted_by_its_uid_and_told() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        mark, delete, event = rig.api.sent
        assert (mark.method, mark.path) == ("PATCH", "/api/v1/namespaces/team/pods/v/status")
        assert mark.body["metadata"] == {"uid": "uid-v"}
        (condition,) = mark.body["status"]["conditions"]
        said = {key: condition[key] for key in ("type", "status", "reason", "message")}
        assert said == {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "bayplan: preempting to accommodate a higher priority pod",
        }
        assert (delete.method, delete.path) == ("DELETE", "/api/v1/namespaces/team/pods/v")
        assert delete.body == {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": "uid-v"},
        }
        assert mark.params == delete.params == {"timeout": "4s"}  # the server gives up before us
        assert event.body["note"] == "Preempted by pod uid-big on node n1"
        assert (event.body["reason"], event.body["type"]) == ("Preempted", "Normal")
        assert event.body["action"] == "Preempting"
        assert event.body["regarding"]["uid"] == "uid-v"
        assert event.body["related"] == {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "team",
            "name": "big",
            "uid": "uid-big",
        }
        assert rig.answers() == []
        assert rig.writer.done["delete"] == 1

    run(test)


def test_the_event_and_the_mark_are_of_the_preemptors_scheduler() -> None:
    async def test(rig: Rig) -> None:
        victim = replace(pod("v"), scheduler="default-scheduler")
        rig.writer.preempt(Preempt(pod("big"), "n1", (victim,)))
        await rig.settle()
        mark, _, event = (sent.body for sent in rig.api.sent)
        assert mark["status"]["conditions"][0]["message"].startswith("bayplan: ")
        assert event["reportingController"] == "bayplan"
        assert event["reportingInstance"].startswith("bayplan-")

    run(test)


def test_binds_before_deletions_before_conditions_before_evictions_before_events() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()  # the one worker is busy with it
        rig.writer.evict(evict("e"))
        rig.writer.refuse(refuse("waits", "why"))
        rig.writer.preempt(preempt("v", "w"))
        rig.writer.bind(bind("second"))
        assert rig.writer.queued == {
            "bind": 1,
            "delete": 2,
            "condition": 1,
            "eviction": 1,
            "event": 0,
            "confirmation": 0,
            "put off": 0,
        }
        rig.api.let_go()
        await rig.settle()
        bound, deleted = ["POST binding"] * 2, [MARK, DELETE] * 2
        assert kinds(rig) == [*bound, *deleted, MARK, EVICTION, *["POST events"] * 6]

    run(test)


@pytest.mark.parametrize("status", [404, 409])
def test_a_victim_that_is_gone_or_was_made_again_is_fine(status: int) -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: (
            refused(status, "gone")
            if sent.method == "DELETE"
            else ok(200, {"metadata": {"uid": "uid-new"}})
        )
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        looks = ["GET v"] if status == 409 else []
        assert kinds(rig) == [MARK, DELETE, *looks]  # and no event: it was not us
        assert rig.answers() == []
        assert rig.writer.failed["delete"] == 0

    run(test)


@pytest.mark.parametrize(
    ("status", "now", "outcome"),
    [
        (404, None, "gone"),
        (409, {"metadata": {"uid": "uid-new"}}, "gone"),
        (422, {"metadata": {"uid": "uid-new"}}, "gone"),
        (409, {"metadata": {"uid": "uid-v"}}, "later"),
        (422, {"metadata": {"uid": "uid-v"}}, "spared"),
        (403, None, "spared"),
    ],
)
def test_a_mark_that_is_refused_is_looked_into(status: int, now: Any, outcome: str) -> None:
    async def test(rig: Rig) -> None:
        def script(sent: Sent) -> Answer:
            return refused(status, "no") if sent.method == "PATCH" else ok(200, now)

        rig.api.answer = script
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        assert DELETE not in kinds(rig)  # never without the mark
        assert spared(rig) == (["uid-v"] if outcome == "spared" else [])
        assert (rig.writer.next_time() is not None) == (outcome == "later")

    run(test)


LOST = TransportError("DELETE v: broken", sent=True)


@pytest.mark.parametrize("trouble", [LOST, refused(503), refused(500, "etcd"), refused(429)])
def test_what_may_pass_is_tried_again_and_the_mark_is_not(trouble: Answer) -> None:
    async def test(rig: Rig) -> None:
        answers: list[Answer] = [trouble, trouble, ok(200)]
        rig.api.answer = lambda sent: answers.pop(0) if sent.method == "DELETE" else ok(200)
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        assert rig.clock.slept == []  # no worker waits
        for _ in range(2):
            assert rig.writer.next_time() is not None
            await later(rig, 2.0)
        assert kinds(rig) == [MARK, DELETE, DELETE, DELETE, "POST events"]
        assert rig.answers() == []

    run(test)


def test_a_server_that_asks_for_patience_gets_it() -> None:
    async def test(rig: Rig) -> None:
        answers = [refused(429, retry_after="7"), ok(200)]
        rig.api.answer = lambda sent: answers.pop(0) if sent.method == "DELETE" else ok(200)
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        assert rig.writer.next_time() == rig.clock.time() + 7

    run(test)


def test_a_deletion_is_given_up_after_a_minute() -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: refused(503, "away")
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        began = rig.clock.time()
        while (at := rig.writer.next_time()) is not None:
            await later(rig, at - rig.clock.time())
        assert GIVE_UP_S <= rig.clock.time() - began < 2 * GIVE_UP_S
        assert rig.answers() == [on.VictimSpared("uid-v", "away (503)", "uid-big", 300.0)]
        assert rig.writer.failed["delete"] == 1

    run(test)


def test_a_refusal_for_good_is_told_to_the_engine_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: (
            refused(403, "forbidden") if sent.path.endswith("/v") else ok(200)
        )
        rig.writer.preempt(preempt("v", "w"))
        await rig.settle()
        assert rig.answers() == [on.VictimSpared("uid-v", "forbidden (403)", "uid-big", 300.0)]
        assert rig.writer.done["delete"] == 1

    with caplog.at_level(logging.WARNING):
        run(test)
    (said,) = caplog.messages
    assert said == "pod team/v is not deleted for pod team/big: forbidden (403)"


def test_a_bug_while_deleting_does_not_leave_the_preemptor_waiting() -> None:
    async def test(rig: Rig) -> None:
        def broken(sent: Sent) -> Answer:
            raise RuntimeError("a bug")

        rig.api.answer = broken
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        assert rig.answers() == [on.VictimSpared("uid-v", "a bug", "uid-big", 300.0)]

    run(test)


# ---- the right to delete


def test_behind_the_fence_nothing_is_deleted() -> None:
    async def test(rig: Rig) -> None:
        rig.fence.deadline = lambda: rig.clock.time() - 1
        rig.writer.preempt(preempt("v"))
        rig.writer.evict(evict("e"))
        await rig.settle()
        assert rig.api.sent == []
        assert spared(rig) == ["uid-v"]

    run(test)


def test_the_fence_is_looked_at_again_between_the_mark_and_the_deletion() -> None:
    async def test(rig: Rig) -> None:
        def script(sent: Sent) -> Answer:
            rig.fence.deadline = lambda: rig.clock.time() - 1
            return ok(200)

        rig.api.answer = script
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        assert kinds(rig) == [MARK]
        assert spared(rig) == ["uid-v"]

    run(test)


def test_what_was_decided_before_the_lease_was_lost_is_not_deleted_when_it_is_back() -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: refused(503)
        rig.writer.preempt(preempt("put-off"))
        await rig.settle()
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.preempt(preempt("queued"))
        rig.writer.abandon("the lease was lost")
        assert sorted(spared(rig)) == ["uid-put-off", "uid-queued"]
        rig.writer.preempt(preempt("next"))
        rig.fence.term = lambda: 1
        rig.api.answer = lambda sent: ok()
        rig.api.let_go()
        await later(rig, 10.0)
        assert DELETE not in kinds(rig)
        assert spared(rig) == ["uid-next"]

    run(test)


def test_nobody_goes_for_a_pod_that_is_placed_or_gone() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.preempt(preempt("v", "w"))
        rig.writer.preempt(Preempt(pod("other"), "n1", (pod("x"),)))
        rig.writer.forget("uid-big")
        rig.api.let_go()
        await rig.settle()
        assert [
            sent.path.rsplit("/", 1)[-1] for sent in rig.api.sent if sent.method == "DELETE"
        ] == ["x"]
        assert spared(rig) == ["uid-v", "uid-w"]

    run(test)


def test_nobody_is_deleted_when_the_need_ends_after_the_mark() -> None:
    async def test(rig: Rig) -> None:
        def script(sent: Sent) -> Answer:
            rig.writer.forget("uid-big")
            return ok(200)

        rig.api.answer = script
        rig.writer.preempt(preempt("v"))
        await rig.settle()
        assert kinds(rig) == [MARK]
        assert spared(rig) == ["uid-v"]

    run(test)


def test_stopping_finishes_deletions_and_forgets_those_not_sent() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.preempt(preempt("sent"))
        await rig.settle()
        rig.writer.preempt(preempt("queued"))
        rig.writer.evict(evict("e"))
        await rig.writer.close(binds_s=1.0, rest_s=1.0)
        assert spared(rig) == ["uid-queued"]
        assert rig.writer.dropped["eviction"] == 1
        rig.writer.preempt(preempt("late"))
        rig.writer.evict(evict("late"))
        assert spared(rig) == ["uid-late"]
        rig.api.let_go()
        await rig.settle()
        assert kinds(rig) == [MARK]  # the deletion would have come too late
        assert spared(rig) == ["uid-sent"]

    run(test)


# ---- once


def test_a_pod_is_deleted_once_and_deletion_is_stronger_than_eviction() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.evict(evict("v"))
        rig.writer.preempt(preempt("v"))
        rig.writer.preempt(preempt("v"))
        rig.writer.evict(evict("v"))
        rig.api.let_go()
        await rig.settle()
        assert (kinds(rig).count(DELETE), kinds(rig).count(EVICTION)) == (1, 0)

    run(test)


# ---- evictions


def test_an_eviction_names_the_pod_by_its_uid_and_says_why() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.evict(evict("e"))
        await rig.settle()
        eviction, event = rig.api.sent
        assert eviction.path == "/api/v1/namespaces/team/pods/e/eviction"
        assert eviction.body == {
            "kind": "Eviction",
            "apiVersion": "policy/v1",
            "metadata": {"name": "e", "namespace": "team"},
            "deleteOptions": {"preconditions": {"uid": "uid-e"}},
        }
        assert (event.body["reason"], event.body["note"]) == ("Evicted", WHY)
        assert "related" not in event.body
        assert rig.writer.done["eviction"] == 1

    run(test)


def test_a_budget_is_asked_a_few_times_and_then_has_its_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: refused(429, "budget")
        rig.writer.evict(evict("e"))
        await rig.settle()
        while (at := rig.writer.next_time()) is not None:
            assert at - rig.clock.time() >= 10.0
            await later(rig, at - rig.clock.time())
        assert kinds(rig) == [EVICTION] * EVICTION_TRIES
        assert rig.answers() == []
        assert rig.writer.failed["eviction"] == 1

    with caplog.at_level(logging.WARNING):
        run(test)
    assert caplog.messages == ["pod team/e is not evicted: budget (429)"]


@pytest.mark.parametrize(("status", "failed"), [(404, 0), (409, 0), (403, 1)])
def test_an_eviction_of_a_pod_that_is_gone_is_fine(status: int, failed: int) -> None:
    async def test(rig: Rig) -> None:
        rig.api.answer = lambda sent: refused(status, "no")
        rig.writer.evict(evict("e"))
        await rig.settle()
        assert kinds(rig) == [EVICTION]
        assert (rig.writer.failed["eviction"], rig.writer.done["eviction"]) == (failed, 0)
        assert rig.answers() == []

    run(test)
