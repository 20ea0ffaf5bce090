"""Tests that are coroutines run on asyncio's own loop and, where it is installed, on uvloop."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import trustme

from tests.kube_net.manual_clock import ManualClock
from tests.kube_net.stand_in import StandIn

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
with suppress(ImportError):  # it is not to be had everywhere
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("runner", LOOPS, indirect=True)


@pytest.fixture(autouse=True)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[getattr(request, "param", "asyncio")]) as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def within() -> None:
        async with asyncio.timeout(10):
            await test(**arguments)

    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    runner.run(within())
    return True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(runner: asyncio.Runner) -> Iterator[StandIn]:
    stand_in = StandIn()
    runner.run(stand_in.start())
    yield stand_in
    runner.run(stand_in.stop())


@pytest.fixture(scope="session")
def ca() -> trustme.CA:
    return trustme.CA()
