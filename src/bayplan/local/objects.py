"""Create, update and delete, for every kind: what changes on the way into the store, and what is
refused. Reading is the store's; paths and forms are `api`'s.
"""

import random
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from bayplan.kube.clock import Clock
from bayplan.kube.defaults import Classes, classes_of
from bayplan.kube.read import Unreadable
from bayplan.local import (
    checks,
    defaults,
    events,
    forms,
    metadata,
    pods,
    problems,
    quantities,
    shapes,
)
from bayplan.local.kinds import (
    DEFINITION,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    PRIORITY_CLASS,
    RUNTIME_CLASS,
    Kind,
)
from bayplan.local.metadata import NAME_LABEL
from bayplan.local.problems import Cause, Problem
from bayplan.local.store import Json, Key, Store, Stored, encode

_UNCHANGEABLE = (
    "uid",
    "creationTimestamp",
    "name",
    "namespace",
    "generation",
    "generateName",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
)
_MUST_NAME_REVISION = frozenset(
    {"Lease", "PodDisruptionBudget", "CustomResourceDefinition"}
)  # in an update
_STALE_DELETE = {
    "UID": (
        "the UID in the precondition ({wanted}) does not match the UID in record ({found}). "
        "The object might have been deleted and then recreated"
    ),
    "ResourceVersion": (
        "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in "
        "record ({found}). The object might have been modified"
    ),
}


_POLICIES = ("Foreground", "Background", "Orphan")
# What holds an object until `owners` has seen to what it owns.
ORPHANING, FOREGROUND = "orphan", "foregroundDeletion"
_HOLDING = {"Orphan": ORPHANING, "Foreground": FOREGROUND}
_LASTING = frozenset({"default", "kube-public", "kube-system"})


class Preconditions(Struct, frozen=True):
    uid: str = ""
    revision: str = ""


class Write(Struct, frozen=True):
    """How an object is changed."""

    sub: str = ""  # the subresource
    dry_run: bool = False
    whole: bool = False  # by PUT: the writer has seen the object that it names


class Deletion(Struct, frozen=True):
    grace_s: int | None = None
    preconditions: Preconditions = Preconditions()
    dry_run: bool = False
    policy: str = ""  # what becomes of what the object owns; the kind's own if nothing is said


def deletion_of(options: Json) -> Deletion:
    """From DeleteOptions."""
    given = options.get("preconditions") or {}
    wanted = Preconditions(given.get("uid") or "", given.get("resourceVersion") or "")
    policy = options.get("propagationPolicy") or ""
    if policy not in ("", *_POLICIES):
        cause = problems.not_one_of("propagationPolicy", policy, *_POLICIES, "nil")
        raise problems.invalid_options([cause], "DeleteOptions")
    grace_s = options.get("gracePeriodSeconds")
    if grace_s is not None and grace_s < 0:
        grace_s = 1
    dry_run = is_dry_run(options.get("dryRun") or [], "DeleteOptions")
    return Deletion(grace_s, wanted, dry_run, policy)


def is_dry_run(given: list[str], options: str) -> bool:
    if set(given) <= {"All"}:
        return bool(given)
    raise problems.invalid_options([problems.not_one_of("dryRun", given, "All")], options)


