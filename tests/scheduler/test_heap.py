"""The allocator's thresholds."""

import sys

import pytest

from bayplan.scheduler.heap import settle


@pytest.mark.parametrize("again", [False, True])
def test_glibc_takes_them_and_takes_them_again(again: bool) -> None:
    assert settle() is (sys.platform == "linux")
