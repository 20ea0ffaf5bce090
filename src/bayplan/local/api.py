"""The embedded Kubernetes API as an object: a request in, an answer out, at once.

It does what kube-apiserver 1.36 does for the requests that Bayplan, kubectl and their users make,
and says 501 to the rest. No authentication, no admission by webhooks or policies, nothing on disk.
Streams are `watching`'s; bytes on a wire are `server`'s; waiting and faults are `transport`'s.
"""

import logging
import random
from collections.abc import Callable, Mapping

from bayplan.kube.clock import Clock
from bayplan.kube.defaults import SYSTEM_PRIORITIES
from bayplan.local import (
    discovery,
    events,
    metadata,
    pages,
    patches,
    problems,
    scale,
    shapes,
    tables,
)
from bayplan.local.bindings import bind, evict
from bayplan.local.definitions import settled
from bayplan.local.kinds import (
    ACTIONS,
    BUILT_IN,
    CORE_EVENT,
    DEFINITION,
    NAMESPACE,
    OWN_GROUPS,
    POD,
    PRIORITY_CLASS,
    Kind,
    custom_kinds,
)
from bayplan.local.objects import Objects, Write
from bayplan.local.pages import Asked, Pages
from bayplan.local.paths import Target, target
from bayplan.local.problems import Problem
from bayplan.local.requests import (
    CUSTOM_PATCHES,
    PATCHES,
    Answer,
    Request,
    body_of,
    decoded,
    deletion,
    is_dry,
    is_true,
    must_be_named,
    must_be_of,
    must_stay,
    number,
    refusal,
)
from bayplan.local.selecting import Chosen, chosen
from bayplan.local.store import Json, Store, Stored, encode
from bayplan.local.watching import LONGEST_S, Render, Watch, too_large

log = logging.getLogger("bayplan.local")

_RETURNED_WHEN_DELETED = frozenset(
    {
        "Pod",
        "Namespace",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "ServiceAccount",
        "Service",
        "StorageClass",
        "ResourceQuota",
        "CSINode",
        "DeviceClass",
        "ResourceSlice",
        "ResourceClaim",
    }
)
_PUT_CREATES = frozenset({"Lease", "Event"})  # what is not there yet
_EVENTS_S = 3600.0  # as long as the API server keeps events
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")

_PRIORITIES_SAY = {
    "system-cluster-critical": (
        "Used for system critical pods that must run in the cluster, but can be moved to another "
        "node if necessary."
    ),
    "system-node-critical": (
        "Used for system critical pods that must not be moved from their current node."
    ),
}


