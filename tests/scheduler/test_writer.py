"""The writer: what is written, in which order, and what becomes of binds that go wrong."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.core.model import events as on
from bayplan.core.model.effects import Bind, Park, Placement, Refuse
from bayplan.core.model.pods import Pod, RowKey
from bayplan.core.model.verdicts import Refusal
from bayplan.kube.client import Client
from bayplan.kube.transport import Fenced, TransportError
from bayplan.scheduler.feed import Condition
from bayplan.scheduler.fence import Fence
from bayplan.scheduler.inbox import Inbox
from bayplan.scheduler.pacing import CONDITION_EVERY_S
from bayplan.scheduler.preparing import Preparing
from bayplan.scheduler.volumes import VolumeBinder
from bayplan.scheduler.writer import Settings, Writer
from tests.kube_net.manual_clock import ManualClock
from tests.scheduler.scripted import Answer, Scripted, Sent, ok, refused

NEW = Condition(generation=3, resource_version="7", reason="", message="", since="")


def pod(name: str) -> Pod:
    return Pod(f"uid-{name}", "team", name, {}, RowKey(), scheduler="bayplan")


def bind(name: str, node: str = "n1") -> Bind:
    return Bind(Placement(pod(name), node))


def refuse(name: str, message: str) -> Refuse:
    return Refuse(pod(name), Refusal(message, {}, frozenset(), 1))


class Rig:
    def __init__(self, workers: int = 1) -> None:
        self.clock, self.api = ManualClock(), Scripted()
        client = Client(self.api, self.clock, random.Random(1))
        self.inbox, self.fence = Inbox(self.clock), Fence(self.clock)
        self.conditions: dict[str, Condition] = {}
        self.writer = Writer(
            client,
            self.inbox,
            self.fence,
            lambda uid: self.conditions.get(uid, NEW),
            Settings(workers=workers),
        )

    async def settle(self) -> None:
        """Until the workers have nothing more that they can do."""
        for _ in range(200):
            await asyncio.sleep(0)

    def answers(self) -> list[on.Event]:
        return self.inbox.take(100)

    def sent(self) -> list[str]:
        return [sent.what for sent in self.api.sent]


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], workers: int = 1) -> None:
    async def main() -> None:
        rig = Rig(workers)
        task = asyncio.create_task(rig.writer.run())
        try:
            await test(rig)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_binds_come_before_conditions_and_conditions_before_events() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()  # the one worker is busy with it
        rig.writer.refuse(refuse("waits", "0/1 nodes are available: 1 Too many pods."))
        rig.writer.bind(bind("second"))
        rig.api.let_go()
        await rig.settle()
        assert rig.sent() == [
            "POST binding",
            "POST binding",
            "PATCH status",
            "POST events",
            "POST events",
            "POST events",
        ]

    run(test)


def test_a_bind_carries_the_uid_the_kind_and_a_time_that_the_server_knows() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.bind(bind("p"))
        await rig.settle()
        binding = rig.api.sent[0]
        assert binding.path == "/api/v1/namespaces/team/pods/p/binding"
        assert binding.params == {"timeout": "4s"}  # the server gives up before we do
        assert binding.body["metadata"]["uid"] == "uid-p"
        assert binding.body["target"] == {"kind": "Node", "apiVersion": "v1", "name": "n1"}
        assert rig.answers() == [on.BindDone("uid-p")]

    run(test)


def test_the_newest_condition_takes_the_place_of_one_not_written_yet() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.refuse(refuse("p", "old"))
        rig.writer.refuse(refuse("p", "new"))
        rig.api.let_go()
        await rig.settle()
        patches = [s.body for s in rig.api.sent if s.method == "PATCH"]
        assert [p["status"]["conditions"][0]["message"] for p in patches] == ["new"]
        assert patches[0]["metadata"]["uid"] == "uid-p"
        assert patches[0]["status"]["conditions"][0]["observedGeneration"] == 3
        notes = [s.body["note"] for s in rig.api.sent if s.what == "POST events"]
        assert "new" in notes
        assert "old" not in notes

    run(test)


def test_a_pod_gets_its_first_condition_at_once_and_the_next_after_a_while() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.refuse(refuse("p", "one"))
        await rig.settle()
        rig.writer.refuse(refuse("p", "two"))
        rig.writer.refuse(refuse("p", "three"))
        await rig.settle()
        assert rig.sent().count("PATCH status") == 1
        due = rig.writer.next_time()
        assert due == rig.clock.time() + CONDITION_EVERY_S
        rig.clock.advance(CONDITION_EVERY_S)
        rig.writer.tick(rig.clock.time())
        await rig.settle()
        patches = [s.body for s in rig.api.sent if s.method == "PATCH"]
        assert [p["status"]["conditions"][0]["message"] for p in patches] == ["one", "three"]

    run(test)


def test_a_condition_that_could_not_be_written_is_written_later() -> None:
    async def test(rig: Rig) -> None:
        answers = [refused(503)] * 3 + [ok(200)]
        rig.api.answer = lambda sent: answers.pop(0) if sent.method == "PATCH" else ok()
        rig.writer.refuse(refuse("p", "why"))
        await rig.settle()
        assert rig.sent().count("PATCH status") == 3
        due = rig.writer.next_time()
        assert due is not None
        rig.clock.advance(CONDITION_EVERY_S)
        rig.writer.tick(rig.clock.time())
        await rig.settle()
        assert not answers
        assert rig.writer.done["condition"] == 1

    run(test)


def test_what_the_api_already_says_is_not_patched_again() -> None:
    """After a restart, say; the transition's time stays while the status does."""

    async def test(rig: Rig) -> None:
        since = "2026-01-01T00:00:00Z"
        rig.conditions["uid-p"] = Condition(3, "7", "Unschedulable", "same", since)
        rig.writer.refuse(refuse("p", "same"))
        await rig.settle()
        assert "PATCH status" not in rig.sent()
        rig.clock.advance(CONDITION_EVERY_S)
        rig.writer.refuse(refuse("p", "other"))
        await rig.settle()
        (patch,) = [s.body for s in rig.api.sent if s.method == "PATCH"]
        assert patch["status"]["conditions"][0]["lastTransitionTime"] == since

    run(test)


