"""Tests that are coroutines run on asyncio's own loop."""

import asyncio
import inspect

import pytest

LIMIT_S = 15.0


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
