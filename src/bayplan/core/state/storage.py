"""Claims, volumes and storage classes as facts, and which rows use a claim.

A claim that is still to be made for a pod is made where the first pod that uses it was placed, so
a placement is all that must be undone when that pod goes. Nothing here looks at nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from bayplan.core.model.pods import RowKey
from bayplan.core.model.volumes import Claim, StorageClass, Volume


class Use(Struct, frozen=True):
    """All that is known of a claim that a pod names."""

    key: str  # namespace/name
    ephemeral: bool  # it must belong to the pod
    claim: Claim | None
    volume: Volume | None = None  # of a claim that names one
    storage_class: StorageClass | None = None  # of a claim that names no volume
    class_is_hidden: bool = False  # it is not known, and may exist
    volumes_left: bool = False  # the class has volumes that nobody has claimed
    users: tuple[int, ...] = ()  # rows with pods that use it

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]


class Storage:
    """Every change is an operation; `done` is told its inverse."""

    NOT_STATE = ("_done",)

    def __init__(self, done: Callable[..., None]) -> None:
        self.claims: dict[str, Claim] = {}  # by namespace/name
        self.volumes: dict[str, Volume] = {}  # by name
        self.classes: dict[str, StorageClass] = {}  # by name
        self.classes_are_hidden = False  # they may not be read
        self.claims_on: dict[str, dict[str, None]] = {}  # by volume: claims that name it
        self.unclaimed: Counter[str] = Counter()  # by class: volumes that nobody has claimed
        self.users: dict[str, dict[int, int]] = {}  # by claim: row → placed pods
        self._done = done

    # ---- reading

    def uses(self, row: RowKey) -> tuple[Use, ...]:
        """The pod's claims, in the order of its volumes."""
        return tuple([self._use(key, key in row.ephemeral) for key in row.claims])

    def _use(self, key: str, ephemeral: bool) -> Use:
        claim = self.claims.get(key)
        if claim is None:
            return Use(key, ephemeral, None)
        users = tuple(self.users.get(key, ()))
        if claim.volume:
            return Use(key, ephemeral, claim, self.volumes.get(claim.volume), users=users)
        name = claim.storage_class
        known = self.classes.get(name)
        hidden = known is None and name != "" and self.classes_are_hidden
        left = self.unclaimed[name] > 0
        return Use(key, ephemeral, claim, None, known, hidden, left, users)

    # ---- operations; each says whether anything changed

    def set_claim(self, key: str, claim: Claim | None) -> bool:
        before = self.claims.get(key)
        if before == claim:
            return False
        if before is not None and before.volume:
            named = self.claims_on[before.volume]
            del named[key]
            if not named:
                del self.claims_on[before.volume]
        if claim is None:
            del self.claims[key]
        else:
            self.claims[key] = claim
            if claim.volume:
                self.claims_on.setdefault(claim.volume, {})[key] = None
        self._done(self.set_claim, key, before)
        return True

    def set_volume(self, name: str, volume: Volume | None) -> bool:
        before = self.volumes.get(name)
        if before == volume:
            return False
        if before is not None and before.unclaimed:
            self.unclaimed[before.storage_class] -= 1
            if not self.unclaimed[before.storage_class]:
                del self.unclaimed[before.storage_class]
        if volume is None:
            del self.volumes[name]
        else:
            self.volumes[name] = volume
            if volume.unclaimed:
                self.unclaimed[volume.storage_class] += 1
        self._done(self.set_volume, name, before)
        return True

    def set_class(self, name: str, storage_class: StorageClass | None) -> bool:
        before = self.classes.get(name)
        if before == storage_class:
            return False
        if storage_class is None:
            del self.classes[name]
        else:
            self.classes[name] = storage_class
        self._done(self.set_class, name, before)
        return True

    def hide_classes(self, hidden: bool) -> bool:
        before = self.classes_are_hidden
        if before == hidden:
            return False
        self.classes_are_hidden = hidden
        self._done(self.hide_classes, before)
        return True

    # ---- part of placing and removing a pod, whose inverses they share

    def count(self, keys: Iterable[str], row: int, sign: int) -> None:
        for key in keys:
            rows = self.users.setdefault(key, {})
            rows[row] = rows.get(row, 0) + sign
            if not rows[row]:
                del rows[row]
                if not rows:
                    del self.users[key]
