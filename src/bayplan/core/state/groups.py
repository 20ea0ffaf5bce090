"""The objects that say what gangs are."""

from collections.abc import Callable

from bayplan.core.model.groups import SOURCES, PodGroup, Source
from bayplan.core.model.pods import Gang


class Groups:
    """By group of the API and key. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done",)

    def __init__(self, done: Callable[..., None]) -> None:
        self.by_source: dict[tuple[Source, str], PodGroup] = {}
        self._done = done

    def set(self, source: Source, key: str, group: PodGroup | None) -> bool:
        before = self.by_source.get((source, key))
        if before == group:
            return False
        if group is None:
            del self.by_source[source, key]
        else:
            self.by_source[source, key] = group
        self._done(self.set, source, key, before)
        return True

    def get(self, key: str) -> PodGroup | None:
        """Of objects that mean the same gang, the one whose group of the API comes first."""
        found = (self.by_source.get((source, key)) for source in SOURCES)
        return next((group for group in found if group is not None), None)

    def minimum(self, gang: Gang) -> int:
        """How many members must run, as far as is known."""
        group = self.get(gang.key) if gang.grouped else None
        return gang.minimum if group is None else group.gang.minimum
