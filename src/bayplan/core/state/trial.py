"""Trials: what was done since they began can be undone. The cluster knows how."""

from typing import Protocol

from msgspec import Struct


class Mark(Struct, frozen=True):
    """Where a trial began."""

    operations: int
    resources: int
    taint_sets: int
    labels: dict[str, int]  # values by label key
    version: int
    outermost: bool


class Derived(Struct, frozen=True):
    """What was derived on demand, and is no part of the state."""

    columns: set[str]  # label keys
    keys: set[str]  # of the index over pods
    demands: int


class Undoes(Protocol):
    def undo_to(self, mark: Mark) -> None: ...
    def forget_undo(self) -> None: ...


class Trial:
    """What was done since the trial began. Dropped at the end of its block unless kept."""

    def __init__(self, cluster: Undoes, mark: Mark) -> None:
        self._cluster = cluster
        self._mark = mark
        self._kept = False

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            if self._mark.outermost:
                self._cluster.forget_undo()

    def keep(self) -> None:
        """What is done in the trial stays; an outer trial can still undo it."""
        self._kept = True

    def close(self) -> None:
        if not self._kept:
            self._cluster.undo_to(self._mark)