class Api:
    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self.store = Store()
        self.clock = clock
        self.objects = Objects(self.store, clock, rng or random.Random())
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
        self._pages = Pages()
        self.crashes = 0  # requests that met a mistake of ours
        for name in FIRST_NAMESPACES:
            self.objects.create(NAMESPACE, {"metadata": {"name": name}})
        for name, description in _PRIORITIES_SAY.items():
            value = SYSTEM_PRIORITIES[name].value
            made = {"metadata": {"name": name}, "value": value, "description": description}
            self.objects.create(PRIORITY_CLASS, made)

    @property
    def kinds(self) -> list[Kind]:
        return list(self._kinds.values())

    def handle(self, request: Request) -> Answer:
        """The answer to anything but a watch."""
        try:
            return self._handle(request)
        except Problem as problem:
            return refusal(problem)
        except Exception as error:
            return refusal(self._crashed(request, error))

    def watch(self, request: Request) -> tuple[Watch, list[bytes]]:
        """A watch and its first lines; a `Problem` when there is none."""
        try:
            return self._watch(request)
        except Problem:
            raise
        except Exception as error:
            raise self._crashed(request, error) from error

    def _crashed(self, request: Request, error: Exception) -> Problem:
        """A mistake of ours must not end who asked: it is told, and counted."""
        self.crashes += 1
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        text = f"Internal error occurred: {type(error).__name__}: {error}"
        return Problem(500, "InternalError", text[:1000])

    def _watch(self, request: Request) -> tuple[Watch, list[bytes]]:
        about = self._target(request)
        if request.method != "GET" or about.sub:
            raise problems.bad_method()
        params = request.params
        what = self._chosen(about, params)
        watch = Watch(self.store, about.kind, what, self._render(about.kind, request))
        watch.bookmarks = is_true(params.get("allowWatchBookmarks", ""))
        watch.deadline_s = min(number(params, "timeoutSeconds") or LONGEST_S, LONGEST_S)
        since = params.get("resourceVersion", "")
        initial = pages.check_watch(params)
        if since and not since.isdecimal():
            why = f'strconv.ParseUint: parsing "{since}": invalid syntax'
            raise Problem(500, "", f'resourceVersion: Invalid value: "{since}": {why}')
        return watch, watch.begin(since, initial)

    def compact(self) -> None:
        """Forgets what happened before now: watches from then and lists in pages begin again."""
        self.store.compact()
        self._pages.forget()

    def is_watch(self, request: Request) -> bool:
        return request.method == "GET" and is_true(request.params.get("watch", ""))

    # ---- dispatch

    def _target(self, request: Request) -> Target:
        about = target(request.path, self._kinds)
        if about is None:
            raise problems.no_path()
        return about

    def _handle(self, request: Request) -> Answer:
        about = target(request.path, self._kinds)
        if about is None:
            return Answer(
                *discovery.answer(request.method, request.path, request.accept, self.kinds)
            )
        if about.sub in ACTIONS:
            return self._act(about, request)
        if about.sub == "scale":
            return self._scale(about, request)
        named = bool(about.name)
        match request.method, named:
            case "GET", True:
                return self._shown(about, request, self._found(about))
            case "GET", False:
                return self._list(about, request)
            case "POST", False:
                return self._create(about, request)
            case "PUT", True:
                return self._replace(about, request)
            case "PATCH", True:
                return self._patch(about, request)
            case "DELETE", True if not about.sub:
                return self._delete(about, request)
            case "DELETE", False:
                return self._delete_all(about, request)
        raise problems.bad_method()

    # ---- reading

    def _found(self, about: Target) -> Stored:
        stored = self.store.get(about.kind.store, about.key)
        if stored is None:
            raise problems.not_found(about.kind, about.name)
        return stored

    def _chosen(self, about: Target, params: Mapping[str, str]) -> Chosen:
        fields = params.get("fieldSelector", "")
        if about.name:
            fields = f"metadata.name={about.name}" + (f",{fields}" if fields else "")
        return chosen(about.kind, about.namespace, params.get("labelSelector", ""), fields)

    def _list(self, about: Target, request: Request) -> Answer:
        what = self._chosen(about, request.params)
        pages.check(request.params)
        token, limit = request.params.get("continue", ""), number(request.params, "limit")
        number(request.params, "timeoutSeconds")
        since = request.params.get("resourceVersion", "")
        if since and int(since) > self.store.revision and not token:
            raise too_large(int(since), self.store.revision)
        if since == "0" and not token:
            limit = 0  # from memory, where the API server does not cut

        def find() -> list[Stored]:
            items = self.store.items(about.kind.store, about.namespace)
            return [stored for _, stored in items if what.has(stored)]

        asked = Asked(about.kind.store, what, find)
        page = self._pages.page(asked, token, max(limit or 0, 0), self.store.revision)
        head: Json = {"resourceVersion": str(page.revision)}
        if page.next:
            head["continue"] = page.next
            if not (what.labels or what.fields):
                head["remainingItemCount"] = page.left
        if tables.wanted(request.accept):
            return _ok(
                tables.table(about.kind, page.items, head, self.clock.wall(), request.params)
            )
        if tables.metadata_wanted(request.accept):
            return _ok(tables.metadata_list(page.items, head))
        return self._listed(about.kind, request, page.items, head)

    def _listed(self, kind: Kind, request: Request, items: list[Stored], head: Json) -> Answer:
        """What stands in a list of a built-in kind does not say again what it is."""
        render = self._render(kind, request)
        said = encode({"kind": kind.kind, "apiVersion": kind.api_version})[:-1] + b","
        parts = [render(stored) for stored in items]
        if not kind.custom:
            parts = [b"{" + p[len(said) :] if p.startswith(said) else p for p in parts]
        else:
            head.setdefault("continue", "")
        about = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": head}
        first = encode(about)[:-1]
        return Answer(200, first + b',"items":[' + b",".join(parts) + b"]}\n")

    def _render(self, kind: Kind, request: Request) -> Render:
        """How an object is sent, for one who asked like this."""
        if tables.wanted(request.accept):
            params, clock = request.params, self.clock
            return lambda stored: encode(
                tables.table(kind, [stored], _revision(stored), clock.wall(), params)
            )
        if tables.metadata_wanted(request.accept):
            return lambda stored: encode(tables.metadata_only(stored))
        if kind.built_in == "Event" and kind != CORE_EVENT:
            return lambda stored: encode(events.shown(kind, stored.value))
        if kind.custom:
            return lambda stored: encode({**stored.value, "apiVersion": kind.api_version})
        return lambda stored: stored.raw

    def _shown(self, about: Target, request: Request, stored: Stored, status: int = 200) -> Answer:
        return Answer(status, self._render(about.kind, request)(stored) + b"\n")

    # ---- writing

    def _create(self, about: Target, request: Request) -> Answer:
        value = body_of(self.kinds, about, request)
        if about.kind.namespaced and not about.namespace:
            raise problems.bad_method()
        must_be_of(about, value["metadata"])
        if about.kind.built_in == "Event":
            self._expire_events(about.kind)
        if about.kind == DEFINITION:
            value = settled(value, None, self.objects.now())
        stored = self.objects.create(about.kind, value, is_dry(request))
        if about.kind == DEFINITION and not is_dry(request):
            self._serve(stored.value)
        return self._shown(about, request, stored, 201)

    def _expire_events(self, kind: Kind) -> None:
        """Two old ones for each new one, so that they never pile up."""
        for key, stored in self.store.oldest(kind.store, 2):
            made = metadata.seconds(stored.value["metadata"]["creationTimestamp"])
            if made + _EVENTS_S < self.clock.wall():
                self.store.remove(kind.store, key, stored.copy())

    def _serve(self, definition: Json) -> None:
        """What a definition says is served at once, as the API server would soon, and no more."""
        name = definition["metadata"]["name"]
        made = {(kind.group, kind.version, kind.plural): kind for kind in custom_kinds(definition)}
        for place, kind in list(self._kinds.items()):
            if kind.custom and kind.resource == name and place not in made:
                del self._kinds[place]
        self._kinds |= made

    def _update(self, about: Target, change: Callable[[Json], Json], how: Write) -> Stored:
        if about.kind != DEFINITION or how.sub:
            return self.objects.update(about.kind, about.key, change, how)
        old = self._found(about).value

        def checked(copy: Json) -> Json:
            return settled(change(copy), old, self.objects.now())

        stored = self.objects.update(about.kind, about.key, checked, how)
        if not how.dry_run:
            self._serve(stored.value)
            self._retire(stored.value)
        return stored

    def _replace(self, about: Target, request: Request) -> Answer:
        value = body_of(self.kinds, about, request)
        must_be_of(about, value["metadata"])
        must_be_named(about, value["metadata"])
        if (
            self.store.get(about.kind.store, about.key) is None
            and about.kind.built_in in _PUT_CREATES
        ):
            uid = value["metadata"].get("uid")
            if uid:  # whoever names the object that was there does not want another
                raise problems.stale(about.kind, about.key, "UID", uid, "")
            value["metadata"].pop("resourceVersion", None)
            made = self.objects.create(about.kind, value, is_dry(request))
            return self._shown(about, request, made, 201)
        if about.kind.built_in == "Event":
            value = events.stored(about.kind, value)
        how = Write(about.sub, is_dry(request), whole=True)
        stored = self._update(about, lambda old: value, how)
        return self._shown(about, request, stored)

    def _scale(self, about: Target, request: Request) -> Answer:
        stored = self._found(about)
        if request.method == "PUT":
            value = decoded(request)
            if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
                raise problems.bad_request("the body of the request is no Scale")
            stored = scale.update(self.objects, about, lambda old: value, is_dry(request))
        elif request.method == "PATCH":
            change = self._patching(about, request)
            stored = scale.update(self.objects, about, change, is_dry(request))
        elif request.method != "GET":
            raise problems.bad_method()
        return _ok(scale.shown(stored.value))

    def _patch(self, about: Target, request: Request) -> Answer:
        stored = self._update(
            about, self._patching(about, request), Write(about.sub, is_dry(request))
        )
        return self._shown(about, request, stored)

    def _patching(self, about: Target, request: Request) -> Callable[[Json], Json]:
        """What a patch makes of an object."""
        sort = PATCHES.get(request.content_type.partition(";")[0].strip())
        if request.content_type.startswith("application/apply-patch"):
            raise problems.unsupported("the embedded API has no server-side apply")
        if sort is None or (sort == "strategic" and about.kind.custom):
            if about.kind.custom:
                raise problems.bad_media_type(CUSTOM_PATCHES)
            raise Problem(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        patch = decoded(request)
        if not isinstance(patch, list if sort == "json" else dict):
            raise problems.bad_request("a JSON patch is a list, another patch is an object")

        def change(old: Json) -> Json:
            if about.kind.built_in == "Event":
                old = events.shown(about.kind, old)
            try:
                if sort == "json":
                    new = patches.json_patch(old, patch)
                else:
                    apply = patches.merge if sort == "merge" else patches.strategic
                    new = apply(old, patch)
            except patches.BadPatch as error:
                code, reason = (422, "Invalid") if sort == "json" else (400, "BadRequest")
                raise Problem(code, reason, str(error)) from None
            if not isinstance(new, dict):
                raise problems.bad_request("the patch leaves no object")
            if not isinstance(new.setdefault("metadata", {}), dict):
                raise problems.bad_request("the patch leaves no metadata")
            if sort != "strategic" and about.sub != "scale":  # which leaves them alone
                must_stay(about, new)
            must_be_of(about, new["metadata"])
            must_be_named(about, new["metadata"])
            return events.stored(about.kind, new) if about.kind.built_in == "Event" else new

        return change

    def _delete(self, about: Target, request: Request) -> Answer:
        options = deletion(request)
        stored = self.objects.delete(about.kind, about.key, options)
        if about.kind == DEFINITION and not options.dry_run:
            self._retire(stored.value)
        if about.kind.built_in in _RETURNED_WHEN_DELETED or stored.value["metadata"].get(
            "finalizers"
        ):
            return self._shown(about, request, stored)
        details = {"name": about.name, "kind": about.kind.plural}
        if about.kind.group:
            details["group"] = about.kind.group
        details["uid"] = stored.value["metadata"]["uid"]
        return _ok(_success(details))

    def _retire(self, definition: Json) -> None:
        """A definition that is gone takes its kinds and their objects along."""
        name, spec = definition["metadata"]["name"], definition["spec"]
        if self.store.get(DEFINITION.store, ("", name)) or spec["group"] in OWN_GROUPS:
            return
        self._serve({**definition, "spec": {**spec, "versions": []}})
        for key, stored in self.store.items(name):
            self.store.remove(name, key, stored.copy())

    def _delete_all(self, about: Target, request: Request) -> Answer:
        if about.kind == NAMESPACE or (about.kind.namespaced and not about.namespace):
            raise problems.bad_method()
        what, options = self._chosen(about, request.params), deletion(request)
        items = self.store.items(about.kind.store, about.namespace)
        gone = []
        for key, stored in items:
            if what.has(stored):
                self.objects.delete(about.kind, key, options)
                gone.append(stored)  # as it was
        if about.kind == DEFINITION:
            for stored in gone:
                self._retire(stored.value)
        head = {"resourceVersion": str(self.store.revision)}
        return self._listed(about.kind, request, gone, head)

    def _act(self, about: Target, request: Request) -> Answer:
        """What is done to a pod by creating something below it."""
        if request.method != "POST" or about.kind != POD:
            raise problems.bad_method()
        kind = "Binding" if about.sub == "binding" else "Eviction"
        value = body_of(self.kinds, about, request, kind)
        shapes.check_action(kind, value)
        if about.sub == "binding":
            bind(self.objects, about, value, self.clock.wall(), is_dry(request))
            return Answer(201, encode(_success(code=201)) + b"\n")
        evict(self.store, self.objects, about, value, is_dry(request))
        return Answer(201, encode(_success(code=201)) + b"\n")


def _ok(value: Json) -> Answer:
    return Answer(200, encode(value) + b"\n")


def _success(details: Json | None = None, code: int = 0) -> Json:
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    return {**status, "code": code} if code else status


def _revision(stored: Stored) -> Json:
    return {"resourceVersion": str(stored.revision)}