def test_nothing_is_said_of_a_pod_that_is_gone() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.refuse(refuse("p", "why"))
        rig.writer.forget("uid-p")
        rig.api.let_go()
        await rig.settle()
        assert "PATCH status" not in rig.sent()

    run(test)


LOST = TransportError("POST binding: broken", sent=True)
OURS = {"metadata": {"uid": "uid-p"}, "spec": {"nodeName": "n1"}}
THEIRS = {"metadata": {"uid": "uid-p"}, "spec": {"nodeName": "n2"}}
ANOTHER = {"metadata": {"uid": "uid-new"}, "spec": {}}
FREE = {"metadata": {"uid": "uid-p"}, "spec": {}}


@pytest.mark.parametrize(
    ("answer", "pod_now", "requests", "bound"),
    [
        (LOST, OURS, ["POST binding", "GET p"], True),
        (refused(500, "etcd"), OURS, ["POST binding", "GET p"], True),
        (refused(409, "Conflict"), THEIRS, ["POST binding", "GET p"], False),
        (refused(409, "Conflict"), ANOTHER, ["POST binding", "GET p"], False),
        (refused(404, "NotFound"), None, ["POST binding"], False),
        (refused(403, "Forbidden"), None, ["POST binding"], False),
    ],
)
def test_an_unknown_outcome_is_looked_up(
    answer: Any, pod_now: Any, requests: list[str], bound: bool
) -> None:
    async def test(rig: Rig) -> None:
        def script(sent: Sent) -> Any:
            if sent.what == "POST binding":
                return answer
            return ok(200, pod_now)

        rig.api.answer = script
        rig.writer.bind(bind("p"))
        await rig.settle()
        assert rig.sent()[: len(requests)] == requests
        assert "POST binding" not in rig.sent()[1:]
        (event,) = rig.answers()
        assert isinstance(event, on.BindDone if bound else on.BindFailed)

    run(test)


def test_a_bind_that_did_not_happen_is_tried_again() -> None:
    async def test(rig: Rig) -> None:
        answers: list[Answer] = [LOST, ok()]
        rig.api.answer = lambda sent: (
            answers.pop(0) if sent.what == "POST binding" else ok(200, FREE)
        )
        rig.writer.bind(bind("p"))
        await rig.settle()
        assert rig.sent()[:3] == ["POST binding", "GET p", "POST binding"]
        assert rig.answers() == [on.BindDone("uid-p")]

    run(test)


def test_a_server_that_asks_for_patience_gets_it() -> None:
    async def test(rig: Rig) -> None:
        answers = [refused(429, "TooManyRequests", retry_after="7"), ok()]
        rig.api.answer = lambda sent: answers.pop(0) if sent.what == "POST binding" else ok()
        rig.writer.bind(bind("p"))
        await rig.settle()
        assert 7.0 <= rig.clock.slept[0] < 9.0
        assert rig.answers() == [on.BindDone("uid-p")]

    run(test)


def test_behind_the_fence_nothing_is_sent_and_the_pod_is_forgotten() -> None:
    async def test(rig: Rig) -> None:
        rig.fence.deadline = lambda: rig.clock.time() - 1
        with pytest.raises(Fenced):
            rig.fence.check()
        rig.writer.bind(bind("p"))
        await rig.settle()
        assert rig.api.sent == []
        assert isinstance(rig.answers()[0], on.BindFailed)

    run(test)


