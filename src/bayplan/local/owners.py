"""Who owns what, and what becomes of it: kube-controller-manager's garbage collector.

What all its owners have left behind is deleted. An object that is deleted with `Foreground` waits
until what it owns is gone; one that is deleted with `Orphan` gives it up first. An owner of a kind
that is not served is never thought to be gone.
"""

from collections.abc import Iterable
from contextlib import suppress

from bayplan.local.api import Api
from bayplan.local.kinds import DEFINITION, Kind
from bayplan.local.objects import FOREGROUND, ORPHANING, Deletion, Preconditions, Write
from bayplan.local.problems import Problem
from bayplan.local.settling import kept_going
from bayplan.local.store import Change, Json, Key, Stored

_Place = tuple[str, Key]  # of an object: its kind's store, and its key


class Owners:
    def __init__(self, api: Api) -> None:
        self._api, self._store = api, api.store
        self._read: dict[str, int] = {}  # so far, of each kind's log
        self._owned: dict[str, set[_Place]] = {}  # by the owner's uid
        self._doubtful: set[_Place] = set()  # is an owner left?
        self._ending: set[_Place] = set()  # and held until what they own is seen to
        self._held: dict[str, set[_Place]] = {}  # by a finalizer

    def owned(self, owner: Json, kind: Kind) -> list[tuple[Key, Stored]]:
        """The objects of a kind that an object controls, by name."""
        uid = owner["metadata"]["uid"]
        places = sorted(place for place in self._owned.get(uid, ()) if place[0] == kind.store)
        found = [(key, self._store.get(store, key)) for store, key in places]
        return [
            (key, stored)
            for key, stored in found
            if stored and any(r.get("controller") and r["uid"] == uid for r in _owners(stored))
        ]

    def held(self, finalizer: str, kind: Kind) -> list[tuple[Key, Stored]]:
        """The objects of a kind that have a finalizer."""
        places = sorted(self._held.get(finalizer, ()))
        found = [(key, self._store.get(store, key)) for store, key in places if store == kind.store]
        return [(key, stored) for key, stored in found if stored]

    def refresh(self) -> None:
        """Reads what has happened since the last time."""
        for store, log in list(self._store.logs().items()):
            begun = self._read.get(store)
            self._read[store] = log.end
            if begun is None or begun < log.first:
                for key, stored in self._store.items(store):
                    self._see((store, key), None, stored)
                self._doubtful.update(*self._owned.values())  # owners may have gone unseen
            else:
                for change in log.changes[begun - log.first :]:
                    self._see_change(store, change)

    def settle(self) -> None:
        """Deletes what nobody owns any more, and lets go of owners that wait."""
        kinds = {kind.store: kind for kind in self._api.kinds if kind.built_in != "Event"}
        named = {(kind.api_version, kind.kind): kind for kind in self._api.kinds}
        doubtful, self._doubtful = sorted(self._doubtful), set()
        for store, key in doubtful:
            stored = self._store.get(store, key)
            if stored and store in kinds and not self._has_owner(stored, key, named):
                with kept_going(kinds[store], key):
                    self._delete(kinds[store], key, stored)
        for store, key in sorted(self._ending):
            stored, waits = self._store.get(store, key), False
            if stored and store in kinds:
                with kept_going(kinds[store], key):
                    waits = self._see_off(kinds, store, key, stored)
            if not waits:
                self._ending.discard((store, key))

    # ---- what happens

    def _see_change(self, store: str, change: Change) -> None:
        about = change.last.value["metadata"]
        place = (store, (about.get("namespace", ""), about["name"]))
        if change.after is not None:
            self._see(place, change.before, change.after)
            return
        self._forget(place, change.before)
        for name in _finalizers(change.before):
            self._held[name].discard(place)
        self._doubtful |= self._owned.get(about["uid"], set())
        self._ending.discard(place)

    def _see(self, place: _Place, before: Stored | None, stored: Stored) -> None:
        about = stored.value["metadata"]
        if before is None or _owners(before) != _owners(stored):
            self._forget(place, before)
            for owner in _owners(stored):
                self._owned.setdefault(owner["uid"], set()).add(place)
                self._doubtful.add(place)
        held = about.get("finalizers") or ()
        for name in _finalizers(before) - set(held):
            self._held[name].discard(place)
        for name in held:
            self._held.setdefault(name, set()).add(place)
        if about.get("deletionTimestamp") and (ORPHANING in held or FOREGROUND in held):
            self._ending.add(place)

    def _forget(self, place: _Place, before: Stored | None) -> None:
        for owner in _owners(before) if before else ():
            places = self._owned.get(owner["uid"], set())
            places.discard(place)
            if not places:
                self._owned.pop(owner["uid"], None)

    # ---- what becomes of it

    def _has_owner(self, stored: Stored, key: Key, named: dict[tuple[str, str], Kind]) -> bool:
        owners = _owners(stored)
        return not owners or any(self._is_there(owner, key[0], named) for owner in owners)

    def _is_there(self, owner: Json, space: str, named: dict[tuple[str, str], Kind]) -> bool:
        kind = named.get((owner["apiVersion"], owner["kind"]))
        if kind is None or (kind.namespaced and not space):
            return True
        found = self._store.get(kind.store, (space if kind.namespaced else "", owner["name"]))
        return found is not None and found.value["metadata"]["uid"] == owner["uid"]

    def _delete(self, kind: Kind, key: Key, stored: Stored) -> None:
        about = stored.value["metadata"]
        if kind == DEFINITION or about.get("deletionTimestamp"):
            return
        held = about.get("finalizers") or ()
        asked = "Orphan" if ORPHANING in held else "Foreground" if FOREGROUND in held else ""
        options = Deletion(preconditions=Preconditions(about["uid"]), policy=asked or "Background")
        with suppress(Problem):  # somebody was faster
            self._api.objects.delete(kind, key, options)

    def _see_off(self, kinds: dict[str, Kind], store: str, key: Key, stored: Stored) -> bool:
        """Whether it still waits."""
        about = stored.value["metadata"]
        held, uid = about.get("finalizers") or (), about["uid"]
        if ORPHANING in held:
            for other, place in self._dependents(uid, kinds):
                self._api.objects.update(other, place, lambda old: _without(old, uid), Write())
            self._release(kinds[store], key, ORPHANING)
            return False
        if FOREGROUND not in held:
            return False
        for other, place in self._dependents(uid, kinds):
            dependent = self._store.get(other.store, place)
            if dependent:
                self._delete(other, place, dependent)
        self.refresh()
        if any(_blocks(self._store.get(o.store, p), uid) for o, p in self._dependents(uid, kinds)):
            return True
        self._release(kinds[store], key, FOREGROUND)
        return False

    def _dependents(self, uid: str, kinds: dict[str, Kind]) -> Iterable[tuple[Kind, Key]]:
        places = sorted(self._owned.get(uid, ()))
        return [(kinds[store], key) for store, key in places if store in kinds]

    def _release(self, kind: Kind, key: Key, held: str) -> None:
        def let_go(value: Json) -> Json:
            left = [name for name in value["metadata"]["finalizers"] if name != held]
            value["metadata"]["finalizers"] = left
            return value

        self._api.objects.update(kind, key, let_go, Write())


def _finalizers(stored: Stored | None) -> set[str]:
    return set(stored.value["metadata"].get("finalizers") or ()) if stored else set()


def _owners(stored: Stored) -> list[Json]:
    found = stored.value["metadata"].get("ownerReferences") or ()
    return [one for one in found if all(one.get(f) for f in ("apiVersion", "kind", "name", "uid"))]


def _blocks(dependent: Stored | None, uid: str) -> bool:
    owners = _owners(dependent) if dependent else ()
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)


def _without(value: Json, uid: str) -> Json:
    owners = value["metadata"].get("ownerReferences") or ()
    value["metadata"]["ownerReferences"] = [one for one in owners if one.get("uid") != uid]
    return value
