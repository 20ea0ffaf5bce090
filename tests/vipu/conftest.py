"""Tests that are coroutines run on asyncio's own loop."""

from tests.coroutines import running

pytest_pyfunc_call = running(limit_s=15.0)
