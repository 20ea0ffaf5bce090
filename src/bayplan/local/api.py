"""The embedded Kubernetes API as an object: a request in, an answer out, at once.

It does what kube-apiserver 1.36 does for the requests that Bayplan, kubectl and their users make,
and says 501 to the rest. No authentication, no admission by webhooks or policies, nothing on disk.
Streams are `watching`'s; bytes on a wire are `server`'s; waiting and faults are `transport`'s.
"""

import random
from collections.abc import Mapping

from bayplan.kube.clock import Clock
from bayplan.kube.defaults import SYSTEM_PRIORITIES
from bayplan.local import discovery, events, pages, patches, problems, shapes, tables
from bayplan.local.bindings import bind, evict
from bayplan.local.definitions import established
from bayplan.local.kinds import (
    BUILT_IN,
    CORE_EVENT,
    DEFINITION,
    NAMESPACE,
    POD,
    PRIORITY_CLASS,
    Kind,
    custom_kinds,
)
from bayplan.local.objects import Objects, Write
from bayplan.local.pages import Pages
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
        self._clock = clock
        self.objects = Objects(self.store, clock, rng or random.Random())
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
        self._pages = Pages()
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

    def watch(self, request: Request) -> tuple[Watch, list[bytes]]:
        """A watch and its first lines; a `Problem` when there is none."""
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
        if about.sub in ("binding", "eviction"):
            return self._act(about, request)
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
            case "DELETE", True:
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
        since = request.params.get("resourceVersion", "")
        if since and int(since) > self.store.revision and not token:
            raise too_large(int(since), self.store.revision)
        if since == "0" and not token:
            limit = 0  # from memory, where the API server does not cut

        def find() -> list[Stored]:
            items = self.store.items(about.kind.store, about.namespace)
            return [stored for _, stored in items if what.has(stored)]

        page = self._pages.page(token, int(limit or 0), find, self.store.revision)
        head: Json = {"resourceVersion": str(page.revision)}
        if page.next:
            head["continue"] = page.next
            if not (what.labels or what.fields):
                head["remainingItemCount"] = page.left
        if tables.wanted(request.accept):
            return _ok(
                tables.table(about.kind, page.items, head, self._clock.wall(), request.params)
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
            params, clock = request.params, self._clock
            return lambda stored: encode(
                tables.table(kind, [stored], _revision(stored), clock.wall(), params)
            )
        if tables.metadata_wanted(request.accept):
            return lambda stored: encode(tables.metadata_only(stored))
        if kind.kind == "Event" and kind != CORE_EVENT:
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
        stored = self.objects.create(about.kind, value, is_dry(request))
        if about.kind == DEFINITION and not is_dry(request):
            stored = self._establish(about, stored)
        return self._shown(about, request, stored, 201)

    def _establish(self, about: Target, stored: Stored) -> Stored:
        """A new kind is served at once, as the API server would soon."""
        key = ("", stored.value["metadata"]["name"])
        try:
            made = custom_kinds(stored.value)
        except (KeyError, TypeError, AttributeError) as error:
            self.store.remove(about.kind.store, key, stored.value)
            raise problems.bad_request(f"the definition has no {error}") from None
        for kind in made:
            self._kinds[kind.group, kind.version, kind.plural] = kind
        return self.store.put(about.kind.store, key, established(stored.copy()))

    def _replace(self, about: Target, request: Request) -> Answer:
        value = body_of(self.kinds, about, request)
        must_be_of(about, value["metadata"])
        must_be_named(about, value["metadata"])
        if self.store.get(about.kind.store, about.key) is None and about.kind.kind in _PUT_CREATES:
            uid = value["metadata"].get("uid")
            if uid:  # whoever names the object that was there does not want another
                raise problems.stale(about.kind, about.key, "UID", uid, "")
            value["metadata"].pop("resourceVersion", None)
            made = self.objects.create(about.kind, value, is_dry(request))
            return self._shown(about, request, made, 201)
        if about.kind.kind == "Event":
            value = events.stored(about.kind, value)
        how = Write(about.sub, is_dry(request), whole=True)
        stored = self.objects.update(about.kind, about.key, lambda old: value, how)
        return self._shown(about, request, stored)

    def _patch(self, about: Target, request: Request) -> Answer:
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
            if about.kind.kind == "Event":
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
            if sort != "strategic":  # which leaves them alone
                must_stay(about, new)
            must_be_of(about, new["metadata"])
            must_be_named(about, new["metadata"])
            return events.stored(about.kind, new) if about.kind.kind == "Event" else new

        how = Write(about.sub, is_dry(request))
        stored = self.objects.update(about.kind, about.key, change, how)
        return self._shown(about, request, stored)

    def _delete(self, about: Target, request: Request) -> Answer:
        stored = self.objects.delete(about.kind, about.key, deletion(request), is_dry(request))
        if about.kind == DEFINITION and not is_dry(request):
            self._retire(stored.value)
        if about.kind.kind in _RETURNED_WHEN_DELETED or stored.value["metadata"].get("finalizers"):
            return self._shown(about, request, stored)
        details = {"name": about.name, "kind": about.kind.plural}
        if about.kind.group:
            details["group"] = about.kind.group
        details["uid"] = stored.value["metadata"]["uid"]
        return _ok(_success(details))

    def _retire(self, definition: Json) -> None:
        """A kind that is gone takes its objects along."""
        for kind in custom_kinds(definition):
            self._kinds.pop((kind.group, kind.version, kind.plural), None)
            for key, stored in self.store.items(kind.store):
                self.store.remove(kind.store, key, stored.copy())

    def _delete_all(self, about: Target, request: Request) -> Answer:
        if about.kind.namespaced and not about.namespace:
            raise problems.bad_method()
        what, options = self._chosen(about, request.params), deletion(request)
        items = self.store.items(about.kind.store, about.namespace)
        gone = []
        for key, stored in items:
            if what.has(stored):
                self.objects.delete(about.kind, key, options, is_dry(request))
                gone.append(stored)  # as it was
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
            bind(self.objects, about, value, self._clock.wall(), is_dry(request))
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
