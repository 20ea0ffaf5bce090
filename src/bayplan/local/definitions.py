"""A CustomResourceDefinition that was taken: what the API server writes into it."""

from bayplan.local.store import Json


def established(definition: Json) -> Json:
    """With the names that it did not say, and a status; changes `definition`."""
    names = dict(definition["spec"].get("names") or {})
    names.setdefault("singular", str(names.get("kind", "")).lower())
    names.setdefault("listKind", f"{names.get('kind', '')}List")
    at = definition["metadata"]["creationTimestamp"]
    conditions = [
        _condition("NamesAccepted", "NoConflicts", "no conflicts found", at),
        _condition(
            "Established", "InitialNamesAccepted", "the initial names have been accepted", at
        ),
    ]
    versions = [version["name"] for version in definition["spec"].get("versions") or ()]
    definition["spec"]["names"] = names
    definition["status"] = {
        "acceptedNames": names,
        "conditions": conditions,
        "storedVersions": versions[:1],
    }
    return definition


def _condition(sort: str, reason: str, message: str, at: str) -> Json:
    return {
        "type": sort,
        "status": "True",
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }
