"""What the server has: versions, groups, resources, health."""

from collections.abc import Iterable

from bayplan.local import openapi, problems
from bayplan.local.kinds import ACTIONS, VERBS, Kind
from bayplan.local.store import Json, encode

Given = tuple[int, bytes, dict[str, str], str]  # status, body, headers, content type
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3+bayplan",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
# What kubectl must know of the kinds that are not here, to ask for them and be told why.
_ABSENT = {
    ("apps", "v1"): (
        ("deployments", "Deployment", "deploy"),
        ("replicasets", "ReplicaSet", "rs"),
        ("daemonsets", "DaemonSet", "ds"),
    ),
    ("batch", "v1"): (("cronjobs", "CronJob", "cj"),),
    ("autoscaling", "v2"): (("horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa"),),
    ("networking.k8s.io", "v1"): (
        ("ingresses", "Ingress", "ing"),
        ("networkpolicies", "NetworkPolicy", "netpol"),
    ),
    ("", "v1"): (("replicationcontrollers", "ReplicationController", "rc"),),
}
ABSENT = tuple(
    Kind(group, version, plural, kind, short=tuple(short))
    for (group, version), entries in _ABSENT.items()
    for plural, kind, *short in entries
)
_SUB_KINDS = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
}


def answer(method: str, path: str, accept: str, kinds: Iterable[Kind]) -> Given:
    if method not in ("GET", "HEAD"):
        raise problems.bad_method()
    kinds = [*kinds, *ABSENT]
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["healthz" | "livez" | "readyz", *_]:
            return 200, b"ok", {}, _TEXT
        case ["version"]:
            return _given(VERSION)
        case ["api"]:
            return _given({"kind": "APIVersions", "versions": ["v1"]})
        case ["api", "v1"]:
            return _given(_resources("", "v1", kinds))
        case ["apis"]:
            groups = sorted({kind.group for kind in kinds if kind.group})
            listed = [_group(group, kinds) for group in groups]
            return _given({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
        case ["openapi", "v3"]:
            return _given(openapi.index(kinds))
        case ["openapi", "v3", *rest]:
            found = openapi.document("/".join(rest), kinds)
            if found is not None:
                return _given(found)
        case ["openapi", "v2"]:
            return 200, openapi.OLD, {}, openapi.OLD_TYPE
        case ["apis", group] if any(kind.group == group for kind in kinds):
            return _given({**_group(group, kinds), "apiVersion": "v1"})
        case ["apis", group, version] if any(
            (kind.group, kind.version) == (group, version) for kind in kinds
        ):
            return _given(_resources(group, version, kinds))
    raise problems.no_path()


def _given(value: Json) -> Given:
    return 200, encode(value) + b"\n", {}, _JSON


def _group(group: str, kinds: Iterable[Kind]) -> Json:
    versions = list(dict.fromkeys(kind.version for kind in kinds if kind.group == group))
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "name": group, "versions": listed, "preferredVersion": listed[0]}


def _resources(group: str, version: str, kinds: Iterable[Kind]) -> Json:
    listed: list[Json] = []
    for kind in kinds:
        if (kind.group, kind.version) != (group, version):
            continue
        listed.append(
            {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(VERBS),
                **({"shortNames": list(kind.short)} if kind.short else {}),
                **({"categories": list(kind.categories)} if kind.categories else {}),
            }
        )
        for sub in kind.subresources:
            named = _SUB_KINDS.get(sub)
            listed.append(
                {
                    "name": f"{kind.plural}/{sub}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    **({"group": named[0], "version": named[1]} if named and named[0] else {}),
                    "kind": named[2] if named else kind.kind,
                    "verbs": ["create"] if sub in ACTIONS else ["get", "patch", "update"],
                }
            )
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "groupVersion": name, "resources": listed}
