"""DeviceClasses, as far as they serve extended resources that nodes do not have to allocate."""

from collections.abc import Callable

IMPLICIT = "deviceclass.resource.kubernetes.io/"  # and the class's name: every class serves it


class DeviceClasses:
    """Every change is an operation; `done` is told its inverse, and `changed` that it happened."""

    NOT_STATE = ("_done", "_changed")

    def __init__(self, done: Callable[..., None], changed: Callable[[], None]) -> None:
        self.resources: dict[str, str] = {}  # by class: the resource that it serves, or ""
        self.served: frozenset[str] = frozenset()  # the names that pods may ask for
        self._done = done
        self._changed = changed

    def set(self, name: str, resource: str | None) -> bool:
        before = self.resources.get(name)
        if before == resource:
            return False
        if resource is None:
            del self.resources[name]
        else:
            self.resources[name] = resource
        implicit = (f"{IMPLICIT}{each}" for each in self.resources)
        self.served = frozenset([*implicit, *filter(None, self.resources.values())])
        self._changed()
        self._done(self.set, name, before)
        return True