def test_a_pod_keeps_its_place_until_somebody_can_tell_where_it_is() -> None:
    async def test(rig: Rig) -> None:
        away: list[Answer] = [refused(503), TransportError("GET p: broken", sent=True)]
        looks: list[Answer] = [*away * 20, ok(200, OURS)]
        rig.api.answer = lambda sent: LOST if sent.what == "POST binding" else looks.pop(0)
        rig.writer.bind(bind("p"))
        for _ in range(10):
            await rig.settle()
        assert not looks
        assert rig.answers() == [on.BindDone("uid-p")]

    run(test)


def test_what_was_decided_before_the_lease_was_lost_is_not_sent_when_it_is_back() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.bind(bind("queued"))
        rig.fence.term = lambda: 1
        rig.api.let_go()
        await rig.settle()
        assert rig.sent().count("POST binding") == 1
        assert [type(e).__name__ for e in rig.answers()] == ["BindDone", "BindFailed"]

    run(test)


def test_stopping_finishes_binds_and_counts_what_is_not_said() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("sent"))
        await rig.settle()
        rig.writer.bind(bind("queued"))
        rig.writer.refuse(refuse("p", "why"))
        await rig.writer.close(binds_s=1.0, rest_s=1.0)
        assert [type(e).__name__ for e in rig.answers()] == ["BindFailed"]  # the one not sent
        assert rig.writer.dropped == {"condition": 1, "event": 0}
        rig.writer.bind(bind("late"))
        assert [type(e).__name__ for e in rig.answers()] == ["BindFailed"]
        assert rig.sent() == ["POST binding"]

    run(test)


def test_a_bug_while_binding_does_not_lose_the_pod() -> None:
    async def test(rig: Rig) -> None:
        class Broken(VolumeBinder):
            def __init__(self) -> None:
                pass

            async def prepare(self, placement: Placement) -> None:
                raise RuntimeError("no such volume")

        rig.writer._prepare = Preparing(Broken(), None)
        claiming = replace(pod("p"), row=RowKey(claims=("team/data",)))
        rig.writer.bind(Bind(Placement(claiming, "n1")))
        await rig.settle()
        (event,) = rig.answers()
        assert isinstance(event, on.BindFailed)
        assert event.why == "no such volume"
        said = [s.body["status"]["conditions"][0] for s in rig.api.sent if s.method == "PATCH"]
        assert [c["reason"] for c in said] == ["SchedulerError"]

    run(test)


def test_a_plugins_failure_is_an_error_and_not_unschedulable() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.park(Park(pod("p"), "KeyError", "Traceback …\nKeyError: 'zone'\n"))
        await rig.settle()
        (patch,) = [s.body["status"]["conditions"][0] for s in rig.api.sent if s.method == "PATCH"]
        assert (patch["reason"], patch["message"]) == ("SchedulerError", "KeyError: 'zone'")

    run(test)


def test_a_crowd_is_dealt_with_together_and_few_are_not() -> None:
    async def test(rig: Rig) -> None:
        for number in range(4):
            rig.writer.bind(bind(f"one-of-few-{number}"))
        await rig.settle()
        assert len(rig.sent()) == 8
        assert rig.clock.holds == 0
        for number in range(20):
            rig.writer.bind(bind(f"one-of-many-{number}"))
        await rig.settle()
        assert len(rig.sent()) == 48
        holds = rig.clock.holds
        assert holds > 0
        await rig.settle()
        assert rig.clock.holds == holds  # the crowd is gone
        for number in range(20):
            rig.writer.bind(bind(f"one-of-the-next-{number}"))
        await rig.settle()
        assert len(rig.sent()) == 88
        assert rig.clock.holds > holds  # and the next is one again

    run(test, workers=4)


def test_a_slow_server_leaves_the_thread_to_others() -> None:
    async def test(rig: Rig) -> None:
        rig.clock.skips = False
        rig.api.hold()
        for number in range(50):
            rig.writer.bind(bind(f"p{number}"))
        await rig.settle()
        for _ in range(10):  # a few answers in half a second, as a slow server gives them
            rig.clock.advance(0.05)
            await rig.settle()
        assert 10 <= rig.clock.holds <= 12
        rig.api.let_go()
        rig.clock.advance(1.0)
        await rig.settle()
        assert rig.writer.done["bind"] == 50

    run(test, workers=4)


def test_a_server_that_does_not_answer_is_not_asked_for_answers_without_end() -> None:
    async def test(rig: Rig) -> None:
        rig.clock.skips = False
        rig.api.hold()
        for number in range(20):
            rig.writer.bind(bind(f"p{number}"))
        await rig.settle()
        assert rig.clock.holds <= 2
        rig.api.let_go()
        rig.clock.advance(1.0)
        await rig.settle()
        assert rig.writer.done["bind"] == 20

    run(test, workers=4)
