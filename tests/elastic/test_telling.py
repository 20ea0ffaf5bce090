"""What owners and operators are told: events, and lines of the log."""

import logging

import pytest

from tests.elastic.stage import Stage, elastic, play


def notes(stage: Stage, name: str) -> list[str]:
    """The events of a job, the oldest first."""
    found = [
        each
        for each in stage.api.store.values("events")
        if (each.get("regarding") or each["involvedObject"])["name"] == name
    ]
    found.sort(key=lambda each: str(each["eventTime"]))
    return [f"{each['reason']}: {each.get('note') or each['message']}" for each in found]


async def life(stage: Stage) -> None:
    """Two jobs; one is done, the other fails."""
    await stage.submit(elastic("a", 2, 5))
    await stage.pass_time(5)
    await stage.submit(elastic("b", 2, 5, backoffLimit=0))
    await stage.pass_time(8)
    for index in range(3):
        await stage.end_pod(f"a-worker-{index}", "Succeeded")
    await stage.pass_time(8)
    await stage.end_pod("b-worker-0", "Failed")
    await stage.pass_time(8)


def test_the_events_of_a_job_are_its_life() -> None:
    async def story(stage: Stage) -> None:
        await life(stage)
        assert notes(stage, "a") == [
            "Granted: The job is granted 5 workers.",
            "Shrunk: The job shrinks from 5 to 3 workers.",
            "Completed: The job is complete.",
        ]
        told = notes(stage, "b")
        assert told[0] == "Granted: The job is granted 3 workers."
        assert told[-2] == "Grown: The job grows from 3 to 5 workers."
        assert told[-1].startswith("Failed: The job has failed: ")
        assert len(told) == 3

    play(story, left=3, right=3)


def test_the_log_has_a_line_for_each_change_of_a_size_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "bayplan")
    play(life, left=3, right=3)
    lines = [line for line in caplog.messages if line.startswith("ElasticJob")]

    assert lines[:5] == [
        "ElasticJob default/a is granted 5 workers",
        "ElasticJob default/a has started with 5 workers",
        "ElasticJob default/a shrinks from 5 to 3 workers",
        "ElasticJob default/b is granted 3 workers",
        "ElasticJob default/b has started with 3 workers",
    ]
    assert len(lines) < 12
    assert not any("{" in line or "=" in line for line in lines)


def test_nobody_waits_for_events_that_cannot_be_sent() -> None:
    async def story(stage: Stage) -> None:
        assert stage.process is not None
        inner, request = stage.process.judge, stage.process.judge.request

        async def without_events(method: str, path: str, **more: object) -> object:
            if "/events.k8s.io/" in path:
                await stage.clock.sleep(1e6)
            return await request(method, path, **more)  # type: ignore[arg-type]

        inner.request = without_events  # type: ignore[assignment, method-assign]
        await stage.submit(elastic("a", 2, 5))
        await stage.pass_time(3)
        assert stage.workers() == {"a": 5}
        assert notes(stage, "a") == []

    play(story, only=5)
