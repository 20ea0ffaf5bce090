"""The number of an object's replicas as an object of its own, which `kubectl scale` changes."""

from collections.abc import Callable

from bayplan.local import problems, shapes
from bayplan.local.objects import Objects, Write
from bayplan.local.paths import Target
from bayplan.local.problems import wrong
from bayplan.local.store import Json, Stored

API_VERSION, KIND = "autoscaling/v1", "Scale"
_SHARED = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def shown(value: Json) -> Json:
    about, spec, status = value["metadata"], value["spec"], value.get("status") or {}
    told: Json = {"replicas": status.get("replicas", 0)}
    selector = text(spec.get("selector") or {})
    if selector:
        told["selector"] = selector
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {field: about[field] for field in _SHARED},
        "spec": {"replicas": spec["replicas"]} if spec["replicas"] else {},
        "status": told,
    }


def update(
    objects: Objects, about: Target, change: Callable[[Json], Json], dry_run: bool
) -> Stored:
    """`change` makes the new scale of the old one."""

    def scaled(value: Json) -> Json:
        new = change(shown(value))
        shapes.check_scale(new)
        given = (new.get("spec") or {}).get("replicas") or 0
        if given < 0:
            cause = wrong("spec.replicas", given, "must be greater than or equal to 0")
            raise problems.invalid_scale(about.name, [cause])
        for field in ("uid", "resourceVersion"):
            if new["metadata"].get(field):
                value["metadata"][field] = new["metadata"][field]
        value["spec"]["replicas"] = given
        return value

    return objects.update(about.kind, about.key, scaled, Write(dry_run=dry_run))


def text(selector: Json) -> str:
    """A label selector as a query has it."""
    words = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        key, operator, values = (
            one["key"],
            one["operator"],
            ",".join(sorted(one.get("values") or ())),
        )
        form = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
        words.append(form[operator].format(key, values))
    return ",".join(sorted(words))
