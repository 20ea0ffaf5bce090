"""What a path is about: a kind, a namespace, a name, a subresource."""

from collections.abc import Mapping
from urllib.parse import unquote

from msgspec import Struct

from bayplan.local import problems
from bayplan.local.kinds import UNSUPPORTED, Kind

_OF_REAL_PODS = (
    *("log", "exec", "attach", "portforward", "proxy"),
    *("ephemeralcontainers", "resize"),
)
Kinds = Mapping[tuple[str, str, str], Kind]  # by group, version, plural


class Target(Struct, frozen=True):
    kind: Kind
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.name)


def target(path: str, kinds: Kinds) -> Target | None:
    """None for what is no resource: discovery, health, OpenAPI."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    if rest[0] == "watch":
        raise problems.unsupported("the embedded API has no paths under watch; use ?watch=true")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, sub, *more = [*rest, "", ""][: max(3, len(rest))]
    kind = kinds.get((group, version, plural))
    if kind is None:
        if plural in UNSUPPORTED.get(group, ()):
            raise problems.unsupported(
                f"the embedded API has no {plural}: no controller would act on them; create pods"
            )
        if not any((group, version) == known[:2] for known in kinds):
            raise problems.no_group()
        raise problems.no_path()
    if more or (namespace and not kind.namespaced) or (name and kind.namespaced and not namespace):
        raise problems.no_path()
    if sub and sub not in kind.subresources:
        if kind.built_in == "Pod" and sub in _OF_REAL_PODS:
            raise problems.unsupported(f"the embedded API has no pods/{sub}: nothing really runs")
        raise problems.no_path()
    return Target(kind, namespace, name, sub)
