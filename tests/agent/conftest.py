"""Tests that are coroutines run on asyncio's own loop, as the agent does."""

import asyncio
import inspect
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_S = 30.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def within() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(**arguments)

    asyncio.run(within())
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path, as sockets need."""
    made = Path(tempfile.mkdtemp(prefix="bp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)