class Objects:
    def __init__(self, store: Store, clock: Clock, rng: random.Random) -> None:
        self._store, self._clock, self._rng = store, clock, rng

    # ---- create

    def create(self, kind: Kind, value: Json, dry_run: bool = False) -> Stored:
        value = value if kind.custom else forms.without_nulls(value)
        shapes.check(kind, value)
        quantities.settle(kind.built_in, value)
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
        if kind == PRIORITY_CLASS and value.get("globalDefault"):
            self._must_be_only_default(name)
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
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise problems.not_allowed(kind, name, why, [cause])

    def _prepared(self, kind: Kind, value: Json) -> Json:
        if kind == POD:
            made = pods.new_pod(value, self._classes(), self.now())
        else:
            made = defaults.created(kind, value, self.now())
        return forms.settle(kind, made)

    def _classes(self) -> Classes:
        try:
            return classes_of(
                self._store.values(PRIORITY_CLASS.store),
                self._store.values(RUNTIME_CLASS.store),
                complete=True,
            )
        except Unreadable as error:
            raise Problem(500, "InternalError", str(error)) from None

    def _must_be_only_default(self, name: str) -> None:
        for other in self._store.values(PRIORITY_CLASS.store):
            if other.get("globalDefault") and other["metadata"]["name"] != name:
                why = (
                    f"PriorityClass {other['metadata']['name']} is already marked as default. "
                    "Only one default can exist"
                )
                raise problems.not_allowed(PRIORITY_CLASS, name, why)

    def _check_new(self, kind: Kind, value: Json) -> list[Cause]:
        if kind == POD:
            return pods.check_new(value)
        if kind.built_in == "Event":
            return events.check(value)
        return checks.check_new(kind, value)

    # ---- update

    def update(self, kind: Kind, key: Key, change: Callable[[Json], Json], how: Write) -> Stored:
        """`change` makes the new object of a copy of the old one."""
        old = self._store.get(kind.store, key)
        if old is None:
            raise problems.not_found(kind, key[1])
        new = change(old.copy())
        new = new if kind.custom else forms.without_nulls(new)
        shapes.check(kind, new)
        quantities.settle(kind.built_in, new)
        if kind == POD and not how.sub:
            new = pods.refilled(new, old.value) if how.whole else pods.tolerating(new)
        was = old.value["metadata"]
        causes = self._hold(kind, key, was, new["metadata"], how)
        new["kind"], new["apiVersion"] = old.value["kind"], old.value["apiVersion"]
        for field in _UNCHANGEABLE:
            _carry(new["metadata"], was, field)
        new["metadata"]["resourceVersion"] = was["resourceVersion"]
        self._divide(kind, old.value, new, how.sub)
        new = forms.settle(kind, defaults.filled(kind, new))
        causes += metadata.check(kind, new["metadata"])
        causes += metadata.check_finalizers(was, new["metadata"])
        causes += self._check_update(kind, old.value, new, how.sub)
        if causes:
            raise problems.invalid(kind, key[1], causes)
        if _same(new, old.value):
            return old  # nothing is written, and nobody hears of it
        if how.dry_run:
            return Stored(new, encode(new), old.revision)
        if was.get("deletionTimestamp") and self._may_go(kind, new):
            gone = self._store.remove(kind.store, key, old.copy())  # with its last finalizer
            return Stored(new, encode(new), gone.revision)
        return self._store.put(kind.store, key, new)

    def rewrite(
        self, kind: Kind, key: Key, change: Callable[[Json], Json], dry_run: bool = False
    ) -> Stored:
        """An update of the API server's own: neither checked nor counted as a generation."""
        old = self._store.get(kind.store, key)
        if old is None:
            raise problems.not_found(kind, key[1])
        new = change(old.copy())
        return old if dry_run or new == old.value else self._store.put(kind.store, key, new)

    def now(self) -> str:
        return metadata.timestamp(self._clock.wall())

    def _hold(self, kind: Kind, key: Key, was: Json, about: Json, how: Write) -> list[Cause]:
        """The object must be the one that the writer has seen, if it says which."""
        uid, revision = about.get("uid"), about.get("resourceVersion")
        if not revision and (kind.built_in in _MUST_NAME_REVISION or kind.custom):
            raise problems.no_revision(kind, key[1])
        if uid and uid != was["uid"] and how.whole:
            raise problems.stale(kind, key, "UID", uid, was["uid"])
        if revision and not revision.isdecimal():
            text = f'strconv.ParseUint: parsing "{revision}": invalid syntax'
            raise Problem(500, "", text)
        if revision not in (None, "", "0", was["resourceVersion"]):
            raise problems.modified(kind, key[1])
        wrong_uid = uid and uid != was["uid"]
        return [problems.wrong("metadata.uid", uid, "field is immutable")] if wrong_uid else []

    def _divide(self, kind: Kind, old: Json, new: Json, sub: str) -> None:
        """The status has a path of its own: each leaves the other alone."""
        if sub == "status":
            for field in list(new):
                if field not in ("metadata", "status", "kind", "apiVersion"):
                    _carry(new, old, field)
            for field in old:
                if field not in ("metadata", "status"):
                    new[field] = old[field]
            for field in ("ownerReferences", *(() if kind == POD else ("finalizers",))):
                _carry(new["metadata"], old["metadata"], field)
            if kind.custom:
                new["metadata"] = old["metadata"]
            if kind == POD:
                quality = (old.get("status") or {}).get("qosClass")
                new["status"] = {"qosClass": quality, **(new.get("status") or {})}
            return
        if "status" in kind.subresources and kind != DEFINITION:
            _carry(new, old, "status")
        if kind == NAMESPACE and sub != "finalize":
            new["spec"] = {**(new.get("spec") or {}), "finalizers": old["spec"]["finalizers"]}
            labels = new["metadata"].get("labels") or {}
            new["metadata"]["labels"] = {**labels, NAME_LABEL: old["metadata"]["name"]}
        numbered = old["metadata"].get("generation")
        if kind == PRIORITY_CLASS:
            return  # counts from one, and never further
        if numbered and not _same(_spec(new), _spec(old)):
            new["metadata"]["generation"] = numbered + 1

    def _check_update(self, kind: Kind, old: Json, new: Json, sub: str) -> list[Cause]:
        if sub:
            return checks.check_node_status(new) if kind == NODE else []
        return pods.check_update(old, new) if kind == POD else checks.check_update(kind, old, new)

    # ---- delete

    def delete(self, kind: Kind, key: Key, options: Deletion) -> Stored:
        """What was deleted, or what will be when its time or its finalizers are over."""
        if kind == NAMESPACE and key[1] in _LASTING:
            raise problems.not_allowed(kind, key[1], "this namespace may not be deleted")
        old = self._store.get(kind.store, key)
        if old is None:
            raise problems.not_found(kind, key[1])
        was, given = old.value["metadata"], options.preconditions
        for what, wanted, found in (
            ("UID", given.uid, was["uid"]),
            ("ResourceVersion", given.revision, was["resourceVersion"]),
        ):
            if wanted and wanted != found:
                why = _STALE_DELETE[what].format(wanted=wanted, found=found)
                raise problems.conflict(kind, key[1], why, what=kind.kind)
        value = self._marked(kind, old, options)
        if value == old.value:  # on its way already
            if was.get("deletionTimestamp") and not self._may_go(kind, value):
                return old
        elif was.get("finalizers") and self._may_go(kind, value):
            if not options.dry_run:
                self._store.remove(kind.store, key, old.copy())  # with its last finalizer
            return Stored(value, encode(value), self._store.revision)
        elif not options.dry_run:
            value = self._store.put(kind.store, key, value).copy()
        if options.dry_run or not self._may_go(kind, value):
            return Stored(value, encode(value), self._store.revision)
        return self._store.remove(kind.store, key, value)

    def _marked(self, kind: Kind, old: Stored, options: Deletion) -> Json:
        """The object as it is while it ends: pods have time, others only finalizers."""
        value, wall, asked_s = old.copy(), self._clock.wall(), options.grace_s
        about = value["metadata"]
        _await_owned(kind, about, options.policy)
        before_s = about.get("deletionGracePeriodSeconds")
        if about.get("deletionTimestamp"):
            if before_s and asked_s is not None and asked_s < before_s:
                begun = metadata.seconds(about["deletionTimestamp"]) - before_s
                about["deletionTimestamp"] = metadata.timestamp(begun + asked_s)
                about["deletionGracePeriodSeconds"] = asked_s
            return value
        if kind != POD and kind != NAMESPACE and not about.get("finalizers"):
            return value
        grace_s = pods.grace_s(value, asked_s) if kind == POD else 0
        about["deletionTimestamp"] = metadata.timestamp(wall + grace_s)
        if kind == NAMESPACE:
            value["status"] = {**value.get("status", {}), "phase": "Terminating"}
        else:
            about["deletionGracePeriodSeconds"] = grace_s
            if about.get("generation"):
                about["generation"] += 1
        return value

    def _may_go(self, kind: Kind, value: Json) -> bool:
        about = value["metadata"]
        spec = value.get("spec") or {}
        held = about.get("finalizers") or (kind == NAMESPACE and spec.get("finalizers"))
        return not held and not about.get("deletionGracePeriodSeconds")


def _await_owned(kind: Kind, about: Json, policy: str) -> None:
    """Until what it owns is orphaned or gone, if that was asked for."""
    held = about.get("finalizers") or []
    if kind.built_in == "Event":
        return
    if not policy:  # what was asked for before stays; Jobs leave their pods, as they always did
        asked = [name for name in _HOLDING.values() if name in held]
        mark = asked[0] if asked else ORPHANING if kind == JOB else ""
    else:
        mark = _HOLDING.get(policy, "")
    others = [name for name in held if name not in _HOLDING.values()]
    if held or mark:
        about["finalizers"] = [*others, *([mark] if mark else [])]
        if not about["finalizers"]:
            del about["finalizers"]


def _carry(new: Json, old: Json, field: str) -> None:
    """The field as it was."""
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _same(new: Any, old: Any) -> bool:
    """Whether they say the same; Python takes true for 1."""
    return bool(new == old) and _in_order(new) == _in_order(old)


_in_order = msgspec.json.Encoder(order="sorted").encode


def _spec(value: Json) -> dict[str, Any]:
    """What a generation counts the changes of."""
    return {key: part for key, part in value.items() if key not in ("metadata", "status")}
