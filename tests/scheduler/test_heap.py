"""The allocator's thresholds."""

import sys

import pytest

from bayplan.scheduler.heap import keep_thresholds


@pytest.mark.parametrize("again", [False, True])
def test_glibc_takes_them_and_takes_them_again(again: bool) -> None:
    assert keep_thresholds() is (sys.platform == "linux")
