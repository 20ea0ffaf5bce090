"""The embedded Kubernetes API as an object: a request in, an answer out, at once.

It does what kube-apiserver 1.36 does for the requests that Bayplan, kubectl and their users make,
and says 501 to the rest. No authentication, no admission by webhooks or policies, nothing on disk.
Streams are `watching`'s; bytes on a wire are `server`'s; waiting and faults are `transport`'s.
"""

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from bayplan.kube.clock import Clock
from bayplan.local import discovery, events, patches, problems, tables
from bayplan.local.bindings import bind, evict
from bayplan.local.kinds import BUILT_IN, CORE_EVENT, DEFINITION, NAMESPACE, POD, Kind, custom_kinds
from bayplan.local.objects import Deletion, Objects, Preconditions
from bayplan.local.pages import Pages
from bayplan.local.paths import Target, target
from bayplan.local.problems import Problem
from bayplan.local.selecting import Chosen, chosen
from bayplan.local.store import Json, Store, Stored, encode
from bayplan.local.watching import LONGEST_S, Render, Watch

LARGEST_BODY = 3 << 20  # bytes; the API server's own limit
JSON = "application/json"
_YAML = ("application/yaml", "application/apply-patch+yaml")
_PATCHES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
}
_RETURNED_WHEN_DELETED = frozenset(
    {"Pod", "Namespace", "PersistentVolume", "PersistentVolumeClaim", "ServiceAccount", "Service"}
)
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


class Request(Struct, frozen=True):
    method: str
    path: str
    params: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = JSON
    accept: str = JSON


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    content_type: str = JSON


class Api:
    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self.store = Store()
        self._clock = clock
        self.objects = Objects(self.store, clock, rng or random.Random())
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
        self._pages = Pages()
        for name in FIRST_NAMESPACES:
            self.objects.create(NAMESPACE, {"metadata": {"name": name}})

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
        watch.bookmarks = _true(params.get("allowWatchBookmarks", ""))
        watch.deadline_s = min(_number(params, "timeoutSeconds") or LONGEST_S, LONGEST_S)
        since = params.get("resourceVersion", "")
        if since and not since.isdigit():
            why = f'strconv.ParseUint: parsing "{since}": invalid syntax'
            raise problems.bad_request(f'resourceVersion: Invalid value: "{since}": {why}')
        initial = _true(params.get("sendInitialEvents", ""))
        return watch, watch.begin(since, initial)

    def is_watch(self, request: Request) -> bool:
        return request.method == "GET" and _true(request.params.get("watch", ""))

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
        if request.params.get("resourceVersionMatch") == "Exact":
            raise problems.unsupported(
                "the embedded API cannot list as of an exact resourceVersion"
            )
        token, limit = request.params.get("continue", ""), _number(request.params, "limit")

        def find() -> list[Stored]:
            items = self.store.items(about.kind.store, about.namespace)
            return [stored for _, stored in items if what.has(stored)]

        page = self._pages.page(token, int(limit or 0), find, self.store.revision)
        head: Json = {"resourceVersion": str(page.revision)}
        if page.next:
            head |= {"continue": page.next, "remainingItemCount": page.left}
        table = tables.wanted(request.accept)
        if table:
            return _ok(
                tables.table(about.kind, page.items, head, self._clock.wall(), request.params)
            )
        if tables.metadata_wanted(request.accept):
            return _ok(tables.metadata_list(page.items, head))
        render = self._render(about.kind, request)
        items = b",".join([render(stored) for stored in page.items])
        kind, version = f"{about.kind.kind}List", about.kind.api_version
        first = encode({"kind": kind, "apiVersion": version, "metadata": head})
        return Answer(200, first[:-1] + b',"items":[' + items + b"]}\n")

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
        value = self._body(about, request)
        metadata = value["metadata"]
        if about.kind.namespaced:
            if not about.namespace:
                raise problems.bad_method()
            if metadata.setdefault("namespace", about.namespace) != about.namespace:
                raise problems.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the "
                    "request"
                )
        else:
            metadata.pop("namespace", None)
        stored = self.objects.create(about.kind, value, _dry(request))
        if about.kind == DEFINITION and not _dry(request):
            stored = self._establish(about, stored)
        return self._shown(about, request, stored, 201)

    def _establish(self, about: Target, stored: Stored) -> Stored:
        """A new kind is served at once, as the API server would soon."""
        try:
            made = custom_kinds(stored.value)
        except (KeyError, TypeError, AttributeError) as error:
            self.store.remove(
                about.kind.store, ("", stored.value["metadata"]["name"]), stored.value
            )
            raise problems.bad_request(f"the definition has no {error}") from None
        for kind in made:
            self._kinds[kind.group, kind.version, kind.plural] = kind
        names = dict(stored.value["spec"].get("names") or {})
        names.setdefault("singular", str(names.get("kind", "")).lower())
        names.setdefault("listKind", f"{names.get('kind', '')}List")
        at = stored.value["metadata"]["creationTimestamp"]
        conditions = [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", at),
            _condition(
                "Established", "InitialNamesAccepted", "the initial names have been accepted", at
            ),
        ]
        versions = [version["name"] for version in stored.value["spec"].get("versions") or ()]
        value = stored.copy()
        value["spec"]["names"] = names
        value["status"] = {
            "acceptedNames": names,
            "conditions": conditions,
            "storedVersions": versions[:1],
        }
        return self.store.put(about.kind.store, ("", value["metadata"]["name"]), value)

    def _replace(self, about: Target, request: Request) -> Answer:
        value = self._body(about, request)
        name = value["metadata"].setdefault("name", about.name)
        if name != about.name:
            raise problems.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({about.name})"
            )
        if about.kind.kind == "Event":
            value = events.stored(about.kind, value)
        stored = self.objects.update(
            about.kind, about.key, lambda old: value, about.sub, _dry(request)
        )
        return self._shown(about, request, stored)

    def _patch(self, about: Target, request: Request) -> Answer:
        sort = _PATCHES.get(request.content_type.partition(";")[0].strip())
        if request.content_type.startswith("application/apply-patch"):
            raise problems.unsupported("the embedded API has no server-side apply")
        if sort is None or (sort == "strategic" and about.kind.custom):
            supported = [
                name for name in _PATCHES if not (about.kind.custom and "strategic" in name)
            ]
            raise problems.bad_media_type(", ".join(supported))
        patch = _decoded(request)
        if sort != "json" and not isinstance(patch, dict):
            raise problems.bad_request("a patch is an object")

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
            if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
                raise problems.bad_request("the patch leaves no object")
            return events.stored(about.kind, new) if about.kind.kind == "Event" else new

        stored = self.objects.update(about.kind, about.key, change, about.sub, _dry(request))
        return self._shown(about, request, stored)

    def _delete(self, about: Target, request: Request) -> Answer:
        stored = self.objects.delete(about.kind, about.key, _deletion(request), _dry(request))
        if about.kind == DEFINITION and not _dry(request):
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
        what, options = self._chosen(about, request.params), _deletion(request)
        items = self.store.items(about.kind.store, about.namespace)
        gone = []
        for key, stored in items:
            if what.has(stored):
                gone.append(self.objects.delete(about.kind, key, options, _dry(request)))
        render = self._render(about.kind, request)
        head = {
            "kind": f"{about.kind.kind}List",
            "apiVersion": about.kind.api_version,
            "metadata": {"resourceVersion": str(self.store.revision)},
        }
        body = b",".join([render(stored) for stored in gone])
        return Answer(200, encode(head)[:-1] + b',"items":[' + body + b"]}\n")

    def _act(self, about: Target, request: Request) -> Answer:
        """What is done to a pod by creating something below it."""
        if request.method != "POST" or about.kind != POD:
            raise problems.bad_method()
        value = self._body(about, request, kind="Binding" if about.sub == "binding" else "Eviction")
        if about.sub == "binding":
            bind(self.objects, about, value, self._clock.wall(), _dry(request))
            return Answer(201, encode(_success(code=201)) + b"\n")
        evict(self.store, self.objects, about, value, _dry(request))
        return Answer(201, encode(_success(code=201)) + b"\n")

    # ---- bodies

    def _body(self, about: Target, request: Request, kind: str = "") -> Json:
        value = _decoded(request)
        if not isinstance(value, dict):
            raise problems.bad_request(
                f"the object provided is unrecognized (must be of type {about.kind.kind}): "
                "couldn't get version/kind; json parse error"
            )
        wanted, version = kind or about.kind.kind, about.kind.api_version
        given = value.get("kind") or wanted
        given_version = value.get("apiVersion") or version
        if given != wanted or (not kind and given_version != version):
            if given_version != version and not kind:
                raise problems.bad_request(
                    f"the API version in the data ({given_version}) does not match the expected "
                    f"API version ({version})"
                )
            raise problems.bad_request(
                f'{given} in version "{given_version}" cannot be handled as a {wanted}: '
                "no kind matches"
            )
        metadata = value.get("metadata")
        if metadata is None:
            metadata = value["metadata"] = {}
        if not isinstance(metadata, dict):
            raise problems.bad_request(
                f'{wanted} in version "{given_version}" cannot be handled as a {wanted}: '
                "json: cannot unmarshal into Go struct field .metadata"
            )
        return value


