"""Nominations travel with the condition: set, cleared, left alone, and never lost on the way."""

from typing import Any

from msgspec.structs import replace

from bayplan.core.model.effects import Refuse
from bayplan.scheduler.feed import Condition
from bayplan.scheduler.writer import CONFLICT_S
from tests.scheduler.scripted import ok, refused
from tests.scheduler.test_writer import NEW, Rig, bind, refuse, run

NONE = "nominatedNodeName is not in it"


def nominate(name: str, message: str, node: str | None) -> Refuse:
    return replace(refuse(name, message), nominated=node)


def patches(rig: Rig) -> list[tuple[str, Any]]:
    """The message and the nomination of each patch."""
    found = [sent.body["status"] for sent in rig.api.sent if sent.method == "PATCH"]
    return [
        (status["conditions"][0]["message"], status.get("nominatedNodeName", NONE))
        for status in found
    ]


def test_a_nomination_is_set_cleared_or_left_alone_with_the_condition() -> None:
    async def test(rig: Rig) -> None:
        for name, node in (("set", "n1"), ("clear", ""), ("leave", None)):
            rig.conditions[f"uid-{name}"] = replace(NEW, nominated="old")
            rig.writer.refuse(nominate(name, "why", node))
        await rig.settle()
        assert patches(rig) == [("why", "n1"), ("why", None), ("why", NONE)]

    run(test)


def test_a_nomination_does_not_wait_for_the_pause() -> None:
    async def test(rig: Rig) -> None:
        rig.writer.refuse(refuse("p", "one"))
        await rig.settle()
        rig.writer.refuse(nominate("p", "two", "n1"))
        await rig.settle()
        assert patches(rig) == [("one", NONE), ("two", "n1")]

    run(test)


def test_the_same_words_are_patched_for_a_new_nomination_only() -> None:
    async def test(rig: Rig) -> None:
        known = Condition(3, "7", "Unschedulable", "same", "2026-01-01T00:00:00Z", "n1")
        rig.conditions["uid-p"] = known
        rig.writer.refuse(nominate("p", "same", "n1"))
        await rig.settle()
        assert patches(rig) == []
        rig.writer.refuse(nominate("p", "same", "n2"))
        await rig.settle()
        assert patches(rig) == [("same", "n2")]

    run(test)


def test_what_was_written_a_moment_ago_can_be_taken_back() -> None:
    """The watch has not brought the first one yet, so it looks as if there were none."""

    async def test(rig: Rig) -> None:
        rig.conditions["uid-p"] = Condition(3, "7", "Unschedulable", "same", "then")
        rig.writer.refuse(nominate("p", "same", "n1"))
        await rig.settle()
        rig.writer.refuse(nominate("p", "same", ""))
        await rig.settle()
        assert patches(rig) == [("same", "n1"), ("same", None)]

    run(test)


def test_newer_words_keep_a_nomination_that_was_not_written_yet() -> None:
    async def test(rig: Rig) -> None:
        rig.api.hold()
        rig.writer.bind(bind("first"))
        await rig.settle()
        rig.writer.refuse(nominate("p", "old", "n1"))
        rig.writer.refuse(refuse("p", "new"))
        rig.api.let_go()
        await rig.settle()
        assert patches(rig) == [("new", "n1")]

    run(test)


def test_a_nomination_that_could_not_be_written_goes_with_the_next_words() -> None:
    async def test(rig: Rig) -> None:
        answers = [refused(409, "Conflict"), ok(200)]
        rig.api.answer = lambda sent: answers.pop(0) if sent.method == "PATCH" else ok()
        rig.writer.refuse(nominate("p", "old", "n1"))
        await rig.settle()
        rig.writer.refuse(refuse("p", "new"))
        await rig.settle()
        assert patches(rig) == [("old", "n1"), ("new", "n1")]

    run(test)


def test_it_also_goes_with_words_that_came_while_it_was_on_its_way() -> None:
    async def test(rig: Rig) -> None:
        answers = [refused(409, "Conflict"), ok(200)]
        rig.api.answer = lambda sent: answers.pop(0) if sent.method == "PATCH" else ok()
        rig.api.hold()
        rig.writer.refuse(nominate("p", "old", "n1"))
        await rig.settle()
        rig.writer.refuse(refuse("p", "new"))  # too soon: put off
        rig.api.let_go()
        await rig.settle()
        rig.clock.advance(CONFLICT_S)  # not the words' own pause
        rig.writer.tick(rig.clock.time())
        await rig.settle()
        assert patches(rig) == [("old", "n1"), ("new", "n1")]

    run(test)
