"""Create, update and delete, for every kind: what changes on the way into the store, and what is
refused. Reading is the store's; paths and forms are `api`'s.
"""

import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bayplan.kube.clock import Clock
from bayplan.kube.defaults import Classes, classes_of
from bayplan.kube.read import Unreadable
from bayplan.local import events, metadata, pods, problems, shapes
from bayplan.local.kinds import (
    BUDGET,
    DEFINITION,
    NAMESPACE,
    NODE,
    POD,
    PRIORITY_CLASS,
    RUNTIME_CLASS,
    Kind,
)
from bayplan.local.problems import Cause, Problem
from bayplan.local.store import Json, Key, Store, Stored, encode

_MUST_NAME_REVISION = frozenset({"Lease", "PodDisruptionBudget"})  # in an update
PRECONDITION = (
    "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
)


class Preconditions(Struct, frozen=True):
    uid: str = ""
    revision: str = ""


class Deletion(Struct, frozen=True):
    grace_s: int | None = None
    preconditions: Preconditions = Preconditions()


class Objects:
    def __init__(self, store: Store, clock: Clock, rng: random.Random) -> None:
        self._store, self._clock, self._rng = store, clock, rng

    # ---- create

    def create(self, kind: Kind, value: Json, dry_run: bool = False) -> Stored:
        shapes.check(kind, value)
        about = value["metadata"]
        if about.get("resourceVersion"):
            raise Problem(500, "", "resourceVersion should not be set on objects to be created")
        about.pop("resourceVersion", None)
        if kind.namespaced:
            self._namespace_must_take(kind, about)
        value["kind"], value["apiVersion"] = kind.kind, kind.api_version
        metadata.stamp_new(about, self._clock.wall(), self._rng)
        value = self._prepared(kind, value)
        about = value["metadata"]
        name = about.get("name") or ""
        causes = metadata.check(kind, about) + self._check_new(kind, value)
        if causes:
            raise problems.invalid(kind, name, causes)
        key: Key = (about.get("namespace", ""), name)
        if self._store.get(kind.store, key) is not None:
            raise problems.exists(kind, name)
        if dry_run:
            return Stored(value, encode(value), self._store.revision)
        return self._store.put(kind.store, key, value)

    def _namespace_must_take(self, kind: Kind, about: Json) -> None:
        space = self._store.get(NAMESPACE.store, ("", about["namespace"]))
        if space is None:
            raise problems.not_found(NAMESPACE, about["namespace"])
        if space.value["metadata"].get("deletionTimestamp"):
            name, namespace = about.get("name", ""), about["namespace"]
            why = (
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated"
            )
            details = {"name": name, "kind": kind.plural}
            details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            text = f'{kind.resource} "{name}" is forbidden: {why}'
            raise Problem(403, "Forbidden", text, details)

    def _prepared(self, kind: Kind, value: Json) -> Json:
        if kind == POD:
            return pods.new_pod(value, self._classes())
        if kind == NODE:
            status = value.setdefault("status", {})
            if "capacity" in status:
                status.setdefault("allocatable", status["capacity"])
            return value
        if kind == NAMESPACE:
            value["spec"] = {"finalizers": ["kubernetes"]}
            value["status"] = {"phase": "Active"}
            labels = value["metadata"].setdefault("labels", {}) or {}
            labels["kubernetes.io/metadata.name"] = value["metadata"].get("name", "")
            value["metadata"]["labels"] = labels
            return value
        if kind == PRIORITY_CLASS:
            value.setdefault("preemptionPolicy", "PreemptLowerPriority")
        if kind.kind == "Event":
            return events.stored(kind, value)
        if "status" in kind.subresources and kind != DEFINITION:
            value.pop("status", None)
        if kind == BUDGET:
            value["status"] = {
                "currentHealthy": 0,
                "desiredHealthy": 0,
                "disruptionsAllowed": 0,
                "expectedPods": 0,
            }
        if kind.custom or kind == BUDGET:
            value["metadata"]["generation"] = 1
        return value

    def _classes(self) -> Classes:
        try:
            return classes_of(
                self._store.values(PRIORITY_CLASS.store),
                self._store.values(RUNTIME_CLASS.store),
                complete=True,
            )
        except Unreadable as error:
            raise Problem(500, "InternalError", str(error)) from None

    def _check_new(self, kind: Kind, value: Json) -> list[Cause]:
        if kind == POD:
            return pods.check_new(value)
        if kind.kind == "Event":
            return events.check(value)
        return []

    # ---- update

    def update(
        self,
        kind: Kind,
        key: Key,
        change: Callable[[Json], Json],
        sub: str = "",
        dry_run: bool = False,
    ) -> Stored:
        """`change` makes the new object of a copy of the old one."""
        old = self._store.get(kind.store, key)
        if old is None:
            raise problems.not_found(kind, key[1])
        new = change(old.copy())
        shapes.check(kind, new)
        about, was = new["metadata"], old.value["metadata"]
        self._hold(kind, key, old, about)
        new["kind"], new["apiVersion"] = old.value["kind"], old.value["apiVersion"]
        for field in ("uid", "creationTimestamp", "name", "namespace", "generation"):
            _carry(about, was, field)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            _carry(about, was, field)
        about.pop("managedFields", None)
        about["resourceVersion"] = was["resourceVersion"]
        self._divide(kind, old.value, new, sub)
        causes = metadata.check(kind, about) + self._check_update(kind, old.value, new, sub)
        if causes:
            raise problems.invalid(kind, key[1], causes)
        if new == old.value:
            return old  # nothing is written, and nobody hears of it
        if dry_run:
            return Stored(new, encode(new), old.revision)
        if about.get("deletionTimestamp") and self._may_go(kind, new):
            return self._store.remove(kind.store, key, new)
        return self._store.put(kind.store, key, new)

    def rewrite(
        self, kind: Kind, key: Key, change: Callable[[Json], Json], dry_run: bool = False
    ) -> Stored:
        """An update of the API server's own: neither checked nor counted as a generation."""
        old = self._store.get(kind.store, key)
        if old is None:
            raise problems.not_found(kind, key[1])
        new = change(old.copy())
        return old if dry_run else self._store.put(kind.store, key, new)

    def now(self) -> str:
        return metadata.timestamp(self._clock.wall())

    def _hold(self, kind: Kind, key: Key, old: Stored, about: Json) -> None:
        """The object must be the one that the writer has seen, if it says which."""
        was = old.value["metadata"]
        uid, revision = about.get("uid"), about.get("resourceVersion")
        if uid and uid != was["uid"]:
            why = PRECONDITION.format(what="UID", wanted=uid, found=was["uid"])
            raise problems.conflict(kind, key[1], why)
        if revision and revision != was["resourceVersion"]:
            raise problems.modified(kind, key[1])
        if not revision and (kind.kind in _MUST_NAME_REVISION or kind.custom):
            cause = problems.Cause(
                "Invalid",
                "metadata.resourceVersion",
                "Invalid value: 0: must be specified for an update",
            )
            raise problems.invalid(kind, key[1], [cause])

    def _divide(self, kind: Kind, old: Json, new: Json, sub: str) -> None:
        """The status has a path of its own: each leaves the other alone."""
        if sub == "status":
            for field in list(new):
                if field not in ("metadata", "status", "kind", "apiVersion"):
                    _carry(new, old, field)
            for field in old:
                if field not in ("metadata", "status"):
                    new[field] = old[field]
            for field in ("ownerReferences", "finalizers"):
                _carry(new["metadata"], old["metadata"], field)
            return
        if "status" in kind.subresources and kind != DEFINITION:
            _carry(new, old, "status")
        numbered = old["metadata"].get("generation")
        if numbered and _spec(new) != _spec(old):
            new["metadata"]["generation"] = numbered + 1

    def _check_update(self, kind: Kind, old: Json, new: Json, sub: str) -> list[Cause]:
        return pods.check_update(old, new) if kind == POD and not sub else []

    # ---- delete

    def delete(self, kind: Kind, key: Key, options: Deletion, dry_run: bool = False) -> Stored:
        """What was deleted, or what will be when its time or its finalizers are over."""
        old = self._store.get(kind.store, key)
        if old is None:
            raise problems.not_found(kind, key[1])
        was, given = old.value["metadata"], options.preconditions
        for what, wanted, found in (
            ("UID", given.uid, was["uid"]),
            ("ResourceVersion", given.revision, was["resourceVersion"]),
        ):
            if wanted and wanted != found:
                why = PRECONDITION.format(what=what, wanted=wanted, found=found)
                raise problems.conflict(kind, key[1], why)
        value = old.copy()
        grace_s = pods.grace_s(value, options.grace_s) if kind == POD else 0
        before_s = was.get("deletionGracePeriodSeconds")
        if was.get("deletionTimestamp") and before_s is not None:
            grace_s = min(grace_s, before_s)
        about = value["metadata"]
        if not was.get("deletionTimestamp") or grace_s != before_s:
            about["deletionTimestamp"] = metadata.timestamp(self._clock.wall() + grace_s)
            about["deletionGracePeriodSeconds"] = grace_s
            if about.get("generation") and not was.get("deletionTimestamp") and kind == POD:
                about["generation"] += 1
        if kind == NAMESPACE:
            value["status"] = {**value.get("status", {}), "phase": "Terminating"}
            about.pop("deletionGracePeriodSeconds", None)
        if dry_run or value == old.value:
            return Stored(value, encode(value), old.revision)
        if grace_s == 0 and self._may_go(kind, value):
            return self._store.remove(kind.store, key, value)
        return self._store.put(kind.store, key, value)

    def _may_go(self, kind: Kind, value: Json) -> bool:
        about = value["metadata"]
        held = about.get("finalizers") or (kind == NAMESPACE and value["spec"].get("finalizers"))
        return not held and not about.get("deletionGracePeriodSeconds")


def _carry(new: Json, old: Json, field: str) -> None:
    """The field as it was."""
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _spec(value: Json) -> dict[str, Any]:
    """What a generation counts the changes of."""
    return {key: part for key, part in value.items() if key not in ("metadata", "status")}
