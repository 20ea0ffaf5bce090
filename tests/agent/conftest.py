"""Tests that are coroutines run on asyncio's own loop, as the agent does."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coroutines import running

pytest_pyfunc_call = running(limit_s=30.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path, as sockets need."""
    made = Path(tempfile.mkdtemp(prefix="bp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)