def refusal(problem: Problem) -> Answer:
    headers = {"Retry-After": str(problem.retry_after)} if problem.retry_after else {}
    return Answer(problem.code, problem.body, headers)


def _decoded(request: Request) -> Any:
    if len(request.body) > LARGEST_BODY:
        raise Problem(
            413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST_BODY}"
        )
    sort = request.content_type.partition(";")[0].strip()
    try:
        if sort in _YAML:
            return yaml.safe_load(request.body)
        if sort in (JSON, "", *_PATCHES):
            return msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise problems.bad_request(f"the body of the request is not {sort}: {error}") from None
    raise problems.bad_media_type("application/json, application/yaml")


def _deletion(request: Request) -> Deletion:
    options: Any = _decoded(request) if request.body.strip() else {}
    if not isinstance(options, dict):
        raise problems.bad_request("the options of a delete are an object")
    given = options.get("preconditions") or {}
    grace_s = _number(request.params, "gracePeriodSeconds")
    if grace_s is None:
        grace_s = options.get("gracePeriodSeconds")
    if grace_s is not None and not isinstance(grace_s, int):
        raise problems.bad_request("gracePeriodSeconds is not a whole number")
    return Deletion(
        grace_s, Preconditions(given.get("uid") or "", given.get("resourceVersion") or "")
    )


def _dry(request: Request) -> bool:
    return request.params.get("dryRun") == "All"


def _number(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name, "")
    if not text:
        return None
    if not text.isdigit():
        raise problems.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _true(text: str) -> bool:
    return text.lower() in ("true", "1")


def _ok(value: Json) -> Answer:
    return Answer(200, encode(value) + b"\n")


def _success(details: Json | None = None, code: int = 0) -> Json:
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    return {**status, "code": code} if code else status


def _revision(stored: Stored) -> Json:
    return {"resourceVersion": str(stored.revision)}


def _condition(sort: str, reason: str, message: str, at: str) -> Json:
    return {
        "type": sort,
        "status": "True",
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }
