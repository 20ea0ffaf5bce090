"""Events, which have two names for the same objects: v1 and events.k8s.io/v1.

They are stored as v1 has them, and turned into the other on the way in and out.
"""

from bayplan.local.kinds import CORE_EVENT, Kind
from bayplan.local.problems import Cause, required, wrong
from bayplan.local.store import Json

_NAMES = {  # v1: events.k8s.io/v1
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK = {new: old for old, new in _NAMES.items()}
# What v1 prints although it is not set, and what the newer one does.
ALWAYS_V1: Json = {
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
    "involvedObject": {},
}
ALWAYS: Json = {
    "deprecatedSource": {},
    "deprecatedFirstTimestamp": None,
    "deprecatedLastTimestamp": None,
    "eventTime": None,
    "regarding": {},
}


def stored(kind: Kind, value: Json) -> Json:
    if kind != CORE_EVENT:
        value = {_BACK.get(key, key): part for key, part in value.items()}
    value["kind"], value["apiVersion"] = CORE_EVENT.kind, CORE_EVENT.api_version
    return {**ALWAYS_V1, **value}


def shown(kind: Kind, value: Json) -> Json:
    """A stored event as the kind has it."""
    if kind == CORE_EVENT:
        return value
    renamed = {_NAMES.get(key, key): part for key, part in value.items()}
    for field in ("reportingController", "reportingInstance"):
        if not renamed.get(field):
            renamed.pop(field, None)
    named = {"kind": kind.kind, "apiVersion": kind.api_version}
    return {**named, **ALWAYS, **renamed, **named}


def check(value: Json) -> list[Cause]:
    """As the newer API does for events with an eventTime; older ones must name their namespace."""
    causes = []
    about, regarding = value["metadata"], value.get("involvedObject") or {}
    namespace = regarding.get("namespace", "")
    if (namespace or "default") != about.get("namespace"):
        causes.append(
            wrong("involvedObject.namespace", namespace, "does not match event.namespace")
        )
    if value.get("eventTime"):
        for field, shown_as in (
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
            ("action", "action"),
            ("reason", "reason"),
        ):
            if not value.get(field):
                causes.append(required(shown_as))
    return causes
