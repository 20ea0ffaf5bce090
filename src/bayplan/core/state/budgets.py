"""The disruption budgets of the cluster."""

from collections.abc import Callable

from bayplan.core.model.budgets import Budget


class Budgets:
    """By key. Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done",)

    def __init__(self, done: Callable[..., None]) -> None:
        self.by_key: dict[str, Budget] = {}
        self._done = done

    def set(self, key: str, budget: Budget | None) -> bool:
        before = self.by_key.get(key)
        if before == budget:
            return False
        if budget is None:
            del self.by_key[key]
        else:
            self.by_key[key] = budget
        self._done(self.set, key, before)
        return True
