"""Tests that are coroutines run on asyncio's own loop."""

import asyncio
import inspect
from collections.abc import Callable

import pytest


def running(limit_s: float) -> Callable[[pytest.Function], bool | None]:
    """A hook for a folder's conftest, as `pytest_pyfunc_call`."""

    @pytest.hookimpl(tryfirst=True)
    def call(pyfuncitem: pytest.Function) -> bool | None:
        test = pyfuncitem.obj
        if not inspect.iscoroutinefunction(test):
            return None
        names = inspect.signature(test).parameters
        arguments = {name: pyfuncitem.funcargs[name] for name in names}

        async def within() -> None:
            async with asyncio.timeout(limit_s):
                await test(**arguments)

        asyncio.run(within())
        return True

    return call
