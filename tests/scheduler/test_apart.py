"""Work on copies of the process: what comes back, and what does not."""

import asyncio
import os
from collections.abc import Callable

import pytest

from bayplan.scheduler.apart import Apart
from bayplan.web.desk import Refused


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The copies that were made."""
    pids: list[int] = []
    fork = os.fork

    def record() -> int:
        pid = fork()
        pids.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", record)
    return pids


def run(apart: Apart, work: Callable[[], bytes]) -> bytes:
    return asyncio.run(apart.run(work))


def test_the_copy_has_the_state_and_what_it_does_to_it_nobody_sees() -> None:
    state = [1, 2, 3]

    def work() -> bytes:
        state.append(4)
        return str((state, os.getpid())).encode()

    said = run(Apart(), work).decode()
    assert said.startswith("([1, 2, 3, 4], ")
    assert str(os.getpid()) not in said
    assert state == [1, 2, 3]


def test_a_long_answer_comes_whole() -> None:
    assert run(Apart(), lambda: bytes(5_000_000)) == bytes(5_000_000)


def test_what_is_refused_there_is_refused_here() -> None:
    def work() -> bytes:
        raise Refused(400, "no such pod")

    with pytest.raises(Refused, match="no such pod") as refused:
        run(Apart(), work)
    assert refused.value.status == 400


def test_a_mistake_there_is_told() -> None:
    with pytest.raises(Refused, match="ZeroDivisionError") as refused:
        run(Apart(), lambda: bytes(1 // 0))
    assert refused.value.status == 500


def test_a_copy_that_dies_is_told() -> None:
    with pytest.raises(Refused, match="without an answer"):
        run(Apart(), lambda: os.kill(os.getpid(), 9) or b"")  # type: ignore[func-returns-value]


def test_a_copy_that_takes_too_long_is_killed_and_no_process_is_left(forked: list[int]) -> None:
    apart = Apart(longest_s=0.2)

    def forever() -> bytes:
        while True:
            pass

    with pytest.raises(Refused, match="longer than") as refused:
        run(apart, forever)
    assert refused.value.status == 503
    assert apart.running == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)


def test_only_so_many_at_once() -> None:
    apart = Apart(longest_s=0.3, most=2)

    def forever() -> bytes:
        while True:
            pass

    async def three() -> list[object]:
        runs = (apart.run(forever) for _ in range(3))
        return list(await asyncio.gather(*runs, return_exceptions=True))

    texts = [str(each) for each in asyncio.run(three())]
    assert sum("already" in text for text in texts) == 1
    assert sum("longer than" in text for text in texts) == 2


def test_who_goes_takes_the_copy_along(forked: list[int]) -> None:
    apart = Apart()

    def forever() -> bytes:
        while True:
            pass

    async def leave() -> None:
        task = asyncio.create_task(apart.run(forever))
        await asyncio.sleep(0)
        assert apart.running == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert apart.running == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)
