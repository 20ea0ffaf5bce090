"""Coroutines run on asyncio's own loop and on uvloop, as the tests of the network do."""

import logging
from collections.abc import Iterator

import pytest

from tests.kube_net.conftest import ca, pytest_generate_tests, pytest_pyfunc_call, runner

__all__ = ["ca", "pytest_generate_tests", "pytest_pyfunc_call", "runner"]


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that a client does is worth a word in the log, unless a test says so."""
    yield
    said = caplog.get_records("call")
    assert [entry.getMessage() for entry in said if entry.levelno > logging.INFO] == []
