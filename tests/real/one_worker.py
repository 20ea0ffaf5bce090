"""For pytest-xdist: all tests in this folder run in one worker, so there is one control plane.

The Makefile loads it with `-p`. Marks with `--dist loadgroup` would do the same, but pytest-xdist
3.8 does not see them with pytest 9.2 (pytest-dev/pytest-xdist#1386).
"""

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

FOLDER = Path(__file__).parent


class OneWorker(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker one test at a time, or the whole of this folder."""

    def _split_scope(self, nodeid: str) -> str:
        path = self.config.rootpath / nodeid.split("::")[0]
        return str(FOLDER) if path.is_relative_to(FOLDER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorker:
    return OneWorker(config, log)
